"""Backups that are cut short, damaged or not to be read: refused, and no log suffers."""

from __future__ import annotations

import errno
import json
import os
import random
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from lakebed import LakeConfig, Log, LogConfig
from lakebed.engine.backup_files import read_manifest
from lakebed.engine.restore import restore, verify_backup
from lakebed.errors import (
    BackupDamagedError,
    DeviceError,
    DiskFullError,
    FormatTooNewError,
    InvalidArgumentError,
    LakebedError,
    NotABackupError,
    NotALogError,
)
from lakebed.host import Fault, FaultyDisk, OsDisk, SimDisk, Survival, failpoints
from tests import forked
from tests.engine.support import armed, everything, quiet

PLAIN = LogConfig(lake=LakeConfig(iceberg=False))
ROOT = Path(__file__).parents[2]


def filled(folder: Path) -> Log:
    """Open a log with records in two segments and in memory."""
    log = Log.open(folder, PLAIN)
    log.create_topic("t", 2)
    for number in range(20):
        log.append("t", b"%d" % number, partition=number % 2)
        if number == 10:
            log.checkpoint()
    return log


@pytest.fixture
def backup(tmp_path: Path) -> Path:
    """Take a backup."""
    with filled(tmp_path / "log") as log:
        log.backup(tmp_path / "backup")
    return tmp_path / "backup"


def files(folder: Path) -> list[Path]:
    return sorted(each for each in folder.rglob("*") if each.is_file())


# A backup that is not what was written


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("harm", [cut, flip, Path.unlink])
@pytest.mark.parametrize("pattern", ["*.parquet", "*.snapshot"])
def test_a_damaged_file_is_named_and_nothing_is_written(
    backup: Path, tmp_path: Path, harm: Callable[[Path], None], pattern: str
) -> None:
    victim = sorted(backup.rglob(pattern))[-1]
    harm(victim)
    calls: list[Callable[[], object]] = [
        lambda: verify_backup(backup),
        lambda: restore(backup, tmp_path / "new"),
    ]
    for call in calls:
        with pytest.raises(BackupDamagedError) as caught:
            call()
        assert caught.value.facts["file"] == victim
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("harm", [cut, flip, lambda path: path.write_bytes(b"[]")])
def test_a_damaged_manifest_is_refused(
    backup: Path, tmp_path: Path, harm: Callable[[Path], None]
) -> None:
    harm(backup / "backup.json")
    if harm is cut:
        harm(backup / "backup.json")  # the last byte is a line break
    with pytest.raises(BackupDamagedError, match="manifest"):
        restore(backup, tmp_path / "new")
    assert not (tmp_path / "new").exists()


def rewrite(backup: Path, **changes: object) -> None:
    """Change a manifest, with its checksum."""
    from lakebed.engine.backup_files import _checksum

    record = json.loads((backup / "backup.json").read_text())
    del record["crc32c"]
    record |= changes
    text = json.dumps({**record, "crc32c": _checksum(record)})
    (backup / "backup.json").write_text(text)


def test_a_manifest_that_somebody_made_up_leads_nowhere(backup: Path, tmp_path: Path) -> None:
    for name in ("../x", "/etc/passwd", "lake/../../x", "wal/1", "lakebed.json", "lake/1/x\n"):
        rewrite(backup, files=[[name, 1, 1]])
        with pytest.raises(BackupDamagedError, match="no backup has"):
            restore(backup, tmp_path / "new")
    for changes in ({"files": [1]}, {"files": [["lakebed.toml"]]}, {"more": 1}, {"files": None}):
        rewrite(backup, **changes)
        with pytest.raises(BackupDamagedError, match="damaged"):
            restore(backup, tmp_path / "new")


def test_a_newer_format_is_refused(backup: Path, tmp_path: Path) -> None:
    rewrite(backup, format=2)
    with pytest.raises(FormatTooNewError, match="version=2 supported=1"):
        restore(backup, tmp_path / "new")
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"index": 3}, "no snapshot of its index path=.*00000003"),
        ({"offsets": {"t": [[0, 1], [0, 10]]}}, "another offsets than the backup"),
        ({"offsets": {}}, "another offsets than the backup"),
    ],
)
def test_a_log_that_differs_from_its_manifest_is_told(
    backup: Path, tmp_path: Path, changes: dict[str, object], told: str
) -> None:
    rewrite(backup, **changes)
    with pytest.raises(BackupDamagedError, match=told):
        restore(backup, tmp_path / "new")


def test_a_folder_without_a_backup_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with filled(tmp_path / "log"):
        pass
    for name in ("absent", "log"):
        with pytest.raises(NotABackupError, match="no backup"):
            restore(tmp_path / name, tmp_path / "new")
    with pytest.raises(NotALogError):
        verify_backup(tmp_path / "file")
    for bad in (None, "a\0b"):
        with pytest.raises(InvalidArgumentError, match="not a path"):
            verify_backup(bad)  # type: ignore[arg-type]
    assert not (tmp_path / "new").exists()


def test_a_backup_is_no_log(backup: Path) -> None:
    before = files(backup)
    with pytest.raises(NotALogError, match=r"found=backup\.json"):
        Log.open(backup)
    assert files(backup) == before


def test_a_log_is_restored_to_a_folder_of_its_own(backup: Path, tmp_path: Path) -> None:
    for target in (backup, backup / "new", tmp_path):
        with pytest.raises(InvalidArgumentError, match="outside of the backup"):
            restore(backup, target)
    with pytest.raises(InvalidArgumentError, match="not empty"):
        restore(backup, tmp_path / "log")
    with Log.open(tmp_path / "log", PLAIN) as log:
        assert len(everything(log, "t")) == 20


# Killed

CHILD = """
import os, signal, sys
from lakebed import LakeConfig, Log, LogConfig
from lakebed.engine.restore import restore
what, source, target = sys.argv[1:]
if what == "restore":
    restore(source, target)
elif what == "purge":
    with Log.open(source, LogConfig(lake=LakeConfig(iceberg=False))) as log:
        def meanwhile(*_):
            log.purge_topic("t")
            os.kill(os.getpid(), signal.SIGKILL)
        log.backup(target, progress=meanwhile)
else:
    with Log.open(source, LogConfig(lake=LakeConfig(iceberg=False))) as log:
        log.append("t", b"last", partition=0)
        log.backup(target)
"""


def killed(what: str, source: Path, target: Path, point: str = "") -> None:
    """Have a process die, at a failpoint if one is named."""
    done = forked.run(
        [sys.executable, "-c", CHILD, what, source, target],
        env={**os.environ, failpoints.VARIABLE: f"{point}=kill" if point else ""},
        cwd=ROOT,
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr


@pytest.mark.parametrize("point", ["held", "copied", "whole", "written"])
def test_a_process_killed_while_it_takes_a_backup(tmp_path: Path, point: str) -> None:
    """Only what is whole is a backup; the log has lost nothing, and can be backed up again."""
    with filled(tmp_path / "log"):
        pass
    killed("backup", tmp_path / "log", tmp_path / "backup", f"engine.backup.{point}")
    if point == "written":
        assert verify_backup(tmp_path / "backup").records == 21
    else:
        for call in (verify_backup, lambda path: restore(path, tmp_path / "new")):
            with pytest.raises(NotABackupError, match="not finished"):
                call(tmp_path / "backup")
        assert not (tmp_path / "new").exists()
    with Log.open(tmp_path / "log", PLAIN) as log:
        assert len(everything(log, "t")) == 21
        assert log.verify()
        assert log.stats().files_quarantined == 0
        with pytest.raises(InvalidArgumentError, match="not empty"):
            log.backup(tmp_path / "backup")
        assert log.backup(tmp_path / "second").records == 21


def test_what_waited_for_a_backup_that_was_killed_goes_when_the_log_is_opened(
    tmp_path: Path,
) -> None:
    with filled(tmp_path / "log") as log:
        log.checkpoint()
    killed("purge", tmp_path / "log", tmp_path / "backup")
    assert len(files(tmp_path / "log" / "lake")) == 4
    with Log.open(tmp_path / "log", PLAIN) as log:
        assert (log.stats().files_removed, log.stats().files_quarantined) == (4, 0)
        assert everything(log, "t") == []
    assert files(tmp_path / "log" / "lake") == []


@pytest.mark.parametrize("point", ["copied", "founded"])
def test_a_process_killed_while_it_restores(backup: Path, tmp_path: Path, point: str) -> None:
    """What it leaves is not taken for something to be restored into; the backup is as it was."""
    killed("restore", backup, tmp_path / "new", f"engine.restore.{point}")
    with pytest.raises(InvalidArgumentError, match="not empty"):
        restore(backup, tmp_path / "new")
    if point == "copied":
        with pytest.raises(NotALogError):
            Log.open(tmp_path / "new", PLAIN)
    else:  # nothing is missing but the file that can be made from the WAL
        with Log.open(tmp_path / "new", PLAIN) as log:
            assert len(everything(log, "t")) == 20
    restore(backup, tmp_path / "again")


# Disks that fail


@pytest.mark.parametrize("point", ["held", "copied", "whole"])
def test_a_failure_at_any_step_leaves_nothing_behind(tmp_path: Path, point: str) -> None:
    with filled(tmp_path / "log") as log:
        with armed(f"engine.backup.{point}=error"), pytest.raises(DeviceError):
            log.backup(tmp_path / "backup")
        assert files(tmp_path / "backup") == []
        assert log.backup(tmp_path / "backup").records == 20


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
def test_whatever_call_of_the_disk_fails_no_backup_is_half_there(
    tmp_path: Path, number: int
) -> None:
    disk = FaultyDisk(OsDisk())
    with Log.open(tmp_path / "log", PLAIN, disk=disk, threaded=False) as log:
        log.create_topic("t", 2)
        for each in range(4):
            log.append("t", b"%d" % each, partition=each % 2)
        for warm in ("a", "b"):
            log.backup(tmp_path / warm)  # from here on a backup writes nothing to the log itself
        for kind in ("open", "read", "write", "sync", "rename", "make_folder", "sync_folder"):
            before = disk.calls[kind]
            log.backup(tmp_path / f"{kind}")
            count = disk.calls[kind] - before
            assert count
            for nth in range(1, count + 1):
                target = tmp_path / f"{kind}-{nth}"
                disk.fault = Fault(kind, disk.calls[kind] + nth, number)
                with pytest.raises(LakebedError) as caught:
                    log.backup(target)
                disk.fault = None
                full = number == errno.ENOSPC
                assert isinstance(caught.value, DiskFullError if full else DeviceError)
                assert files(target) == []
                assert log.backup(target).records == 4
        assert log.stats().wal.poisoned is None
        log.append("t", b"on", partition=0)


def test_what_cannot_be_removed_again_is_not_a_backup(tmp_path: Path) -> None:
    disk = FaultyDisk(OsDisk())
    with Log.open(tmp_path / "log", PLAIN, disk=disk, threaded=False) as log:
        log.create_topic("t")
        log.append("t", b"x")
        log.backup(tmp_path / "a")
        disk.fault = Fault("remove", disk.calls["remove"] + 1, errno.EIO, lasting=True)
        with armed("engine.backup.whole=error"), pytest.raises(DeviceError):
            log.backup(tmp_path / "b")
        disk.fault = None
        with pytest.raises(NotABackupError, match="not finished"):
            verify_backup(tmp_path / "b")
        with pytest.raises(InvalidArgumentError, match="not empty"):
            log.backup(tmp_path / "b")


def test_a_damaged_segment_is_found_when_it_is_backed_up(tmp_path: Path) -> None:
    with filled(tmp_path / "log") as log:
        log.checkpoint()
        victim = sorted((tmp_path / "log" / "lake").rglob("*.parquet"))[0]
        flip(victim)
        with pytest.raises(LakebedError) as caught:
            log.backup(tmp_path / "backup")
        assert caught.value.code == "corruption"
        assert files(tmp_path / "backup") == []


@pytest.mark.parametrize("survival", list(Survival))
def test_a_power_cut_leaves_a_whole_backup_or_none(survival: Survival) -> None:
    """At every step that changes the disk: what has a manifest is whole, and once done it is."""
    disk, rng = SimDisk(), random.Random(1)
    root, target = Path("/log"), Path("/backup")
    seen = {"none": 0, "whole": 0}

    def cut_now(_: str) -> None:
        crashed = disk.crash(survival, rng)
        try:
            read_manifest(crashed, target)
        except (NotABackupError, BackupDamagedError) as error:
            assert isinstance(error, NotABackupError), error
            seen["none"] += 1
            return
        assert verify_backup(target, disk=crashed).records == 3
        seen["whole"] += 1

    with quiet(root, disk=disk) as log:
        log.create_topic("t")
        for number in range(3):
            log.append("t", b"%d" % number)
        disk.on_call = cut_now
        log.backup(target)
        disk.on_call = None
        found = disk.crash(survival, rng)
    assert seen["none"] > 10
    restore(target, Path("/new"), disk=found)
    with quiet("/new", disk=found) as log:
        assert everything(log, "t") == [b"0", b"1", b"2"]
