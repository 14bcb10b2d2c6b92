"""A server's address that was meant, where a folder is named."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final

from lakebed.errors import NotALogError

_ADDRESS: Final = re.compile(
    r"(?:(lakebed(?:\+tls)?):/*)?((?:[A-Za-z0-9.-]+|\[[0-9A-Fa-f:]+\]):[0-9]{1,5})"
)
"""A host and a port, and before them what is left of a URL in which a slash is missing."""


def meant_url(target: str | os.PathLike[str]) -> str:
    """Return the URL that a path looks like which was perhaps meant to be one; else nothing."""
    match = _ADDRESS.fullmatch(os.fspath(target))
    return "" if match is None else f"{match[1] or 'lakebed'}://{match[2]}"


def check_no_address(target: str | os.PathLike[str]) -> None:
    """Refuse to make a folder whose name looks like the address of a server."""
    url = meant_url(target)
    if url and not Path(target).exists():
        raise NotALogError(
            f"there is no log in this folder: did you mean {url}?", path=os.fspath(target)
        )
