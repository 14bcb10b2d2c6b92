"""A file that is written atomically is the old one or the new one, and survives once it returns."""

from __future__ import annotations

import errno
import random
from pathlib import Path

import pytest

from lakebed.errors import DeviceError
from lakebed.host import Disk, Fault, FaultyDisk, SimDisk, Survival, read_file, write_all
from lakebed.host.atomic import write_atomically

FOLDER = Path("/log")
PATH = FOLDER / "file"
OLD, NEW = b"old" * 2000, b"new" * 3000


def write(disk: Disk, data: bytes, *, what: str | None = None) -> None:
    with write_atomically(disk, PATH, what) as file:
        for position in range(0, len(data), 1000):
            piece = data[position : position + 1000]
            write_all(file, [piece], position, len(piece))


def disk_with_old() -> SimDisk:
    disk = SimDisk()
    disk.make_folder(FOLDER)
    write(disk, OLD)
    return disk


@pytest.mark.parametrize("in_order", [True, False])
@pytest.mark.parametrize("survival", list(Survival))
def test_a_power_cut_leaves_the_old_file_or_the_new_one(survival: Survival, in_order: bool) -> None:
    disk, rng = disk_with_old(), random.Random(survival.value)
    seen: set[bytes] = set()

    def cut(kind: str) -> None:
        for _ in range(8):
            seen.add(read_file(disk.crash(survival, rng, names_in_order=in_order), PATH))

    disk.on_call = cut
    write(disk, NEW)
    disk.on_call = None
    assert seen == {OLD, NEW}
    assert read_file(disk.crash(Survival.LOST, rng), PATH) == NEW


@pytest.mark.parametrize(
    ("kind", "doing"),
    [
        ("open", "making a note"),
        ("write", "writing a note"),
        ("sync", "syncing a note"),
        ("rename", "renaming a note"),
        ("sync_folder", "syncing the folder of a note"),
    ],
)
def test_an_error_states_the_step_that_failed_and_the_next_write_succeeds(
    kind: str, doing: str
) -> None:
    disk = FaultyDisk(disk_with_old())
    disk.fault = Fault(kind, 1, errno=errno.EIO)
    with pytest.raises(DeviceError, match=doing):
        write(disk, NEW, what="a note")
    disk.fault = None
    assert read_file(disk, PATH) == (NEW if kind == "sync_folder" else OLD)
    write(disk, NEW)
    assert read_file(disk, PATH) == NEW
    assert disk.names(FOLDER) == ["file"]


def test_a_block_that_raises_leaves_the_old_file() -> None:
    disk = disk_with_old()
    with pytest.raises(KeyboardInterrupt), write_atomically(disk, PATH, "a note") as file:
        write_all(file, [NEW], 0, len(NEW))
        raise KeyboardInterrupt
    assert read_file(disk, PATH) == OLD
