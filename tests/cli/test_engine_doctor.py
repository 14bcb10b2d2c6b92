"""What `lakebed doctor` finds: each kind of trouble, and none where there is none."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lakebed
from lakebed.config import LakeConfig, LogConfig, WalConfig
from tests.cli.engine import Shell
from tests.cli.logs import Builder, fingerprint, flip, overwrite

SMALL = LogConfig(wal=WalConfig(file_bytes=1 << 16, spare_files=0))


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    """Make a log with two segments, and entries behind its snapshot."""
    with lakebed.open(tmp_path / "data", SMALL) as log:
        log.create_topic("a", partitions=2)
        log.create_topic("gone")
        for partition in (0, 1):
            log.append_batch("a", [b"x" * 50] * 100, partition=partition)
        log.append("gone", b"x")
        log.checkpoint()
        log.append_batch("a", [b"later"] * 10, partition=0)
        log.commit_offsets("g", {("a", 0): 3})
    return Shell(tmp_path / "data")


def checks(shell: Shell, code: int) -> dict[str, dict[str, Any]]:
    """Examine the folder; nothing in it may change."""
    before = fingerprint(shell.folder)
    result = shell.run("doctor", "--json", code=code)
    assert fingerprint(shell.folder) == before
    found = [json.loads(line) for line in result.stdout.splitlines()]
    shown = shell.run("doctor", code=code).stdout
    for each in found:
        assert each["name"] in shown
        assert (each["verdict"] == "ok") or each["advice"], each
    return {each["name"]: each for each in found}


def verdicts(found: dict[str, dict[str, Any]]) -> dict[str, str]:
    return {name: each["verdict"] for name, each in found.items() if each["verdict"] != "ok"}


def segments(shell: Shell) -> list[Path]:
    return sorted((shell.folder / "lake").rglob("*.parquet"))


def test_a_log_that_is_well_is_exit_code_0(shell: Shell) -> None:
    found = checks(shell, 0)
    assert verdicts(found) == {}
    assert found["segments"]["found"].startswith("3, ")
    assert set(found) >= {"owner", "WAL", "snapshot", "entries", "permissions", "disk space"}


def test_a_new_log_is_well(tmp_path: Path) -> None:
    lakebed.open(tmp_path / "new", SMALL).close()
    assert verdicts(checks(Shell(tmp_path / "new"), 0)) == {}


def test_segments_that_came_and_went_since_the_snapshot_are_known(shell: Shell) -> None:
    with lakebed.open(shell.folder, SMALL) as log:
        log.delete_topic("gone")
    found = checks(shell, 0)
    assert found["segments"]["found"].startswith("2, ")


def test_dropped_segments_that_a_table_may_show_wait_for_removal(shell: Shell) -> None:
    with lakebed.open(shell.folder, SMALL) as log:
        log.lake.sync()
        log.purge_topic("a")
    assert len(segments(shell)) == 3
    found = checks(shell, 0)
    assert found["segments"]["found"].startswith("1, ")
    assert found["waiting for removal"]["found"].startswith("2 dropped")
    assert "leftovers" not in found


def test_dropped_segments_that_were_never_in_a_table_are_leftovers(tmp_path: Path) -> None:
    off = replace(SMALL, lake=LakeConfig(iceberg=False))
    shell = Shell(tmp_path / "data")
    with lakebed.open(shell.folder, off) as log:
        log.create_topic("a")
        log.append("a", b"x")
        log.checkpoint()
        (path,) = segments(shell)
        data = path.read_bytes()
        log.purge_topic("a")
    path.write_bytes(data)
    path.chmod(0o600)
    found = checks(shell, 0)
    assert "1 dropped segments" in found["leftovers"]["found"]
    assert "waiting for removal" not in found


def stored(tmp_path: Path, **settings: int) -> Shell:
    """Make a log with two segments in a store, and let the local disk keep what settings say."""
    (tmp_path / "store").mkdir()
    shell = Shell(tmp_path / "data")
    lake = LakeConfig(store=f"file://{tmp_path}/store", iceberg=False)
    with lakebed.open(shell.folder, replace(SMALL, lake=lake)) as log:
        log.create_topic("a", config=settings)
        for _ in range(2):
            log.append_batch("a", [b"x" * 50] * 100)
            log.checkpoint()
        log.lake.sync()
    return shell


def test_segments_that_are_in_the_store_alone_need_no_file(tmp_path: Path) -> None:
    shell = stored(tmp_path, local_bytes=0)
    assert segments(shell) == []
    found = checks(shell, 0)
    assert verdicts(found) == {}
    assert found["segments"]["found"].startswith("0, ")
    assert found["stored segments"]["found"].startswith("2 in the object store alone")


def test_a_damaged_segment_that_the_store_has_too_is_a_warning(tmp_path: Path) -> None:
    shell = stored(tmp_path)
    path = segments(shell)[0]
    flip(path, path.stat().st_size // 2)
    found = checks(shell, 3)
    assert verdicts(found) == {"segment": "warning"}
    assert "the object store has this segment too" in found["segment"]["advice"]
    path.unlink()
    assert verdicts(checks(shell, 3)) == {"segment": "warning"}


def test_the_settings_of_a_log_are_a_file_of_its_folder(shell: Shell) -> None:
    path = shell.folder / "lakebed.toml"
    path.write_text("memtable_bytes = 1048576\n")
    path.chmod(0o600)
    assert verdicts(checks(shell, 0)) == {}


def test_a_damaged_segment_is_a_problem(shell: Shell) -> None:
    path = segments(shell)[0]
    flip(path, path.stat().st_size // 2)
    found = checks(shell, 1)
    assert verdicts(found) == {"segment": "problem"}
    assert str(path) in found["segment"]["found"]


def test_a_missing_segment_is_a_problem(shell: Shell) -> None:
    path = segments(shell)[0]
    path.unlink()
    found = checks(shell, 1)
    assert verdicts(found) == {"segment": "problem"}
    assert str(path) in found["segment"]["found"]


def test_a_damaged_wal_is_a_problem(shell: Shell) -> None:
    files = sorted((shell.folder / "wal").glob("*.wal"))
    flip(files[-1], 64 + 70)
    found = checks(shell, 1)
    assert verdicts(found)["WAL"] == "problem"
    assert "segments" not in found  # nobody knows which there should be


def test_a_snapshot_behind_the_damage_of_a_wal_is_spoken_of(shell: Shell) -> None:
    flip(sorted((shell.folder / "wal").glob("*.wal"))[0], 64 + 70)
    found = checks(shell, 1)
    assert verdicts(found)["WAL"] == "problem"
    assert "the WAL can be read up to entry" in found["snapshot"]["found"]


def test_a_torn_tail_is_a_warning_and_opening_makes_it_well(shell: Shell) -> None:
    last = sorted((shell.folder / "wal").glob("*.wal"))[-1]
    data = last.read_bytes()
    end = len(data.rstrip(b"\0"))
    overwrite(last, (end + 63) & -64, b"half a frame")
    assert verdicts(checks(shell, 3)) == {"WAL": "warning"}
    shell.run("topic", "list")
    assert verdicts(checks(shell, 0)) == {}


def test_a_damaged_snapshot_is_a_problem_if_the_log_cannot_do_without(shell: Shell) -> None:
    with lakebed.open(shell.folder, SMALL) as log:
        for _ in range(3):
            log.append_batch("a", [b"x" * 1000] * 100)
            log.checkpoint()
    for path in (shell.folder / "snapshots").iterdir():
        flip(path, 20)
    found = checks(shell, 1)
    assert found["snapshot"]["verdict"] == "problem"


def test_a_damaged_snapshot_with_one_before_it_is_a_warning(shell: Shell) -> None:
    with lakebed.open(shell.folder, SMALL) as log:
        log.checkpoint()
    newest = max((shell.folder / "snapshots").iterdir())
    assert len(list((shell.folder / "snapshots").iterdir())) == 2
    flip(newest, 20)
    result = shell.run("doctor", "--json", code=3)
    found = [json.loads(line) for line in result.stdout.splitlines()]
    shown = [each["verdict"] for each in found if each["name"] == "snapshot"]
    assert shown == ["warning", "ok"]


def test_files_that_nobody_knows_are_listed(shell: Shell) -> None:
    (shell.folder / "notes.txt").write_text("mine")
    (shell.folder / "notes.txt").chmod(0o600)
    found = checks(shell, 3)
    assert verdicts(found) == {"unknown files": "warning"}
    assert "notes.txt" in found["unknown files"]["found"]


def test_the_folder_of_derived_tables_is_part_of_a_log(shell: Shell) -> None:
    with lakebed.open(shell.folder, SMALL) as log:
        fields = pa.schema([pa.field("id", pa.int64(), nullable=False)])
        log.derived.create("totals", fields, kind="append")
    assert (shell.folder / "derived").is_dir()
    assert verdicts(checks(shell, 0)) == {}


STRAY = {
    "of a topic that never existed": "lake/99/0-00000000000000000001.parquet",
    "of a topic 0": "lake/0/0-00000000000000000001.parquet",
    "of a partition that never existed": "lake/1/7-00000000000000000001.parquet",
    "of an id that another partition has": "lake/1/0-{other}.parquet",
    "of an id that was never given": "lake/1/0-00000000000000000000.parquet",
    "unfinished, of a topic that never existed": "lake/99/0-00000000000000000001.parquet.tmp",
    "unfinished, and no segment": "lake/1/notes.tmp",
}


@pytest.mark.parametrize("name", STRAY.values(), ids=STRAY)
def test_a_stray_file_is_put_aside_and_never_removed(shell: Shell, name: str) -> None:
    (other,) = (shell.folder / "lake" / "1").glob("1-*.parquet")
    path = shell.folder / name.format(other=other.stem.removeprefix("1-"))
    assert not path.exists()
    path.parent.mkdir(mode=0o700, exist_ok=True)
    path.write_bytes(b"somebody's")
    path.chmod(0o600)
    assert path.name in checks(shell, 3)["unknown files"]["found"]
    with lakebed.open(shell.folder, SMALL) as log:
        assert log.stats().files_quarantined == 1
        assert log.stats().files_removed == 0
    assert not path.exists()
    (aside,) = (shell.folder / "quarantine").iterdir()
    assert aside.read_bytes() == b"somebody's"


def test_files_in_quarantine_are_listed(shell: Shell) -> None:
    stranger = segments(shell)[0].with_name("stranger.parquet")
    stranger.write_bytes(b"x")
    stranger.chmod(0o600)
    assert "stranger.parquet" in checks(shell, 3)["unknown files"]["found"]
    shell.run("topic", "list")
    found = checks(shell, 3)
    assert verdicts(found) == {"put aside": "warning"}
    assert "stranger.parquet" in found["put aside"]["found"]


def test_permissions_for_others_are_a_warning(shell: Shell) -> None:
    segments(shell)[0].chmod(0o644)
    found = checks(shell, 3)
    assert verdicts(found) == {"permissions": "warning"}
    assert str(segments(shell)[0]) in found["permissions"]["found"]


def test_a_log_in_use_can_be_examined_meanwhile(shell: Shell) -> None:
    with lakebed.open(shell.folder, SMALL) as log:
        found = checks(shell, 3)
        log.append("a", b"still mine")
    assert verdicts(found) == {"owner": "warning"}


def test_a_wal_whose_entries_are_no_commands_is_a_problem(tmp_path: Path) -> None:
    Builder(tmp_path / "log").append(3).close()
    found = checks(Shell(tmp_path / "log"), 1)
    assert verdicts(found) == {"entries": "problem"}
