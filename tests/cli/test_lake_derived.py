"""Derived tables in the list of the lake's tables."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

import lakebed
from lakebed.errors import ForeignTableError
from tests.cli.engine import Shell
from tests.engine.test_derived import USERS, commit, deleted, written

FLOW = f"shop.totals.{'0f' * 16}"


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    """Make a log with a table of a topic, one of a pipeline's flow and one of nobody yet."""
    with lakebed.Log.open(tmp_path / "log") as log:
        log.create_topic("users", partitions=2)
        log.append_batch("users", [{"value": b"x", "partition": n % 2} for n in range(5)])
        log.derived.create("users_now", USERS, key=["id"], buckets=1)
        file = written(log, "users_now", [1, 2, 3])
        commit(log, "users_now", 0, file, positions={"users": {0: 2, 1: 1}})
        commit(log, "users_now", 1, deleted(log, "users_now", file, [0]))
        log.derived.create("totals", USERS, kind="history", key=["id", "name"], buckets=1)
        commit(log, "totals", 7, writer=FLOW)
        log.derived.create("added", pa.schema([("id", pa.int64())]), kind="append")
    return Shell(tmp_path / "log")


def test_derived_tables_stand_below_those_of_topics(shell: Shell) -> None:
    topics, derived = shell.text("lake", "tables").split("\n\n")
    assert len(topics.splitlines()) == 2
    header, added, totals, users = (line.split("  ") for line in derived.splitlines())
    assert [each.strip() for each in header if each.strip()] == [
        *("derived table", "mode", "made of", "files", "rows", "size", "position", "lag")
    ]
    shown = [[each.strip() for each in row if each.strip()] for row in (added, totals, users)]
    assert shown[0] == ["added", "append", "-", "0", "0", "0 B", "-", "-"]
    assert shown[1][:3] == ["totals", "history by id, name", "flow shop.totals"]
    assert shown[1][6:] == ["batch 7", "-"]
    assert shown[2][:5] == ["users_now", "current by id", "topic users", "1", "2"]
    assert shown[2][6:] == ["0: 2, 1: 1", "2"]


def test_programs_get_a_line_for_each_derived_table(shell: Shell) -> None:
    topic, added, totals, users = shell.json("lake", "tables")
    assert [topic["type"], added["type"]] == ["table", "derived_table"]
    assert (users["table"], users["kind"], users["key"]) == ("users_now", "current", ["id"])
    assert (users["positions"], users["lag_records"]) == ({"users": {"0": 2, "1": 1}}, 2)
    assert (users["made_of"], totals["made_of"]) == (["topic users"], ["flow shop.totals"])
    assert (totals["writers"], totals["lag_records"]) == ({FLOW: 7}, None)
    assert users["bytes"] > 0 == added["bytes"]
    assert Path(users["metadata"].removeprefix("file://")).exists()


def test_a_derived_table_that_cannot_be_read_does_not_hide_the_others(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    from lakebed.iceberg.derived_table import Derived

    real = Derived.describe

    def describe(derived: Derived, name: str) -> object:
        if name == "totals":
            raise ForeignTableError("another program has changed the table", table=name)
        return real(derived, name)

    monkeypatch.setattr(Derived, "describe", describe)
    said = shell.text("lake", "tables")
    assert "problem of totals: another program has changed the table table=totals\n" in said
    assert "users_now" in said
    _, _, totals, users = shell.json("lake", "tables")
    assert "another program" in totals["problem"]
    assert (users["problem"], "kind" in totals) == ("", False)


def test_the_topic_of_a_table_may_be_gone(shell: Shell) -> None:
    shell.run("topic", "delete", "users", "--yes")
    assert shell.text("lake", "tables").startswith("no topics\n\nderived table")
    *_, users = shell.json("lake", "tables")
    assert users["lag_records"] is None
