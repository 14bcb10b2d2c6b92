"""Snapshot files: each exists whole or not at all, and every byte is checked when it is read.

    DIR/snapshots/{index:020d}.snapshot      the snapshot's data, nothing else
    DIR/snapshots/{index:020d}.snapshot.tmp  one being written

The data is encoded by `image.py`, with its length and checksum inside. Order of a write, and why:

1. write the data to a temporary name, and sync it: a snapshot's name means whole contents
2. rename it, sync the folder: the name survives before the WAL refers to it
3. the WAL's release mark, durable: from here on this snapshot is the valid one
4. only then remove the one before it, and free the WAL's files

A power cut before 3 leaves the old snapshot valid and the new file as a leftover; one after 3 the
other way round. Leftovers are removed when the log is opened, and after each snapshot.
"""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import Final

from crc32c import crc32c

from lakebed import limits
from lakebed.errors import CorruptionError, translate_os_errors
from lakebed.host import Disk, File, Mode, failpoints, read_exactly, write_all
from lakebed.host.atomic import AtomicSteps, write_atomically

_log = logging.getLogger("lakebed.state")

_STEPS: Final = AtomicSteps(
    written=failpoints.define("raft.snapshot.written"),
    synced=failpoints.define("raft.snapshot.synced"),
    renamed=failpoints.define("raft.snapshot.renamed"),
    folder_synced=failpoints.define("raft.snapshot.folder_synced"),
)
_BEFORE_REMOVE = failpoints.define("raft.snapshot.before_remove")
_REMOVED = failpoints.define("raft.snapshot.removed")

_WHOLE: Final = re.compile(r"\d{20}\.snapshot", re.ASCII)
_OURS: Final = re.compile(r"\d{20}\.snapshot(\.tmp)?")


class SnapshotFolder:
    """The snapshot files of one log. One thread at a time writes; any thread reads."""

    def __init__(self, disk: Disk, root: Path) -> None:
        self._disk = disk
        self._folder = root / "snapshots"

    def path(self, index: int) -> Path:
        """Return the path of the snapshot at an index."""
        return self._folder / f"{index:020d}.snapshot"

    def write(self, index: int, data: bytes) -> int:
        """Make a snapshot's file durable under its name; return its checksum.

        What a failure leaves behind is for `remove_all_but`.
        """
        with translate_os_errors("making the snapshot folder", self._folder):
            self._disk.make_folder(self._folder)
        # Durable when the block ends: the WAL may say that this snapshot is the valid one.
        with write_atomically(self._disk, self.path(index), "a snapshot", _STEPS) as file:
            return _write_pieces(file, data)

    def indexes(self) -> list[int]:
        """List the snapshots there are, oldest first."""
        with translate_os_errors("listing snapshots", self._folder):
            names = self._disk.names(self._folder)
        return sorted(int(name[:20]) for name in names if _WHOLE.fullmatch(name))

    def load(self, index: int) -> bytes:
        """Return the bytes of a snapshot that states its length and checksum."""
        path = self.path(index)
        with translate_os_errors("reading a snapshot", path):
            file = self._disk.open(path, Mode.READ)
            try:
                size = file.size()
                if size > limits.SNAPSHOT_BYTES_MAX:
                    raise CorruptionError("the snapshot is too large", file=path, bytes=size)
                return read_exactly(file, 0, size)
            finally:
                file.close()

    def remove_all_but(self, *indexes: int) -> None:
        """Remove every snapshot but these; what cannot be removed is tried again next time."""
        valid = {self.path(index).name for index in indexes}
        try:
            _BEFORE_REMOVE.hit()
            for name in self._disk.names(self._folder):
                if name not in valid and _OURS.fullmatch(name):
                    self._disk.remove(self._folder / name)
                    _REMOVED.hit()
        except OSError as error:
            _log.warning(
                "old snapshots could not be removed yet: folder=%s error=%s", self._folder, error
            )


def _write_pieces(file: File, data: bytes) -> int:
    """Write in pieces, so that no disk holds more than one of them twice."""
    view, checksum = memoryview(data), 0
    for position in range(0, len(view), limits.READ_CHUNK_BYTES):
        piece = view[position : position + limits.READ_CHUNK_BYTES]
        checksum = crc32c(piece, checksum)
        write_all(file, [piece], position, len(piece))
    return checksum
