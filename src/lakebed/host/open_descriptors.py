"""The descriptors that this process has open, listed and copied often and without a free one.

The folder stays open, so listing it needs no descriptor when all are used up. The functions of the
C library are called without releasing the interpreter lock: `os.listdir` releases it for each
entry, and under load each time costs two switches between threads.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import struct
from collections.abc import Iterator
from typing import Final

_FOLDER: Final = "/proc/self/fd"
_ENTRY: Final = struct.Struct("=QqHB")
"""Linux's `struct linux_dirent64`, up to the name: inode, offset, bytes of the entry, kind."""
_LENGTH: Final = struct.Struct("=H")
_LENGTH_AT: Final = 16
_BUFFER_BYTES: Final = 64 * 1024


class OpenDescriptors:
    """Lists and copies open descriptors; it keeps three for that. One thread at a time."""

    def __init__(self) -> None:
        self._folder = os.open(_FOLDER, os.O_RDONLY | os.O_DIRECTORY)
        self._null = os.open(os.devnull, os.O_RDONLY)
        self._spare = os.dup(self._null)
        self._buffer = ctypes.create_string_buffer(_BUFFER_BYTES)
        self._c = ctypes.PyDLL(None, use_errno=True)
        self._c.lseek.argtypes = [ctypes.c_int, ctypes.c_long, ctypes.c_int]
        self._c.lseek.restype = ctypes.c_long
        self._c.getdents64.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t]
        self._c.getdents64.restype = ctypes.c_ssize_t

    def list(self) -> list[int]:
        """Return the open descriptors, that of the listing included."""
        descriptors: list[int] = []
        self._check(self._c.lseek(self._folder, 0, os.SEEK_SET))
        while size := self._check(self._c.getdents64(self._folder, self._buffer, _BUFFER_BYTES)):
            descriptors.extend(_numbers(self._buffer.raw[:size]))
        return descriptors

    @contextlib.contextmanager
    def copy(self, fd: int) -> Iterator[int]:
        """Hold a copy of a descriptor within the block, whatever becomes of the descriptor.

        It takes the place of the spare one, which needs no free descriptor.
        """
        os.dup2(fd, self._spare, inheritable=False)
        try:
            yield self._spare
        finally:
            os.dup2(self._null, self._spare, inheritable=False)

    def close(self) -> None:
        """Close those that it keeps; a second time does nothing."""
        for fd in {self._folder, self._null, self._spare} - {-1}:
            os.close(fd)
        self._folder = self._null = self._spare = -1

    def _check(self, result: int) -> int:
        if result < 0:
            errno = ctypes.get_errno()
            raise OSError(errno, os.strerror(errno), _FOLDER)
        return result


def _numbers(entries: bytes) -> list[int]:
    """Return the names of directory entries that are numbers: all but `.` and `..`."""
    numbers = []
    start = 0
    while start < len(entries):
        end = start + _LENGTH.unpack_from(entries, start + _LENGTH_AT)[0]
        name = entries[start + _ENTRY.size : end].partition(b"\0")[0]
        if name.isdigit():
            numbers.append(int(name))
        start = end
    return numbers
