"""Jobs on the command line, as far as they need no Spark; tests/spark has the others."""

from __future__ import annotations

from pathlib import Path

import pytest

import lakebed
from lakebed import LakeConfig, LogConfig
from tests.cli.engine import Shell


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    with lakebed.Log.open(tmp_path / "log") as log:
        log.create_topic("t")
        log.append("t", b"1")
        log.checkpoint()
    return Shell(tmp_path / "log")


@pytest.mark.parametrize(
    "command",
    [
        ("compact", "t"),
        ("materialise", "t"),
        ("verify",),
        ("replay", "t", "u"),
        ("import", "t", "x.parquet"),
        ("export", "t", "out"),
    ],
    ids=lambda each: each[0],
)
def test_without_java_a_job_says_so_before_it_opens_the_log(
    shell: Shell, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, command: tuple[str, ...]
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "nowhere"))
    error = shell.error("job", *command)
    assert error["code"] == "java_missing"
    text = shell.run("job", *command, code=1).stderr
    assert text.startswith("error: JAVA_HOME does not contain Java")


def test_bounds_that_are_none_are_wrong_calls(shell: Shell) -> None:
    assert "neither an offset nor" in shell.usage("job", "replay", "t", "u", "--start", "first")
    assert "is no time" in shell.usage("job", "export", "t", "x", "--from-time", "yesterday")
    assert "Missing argument" in shell.usage("job", "import", "t")
    assert "--option" in shell.usage("job", "import", "t", "x", "--option", "header")


def test_tiering_needs_a_store(shell: Shell) -> None:
    error = shell.error("job", "tier")
    assert error["code"] == "invalid_argument"
    assert "no object store" in error["message"]


def test_tiering_moves_what_is_due_and_the_second_time_nothing(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    folder = tmp_path / "log"
    with lakebed.Log.open(folder, LogConfig(lake=LakeConfig(iceberg=False))) as log:
        log.create_topic("t", config={"local_bytes": 0})
        log.append("t", b"1")
        log.checkpoint()
    (folder / "lakebed.toml").write_text(f"[lake]\nstore = 'file://{tmp_path}/store'\n")
    shell = Shell(folder)
    (first,) = shell.json("job", "tier", "t")
    assert first["type"] == "tier"
    assert (first["segments_uploaded"], first["segments_moved"]) == (1, 1)
    assert first["bytes_moved"] == first["bytes_uploaded"] > 0
    assert shell.text("job", "tier").splitlines()[1:] == [
        "uploaded  0 segments, 0 B",
        "moved     0 segments, 0 B less on the local disk",
    ]
    assert shell.values("t") == ["1"]
