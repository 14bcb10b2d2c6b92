"""Jobs on the command line: what they do, and what they say of it to people and to programs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import lakebed
from lakebed import LogConfig
from tests.cli.engine import Shell
from tests.cli.logs import flip

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.usefixtures("spark")


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    config = LogConfig(retention_interval_ms=86_400_000)
    with lakebed.Log.open(tmp_path / "log", config) as log:
        settings = {"cleanup": "compact", "compact_hold_ms": 0}
        log.create_topic("orders", config=settings)
        log.append_batch("orders", [{"key": f"k{n % 3}", "value": b"%d" % n} for n in range(30)])
        log.checkpoint()
    (tmp_path / "log" / "lakebed.toml").write_text("retention_interval_ms = 86400000\n")
    return Shell(tmp_path / "log")


def said(shell: Shell, *arguments: object) -> str:
    """Return what a command that succeeds writes; slow ones tell their progress beside it."""
    return str(shell.run(*arguments).stdout)


def facts(text: str) -> dict[str, str]:
    lines = (line.split("  ", 1) for line in text.splitlines())
    return {name.strip(): value.strip() for name, value in lines}


def test_a_topic_is_compacted_once(shell: Shell) -> None:
    told = facts(said(shell, "job", "compact", "orders"))
    assert (told["read"], told["dropped"]) == ("30 records", "27 records")
    (again,) = shell.json("job", "compact", "orders")
    assert (again["type"], again["partitions"]) == ("compact", 0)
    assert "nothing" in said(shell, "job", "compact", "orders")
    assert shell.values("orders") == ["27", "28", "29"]
    assert shell.error("job", "compact", "none")["code"] == "topic_not_found"


@pytest.mark.prove
def test_records_are_replayed_exported_and_imported(shell: Shell, tmp_path: Path) -> None:
    (done,) = shell.json("job", "replay", "orders", "copy", "--start", "0=10", "--until", "20")
    assert (done["records"], done["offsets"], done["created"]) == (10, 10, True)
    text = said(shell, "job", "replay", "orders", "copy", "--start", "0=10", "--until", "20")
    assert "written  0 records" in text
    assert "before   1 of 1 chunk" in text
    assert shell.values("copy") == [str(n) for n in range(10, 20)]
    folder = tmp_path / "out"
    text = said(shell, "job", "export", "copy", folder, "--format", "json", "--files", "1")
    assert "written  10 records in 1 file" in text
    assert shell.error("job", "export", "copy", folder)["code"] == "invalid_argument"
    text = said(shell, "job", "import", "back", folder, "--format", "json", "--layout", "json")
    assert "files    1 file, 0 of them before" in text
    assert "to       back, made now" in text
    assert [json.loads(value)["value"] for value in shell.values("back")] == shell.values("copy")
    (made,) = shell.json("job", "materialise", "orders")
    assert (made["inserted"], made["created"]) == (3, True)
    assert "rows         0 written, 0 removed" in said(shell, "job", "materialise", "orders")


def test_a_verification_ends_with_1_if_something_is_wrong(
    shell: Shell, spark: SparkSession
) -> None:
    assert facts(said(shell, "job", "verify"))["wrong"] == "nothing"
    (file,) = (shell.folder / "lake").rglob("*.parquet")
    flip(file, 50)
    result = shell.run("job", "verify", "orders", "--no-tables", "--json", code=1)
    damage, summary = (json.loads(line) for line in result.stdout.splitlines())
    assert (damage["type"], damage["code"], damage["partition"]) == ("damage", "corruption", 0)
    assert damage["file"].endswith(file.name)
    assert (summary["type"], summary["damaged"], summary["segments"]) == ("verify", 1, 1)
    shown = shell.run("job", "verify", "orders", "--no-tables", code=1).stdout
    assert "orders          0    0..30  a column chunk is damaged" in shown
    assert spark.range(1).count() == 1  # a session that was there before is not ended


def test_what_spark_says_is_told_in_one_sentence(shell: Shell, tmp_path: Path) -> None:
    (tmp_path / "x.parquet").write_bytes(b"no such file")
    error = shell.error("job", "import", "new", tmp_path / "x.parquet")
    assert error["code"] == "job_failed"
    assert "x.parquet" in error["facts"]["cause"]
    assert "\n" not in error["facts"]["cause"]
