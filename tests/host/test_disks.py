"""One contract for the disks, and what each adds to it."""

from __future__ import annotations

import errno
import os
import random
from pathlib import Path

import pytest

from lakebed.host import (
    Disk,
    Fault,
    FaultyDisk,
    LockHeldError,
    Mode,
    OsDisk,
    SimDisk,
    Survival,
    read_exactly,
    write_all,
)


@pytest.fixture(params=["os", "sim", "faulty"])
def disk(request: pytest.FixtureRequest) -> Disk:
    disks: dict[str, Disk] = {"os": OsDisk(), "sim": SimDisk(), "faulty": FaultyDisk(SimDisk())}
    return disks[request.param]


def test_written_bytes_are_read_back_at_their_position(disk: Disk, tmp_path: Path) -> None:
    disk.make_folder(tmp_path / "d")
    file = disk.open(tmp_path / "d" / "f", Mode.CREATE)
    write_all(file, [b"abc", memoryview(b"defgh")], 4, 8)
    assert file.size() == 12
    assert read_exactly(file, 0, 100) == b"\0\0\0\0abcdefgh"
    assert read_exactly(file, 11, 1) == b"h"
    file.close()


def test_more_buffers_than_one_call_takes_are_all_written(disk: Disk, tmp_path: Path) -> None:
    disk.make_folder(tmp_path)
    file = disk.open(tmp_path / "f", Mode.CREATE)
    pieces = [bytes([number % 251]) * 3 for number in range(2500)]
    write_all(file, pieces, 0, 7500)
    assert read_exactly(file, 0, 8000) == b"".join(pieces)
    file.close()


def test_a_map_shows_what_is_written_later(disk: Disk, tmp_path: Path) -> None:
    disk.make_folder(tmp_path)
    file = disk.open(tmp_path / "f", Mode.CREATE)
    file.preallocate(4096)
    mapping = file.map()
    assert len(mapping) == 4096
    write_all(file, [b"later"], 100, 5)
    assert bytes(mapping.view(100, 105)) == b"later"
    file.close()


def test_names_are_made_renamed_listed_and_removed(disk: Disk, tmp_path: Path) -> None:
    folder = tmp_path / "a" / "b"
    assert disk.names(folder) == []
    disk.make_folder(folder)
    disk.make_folder(folder)
    disk.open(folder / "one", Mode.CREATE).close()
    with pytest.raises(FileExistsError):
        disk.open(folder / "one", Mode.CREATE)
    disk.rename(folder / "one", folder / "two")
    disk.sync_folder(folder)
    assert disk.names(folder) == ["two"]
    disk.remove(folder / "two")
    assert disk.names(folder) == []
    with pytest.raises(FileNotFoundError):
        disk.open(folder / "two", Mode.READ)


def test_a_file_is_cut_and_extended_with_zeros(disk: Disk, tmp_path: Path) -> None:
    disk.make_folder(tmp_path)
    file = disk.open(tmp_path / "f", Mode.CREATE)
    write_all(file, [b"abcdef"], 0, 6)
    file.truncate(3)
    file.truncate(5)
    assert read_exactly(file, 0, 10) == b"abc\0\0"
    file.close()


def test_a_lock_has_one_owner_and_names_it(disk: Disk, tmp_path: Path) -> None:
    disk.make_folder(tmp_path)
    lock = disk.lock(tmp_path / "lock", "me")
    with pytest.raises(LockHeldError) as held:
        disk.lock(tmp_path / "lock", "you")
    assert held.value.owner == "me"
    lock.release()
    disk.lock(tmp_path / "lock", "you").release()


def test_os_files_are_for_their_owner_alone(tmp_path: Path) -> None:
    disk = OsDisk()
    disk.make_folder(tmp_path / "d")
    disk.open(tmp_path / "d" / "f", Mode.CREATE).close()
    assert os.stat(tmp_path / "d").st_mode & 0o777 == 0o700
    assert os.stat(tmp_path / "d" / "f").st_mode & 0o777 == 0o600


def test_os_make_folder_refuses_a_path_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"")
    with pytest.raises(NotADirectoryError):
        OsDisk().make_folder(tmp_path / "f")


def sim_with(content: bytes) -> tuple[SimDisk, Path]:
    disk, path = SimDisk(), Path("/d/f")
    disk.make_folder(path.parent)
    file = disk.open(path, Mode.CREATE)
    write_all(file, [content], 0, len(content))
    file.sync()
    disk.sync_folder(path.parent)
    return disk, path


@pytest.mark.parametrize("survival", list(Survival))
def test_sim_keeps_what_was_synced(survival: Survival) -> None:
    disk, path = sim_with(b"x" * 5000)
    for seed in range(50):
        after = disk.crash(survival, random.Random(seed), names_in_order=False)
        assert after.contents()[path] == b"x" * 5000


def test_sim_loses_an_unsynced_write_or_keeps_it() -> None:
    disk, path = sim_with(b"x" * 600)
    write_all(disk.open(path, Mode.WRITE), [b"y" * 600], 0, 600)
    rng = random.Random(1)
    assert disk.crash(Survival.LOST, rng).contents()[path] == b"x" * 600
    assert disk.crash(Survival.KEPT, rng).contents()[path] == b"y" * 600


def test_sim_tears_an_unsynced_write_at_sectors() -> None:
    disk, path = sim_with(b"x" * 2048)
    write_all(disk.open(path, Mode.WRITE), [b"y" * 2048], 0, 2048)
    seen = {disk.crash(Survival.TORN_512, random.Random(n)).contents()[path] for n in range(200)}
    sectors = {content[at : at + 512] for content in seen for at in range(0, 2048, 512)}
    assert sectors == {b"x" * 512, b"y" * 512}
    assert len(seen) == 16


def test_sim_garbage_is_neither_old_nor_new() -> None:
    disk, path = sim_with(b"x" * 512)
    write_all(disk.open(path, Mode.WRITE), [b"y" * 512], 0, 512)
    seen = {disk.crash(Survival.GARBAGE, random.Random(n)).contents()[path] for n in range(50)}
    assert len(seen - {b"x" * 512, b"y" * 512}) > 5


def test_sim_loses_names_without_a_folder_sync() -> None:
    disk = SimDisk()
    disk.make_folder(Path("/d"))
    file = disk.open(Path("/d/f"), Mode.CREATE)
    write_all(file, [b"data"], 0, 4)
    file.sync()
    assert disk.crash(Survival.LOST, random.Random(1)).names(Path("/d")) == []
    disk.sync_folder(Path("/d"))
    disk.rename(Path("/d/f"), Path("/d/g"))
    assert disk.crash(Survival.LOST, random.Random(1)).names(Path("/d")) == ["f"]
    disk.sync_folder(Path("/d"))
    assert disk.crash(Survival.LOST, random.Random(1)).names(Path("/d")) == ["g"]


def test_sim_out_of_order_names_keep_any_subset() -> None:
    disk = SimDisk()
    disk.make_folder(Path("/d"))
    for name in "abc":
        disk.open(Path("/d") / name, Mode.CREATE).close()
    ordered = {
        tuple(disk.crash(Survival.TORN_512, random.Random(n)).names(Path("/d"))) for n in range(99)
    }
    assert ordered == {(), ("a",), ("a", "b"), ("a", "b", "c")}
    unordered = {
        tuple(
            disk.crash(Survival.TORN_512, random.Random(n), names_in_order=False).names(Path("/d"))
        )
        for n in range(99)
    }
    assert len(unordered) == 8


def test_faulty_fails_the_nth_call_of_a_kind_and_no_other(tmp_path: Path) -> None:
    disk = FaultyDisk(SimDisk(), Fault("sync_data", 2, errno.EIO))
    disk.make_folder(tmp_path)
    file = disk.open(tmp_path / "f", Mode.CREATE)
    file.sync_data()
    with pytest.raises(OSError, match="Input/output"):
        file.sync_data()
    file.sync_data()
    assert disk.hit == 1
    assert disk.calls["sync_data"] == 3


def test_faulty_short_write_is_finished_by_write_all(tmp_path: Path) -> None:
    disk = FaultyDisk(SimDisk(), Fault("write", 1, short_bytes=3))
    disk.make_folder(tmp_path)
    file = disk.open(tmp_path / "f", Mode.CREATE)
    write_all(file, [b"abc", b"defg"], 0, 7)
    assert disk.hit == 1
    assert read_exactly(file, 0, 10) == b"abcdefg"
