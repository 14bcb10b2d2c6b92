"""Images of small logs, to be damaged: every byte, every picture on the way, and what proves what.

An image is a log that was closed cleanly, so that an idle mark stands at its end, or one that was
killed. It knows its history: which picture the log had when it had reached which position. What a
damaged image may be found as follows from that and from the bytes alone, without any of the code
that recovers logs.
"""

from __future__ import annotations

import random
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from lakebed.host import SimDisk
from lakebed.wal import EntryKind, HardState, Mark, Wal, WalConfig
from lakebed.wal.folder import read_identity
from lakebed.wal.frame import HEADER_BYTES, FrameHeader, FrameKind, decode_header, salt_of
from tests.proof.simulated import LAYOUT, Picture, open_on
from tests.wal.support import fill_spares

Contents = dict[Path, bytes]
Place = tuple[int, int]
"""A file's number and a position in it."""


@dataclass
class Image:
    """A closed log: its files, its history, and how its folder looked earlier."""

    config: WalConfig
    contents: Contents = field(default_factory=dict)
    places: list[Place] = field(default_factory=list)
    pictures: list[Picture] = field(default_factory=list)
    earlier: list[Contents] = field(default_factory=list)
    salt: int = 0
    closed: bool = True

    @property
    def picture(self) -> Picture:
        """Return what the undamaged log holds."""
        return self.pictures[-1]

    @property
    def files(self) -> list[Path]:
        """List the WAL files in order."""
        return sorted(path for path in self.contents if path.suffix == ".wal")

    def with_file(self, path: Path, data: bytes) -> Contents:
        """Return the contents with one file replaced."""
        return {**self.contents, path: data}

    def frames(self, path: Path) -> list[tuple[int, FrameHeader]]:
        """List the frames of an undamaged file, walking from one to the next."""
        found, position, data = [], HEADER_BYTES, self.contents[path]
        while (header := decode_header(data[position : position + 64], self.salt)) is not None:
            if header.file_number != int(path.stem):
                break
            found.append((position, header))
            position += header.span
        return found

    def covered(self, path: Path) -> list[range]:
        """List the bytes of a WAL file that checksums cover, except the last frame's.

        If the log was closed, that is the idle mark. If not, it may as well have been torn.
        """
        ranges = [range(HEADER_BYTES)]
        for position, header in self.frames(path):
            ranges.append(range(position, position + HEADER_BYTES + header.length))
        if path == self.files[-1]:
            is_idle = self.frames(path)[-1][1].kind == FrameKind.IDLE
            assert is_idle == self.closed
            ranges.pop()
        return ranges

    def allowed(self, damaged: Contents, path: Path) -> list[Picture]:
        """List what a log with damage to one file may be found as, if it opens at all.

        Everything that a valid frame left in the last file says was synced must be there.
        """
        if path != self.files[-1]:
            return [self.picture]
        number = int(path.stem)
        proven = max(
            (each.durable_through for each in self._valid(damaged[path], number)), default=0
        )
        at = bisect_right(self.places, (number, proven))
        return self.pictures[max(0, at - 1) :]

    def _valid(self, data: bytes, number: int) -> Iterator[FrameHeader]:
        for position in range(0, len(data), 64):
            header = decode_header(data[position : position + 64], self.salt)
            if header is not None and header.file_number == number:
                yield header


class Maker:
    """Makes an image: calls a log and notes what it then holds, and how far it has got."""

    def __init__(self, config: WalConfig, rng: random.Random) -> None:
        self.image = Image(config)
        self._rng = rng
        self._disk = SimDisk()
        self._log = open_on(self._disk, config)
        self._note(Picture())

    @property
    def log(self) -> Wal:
        """Return the log that is being made."""
        return self._log

    def append(self, size: int, kind: EntryKind = EntryKind.NORMAL) -> None:
        """Append random bytes."""
        payload = self._rng.randbytes(size)
        term = self._now.hard_state.term
        self._log.append(payload, kind=kind)
        self._note(self._now.appended(term, kind, payload))

    def set_term(self, term: int) -> None:
        """Set a hard state."""
        state = HardState(term, term * 7)
        self._log.set_hard_state(state)
        self._note(self._now._replace(hard_state=state))

    def truncate(self, last: int) -> None:
        """Truncate."""
        self._log.truncate(last)
        self._note(self._now.truncated(last))

    def release(self, index: int) -> None:
        """Release, reclaim and keep how the folder looked before."""
        self.remember()
        self._log.release(index, b"up to %d" % index)
        mark = Mark(index, self._now.term_at(index), b"up to %d" % index)
        self._note(self._now.released(mark, reset=False))

    def fill_spares(self) -> None:
        """Make the spare files that a thread would make."""
        fill_spares(self._log)

    def remember(self) -> None:
        """Keep how the folder looks now."""
        self.image.earlier.append(self._disk.contents())

    def close(self) -> Image:
        """Close the log, which writes the idle mark."""
        self._log.close()
        return self.kill()

    def kill(self) -> Image:
        """Return the image as it is, without closing the log."""
        image = self.image
        image.closed = self._log._closed
        image.contents = self._disk.contents()
        log_id = read_identity(self._disk, LAYOUT)
        assert log_id is not None
        image.salt = salt_of(log_id)
        return image

    @property
    def _now(self) -> Picture:
        return self.image.picture

    def _note(self, picture: Picture) -> None:
        tail = self._log.commits.tail
        self.image.places.append((tail.number, tail.position))
        self.image.pictures.append(picture)


def plain(rng: random.Random) -> Image:
    """Make a log of three files with every kind of frame in it."""
    make = Maker(WalConfig(file_bytes=4096, spare_files=0), rng)
    for _ in range(3):
        make.append(rng.randint(200, 900))
    make.set_term(3)
    make.append(rng.randint(0, 900), EntryKind.CONFIGURATION)
    make.append(2000)
    make.truncate(make.log.last_index - 2)
    make.append(1500)
    make.release(1)
    for _ in range(3):
        make.append(rng.randint(500, 1200))
    make.set_term(4)
    make.append(100)
    return make.close()


def recycled(rng: random.Random) -> Image:
    """Make a log whose files hold old frames behind their end, with a spare beside them."""
    make = Maker(WalConfig(file_bytes=4096, spare_files=2), rng)
    for turn in range(4):
        for _ in range(5):
            make.append(rng.randint(300, 1100))
            make.remember()
        make.release(make.log.last_index - 4)
        make.set_term(turn + 1)
    make.append(3500)
    make.append(rng.randint(200, 700))
    make.fill_spares()
    return make.close()


def wide(rng: random.Random) -> Image:
    """Make a log of few large entries, each longer than a scan's buffer."""
    make = Maker(WalConfig(file_bytes=4096, spare_files=1), rng)
    make.append(rng.randint(2500, 3500))
    make.append(rng.randint(4500, 6000))
    make.append(rng.randint(1000, 2500))
    make.fill_spares()
    return make.close()


def full(rng: random.Random) -> Image:
    """Make a log whose last file is used up to its last byte."""
    make = Maker(WalConfig(file_bytes=4096, spare_files=0), rng)
    make.append(rng.randint(1000, 2000))
    tail = make.log.commits.tail
    make.append(tail.size - tail.position - 3 * HEADER_BYTES)
    return make.close()


def killed(rng: random.Random) -> Image:
    """Make a log that was not closed: nothing proves that its last entry was synced."""
    make = Maker(WalConfig(file_bytes=4096, spare_files=0), rng)
    for size in (2500, 1500, 300, 40, 200):
        make.append(rng.randint(size // 2, size))
    return make.kill()


KINDS = {"plain": plain, "recycled": recycled, "wide": wide, "full": full, "killed": killed}
