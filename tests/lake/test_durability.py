"""A segment is whole under its name or not there, whatever the disk, the power or a signal does."""

from __future__ import annotations

import errno
import os
import random
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from lakebed import limits
from lakebed.errors import (
    CorruptionError,
    DeviceError,
    DiskFullError,
    LakebedError,
    ReadOnlyError,
)
from lakebed.host import Fault, FaultyDisk, Mode, OsDisk, SimDisk, Survival, failpoints
from lakebed.lake import UNFINISHED, LakeFolder, SegmentReader
from lakebed.state.values import Segment
from tests import forked
from tests.lake.support import ID, PARTITION, ROOT, TOPIC, lake, read, records, verify, write

PATH = LakeFolder(SimDisk(), ROOT).path(TOPIC, PARTITION, ID)
TABLE = records(range(30))


@pytest.fixture(autouse=True)
def small_row_groups(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(limits, "ROW_GROUP_RECORDS", 10)
    yield
    failpoints.disarm()


def written() -> Segment:
    return write(lake(), TABLE)


@pytest.mark.parametrize("in_order", [True, False])
@pytest.mark.parametrize("survival", list(Survival))
def test_a_power_cut_leaves_a_whole_segment_or_none(survival: Survival, in_order: bool) -> None:
    expected, disk, rng = written(), SimDisk(), random.Random(survival.value)
    folder, seen = lake(disk), 0

    def cut(kind: str) -> None:
        nonlocal seen
        for _ in range(4):
            after = LakeFolder(disk.crash(survival, rng, names_in_order=in_order), ROOT)
            if PATH.name in after.disk.names(PATH.parent):
                verify(after, expected)
                seen += 1

    disk.on_call = cut
    assert write(folder, TABLE) == expected
    assert seen >= 4, "after the folder's sync it is always there"
    after = LakeFolder(disk.crash(Survival.LOST, rng), ROOT)
    assert read(SegmentReader(after, 0), expected).equals(TABLE)


def calls_of_a_write() -> list[tuple[str, int]]:
    disk = FaultyDisk(SimDisk())
    folder = lake(disk)
    disk.calls.clear()
    write(folder, TABLE)
    assert {"write", "sync_data", "sync", "rename", "map", "open"} <= set(disk.calls)
    return [(kind, nth) for kind, count in disk.calls.items() for nth in range(1, count + 1)]


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC, errno.EROFS])
def test_a_failing_call_is_a_typed_error_and_leaves_no_segment(number: int) -> None:
    kinds = {errno.EIO: DeviceError, errno.ENOSPC: DiskFullError, errno.EROFS: ReadOnlyError}
    for kind, nth in calls_of_a_write():
        disk = FaultyDisk(SimDisk())
        folder = lake(disk)
        disk.calls.clear()
        disk.fault = Fault(kind, nth, errno=number)
        with pytest.raises(kinds[number]):
            write(folder, TABLE)
        assert disk.hit == 1, (kind, nth)
        if kind != "sync_folder":
            assert list(folder.listing()) == [], (kind, nth)
        disk.fault = None
        assert read(SegmentReader(folder, 0), write(folder, TABLE)).equals(TABLE), "it can go on"


def test_a_disk_that_stays_broken_leaves_no_final_name() -> None:
    for kind in ("write", "sync_data", "sync", "rename", "remove"):
        disk = FaultyDisk(SimDisk())
        folder = lake(disk)
        folder.prepare(TOPIC)
        disk.open(PATH.with_name(PATH.name + UNFINISHED), Mode.CREATE).close()  # to be removed
        disk.calls.clear()
        disk.fault = Fault(kind, 1, errno=errno.EIO, lasting=True)
        with pytest.raises(LakebedError):
            write(folder, TABLE)
        disk.fault = None
        assert PATH not in list(folder.listing())
        assert not [each for each in folder.listing() if not isinstance(each, Path)]


def test_short_writes_are_gone_on_with() -> None:
    for kind, nth in calls_of_a_write():
        if kind == "write":
            disk = FaultyDisk(SimDisk())
            folder = lake(disk)
            disk.calls.clear()
            disk.fault = Fault("write", nth, short_bytes=3)
            segment = write(folder, TABLE)
            assert disk.hit == 1
            disk.fault = None
            verify(folder, segment)


@pytest.mark.parametrize("kind", ["open", "map", "read"])
def test_a_failing_read_is_a_device_error(kind: str) -> None:
    disk = FaultyDisk(SimDisk())
    folder = lake(disk)
    segment = write(folder, TABLE)
    disk.calls.clear()
    verify(folder, segment)
    count = disk.calls[kind]
    assert count
    for nth in range(1, count + 1):
        disk.calls.clear()
        disk.fault = Fault(kind, nth, errno=errno.EIO)
        with pytest.raises(DeviceError) as raised:
            verify(folder, segment)
        assert not isinstance(raised.value, CorruptionError)


@pytest.mark.parametrize("point", ["written", "synced", "renamed"])
def test_each_step_can_fail(point: str) -> None:
    folder = lake()
    failpoints.arm(f"lake.segment.{point}=error")
    with pytest.raises(DeviceError, match=f"failpoint lake.segment.{point}"):
        write(folder, TABLE)
    left = [each for each in folder.listing() if isinstance(each, Path)]
    assert left == []
    assert bool(list(folder.listing())) == (point == "renamed")


def test_the_folder_can_fail_to_sync() -> None:
    failpoints.arm("lake.folder.synced=error")
    with pytest.raises(DeviceError, match=r"failpoint lake\.folder\.synced"):
        write(lake(), TABLE)


_CHILD = """
import sys
from pathlib import Path
from lakebed.host import OsDisk, failpoints
from tests.lake.support import lake, records, write
folder = lake(OsDisk(), Path(sys.argv[1]))
failpoints.arm(sys.argv[2])
write(folder, records(range(30)))
"""


@pytest.mark.parametrize(
    "point", ["lake.segment.written", "lake.segment.synced", "lake.segment.renamed"]
)
def test_a_killed_process_leaves_a_whole_segment_or_an_unfinished_one(
    point: str, tmp_path: Path
) -> None:
    done = forked.run(
        [sys.executable, "-c", _CHILD, str(tmp_path), f"{point}=kill"],
        cwd=Path(__file__).parents[2],
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert done.returncode == -signal.SIGKILL
    folder = LakeFolder(OsDisk(), tmp_path)
    found = list(folder.listing())
    path = folder.path(TOPIC, PARTITION, ID)
    if point == "lake.segment.renamed":
        assert found == [(TOPIC, PARTITION, ID)]
    else:
        assert found == [path.with_name(path.name + ".tmp")]
    segment = write(folder, TABLE)
    assert list(folder.listing()) == [(TOPIC, PARTITION, ID)]
    verify(folder, segment)
