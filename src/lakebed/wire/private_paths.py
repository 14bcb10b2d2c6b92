"""Paths of the server's files, left out of what callers are told.

An error names the file that it is about. Whoever looks after the server reads that in its log
lines; a caller gets the part below the folder that is served.
"""

from __future__ import annotations

import os
import re
import threading
from pathlib import Path
from typing import Final

_guard: Final = threading.Lock()
_folders: set[str] = set()
_pattern: re.Pattern[str] | None = None


def hide_folders(*folders: str | os.PathLike[str]) -> None:
    """Leave the paths of these folders out of errors that are sent, from now on."""
    global _pattern
    with _guard:
        for folder in folders:
            path = Path(folder)
            _folders.update({str(path.absolute()), str(path.resolve())} - {path.root})
        # The longest first: one folder may be in another.
        names = sorted(_folders, key=len, reverse=True)
        _pattern = re.compile("|".join(rf"{re.escape(name)}(?:/|(?![\w.-]))" for name in names))


def without_paths(text: str) -> str:
    """Return a text with paths below the folders that are served cut to the names there."""
    return text if _pattern is None else _pattern.sub("", text)
