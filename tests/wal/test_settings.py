"""Each setting of the WAL has a test here that shows its effect, named after it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from lakebed.config import setting_names
from lakebed.errors import EntryTooLargeError, InvalidArgumentError
from lakebed.host import Mode, OsDisk
from lakebed.host.os_disk import OsFile
from lakebed.wal import SyncMode, Wal, WalConfig
from lakebed.wal.frame import FrameKind, salt_of
from lakebed.wal.scan import later_headers
from tests.engine import test_replica, test_shipping
from tests.waiting import until


class CountingFile(OsFile):
    syncs = 0

    def sync_data(self) -> None:
        CountingFile.syncs += 1
        super().sync_data()


class CountingDisk(OsDisk):
    """Counts the syncs of every file."""

    def open(self, path: Path, mode: Mode) -> OsFile:
        file = super().open(path, mode)
        file.__class__ = CountingFile
        return file


def syncs_of(tmp_path: Path, sync: SyncMode) -> int:
    config = WalConfig(sync=sync, sync_interval_ms=60_000, idle_mark_ms=1_000)
    with Wal.open(tmp_path / sync.value, config, disk=CountingDisk(), threaded=False) as log:
        CountingFile.syncs = 0
        for number in range(10):
            assert log.append(b"x") == number + 1
        return CountingFile.syncs


def test_setting_sync(tmp_path: Path) -> None:
    """`always` syncs before each acknowledgement, the others do not."""
    assert syncs_of(tmp_path, SyncMode.ALWAYS) == 10
    assert syncs_of(tmp_path, SyncMode.INTERVAL) == 0
    assert syncs_of(tmp_path, SyncMode.OS) == 0


def test_setting_sync_interval_ms(tmp_path: Path) -> None:
    """With `interval`, what was written is synced after this time without being asked for."""
    config = WalConfig(sync=SyncMode.INTERVAL, sync_interval_ms=5, idle_mark_ms=1_000)
    with Wal.open(tmp_path / "log", config) as log:
        log.append(b"x")
        until(lambda: log.stats().durable_index == 1)
        assert not log.commits.tail.idle


def test_a_weaker_mode_is_shown_and_flush_still_syncs(tmp_path: Path) -> None:
    with Wal.open(tmp_path / "log", WalConfig(sync=SyncMode.OS, idle_mark_ms=1_000)) as log:
        log.append(b"x")
        assert (log.stats().sync, log.stats().durable_index) == ("os", 0)
        log.flush()
        assert log.stats().durable_index == 1


def test_setting_file_bytes(tmp_path: Path) -> None:
    """Files of this size; a smaller one makes more of them."""
    counts = {}
    for file_bytes in (8192, 32768):
        folder = tmp_path / str(file_bytes)
        with Wal.open(folder, WalConfig(file_bytes=file_bytes)) as log:
            for _ in range(100):
                log.append(b"x" * 1000)
            counts[file_bytes] = log.stats().files
        assert {file.stat().st_size for file in folder.glob("wal/*.wal")} == {file_bytes}
    assert counts == {8192: 15, 32768: 4}


def test_setting_entry_bytes_max(tmp_path: Path) -> None:
    """An entry of this size is taken, one byte more is refused and nothing is written."""
    with Wal.open(tmp_path / "log", WalConfig(entry_bytes_max=1000)) as log:
        assert log.append([b"x" * 600, b"y" * 400]) == 1
        written = log.stats().counters.bytes
        with pytest.raises(EntryTooLargeError, match="bytes=1001 bytes_max=1000"):
            log.append([b"x" * 600, b"y" * 401])
        assert log.stats().counters.bytes == written
        assert log.append(b"z") == 2


@pytest.mark.parametrize("count", [0, 3])
def test_setting_spare_files(tmp_path: Path, count: int) -> None:
    """So many files wait ready, filled in the background once the first file is in use."""
    folder = tmp_path / "log"
    with Wal.open(folder, WalConfig(file_bytes=8192, spare_files=count)) as log:
        for _ in range(20):
            log.append(b"x" * 1000)
        until(lambda: len(list(folder.glob("wal/*.spare"))) == count)
        before = log.stats().counters
        for _ in range(10):
            log.append(b"x" * 1000)
        after = log.stats().counters
        assert after.rotations > before.rotations
        assert (after.spares_missed > before.spares_missed) == (count == 0)


def idle_marks(folder: Path, log: Wal) -> int:
    file = OsDisk().open(next(folder.glob("wal/*.wal")), Mode.READ)
    headers = later_headers(file, file_number=1, salt=salt_of(log.log_id), start=64)
    count = sum(header.kind == FrameKind.IDLE for _, header in headers)
    file.close()
    return count


def test_setting_idle_mark_ms(tmp_path: Path) -> None:
    """After this time without a commit the log marks its end, once."""
    folder = tmp_path / "log"
    with Wal.open(folder, WalConfig(idle_mark_ms=5)) as log:
        log.append(b"x")
        until(lambda: idle_marks(folder, log) == 1)
        log.append(b"y")
        until(lambda: idle_marks(folder, log) == 2)
    with Wal.open(tmp_path / "slow", WalConfig(idle_mark_ms=1_000)) as log:
        log.append(b"x")
        assert idle_marks(tmp_path / "slow", log) == 0


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("sync", "sometimes"),
        ("sync_interval_ms", 0),
        ("sync_interval_ms", 60_001),
        ("file_bytes", 4095),
        ("file_bytes", 5000),
        ("file_bytes", 2**40),
        ("entry_bytes_max", 0),
        ("entry_bytes_max", 2**31),
        ("spare_files", -1),
        ("spare_files", 65),
        ("spare_files", True),
        ("spare_files", 1.5),
        ("idle_mark_ms", 0),
        ("idle_mark_ms", 1_001),
    ],
)
def test_a_value_out_of_bounds_is_refused_with_its_bounds(setting: str, value: object) -> None:
    with pytest.raises(InvalidArgumentError, match=f"{setting} must be .* setting={setting}"):
        WalConfig(**{setting: value})  # type: ignore[arg-type]


def test_every_setting_has_a_test_of_its_effect() -> None:
    """Those of the store are tested where there is one: tests/engine/test_shipping.py, _replica."""
    tests = {*dir(sys.modules[__name__]), *dir(test_shipping), *dir(test_replica)}
    assert {f"test_setting_{name}" for name in setting_names(WalConfig)} <= tests
