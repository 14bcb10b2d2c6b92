"""A checkpoint that writes several segments at a time: all of them, or none."""

from __future__ import annotations

import errno
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import lakebed
from lakebed.engine.log import EmbeddedLog
from lakebed.errors import DiskFullError, LakebedError, from_os_error
from lakebed.host import FaultyDisk, OsDisk, failpoints
from lakebed.host.faulty_disk import Fault
from tests.engine.support import inner, rows

PARTITIONS = 6
CONFIG = lakebed.LogConfig(lake=lakebed.LakeConfig(iceberg=False))


def filled(log: EmbeddedLog) -> list[bytes]:
    """Put a record into every partition of a topic; return the values."""
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
    monkeypatch.setattr("os.cpu_count", lambda: 8)
    with lakebed.open(tmp_path, CONFIG) as log:
        values = filled(inner(log))
        assert log.checkpoint().segments == PARTITIONS
        assert [rows(log, "t", number) for number in range(PARTITIONS)] == [[v] for v in values]
        assert log.verify() == PARTITIONS
    with lakebed.open(tmp_path, CONFIG) as log:
        assert [rows(log, "t", number) for number in range(PARTITIONS)] == [[v] for v in values]


@pytest.mark.parametrize("nth", [1, 3, PARTITIONS])
def test_one_that_cannot_be_written_leaves_none_and_the_next_checkpoint_writes_all(
    tmp_path: Path, nth: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 8)
    disk = FaultyDisk(OsDisk())
    with EmbeddedLog.open(tmp_path, CONFIG, disk=disk) as log:
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
    monkeypatch.setattr("os.cpu_count", lambda: 8)
    with lakebed.open(tmp_path, CONFIG) as log:
        filled(inner(log))
        failpoints.arm("lake.segment.written=error@2")
        try:
            with pytest.raises(LakebedError):
                log.checkpoint()
        finally:
            failpoints.disarm()
        assert segment_files(tmp_path) == []
        assert log.checkpoint().segments == PARTITIONS


AT_EXIT = """
import atexit, os, sys
import lakebed

os.cpu_count = lambda: 4
log = lakebed.open(sys.argv[1], lakebed.LogConfig(lake=lakebed.LakeConfig(iceberg=False)))
log.create_topic("t", partitions=6)
for number in range(6):
    log.append("t", b"value", partition=number)

def end():
    print(log.checkpoint().segments, log.table("t").scan().read_all().num_rows)
    log.close()

atexit.register(end)
"""


def test_a_program_that_ends_may_still_take_a_checkpoint_and_scan(tmp_path: Path) -> None:
    """When functions registered with atexit run, no thread can be given work any more."""
    ended = subprocess.run(
        [sys.executable, "-c", AT_EXIT, str(tmp_path / "log")],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert (ended.stdout, ended.stderr, ended.returncode) == ("6 6\n", "", 0)
    with lakebed.open(tmp_path / "log", CONFIG) as log:
        assert log.verify() == 6


def test_a_checkpoint_that_cannot_stage_a_transaction_leaves_no_segments(tmp_path: Path) -> None:
    log = EmbeddedLog.open(tmp_path / "log", threaded=False)
    log.create_topic("t", 1)
    log.append("t", b"seen")
    transaction = log.transaction("a")
    transaction.append("t", b"unseen")
    transaction._collect(1 << 30)
    write = log.parts.staging.write

    def full(file_id: int, bodies: Any) -> Any:
        raise from_os_error(OSError(errno.ENOSPC, "full"), "staging", tmp_path)

    log.parts.staging.write = full  # type: ignore[method-assign]
    for _ in range(3):
        with pytest.raises(DiskFullError):
            log.checkpoint()
    assert list(tmp_path.glob("log/lake/*/*.parquet")) == []
    log.parts.staging.write = write  # type: ignore[method-assign]
    assert log.checkpoint().segments == 1
    transaction.commit()
    assert rows(log, "t") == [b"seen", b"unseen"]
    log.close()
