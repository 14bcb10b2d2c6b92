"""The log that `format("lakebed")` uses when its options name none: the one set last.

Spark's JVM starts the Python processes; it may outlive a session and keeps the environment that it
was started with. So the environment holds the path of a file, and the file holds the log. Only
processes on the driver's machine read it: tasks get their log from the driver.
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


def address_of(log: Log | str | os.PathLike[str]) -> str:
    """Return an address of a log that stays valid while the application runs.

    That is the URL of a served log, and the path of a folder, since its sidecar may change.
    """
    url = url_of(log)
    if isinstance(log, str | os.PathLike) and "://" not in os.fspath(log):
        return str(Path(log).resolve())
    return url


def prepare() -> None:
    """Set the file's path in the environment, for the JVM that is about to be started."""
    if _own:
        return
    # In a folder that no other user can write to: the file decides which log is used.
    file = Path(tempfile.mkdtemp(prefix="lakebed-spark-")) / "log"
    _own.append(file)
    os.environ[FILE_VARIABLE] = str(file)  # also if a parent process has set it
    atexit.register(_remove, file, os.getpid())


def set_application_log(address: str) -> None:
    """Make `format("lakebed")` use this log from now on; an empty address means none."""
    for file in _own:
        new = file.with_suffix(".new")
        new.write_text(address, encoding="utf8")
        new.replace(file)  # atomically: another process may be reading it


def application_log() -> str | None:
    """Return the log that the application has set, or the environment; None if neither has."""
    file = os.environ.get(FILE_VARIABLE)
    if file is not None:
        with contextlib.suppress(FileNotFoundError):
            address = Path(file).read_text(encoding="utf8")
            if address:
                return address
    return os.environ.get(LOG_VARIABLE) or None


def _remove(file: Path, owner: int) -> None:
    """Remove the file at the end of the process that made it, not of one forked from it."""
    if os.getpid() == owner:
        shutil.rmtree(file.parent, ignore_errors=True)
