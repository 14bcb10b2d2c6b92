"""What opening a log may change on disk: cut a torn tail, rebuild the identity file.

A torn tail is kept aside first, then overwritten with zeros in place. The file keeps its length, so
a file that is shorter than it was made is always damage.
"""

from __future__ import annotations

import logging
from pathlib import Path

from lakebed import limits
from lakebed.host import Disk, File, failpoints, fill, write_all
from lakebed.host.atomic import write_atomically
from lakebed.wal.folder import Layout
from lakebed.wal.scan import end_of_content

_log = logging.getLogger("lakebed.wal")

_KEPT = failpoints.define("wal.repair.kept")
_CUT = failpoints.define("wal.repair.cut")
_SYNCED = failpoints.define("wal.repair.synced")


def cut_torn_tail(
    disk: Disk, layout: Layout, file: File, file_number: int, position: int
) -> Path | None:
    """Keep the bytes from `position` on aside, replace them with zeros and sync.

    Return the path of the copy.
    """
    end = end_of_content(file, position)
    kept = _keep(disk, layout, file, file_number, position, end) if end > position else None
    _KEPT.hit()
    zeros = bytes(limits.READ_CHUNK_BYTES)
    for offset in range(position, end, len(zeros)):
        piece = memoryview(zeros)[: end - offset]
        write_all(file, [piece], offset, len(piece))
    _CUT.hit()
    # From here on no frame of the torn write can be taken for one that follows a new one.
    file.sync_data()
    _SYNCED.hit()
    _log.warning(
        "torn tail cut: file=%s byte=%d bytes=%d kept=%s", file.path, position, end - position, kept
    )
    return kept


def _keep(disk: Disk, layout: Layout, file: File, file_number: int, start: int, end: int) -> Path:
    """Copy bytes to the torn folder, durable before anything is cut."""
    disk.make_folder(layout.torn)
    _make_room(disk, layout)
    path = _free_name(disk, layout, file_number, start)
    with write_atomically(disk, path) as copy:
        view = memoryview(bytearray(limits.READ_CHUNK_BYTES))
        for position in range(start, end, len(view)):
            have = fill(file, view[: end - position], position)
            write_all(copy, [view[:have]], position - start, have)
    return path


def _free_name(disk: Disk, layout: Layout, file_number: int, start: int) -> Path:
    taken = set(disk.names(layout.torn))
    for attempt in range(len(taken) + 1):
        name = f"{file_number:020d}-{start:012d}-{attempt}.torn"
        if name not in taken:
            break
    return layout.torn / name


def _make_room(disk: Disk, layout: Layout) -> None:
    """Remove the oldest kept tails beyond the limit, saying so, and copies that were cut short."""
    for name in disk.names(layout.torn):
        if name.endswith(".tmp"):
            disk.remove(layout.torn / name)
    kept = [name for name in disk.names(layout.torn) if name.endswith(".torn")]
    for name in kept[: max(0, len(kept) - limits.TORN_FILES_KEPT + 1)]:
        _log.warning("an old torn tail is removed: file=%s", layout.torn / name)
        disk.remove(layout.torn / name)
