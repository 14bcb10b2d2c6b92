"""A socket that only processes of this user reach, for a log that serves this program's own.

A loopback port is open to every user of the machine. A Unix socket in a folder of mode 0700 is not:
the kernel refuses other users.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Final

_PATH_BYTES_MAX: Final = 107
"""The longest path that a Unix socket can have on Linux."""
_SHORT: Final = "/tmp"  # noqa: S108  # the folder made there has a random name and mode 0700


class OwnSocket:
    """The path of a Unix socket in a new folder that only this user can enter."""

    def __init__(self) -> None:
        self.path = _new_folder(None) / "s"
        if len(bytes(self.path)) > _PATH_BYTES_MAX:
            self.remove()
            self.path = _new_folder(_SHORT) / "s"

    @property
    def location(self) -> str:
        """Where Flight listens."""
        return f"grpc+unix://{self.path}"

    @property
    def url(self) -> str:
        """What clients open."""
        return f"lakebed+unix://{self.path}"

    def remove(self) -> None:
        """Remove the folder."""
        shutil.rmtree(self.path.parent, ignore_errors=True)


def _new_folder(parent: str | None) -> Path:
    return Path(tempfile.mkdtemp(prefix="lakebed-socket-", dir=parent))
