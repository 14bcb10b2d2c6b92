"""`lakebed backup` and `restore`."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner

import lakebed
from lakebed.cli import cli
from lakebed.host import failpoints
from lakebed.reports.maintenance import BackupReport
from tests import forked
from tests.cli.engine import PROGRAM, Shell


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    """Make a log with records in it, and without tables, for which closing would wait."""
    (tmp_path / "log").mkdir(mode=0o700)
    settings = tmp_path / "log" / "lakebed.toml"
    settings.touch(mode=0o600)
    settings.write_text("[lake]\niceberg = false\n")
    shell = Shell(tmp_path / "log")
    shell.run("topic", "create", "t", "--partitions", "2")
    shell.run("produce", "t", given="a\nb\nc\n")
    return shell


def consumed(folder: Path) -> list[str]:
    return sorted(Shell(folder).text("consume", "t").splitlines())


def test_a_log_is_backed_up_and_restored(shell: Shell, tmp_path: Path) -> None:
    text = shell.text("backup", tmp_path / "backup")
    assert "3 records of 1 topic" in text
    shell.run("produce", "t", given="later\n")
    new = Shell(tmp_path / "new")
    shown = new.text("restore", tmp_path / "backup")
    assert f"{tmp_path / 'new'}, " in shown
    assert " verified" in shown
    assert consumed(tmp_path / "new") == ["a", "b", "c"]
    assert len(consumed(tmp_path / "log")) == 4
    assert new.run("doctor").exit_code == 0


def test_programs_get_json(shell: Shell, tmp_path: Path) -> None:
    (taken,) = shell.json("backup", tmp_path / "backup")
    assert taken["type"] == "backup"
    assert set(taken) == {"type", *BackupReport.__dataclass_fields__}
    (checked,) = shell.json("restore", tmp_path / "backup", "--verify-only")
    (restored,) = Shell(tmp_path / "new").json("restore", tmp_path / "backup")
    assert checked["type"] == restored["type"] == "restore"
    assert (checked["folder"], restored["folder"]) == ("", str(tmp_path / "new"))
    for name in ("log_id", "index", "records", "files", "size_bytes"):
        assert taken[name] == checked[name] == restored[name]
    assert restored["segments_verified"] > checked["segments_verified"] == 0


def test_a_check_writes_nothing(shell: Shell, tmp_path: Path) -> None:
    shell.run("backup", tmp_path / "backup")
    text = Shell(tmp_path / "new").text("restore", tmp_path / "backup", "--verify-only")
    assert "nothing (--verify-only)" in text
    assert not (tmp_path / "new").exists()


def test_what_is_refused(shell: Shell, tmp_path: Path) -> None:
    assert shell.error("backup", tmp_path / "log" / "b")["code"] == "invalid_argument"
    shell.run("backup", tmp_path / "backup")
    assert shell.error("backup", tmp_path / "backup")["message"] == "the folder is not empty"
    assert shell.error("restore", tmp_path / "backup")["message"] == "the folder is not empty"
    other = Shell(tmp_path / "new")
    assert other.error("backup", tmp_path / "x")["code"] == "not_a_log"
    assert other.error("restore", tmp_path / "log")["code"] == "not_a_backup"
    nowhere = CliRunner(env={"LAKEBED_DATA": None}).invoke(cli, ["restore", str(tmp_path)])
    assert (nowhere.exit_code, "--data DIR" in nowhere.stderr) == (2, True)
    assert "folder" in other.usage("restore", tmp_path / "backup", "--data", "lakebed://host:1")
    (tmp_path / "backup" / "backup.json").unlink()
    assert other.error("restore", tmp_path / "backup", "--verify-only")["code"] == "not_a_backup"
    with lakebed.open(tmp_path / "log"):
        assert shell.error("backup", tmp_path / "x")["code"] == "locked"
    assert not (tmp_path / "new").exists()
    assert not (tmp_path / "x").exists()


def test_a_damaged_file_is_named(shell: Shell, tmp_path: Path) -> None:
    shell.run("backup", tmp_path / "backup")
    victim = next((tmp_path / "backup").rglob("*.parquet"))
    victim.write_bytes(victim.read_bytes()[:-10])
    error = shell.error("restore", tmp_path / "backup", "--verify-only")
    assert error["code"] == "backup_damaged"
    assert error["facts"]["file"] == str(victim)


def test_a_store_is_warned_of(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    (tmp_path / "log").mkdir()
    (tmp_path / "log" / "lakebed.toml").write_text(
        f"[lake]\niceberg = false\nstore = 'file://{tmp_path}/store'\n"
    )
    shell = Shell(tmp_path / "log")
    shell.run("topic", "create", "t", "--config", "local_bytes=0")
    shell.run("produce", "t", given="a\nb\n")
    shell.run("lake", "sync")
    shell.run("checkpoint")
    taken = shell.run("backup", tmp_path / "backup")
    assert "1 segment is in file://" in taken.stderr
    restored = Shell(tmp_path / "new").run("restore", tmp_path / "backup")
    assert "warning: the log keeps segments and tables in file://" in restored.stderr
    assert consumed(tmp_path / "new") == ["a", "b"]


def test_a_command_that_is_killed_leaves_no_backup(shell: Shell, tmp_path: Path) -> None:
    done = forked.run(
        [*PROGRAM, "backup", tmp_path / "backup", "--data", tmp_path / "log"],
        env={**os.environ, failpoints.VARIABLE: "engine.backup.whole=kill"},
        check=False,
        capture_output=True,
    )
    assert done.returncode == -signal.SIGKILL
    error = shell.error("restore", tmp_path / "backup", "--verify-only")
    assert error["message"] == "the backup was not finished"
    assert consumed(tmp_path / "log") == ["a", "b", "c"]
    assert shell.run("doctor").exit_code == 0


def test_progress_is_for_who_watches(shell: Shell, tmp_path: Path) -> None:
    """On a terminal there is a bar on stderr; stdout has the result alone."""
    ours, theirs = pty.openpty()
    with forked.Popen(
        [*PROGRAM, "backup", tmp_path / "backup", "--data", tmp_path / "log", "--json"],
        stdout=subprocess.PIPE,
        stderr=theirs,
    ) as quiet:
        assert quiet.stdout is not None
        assert json.loads(quiet.stdout.read())["records"] == 3
    with forked.Popen(
        [*PROGRAM, "backup", tmp_path / "other", "--data", tmp_path / "log"],
        stdout=subprocess.PIPE,
        stderr=theirs,
    ) as shown:
        assert shown.stdout is not None
        assert shown.stdout.read().startswith(b"backup")
    os.close(theirs)
    os.close(ours)
    assert (quiet.returncode, shown.returncode) == (0, 0)
