"""Names of segments come and go as told, and everything that lies in the lake is seen."""

from __future__ import annotations

import errno
import random
from pathlib import Path

import pytest

from lakebed.errors import DeviceError
from lakebed.host import Disk, Fault, FaultyDisk, OsDisk, SimDisk, Survival
from lakebed.lake import LakeFolder, SegmentName


def test_the_name_says_partition_and_segment() -> None:
    folder = LakeFolder(SimDisk(), Path("/log"))
    assert folder.path(12, 3, 45) == Path("/log/lake/12/3-00000000000000000045.parquet")


def test_an_empty_lake_lists_nothing() -> None:
    assert list(LakeFolder(SimDisk(), Path("/log")).listing()) == []


def test_segments_and_strangers_are_told_apart(tmp_path: Path) -> None:
    folder = LakeFolder(OsDisk(), tmp_path)
    names = [SegmentName(t, p, s) for t in (1, 20) for p in (0, 7) for s in (1, 2**62)]
    for topic in (1, 20):
        folder.prepare(topic)
    for name in names:
        folder.path(*name).touch()
    strangers = [
        tmp_path / "lake" / "README",
        tmp_path / "lake" / "5",
        tmp_path / "lake" / "01",
        tmp_path / "lake" / "1" / "0-1.parquet",
        tmp_path / "lake" / "1" / "00-00000000000000000001.parquet",
        tmp_path / "lake" / "1" / "0-00000000000000000001.parquet.tmp",
        tmp_path / "lake" / "20" / "٣-00000000000000000001.parquet",
    ]
    for path in strangers:
        path.touch()
    found = list(folder.listing())
    assert sorted(each for each in found if isinstance(each, SegmentName)) == sorted(names)
    assert sorted(each for each in found if isinstance(each, Path)) == sorted(strangers)


def test_many_segments_are_listed(tmp_path: Path) -> None:
    folder = LakeFolder(OsDisk(), tmp_path)
    folder.prepare(1)
    for number in range(500):
        folder.path(1, number % 10, number).touch()
    assert {each[2] for each in folder.listing() if isinstance(each, SegmentName)} == set(
        range(500)
    )


@pytest.mark.parametrize("disk", [OsDisk(), SimDisk()], ids=["os", "sim"])
def test_removing_what_is_not_there_is_success(disk: Disk, tmp_path: Path) -> None:
    folder = LakeFolder(disk, tmp_path)
    folder.remove(1, 0, 1)
    folder.prepare(1)
    folder.remove(1, 0, 1)
    assert list(folder.listing()) == []


def test_a_removal_survives_once_the_folder_is_synced() -> None:
    disk = SimDisk()
    folder = LakeFolder(disk, Path("/log"))
    disk.put(folder.path(1, 0, 1), b"x")
    folder.remove(1, 0, 1)
    rng = random.Random(0)
    assert list(LakeFolder(disk.crash(Survival.LOST, rng), Path("/log")).listing())
    folder.sync(1)
    assert not list(LakeFolder(disk.crash(Survival.LOST, rng), Path("/log")).listing())


def test_preparing_again_does_no_harm_and_syncs_the_names_above(tmp_path: Path) -> None:
    disk = FaultyDisk(OsDisk())
    folder = LakeFolder(disk, tmp_path)
    for _ in range(2):
        disk.calls.clear()
        folder.prepare(9)
        assert disk.calls["sync_folder"] == 2
    assert (tmp_path / "lake" / "9").is_dir()


@pytest.mark.parametrize("kind", ["make_folder", "sync_folder", "remove", "names"])
def test_a_failing_disk_is_a_typed_error(kind: str) -> None:
    folder = LakeFolder(FaultyDisk(SimDisk(), Fault(kind, 1, errno=errno.EIO)), Path("/log"))
    with pytest.raises(DeviceError):
        if kind == "remove":
            folder.remove(1, 0, 1)
        if kind == "names":
            list(folder.listing())
        folder.prepare(1)
