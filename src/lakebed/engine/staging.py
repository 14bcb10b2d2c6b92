"""Staged files: data of open transactions, copied out of the WAL so that it does not pin it.

    DIR/staging/{id:020d}.staged    bodies, each padded with zeros to 64 bytes
    DIR/staging/*.tmp               one being written; removed when the log is opened

The state says which body lies where, with its checksum. A file is written under a temporary name,
synced, renamed, and its folder synced, before an entry of the log speaks of it. It is removed when
neither the state, nor a snapshot that recovery may begin with, nor a memtable refers to it.
"""

from __future__ import annotations

import contextlib
import re
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Final

from crc32c import crc32c

from lakebed.errors import CorruptionError, MissingFileError, translate_os_errors
from lakebed.host import Disk, Mapping, Mode, failpoints, write_all
from lakebed.host.atomic import AtomicSteps, write_atomically
from lakebed.lake.pins import Pin, Pins

_STEPS: Final = AtomicSteps(
    written=failpoints.define("engine.staged.written"),
    renamed=failpoints.define("engine.staged.renamed"),
    folder_synced=failpoints.define("engine.staged.folder_synced"),
)
_NAME: Final = re.compile(r"(\d{20})\.staged", re.ASCII)


class Staging:
    """The staged files of a log. One thread writes and removes; any thread loads."""

    def __init__(self, disk: Disk, root: Path) -> None:
        self._disk = disk
        self.folder = root / "staging"
        self._guard = threading.Lock()
        self._maps: dict[int, Mapping] = {}
        self._pins = Pins()
        self.load_remote: Callable[[int, int, int, int], memoryview] | None = None
        """Loads a body from the store, for a log that may have been staged on another machine."""
        self._remote: dict[tuple[int, int], memoryview] = {}

    def path(self, file_id: int) -> Path:
        """Return the path of a file."""
        return self.folder / f"{file_id:020d}.staged"

    def write(self, file_id: int, bodies: Sequence[memoryview]) -> list[tuple[int, int]]:
        """Make bodies durable under a number; give position and checksum of each."""
        path = self.path(file_id)
        places: list[tuple[int, int]] = []
        with translate_os_errors("making the folder of staged files", self.folder):
            self._disk.make_folder(self.folder)
        # Durable when the block ends: the name must survive before an entry uses it.
        with write_atomically(self._disk, path, "a staged file", _STEPS) as file:
            position = 0
            for body in bodies:
                write_all(file, [body], position, len(body))
                places.append((position, crc32c(body)))
                position = (position + len(body) + 63) & -64
        return places

    def load(self, file_id: int, position: int, length: int, checksum: int) -> memoryview:
        """Return a body, verified; a view of the mapped file, or a copy of what the store has."""
        try:
            mapping = self._mapping(file_id)
        except MissingFileError:
            if self.load_remote is None:
                raise
            return self._fetch(file_id, position, length, checksum)
        if self.load_remote is not None and not _holds(mapping, position, length, checksum):
            # A file of this folder whose number another owner used again.
            return self._fetch(file_id, position, length, checksum)
        if position + length > len(mapping):
            raise CorruptionError(
                "a staged file is cut short", file=self.path(file_id), bytes=len(mapping)
            )
        view = mapping.view(position, position + length)
        if crc32c(view) != checksum:
            raise CorruptionError(
                "a staged file is damaged", file=self.path(file_id), byte=position
            )
        return view

    def _fetch(self, file_id: int, position: int, length: int, checksum: int) -> memoryview:
        body = self._remote.get((file_id, position))
        if body is None:
            if self.load_remote is None:
                raise MissingFileError("a staged file is missing", file=self.path(file_id))
            body = self.load_remote(file_id, position, length, checksum)
            if crc32c(body) != checksum:
                raise CorruptionError("a staged object is damaged", file=file_id, byte=position)
            self._remote[(file_id, position)] = body
        return body

    def _mapping(self, file_id: int) -> Mapping:
        with self._guard:
            mapping = self._maps.get(file_id)
            if mapping is None:
                path = self.path(file_id)
                with translate_os_errors("reading a staged file", path):
                    try:
                        file = self._disk.open(path, Mode.READ)
                    except FileNotFoundError as error:
                        raise MissingFileError("a staged file is missing", file=path) from error
                    try:
                        mapping = self._maps[file_id] = file.map()
                    finally:
                        file.close()
            return mapping

    def keep_only(self, needed: set[int]) -> list[str]:
        """Remove every staged file but those needed or held; return the names that are not ours."""
        unknown = []
        with translate_os_errors("removing staged files", self.folder):
            for name in self._disk.names(self.folder):
                match = _NAME.fullmatch(name)
                if match is None and not name.endswith(".tmp"):
                    unknown.append(name)
                elif match is None or not self._is_wanted(int(match[1]), needed):
                    self.discard(self.folder / name)
        self._remote = {key: body for key, body in self._remote.items() if key[0] in needed}
        with self._guard:
            self._maps = {
                file_id: mapping for file_id, mapping in self._maps.items() if file_id in needed
            }
        return unknown

    def _is_wanted(self, file_id: int, needed: set[int]) -> bool:
        with self._pins.guard:
            return file_id in needed or self._pins.is_pinned(file_id)

    def pin(self) -> AbstractContextManager[Pin]:
        """Remove no file within the block; `Pin.narrow` names the ones that matter."""
        return self._pins.pin()

    def discard(self, path: Path) -> None:
        """Remove a file that may not be there."""
        with contextlib.suppress(FileNotFoundError):
            self._disk.remove(path)


def _holds(mapping: Mapping, position: int, length: int, checksum: int) -> bool:
    """Return True if a mapped file has a body with this checksum there."""
    end = position + length
    return end <= len(mapping) and crc32c(mapping.view(position, end)) == checksum
