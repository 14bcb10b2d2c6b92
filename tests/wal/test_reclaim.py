"""Released files are freed, now or at the next release, whatever happened to them meanwhile."""

from __future__ import annotations

import errno
from pathlib import Path

from lakebed.host import Fault, FaultyDisk, OsDisk
from lakebed.wal import Wal, WalConfig

SMALL = WalConfig(file_bytes=4096, spare_files=0)


def files(folder: Path) -> int:
    return len(list((folder / "wal").glob("*.wal")))


def test_a_file_that_could_not_be_freed_is_freed_at_the_next_release(tmp_path: Path) -> None:
    disk = FaultyDisk(OsDisk())
    with Wal.open(tmp_path, SMALL, disk=disk, threaded=False) as log:
        for _ in range(4):
            log.append(b"x" * 3000)
        assert files(tmp_path) == 4
        disk.fault = Fault("remove", disk.calls["remove"] + 1, errno.EBUSY)
        log.release(3)
        counters = log.stats().counters
        assert (counters.reclaim_failures, counters.reclaimed_files) == (1, 0)
        assert files(tmp_path) == 4
        log.release(3)
        counters = log.stats().counters
        assert (counters.reclaim_failures, counters.reclaimed_files) == (1, 3)
        assert files(tmp_path) == 1
        assert log.append(b"on") == 5


def test_a_file_that_is_gone_already_counts_as_freed(tmp_path: Path) -> None:
    with Wal.open(tmp_path, SMALL, threaded=False) as log:
        for _ in range(3):
            log.append(b"x" * 3000)
        sorted((tmp_path / "wal").glob("*.wal"))[0].unlink()
        log.release(2)
        counters = log.stats().counters
        assert (counters.reclaim_failures, counters.reclaimed_files) == (0, 2)
        assert files(tmp_path) == 1
    with Wal.open(tmp_path, SMALL) as log:
        assert [entry.index for entry in log.entries()] == [3]
