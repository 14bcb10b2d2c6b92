"""A file that lines are appended to, and that another program may move away (log rotation)."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path


class AppendFile:
    """Appends to a path; opens it again when the file there is another one. Not for two threads."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd = -1

    def append(self, data: bytes) -> None:
        """Write bytes at the end, or raise `OSError`; a part of them may be written then."""
        self._open()
        view = memoryview(data)
        while view:
            view = view[os.write(self._fd, view) :]

    def close(self) -> None:
        """Close the file; the next append opens it again."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            with contextlib.suppress(OSError):
                os.close(fd)

    def _open(self) -> None:
        if self._fd >= 0 and self._is_same():
            return
        self.close()
        # A link in its place is not followed: it could lead the owner's writes anywhere.
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        self._fd = os.open(self._path, flags, 0o600)

    def _is_same(self) -> bool:
        try:
            there = self._path.stat(follow_symlinks=False)
        except FileNotFoundError:
            return False
        return os.path.samestat(there, os.fstat(self._fd))
