"""Which log `format("lakebed")` means when its options name none: what the application said last.

Spark's processes are started by its Java, which may live longer than a session and keeps the
environment that it was started with. So that holds no log, but the path of a file that does. Only
processes on the driver's machine look it up: tasks are told their log.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

from lakebed.spark.serving import LOG_VARIABLE, url_of

if TYPE_CHECKING:
    from lakebed.api.log import Log

FILE_VARIABLE: Final = "LAKEBED_SPARK_LOG_FILE"
"""Names the file that holds the application's log. It is set by `lakebed.spark.session` alone."""
_own: Final[list[Path]] = []
"""The file of this process, once it has started Spark."""


def place_of(log: Log | str | os.PathLike[str]) -> str:
    """Return what a log is called as long as the application lives, after it was reached once.

    That is the URL of one that is served; of a folder its path, since its keeper may change.
    """
    url = url_of(log)
    if isinstance(log, str | os.PathLike) and "://" not in os.fspath(log):
        return str(Path(log).resolve())
    return url


def prepare() -> None:
    """Let the Java that is about to be started hand the file's path on to what it starts."""
    if _own:
        return
    # A folder that nobody else can write to: who writes the file says which log is used.
    file = Path(tempfile.mkdtemp(prefix="lakebed-spark-")) / "log"
    _own.append(file)
    os.environ[FILE_VARIABLE] = str(file)  # also over that of one that started this application
    atexit.register(_remove, file, os.getpid())


def name(place: str) -> None:
    """Let `format("lakebed")` mean this log from now on, or none if it is empty."""
    for file in _own:
        new = file.with_suffix(".new")
        new.write_text(place, encoding="utf8")
        new.replace(file)  # at once: somebody may be reading it


def named() -> str | None:
    """Return the log that the application has named, or the environment; None if there is none."""
    file = os.environ.get(FILE_VARIABLE)
    if file is not None:
        with contextlib.suppress(FileNotFoundError):
            place = Path(file).read_text(encoding="utf8")
            if place:
                return place
    return os.environ.get(LOG_VARIABLE) or None


def _remove(file: Path, owner: int) -> None:
    """Remove the file at the end of the process that made it, not of one forked from it."""
    if os.getpid() == owner:
        shutil.rmtree(file.parent, ignore_errors=True)
