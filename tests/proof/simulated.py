"""Logs on a simulated disk: opened in the calling thread, pictured, saved when a proof fails.

A *picture* is all that a log promises to keep: the last release, the hard state, the end and every
entry above the release with its bytes. A proof compares pictures, never internals.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple
from unittest import mock

from crc32c import crc32c

from lakebed import limits
from lakebed.host import ManualClock, SimDisk
from lakebed.wal import EntryKind, HardState, Mark, Wal, WalConfig
from lakebed.wal.folder import Layout
from lakebed.wal.scan import FileScan
from tests.proof.scale import rng

FOLDER = Path("/log")
LAYOUT = Layout(FOLDER)


class Item(NamedTuple):
    """An entry as a value."""

    index: int  # type: ignore[assignment]  # as in Entry
    term: int
    kind: EntryKind
    payload: bytes


class Picture(NamedTuple):
    """What a log holds, as a value."""

    mark: Mark = Mark()
    hard_state: HardState = HardState()
    last_index: int = 0
    last_term: int = 0
    items: tuple[Item, ...] = ()

    def appended(self, term: int, kind: EntryKind, payload: bytes) -> Picture:
        """Return the picture with one entry more."""
        item = Item(self.last_index + 1, term, kind, payload)
        return self._replace(last_index=item.index, last_term=term, items=(*self.items, item))

    def truncated(self, last: int) -> Picture:
        """Return the picture without the entries above `last`."""
        term = self.term_at(last)
        items = tuple(item for item in self.items if item.index <= last)
        return self._replace(last_index=last, last_term=term, items=items)

    def released(self, mark: Mark, *, reset: bool) -> Picture:
        """Return the picture after a release."""
        if reset:
            return Picture(mark, self.hard_state, mark.index, mark.term)
        items = tuple(item for item in self.items if item.index > mark.index)
        term = mark.term if mark.index == self.last_index else self.last_term
        return self._replace(mark=mark, last_term=term, items=items)

    def outline(self) -> str:
        """Describe it in a line: each entry by index, term, size and a checksum."""
        items = " ".join(
            f"{item.index}:{item.term}:{len(item.payload)}:{crc32c(item.payload):08x}"
            for item in self.items
        )
        mark = f"mark {self.mark.index}:{self.mark.term}:{len(self.mark.note)}"
        return f"{mark} {self.hard_state} end {self.last_index}:{self.last_term} [{items}]"

    def term_at(self, index: int) -> int:
        """Return the term of the entry at `index`, which may be the last one released."""
        if index == self.last_index:
            return self.last_term
        if index == self.mark.index:
            return self.mark.term
        return self.items[index - self.mark.index - 1].term


def picture_of(log: Wal) -> Picture:
    """Read everything a log holds; the indexes must be dense."""
    items = tuple(
        Item(each.index, each.term, each.kind, bytes(each.payload)) for each in log.entries()
    )
    indexes = [item.index for item in items]
    assert indexes == list(range(log.first_index, log.last_index + 1)), "the indexes are not dense"
    return Picture(log.mark, log.hard_state, log.last_index, log.last_term, items)


def open_on(disk: SimDisk, config: WalConfig) -> Wal:
    """Open the log on a simulated disk, everything in the calling thread."""
    return Wal.open(FOLDER, config, disk=disk, clock=ManualClock(), threaded=False)


def disk_with(contents: dict[Path, bytes]) -> SimDisk:
    """Return a disk with these durable files."""
    disk = SimDisk()
    for path, data in contents.items():
        disk.put(path, data)
    return disk


def save(disk: SimDisk, folder: Path) -> None:
    """Write a simulated disk's files to a real folder, to be looked at."""
    for path, data in disk.contents().items():
        target = folder / path.relative_to("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)


@contextmanager
def simulation(*what: object, scan_bytes: int = 16 * limits.KIB) -> Iterator[None]:
    """Make runs repeatable, quiet and quick; a context or a decorator.

    Logs get their identity from the seed; a repaired log does not warn (a proof makes millions);
    scans use a small buffer, so that small files have entries that go across its end.
    """
    identities = rng("identity", *what)
    logger = logging.getLogger("lakebed.wal")
    defaults = FileScan.__init__.__kwdefaults__
    with (
        mock.patch.object(
            uuid, "uuid4", lambda: uuid.UUID(bytes=identities.randbytes(16), version=4)
        ),
        mock.patch.object(limits, "READ_CHUNK_BYTES", scan_bytes),
        mock.patch.dict(defaults, chunk_bytes=scan_bytes),
        mock.patch.object(logger, "disabled", True),
    ):
        yield
