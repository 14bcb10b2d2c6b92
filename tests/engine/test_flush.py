"""A checkpoint that writes several segments at a time: all of them, or none."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

import lakebed
from lakebed.engine.log import Log
from lakebed.errors import LakebedError
from lakebed.host import FaultyDisk, OsDisk, failpoints
from lakebed.host.faulty_disk import Fault
from tests.engine.support import rows

PARTITIONS = 6
CONFIG = lakebed.LogConfig(lake=lakebed.LakeConfig(iceberg=False))


def filled(log: Log) -> list[bytes]:
    """Put a record into every partition of a topic; give the values."""
    log.create_topic("t", partitions=PARTITIONS)
    values = [b"value %d" % number for number in range(PARTITIONS)]
    for number, value in enumerate(values):
        log.append("t", value, partition=number)
    return values


def segment_files(folder: Path) -> list[Path]:
    return sorted((folder / "lake").rglob("*.parquet*"))


def test_every_partition_gets_its_segment_and_the_entry_names_them_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 4)
    with lakebed.open(tmp_path, CONFIG) as log:
        values = filled(log)
        assert log.checkpoint().segments == PARTITIONS
        assert [rows(log, "t", number) for number in range(PARTITIONS)] == [[v] for v in values]
        assert log.verify() == PARTITIONS
    with lakebed.open(tmp_path, CONFIG) as log:
        assert [rows(log, "t", number) for number in range(PARTITIONS)] == [[v] for v in values]


@pytest.mark.parametrize("nth", [1, 3, PARTITIONS])
def test_one_that_cannot_be_written_leaves_none_and_the_next_checkpoint_writes_all(
    tmp_path: Path, nth: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 4)
    disk = FaultyDisk(OsDisk())
    with Log.open(tmp_path, CONFIG, disk=disk) as log:
        values = filled(log)
        disk.fault = Fault("rename", disk.calls["rename"] + nth, errno.ENOSPC)
        with pytest.raises(LakebedError):
            log.checkpoint()
        assert disk.hit == 1
        assert segment_files(tmp_path) == []
        disk.fault = None
        assert log.checkpoint().segments == PARTITIONS
        assert [rows(log, "t", number) for number in range(PARTITIONS)] == [[v] for v in values]
    assert len(segment_files(tmp_path)) == PARTITIONS


def test_an_error_in_one_thread_is_the_callers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 4)
    with lakebed.open(tmp_path, CONFIG) as log:
        filled(log)
        failpoints.arm("lake.segment.written=error@2")
        try:
            with pytest.raises(LakebedError):
                log.checkpoint()
        finally:
            failpoints.disarm()
        assert segment_files(tmp_path) == []
        assert log.checkpoint().segments == PARTITIONS
