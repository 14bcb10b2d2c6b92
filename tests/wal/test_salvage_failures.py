"""What salvage does on a failing disk, and what it refuses."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from lakebed.errors import (
    DeviceError,
    DiskFullError,
    InvalidArgumentError,
    LakebedError,
    LockedError,
    NotALogError,
)
from lakebed.host import Fault, FaultyDisk, Mode, OsDisk
from lakebed.host.os_disk import OsFile
from lakebed.wal import Wal, WalConfig
from lakebed.wal.frame import FrameKind
from lakebed.wal.salvage import salvage
from tests.cli.logs import (
    SMALL,
    Builder,
    Built,
    contents,
    expand,
    fingerprint,
    plain,
    salvaged,
)

if TYPE_CHECKING:
    from typing_extensions import Buffer


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Built:
    return plain(tmp_path_factory.mktemp("original") / "log")


@pytest.fixture
def log(original: Built, tmp_path: Path) -> Built:
    return original.copy_to(tmp_path / "log")


class _BadSector(OsDisk):
    """A disk on which some bytes of one file cannot be read."""

    def __init__(self, path: Path, start: int, end: int) -> None:
        self.bad = (path, start, end)

    def open(self, path: Path, mode: Mode) -> OsFile:
        file = super().open(path, mode)
        if path == self.bad[0]:
            file.__class__ = _BadSectorFile
            file.bad = self.bad[1:]  # type: ignore[attr-defined]
        return file


class _BadSectorFile(OsFile):
    bad: tuple[int, int]

    def read_into(self, buffer: Buffer, position: int) -> int:
        start, end = self.bad
        if position < end and start < position + len(memoryview(buffer)):
            raise OSError(errno.EIO, "bad sector")
        return super().read_into(buffer, position)


def test_an_unreadable_sector_loses_only_what_is_in_it(log: Built, tmp_path: Path) -> None:
    disk = _BadSector(log.file(3), 4096, 8192)
    inside = [
        (each[8], position, position + 64 + each[2])
        for position, each in log.frames(FrameKind.ENTRY)
        if each[7] == 3
    ]
    gone = [index for index, _, end in inside if end > 4096]
    report = salvage(log.folder, tmp_path / "new", disk=disk)
    assert expand(report.lost) == gone
    assert any(each.reason == "the device cannot read it" for each in report.damages)
    read = contents(tmp_path / "new")
    assert read.entries == {i: each for i, each in log.entries.items() if i not in gone}


class _Fickle(OsDisk):
    """A disk that gives other bytes when a place is read again and again."""

    def __init__(self, path: Path, position: int) -> None:
        self.path, self.position, self.reads = path, position, 0

    def open(self, path: Path, mode: Mode) -> OsFile:
        file = super().open(path, mode)
        if path == self.path:
            file.__class__ = _FickleFile
            file.disk = self  # type: ignore[attr-defined]
        return file


class _FickleFile(OsFile):
    disk: _Fickle

    def read_into(self, buffer: Buffer, position: int) -> int:
        count = super().read_into(buffer, position)
        at = self.disk.position - position
        if 0 <= at < count:
            self.disk.reads += 1
            memoryview(buffer)[at] ^= self.disk.reads > 1
        return count


@pytest.mark.parametrize("size", [1000, 3_000_000])
def test_a_payload_that_changes_between_two_reads_is_not_copied(tmp_path: Path, size: int) -> None:
    config = WalConfig(file_bytes=1 << 22, spare_files=0)
    log = Builder(tmp_path / "log", config=config).append(1, sizes=(size, size)).close()
    path, position = log.place(1)
    with pytest.raises(DeviceError, match="changed between two reads"):
        salvage(log.folder, tmp_path / "new", disk=_Fickle(path, position + 64 + size // 2))
    with pytest.raises(NotALogError):
        Wal.open(tmp_path / "new", SMALL)


def test_a_full_disk_leaves_no_log_behind(log: Built, tmp_path: Path) -> None:
    disk = FaultyDisk(OsDisk(), Fault("write", 9, errno=errno.ENOSPC, lasting=True))
    with pytest.raises(DiskFullError):
        salvage(log.folder, tmp_path / "new", disk=disk)
    assert disk.hit
    with pytest.raises(NotALogError):
        Wal.open(tmp_path / "new", SMALL)


@pytest.mark.parametrize(
    "kind", ["open", "write", "sync", "sync_data", "sync_folder", "rename", "names", "lock"]
)
def test_a_disk_that_fails_at_any_call_is_an_error_of_ours(
    log: Built, tmp_path: Path, kind: str
) -> None:
    counting = FaultyDisk(OsDisk())
    salvage(log.folder, tmp_path / "counted", disk=counting)
    count = counting.calls[kind]
    assert count
    for nth in sorted({1, count // 2 + 1, count}):
        disk = FaultyDisk(OsDisk(), Fault(kind, nth, errno=errno.EIO))
        target = tmp_path / f"{kind}-{nth}"
        try:
            salvage(log.folder, target, disk=disk)
        except LakebedError:
            assert disk.hit == 1
        if (target / "wal").exists():
            assert contents(target).entries == log.entries


# What is refused


def test_a_target_with_something_in_it_is_refused(log: Built, tmp_path: Path) -> None:
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / "mine").write_text("mine")
    with pytest.raises(InvalidArgumentError, match="not empty"):
        salvage(log.folder, tmp_path / "new")
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["mine"]


def test_an_empty_target_is_accepted(log: Built, tmp_path: Path) -> None:
    (tmp_path / "new").mkdir()
    salvaged(log, [])


@pytest.mark.parametrize("inside", [".", "copy", "wal/copy"])
def test_a_target_inside_the_log_is_refused(log: Built, inside: str) -> None:
    before = fingerprint(log.folder)
    with pytest.raises(InvalidArgumentError):
        salvage(log.folder, log.folder / inside)
    assert fingerprint(log.folder) == before


def test_a_log_in_use_is_refused(log: Built, tmp_path: Path) -> None:
    with Wal.open(log.folder, SMALL), pytest.raises(LockedError):
        salvage(log.folder, tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_an_unfinished_copy_is_not_taken_for_a_log(log: Built, tmp_path: Path) -> None:
    def kill(doing: str, done: int, total: int) -> None:
        if doing == "verifying":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        salvage(log.folder, tmp_path / "new", progress=kill)
    with pytest.raises(NotALogError):
        Wal.open(tmp_path / "new", SMALL)
