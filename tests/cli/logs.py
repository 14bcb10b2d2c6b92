"""Logs to look at and to damage: built the ordinary way, with what they held written down."""

from __future__ import annotations

import hashlib
import random
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from lakebed.errors import EntryLostError
from lakebed.host import Disk, Mode, OsDisk
from lakebed.host.os_disk import OsFile
from lakebed.types import EntryKind
from lakebed.wal import HardState, Wal, WalConfig
from lakebed.wal.examine import Frame
from lakebed.wal.folder import Layout, read_identity
from lakebed.wal.frame import FrameKind
from lakebed.wal.listing import walk_log
from lakebed.wal.salvage import SalvageReport, salvage
from lakebed.wal.scan import Fields

SMALL = WalConfig(file_bytes=8192, spare_files=0)


@dataclass(frozen=True)
class Held:
    """An entry as it was written."""

    term: int
    kind: EntryKind
    payload: bytes


@dataclass
class Built:
    """A log that is closed, and what it holds."""

    folder: Path
    log_id: uuid.UUID = field(default_factory=uuid.uuid4)
    entries: dict[int, Held] = field(default_factory=dict)
    written: dict[int, list[Held]] = field(default_factory=dict)
    """Every entry that ever had an index, voided ones too."""

    @property
    def last(self) -> int:
        return max(self.entries)

    def copy_to(self, folder: Path) -> Built:
        for path in self.folder.rglob("*"):
            if path.is_file():
                to = folder / path.relative_to(self.folder)
                to.parent.mkdir(parents=True, exist_ok=True)
                to.write_bytes(path.read_bytes())
        return Built(folder, self.log_id, self.entries, self.written)

    def file(self, number: int) -> Path:
        return Layout(self.folder).file(number)

    def files(self) -> list[Path]:
        return sorted((self.folder / "wal").glob("*.wal"))

    def frames(self, kind: FrameKind | None = None) -> list[tuple[int, Fields]]:
        return [
            (piece.position, piece.fields)
            for _, piece in walk_log(OsDisk(), Layout(self.folder), None)
            if isinstance(piece, Frame) and kind in (None, piece.fields[4])
        ]

    def place(self, index: int) -> tuple[Path, int]:
        """Return the file and position of the entry that stands last at an index."""
        found = [each for each in self.frames(FrameKind.ENTRY) if each[1][8] == index]
        position, fields = found[-1]
        return self.file(fields[7]), position

    def indexes_in(self, number: int) -> list[int]:
        return [each[8] for _, each in self.frames(FrameKind.ENTRY) if each[7] == number]


class Builder:
    """Writes a log and writes down what it holds."""

    def __init__(self, folder: Path, seed: int = 1, config: WalConfig = SMALL) -> None:
        self.built = Built(folder)
        self.rng = random.Random(seed)
        self.wal = Wal.open(folder, config)
        self.built.log_id = self.wal.log_id

    def append(
        self, count: int, *, term: int = 1, sizes: tuple[int, int] = (0, 900), groups: int = 4
    ) -> Builder:
        """Append entries, several in each group commit."""
        for start in range(0, count, groups):
            payloads = [
                self.rng.randbytes(self.rng.randint(*sizes))
                for _ in range(min(groups, count - start))
            ]
            for index, each in zip(
                self.wal.append_many(payloads, term=term), payloads, strict=True
            ):
                self._hold(index, Held(term, EntryKind.NORMAL, each))
        return self

    def configuration(self, payload: bytes, *, term: int = 1) -> Builder:
        index = self.wal.append(payload, term=term, kind=EntryKind.CONFIGURATION)
        self._hold(index, Held(term, EntryKind.CONFIGURATION, payload))
        return self

    def state(self, term: int, vote: int | None) -> Builder:
        self.wal.set_hard_state(HardState(term, vote))
        return self

    def truncate(self, last: int) -> Builder:
        self.wal.truncate(last)
        self.built.entries = {i: each for i, each in self.built.entries.items() if i <= last}
        return self

    def release(self, index: int, note: bytes = b"") -> Builder:
        self.wal.release(index, note)
        self.built.entries = {i: each for i, each in self.built.entries.items() if i > index}
        return self

    def reset(self, index: int, note: bytes = b"", *, term: int) -> Builder:
        self.wal.release(index, note, term=term, reset=True)
        self.built.entries = {}
        return self

    def close(self) -> Built:
        self.wal.close()
        return self.built

    def _hold(self, index: int, held: Held) -> None:
        self.built.entries[index] = held
        self.built.written.setdefault(index, []).append(held)


def plain(folder: Path, seed: int = 1) -> Built:
    """Build a log of sixty entries in several files."""
    return Builder(folder, seed).state(1, 7).append(60).close()


def flip(path: Path, byte: int, bits: int = 0x40) -> None:
    """Damage one byte."""
    data = bytearray(path.read_bytes())
    data[byte] ^= bits
    path.write_bytes(data)


def overwrite(path: Path, start: int, data: bytes) -> None:
    """Damage a range of bytes, within the file."""
    with path.open("r+b") as file:
        file.seek(start)
        file.write(data[: max(0, path.stat().st_size - start)])


def cut(path: Path, length: int) -> None:
    """Make a file shorter."""
    with path.open("r+b") as file:
        file.truncate(length)


@dataclass
class Contents:
    """What a log says when it is opened and read from end to end."""

    log_id: uuid.UUID
    first: int
    last: int
    entries: dict[int, Held] = field(default_factory=dict)
    lost: list[int] = field(default_factory=list)
    state: HardState = field(default_factory=HardState)
    mark: tuple[int, int, bytes] = (0, 0, b"")


class QuickDisk(OsDisk):
    """A disk that does not sync, for tests that write many logs and cut no power."""

    def open(self, path: Path, mode: Mode) -> OsFile:
        file = super().open(path, mode)
        file.__class__ = _QuickFile
        return file

    def sync_folder(self, path: Path) -> None:
        pass


class _QuickFile(OsFile):
    def sync(self) -> None:
        pass

    def sync_data(self) -> None:
        pass


def contents(folder: Path, disk: Disk | None = None) -> Contents:
    """Open a log and read everything, going on behind each gap as the error says."""
    with Wal.open(folder, SMALL, disk=disk) as wal:
        mark = (wal.mark.index, wal.mark.term, wal.mark.note)
        read = Contents(wal.log_id, wal.first_index, wal.last_index)
        read.state, read.mark = wal.hard_state, mark
        index: int | None = wal.first_index
        while index is not None and index <= wal.last_index:
            index = _read_on(wal, index, read)
    return read


def _read_on(wal: Wal, index: int, read: Contents) -> int | None:
    try:
        for entry in wal.read(index):
            assert entry.index == index
            read.entries[index] = Held(entry.term, entry.kind, bytes(entry.payload))
            index += 1
    except EntryLostError as error:
        following = error.facts["next_index"]
        assert following is None or isinstance(following, int)
        read.lost += range(index, wal.last_index + 1 if following is None else following)
        return following
    return index


def fingerprint(folder: Path) -> dict[str, str]:
    """Return a hash of every file below a folder."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in _files(folder)
    }


def _files(folder: Path) -> Iterator[Path]:
    return (path for path in sorted(folder.rglob("*")) if path.is_file())


def salvaged(log: Built, lost: list[int], to: str = "new") -> SalvageReport:
    """Salvage; check that the copy holds all but these entries, and the original is as it was."""
    target = log.folder.parent / to
    before = fingerprint(log.folder)
    report = salvage(log.folder, target)
    assert fingerprint(log.folder) == before
    assert expand(report.lost) == lost
    assert read_identity(OsDisk(), Layout(target)) == log.log_id
    read = contents(target)
    assert read.log_id == log.log_id
    assert read.entries == {i: each for i, each in log.entries.items() if i not in lost}
    assert read.lost == lost
    assert report.saved == len(read.entries)
    return report


def expand(ranges: list[tuple[int, int]]) -> list[int]:
    return [index for first, last in ranges for index in range(first, last + 1)]
