"""The Iceberg tables on the command line."""

from __future__ import annotations

import ast
import contextlib
import io
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import pytest
from pyiceberg.catalog import Catalog, load_catalog

import lakebed
from lakebed import LakeConfig, LogConfig
from lakebed.cli.lake_readers import catalog_properties, readers
from lakebed.cli.look import _sections
from lakebed.cli.output import Meter, write_table, write_wrapped
from tests.cli.engine import Shell
from tests.engine.support import inner
from tests.foreign.readers import duckdb_connection
from tests.s3 import KEY, SECRET, Server, s3
from tests.waiting import until

__all__ = ["s3"]

TABLE_FACTS = {
    *("type", "topic", "exists", "location", "metadata", "snapshot", "snapshots", "files"),
    *("records", "bytes", "position", "offsets", "lag_records", "lag_seconds", "problem"),
}

DEAD_CATALOG = "[lake.catalog]\ntype = 'sql'\nuri = 'sqlite:////nowhere/at/all.db'\n"


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    """Make a log with a topic whose table shows three records, and an empty one."""
    shell = Shell(tmp_path / "data")
    shell.run("topic", "create", "orders", "--partitions", 2)
    shell.run("produce", "orders", "--partition", 0, given="x\ny\n")
    shell.run("produce", "orders", "--partition", 1, given="z\n")
    shell.run("checkpoint")
    shell.run("topic", "create", "empty")
    return shell


@contextlib.contextmanager
def catalog_of(shell: Shell) -> Iterator[Catalog]:
    """Connect to the catalog as somebody else would."""
    (found,) = shell.json("lake", "describe", "orders")
    catalog = load_catalog("lakebed", **found["catalog"])
    try:
        yield catalog
    finally:
        catalog.close()


def one(shell: Shell, topic: str = "orders") -> dict[str, Any]:
    (found,) = [each for each in shell.json("lake", "tables") if each["topic"] == topic]
    return found


class Screen(io.StringIO):
    """A terminal that remembers what was drawn on it."""

    def isatty(self) -> bool:
        return True


# Looking


def test_tables_are_listed_with_their_lag(shell: Shell) -> None:
    shell.run("produce", "orders", given="later\n")
    shown = [line.split() for line in shell.text("lake", "tables").splitlines()]
    assert shown[0] == ["topic", "files", "records", "size", "snapshots", "lag"]
    assert shown[1] == ["empty", "-", "-", "-", "-", "0"]
    assert (shown[2][:3], shown[2][5:]) == (["orders", "2", "3"], ["1", "1"])
    empty, orders = shell.json("lake", "tables")
    assert set(empty) == set(orders) == TABLE_FACTS
    assert (orders["type"], orders["records"], orders["lag_records"]) == ("table", 3, 1)
    assert orders["offsets"] == {"0": 2, "1": 1}
    assert (empty["exists"], empty["metadata"], empty["snapshot"]) == (False, "", None)


def test_a_log_without_topics_has_no_tables(tmp_path: Path) -> None:
    shell = Shell(tmp_path / "data")
    shell.run("topic", "create", "a")
    shell.run("topic", "delete", "a", "--yes")
    assert shell.text("lake", "tables") == "no topics\n"
    assert shell.json("lake", "tables") == []


def test_what_describe_shows_can_be_pasted(shell: Shell) -> None:
    (found,) = shell.json("lake", "describe", "orders")
    assert set(found) == TABLE_FACTS | {"table", "catalog", "readers"}
    assert found["table"] == "lakebed.orders"
    assert Path(found["metadata"].removeprefix("file://")).exists()
    shown = shell.text("lake", "describe", "orders")
    for text in found["readers"].values():
        for line in text.splitlines():
            assert f"  {line}\n" in shown
    connection = duckdb_connection()
    assert counts_of(found["readers"], connection) == (3, 3, 3)
    shell.run("produce", "orders", given="later\n")
    shell.run("lake", "sync")
    assert counts_of(found["readers"], connection) == (4, 4, 4)  # the same lines, after a sync
    connection.close()


def counts_of(readers: dict[str, str], connection: Any) -> tuple[int, int, int]:
    """Run the lines as they are; return how many records DuckDB, pyiceberg and Polars see."""
    by_duckdb = len(connection.execute(readers["DuckDB"]).fetchall())
    scope: dict[str, Any] = {}
    exec(readers["pyiceberg"], scope)
    by_pyiceberg = scope["table"].scan().to_arrow().num_rows
    *before, last = ast.parse(readers["Polars"]).body
    exec(compile(ast.Module(before, []), "Polars", "exec"), scope)
    assert isinstance(last, ast.Expr)
    frame = eval(compile(ast.Expression(last.value), "Polars", "eval"), scope)
    if "catalog" in scope:
        scope["catalog"].close()
    return by_duckdb, by_pyiceberg, frame.height


def test_what_describe_shows_reads_a_table_of_a_log_that_ships_its_entries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its catalog is in the store: readers find the table by its folder alone."""
    (tmp_path / "store").mkdir()
    monkeypatch.setenv("LAKEBED_LAKE_STORE", f"file://{tmp_path}/store")
    monkeypatch.setenv("LAKEBED_WAL_ACKS", "store")
    shell = Shell(tmp_path / "data")
    shell.run("topic", "create", "orders")
    shell.run("produce", "orders", given="a\nb\n")
    shell.run("lake", "sync")
    (found,) = shell.json("lake", "describe", "orders")
    assert found["catalog"] == {}
    connection = duckdb_connection()
    assert counts_of(found["readers"], connection) == (2, 2, 2)
    connection.close()


def test_what_describe_shows_reads_a_table_in_a_store(
    tmp_path: Path, s3: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STORE_KEY", KEY)
    monkeypatch.setenv("STORE_SECRET", SECRET)
    given = {"s3.access-key-id": "env:STORE_KEY", "s3.secret-access-key": "env:STORE_SECRET"}
    lake = LakeConfig(
        store=f"s3://{s3.bucket()}/logs", store_options={"s3.endpoint": s3.url, **given}
    )
    with lakebed.open(tmp_path / "data", LogConfig(lake=lake)) as log:
        log.create_topic("orders")
        log.append_batch("orders", [b"a", b"b"])
        log.checkpoint()
        log.lake.sync()
        location = log.lake.describe("orders").location
        shown = readers(
            location, ("lakebed", "orders"), catalog_properties(lake, inner(log).folder)
        )
    host = s3.url.removeprefix("http://")
    note, secret, _ = shown["DuckDB"].splitlines()
    assert "INSTALL httpfs" in note
    assert secret == (
        "CREATE OR REPLACE SECRET (TYPE s3, KEY_ID '...', SECRET '...', REGION 'us-east-1', "
        f"ENDPOINT '{host}', USE_SSL false, URL_STYLE 'path');"
    )
    filled = shown["DuckDB"].replace("KEY_ID '...'", f"KEY_ID '{KEY}'")
    shown["DuckDB"] = filled.replace("SECRET '...'", f"SECRET '{SECRET}'")
    connection = duckdb_connection(s3={"SCOPE": "s3://nothing"})
    assert counts_of(shown, connection) == (2, 2, 2)
    connection.close()


@pytest.mark.parametrize(
    ("options", "secret", "spark"),
    [
        ({}, "PROVIDER credential_chain", ""),
        (
            {"s3.endpoint": "storage.example.com", "s3.region": "eu"},
            "PROVIDER credential_chain, REGION 'eu', ENDPOINT 'storage.example.com', "
            "USE_SSL true, URL_STYLE 'path'",
            ", .endpoint=https://storage.example.com, .path.style.access=true",
        ),
        (
            {"s3.endpoint": "env:PLACE", "client.region": "eu", "s3.access-key-id": "a"},
            "KEY_ID '...', REGION 'eu', ENDPOINT '...', USE_SSL true, URL_STYLE 'path'",
            ", .endpoint=..., .path.style.access=true",
        ),
        (
            {"s3.endpoint": "http://host:9000", "s3.force-virtual-addressing": "true"},
            "PROVIDER credential_chain, REGION 'us-east-1', ENDPOINT 'host:9000', USE_SSL false",
            ", .endpoint=http://host:9000",
        ),
    ],
)
def test_the_settings_of_a_store_become_those_of_its_readers(
    options: dict[str, str], secret: str, spark: str
) -> None:
    config = LakeConfig(store="s3://bucket/x", store_options=options)
    shown = readers("s3://bucket/x/1", ("a",), catalog_properties(config, Path("data")))
    assert f"CREATE OR REPLACE SECRET (TYPE s3, {secret});" in shown["DuckDB"].splitlines()
    assert ("INSTALL aws" in shown["DuckDB"]) == ("credential_chain" in secret)
    jar, settings, *_ = shown["Spark"].splitlines()
    assert "hadoop-aws" in jar
    assert settings == f"# spark.hadoop.fs.s3a.access.key and .secret.key{spark}"
    ast.parse(shown["Polars"])


def test_spark_gets_the_files_of_the_newest_snapshot(shell: Shell) -> None:
    (found,) = shell.json("lake", "describe", "orders")

    class Session:
        """Takes what Spark would be given: starting it takes longer than all the rest."""

        def __init__(self) -> None:
            self.read = self
            self.files: list[str] = []

        def parquet(self, *files: str) -> None:
            self.files = list(files)

    spark = Session()
    scope: dict[str, Any] = {"spark": spark}
    exec(found["readers"]["pyiceberg"], scope)
    exec(found["readers"]["Spark"], scope)
    stored = readers("s3://bucket/1", ("lakebed", "orders"), found["catalog"])["Spark"]
    scope["spark"] = elsewhere = Session()
    exec(stored, scope)
    assert [each.replace("s3a:", "file:") for each in elsewhere.files] == spark.files
    scope["catalog"].close()
    rows = duckdb.sql(f"SELECT count(*) FROM read_parquet({spark.files})").fetchall()
    assert rows == [(3,)]


def test_a_table_that_is_not_made_yet_is_described_as_far_as_possible(shell: Shell) -> None:
    shown = shell.text("lake", "describe", "empty")
    assert "table     lakebed.empty, not made yet" in shown
    assert "DuckDB" not in shown
    (found,) = shell.json("lake", "describe", "empty")
    assert found["readers"] == {}


def test_the_history_lists_snapshots_and_who_made_them(shell: Shell) -> None:
    shell.run("produce", "orders", given="more\n")
    shell.run("checkpoint")
    first, second = shell.json("lake", "history", "orders")
    assert (first["type"], first["records"], second["records"]) == ("snapshot", 3, 4)
    assert (first["files_added"], second["files_added"], second["ours"]) == (2, 1, True)
    assert second["parent"] == first["snapshot"]
    assert first["time"].endswith("+00:00")
    lines = shell.text("lake", "history", "orders").splitlines()
    assert len(lines) == 3
    assert str(second["snapshot"]) in lines[2]
    assert "the log" in lines[2]
    assert shell.text("lake", "history", "empty") == "no snapshots\n"
    assert shell.json("lake", "history", "empty") == []


def test_the_list_of_tables_cuts_no_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = "n" * 120
    shell = Shell(tmp_path / "data")
    shell.run("topic", "create", name)
    (shell.folder / "lakebed.toml").write_text(DEAD_CATALOG)
    assert shell.text("lake", "tables").splitlines()[1].split()[0] == name
    screen = Screen()
    monkeypatch.setattr(sys, "stdout", screen)
    monkeypatch.setenv("COLUMNS", "60")
    write_table(("topic", ">lag"), [(name, "1")], whole=True)
    write_wrapped(f"problem of {name}: " + "the catalog failed " * 9)
    lines = screen.getvalue().splitlines()
    assert lines[1].startswith(name)
    assert len(lines) > 4
    assert all(line.startswith("    ") and len(line) <= 60 for line in lines[4:])


# Syncing


def test_a_sync_makes_tables_show_every_acknowledged_record(shell: Shell) -> None:
    shell.run("produce", "orders", given="later\n")
    (report,) = shell.json("lake", "sync")
    assert (report["type"], report["topic"], report["failures"]) == ("sync", None, [])
    assert (report["records_sealed"], report["segments_sealed"]) == (1, 1)
    assert report["tables_changed"] == 2  # the empty one is made
    assert one(shell, "empty")["exists"]
    assert (one(shell)["records"], one(shell)["lag_records"]) == (4, 0)
    assert shell.text("lake", "sync", "orders") == (
        "sealed  0 records into 0 segments\ntables  0 changed, 0 dropped\n"
    )
    shell.run("produce", "orders", given="last\n")
    assert shell.text("lake", "sync", "orders") == (
        "sealed  1 record into 1 segment\ntables  1 changed, 0 dropped\n"
    )
    assert one(shell)["records"] == 5


def test_properties_that_somebody_changed_harm_nobody(shell: Shell) -> None:
    for text in ("nothing", "[]", '{"0": "x"}', '{"x": 1}', "null", '{"0": null}'):
        with catalog_of(shell) as catalog:
            table = catalog.load_table(("lakebed", "orders"))
            table.transaction().set_properties({"lakebed.offsets": text}).commit_transaction()
        found = one(shell)
        assert (found["offsets"], found["records"], found["lag_records"]) == ({}, 3, 3)
    assert "offsets   -\n" in shell.text("lake", "describe", "orders")


def test_the_progress_of_a_sync_counts_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Screen()
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setenv("TERM", "xterm")
    with Meter(silent=False, unit="tables") as meter:
        meter("syncing tables", 1, 3)
    assert "syncing tables" in screen.getvalue()
    assert "1/3" in screen.getvalue()


def test_a_table_that_was_dropped_behind_our_back_comes_back(shell: Shell) -> None:
    with catalog_of(shell) as catalog:
        catalog.drop_table(("lakebed", "orders"))
    found = one(shell)
    assert (found["exists"], found["lag_records"]) == (False, 3)
    (report,) = shell.json("lake", "sync", "orders")
    assert report["tables_changed"] == 1
    assert (one(shell)["records"], one(shell)["lag_records"]) == (3, 0)


def append_foreign(shell: Shell) -> None:
    """Put a record into the table as somebody else."""
    with catalog_of(shell) as catalog:
        table = catalog.load_table(("lakebed", "orders"))
        table.append(table.scan(limit=1).to_arrow())


def test_a_table_that_somebody_changed_is_refused_and_taken_over_on_demand(shell: Shell) -> None:
    append_foreign(shell)
    assert [each["ours"] for each in shell.json("lake", "history", "orders")] == [True, False]
    assert "another program" in shell.text("lake", "history", "orders")
    assert shell.error("lake", "sync", "orders")["code"] == "foreign_table"
    assert one(shell)["records"] == 4
    (report,) = shell.json("lake", "sync", "orders", "--take-over", "--yes")
    assert report["files_removed"] == 1
    assert one(shell)["records"] == 3


def test_one_table_that_fails_holds_up_no_other_and_is_exit_code_1(shell: Shell) -> None:
    append_foreign(shell)
    result = shell.run("lake", "sync", code=1)
    assert "tables  1 changed, 0 dropped\n" in result.stdout
    error, advice = result.stderr.splitlines()
    assert error.startswith("error: orders: another writer has put files into the table")
    assert advice.startswith("advice: undo the change")
    assert advice.endswith("(code: foreign_table)")
    result = shell.run("lake", "sync", "--json", code=1)
    (failure,) = json.loads(result.stdout)["failures"]
    assert (failure["topic"], failure["code"]) == ("orders", "foreign_table")
    assert failure["facts"]["table"] == "orders"
    assert result.stderr == ""
    assert one(shell, "empty")["exists"]


def test_taking_over_asks_first(shell: Shell) -> None:
    append_foreign(shell)
    assert "use --yes" in shell.usage("lake", "sync", "orders", "--take-over")
    assert one(shell)["records"] == 4
    assert "needs the name of a topic" in shell.usage("lake", "sync", "--take-over", "--yes")


# Removal


def test_files_wait_for_their_readers_unless_told_otherwise(shell: Shell) -> None:
    shell.run("topic", "purge", "orders", "--yes")
    segments = list((shell.folder / "lake").rglob("*.parquet"))
    assert len(segments) == 2
    (report,) = shell.json("lake", "gc")
    assert (report["type"], report["now"], report["segments_removed"]) == ("gc", False, 0)
    assert report["waiting"] >= 2
    assert "use --yes" in shell.usage("lake", "gc", "--now")
    assert all(path.exists() for path in segments)
    shown = shell.text("lake", "gc", "--now", "--yes").splitlines()
    assert shown[0] == "segments     2 removed"
    assert shown[2] == "waiting      0 files"
    assert not any(path.exists() for path in segments)
    assert one(shell)["records"] == 0


# Bad input


@pytest.mark.parametrize("command", ["describe", "history", "sync"])
def test_a_topic_that_is_not_there_is_an_error(shell: Shell, command: str) -> None:
    assert shell.error("lake", command, "nothing")["code"] == "topic_not_found"
    assert shell.error("lake", "sync", "nothing", "--take-over", "--yes")["code"] == (
        "topic_not_found"
    )


@pytest.mark.parametrize(
    "call", [["tables"], ["describe", "a"], ["history", "a"], ["sync"], ["gc"]]
)
def test_a_folder_without_a_log_is_an_error(tmp_path: Path, call: list[str]) -> None:
    assert Shell(tmp_path / "nothing").error("lake", *call)["code"] == "not_a_log"
    assert not (tmp_path / "nothing").exists()


@pytest.mark.parametrize(
    "call", [["describe"], ["history"], ["sync", "a", "b"], ["gc", "a"], ["nothing"]]
)
def test_a_wrong_call_is_exit_code_2(shell: Shell, call: list[str]) -> None:
    shell.usage("lake", *call)


def test_a_log_without_a_lake_says_so(shell: Shell) -> None:
    (shell.folder / "lakebed.toml").write_text("[lake]\niceberg = false\n")
    for call in (["tables"], ["sync"], ["gc"]):
        assert "neither tables nor a store" in shell.error("lake", *call)["message"]


def test_a_catalog_that_does_not_answer_is_a_problem_of_each_table(shell: Shell) -> None:
    (shell.folder / "lakebed.toml").write_text(DEAD_CATALOG)
    assert all("the catalog failed" in each["problem"] for each in shell.json("lake", "tables"))
    shown = shell.text("lake", "tables").splitlines()
    assert [line.split()[0] for line in shown] == ["topic", "empty", "orders", "problem", "problem"]
    assert shown[4].startswith("problem of orders: the catalog failed")
    described = shell.text("lake", "describe", "orders")
    assert "table     lakebed.orders\nproblem   the catalog failed" in described
    assert "not made yet" not in described
    assert shell.error("lake", "sync")["code"] == "catalog_unavailable"
    assert "problems                   2 tables, see `lakebed lake tables`; empty: the catalog" in (
        shell.text("stats")
    )
    (found,) = shell.json("stats")
    assert set(found["table_problems"]) == {"empty", "orders"}
    assert sorted(shell.values("orders")) == ["x", "y", "z"]


def test_mistakes_in_the_file_of_settings_are_told(shell: Shell) -> None:
    (shell.folder / "lakebed.toml").write_text("[lake]\nicebreg = false\n")
    found = shell.error("lake", "tables")
    assert found["code"] == "settings_file"
    assert (found["facts"]["setting"], found["facts"]["section"]) == ("icebreg", "lake")
    (shell.folder / "lakebed.toml").write_text("[lake]\ngrace_ms = -1\n")
    shown = shell.run("stats", code=1).stderr
    assert "grace_ms must be an integer from 0 to" in shown
    assert f"file={shell.folder}/lakebed.toml section=lake" in shown
    assert "advice: correct the named file" in shown


# What others are shown


def test_secrets_are_not_shown() -> None:
    config = LakeConfig(
        catalog={
            "type": "sql",
            "name": "mine",
            "uri": "postgresql+psycopg2://user:swordfish@host/db",
            "token": "swordfish",
        },
        store="s3://bucket/x",
        store_options={
            "s3.endpoint": "https://storage.example.com",
            "s3.access-key-id": "swordfish",
            "s3.secret-access-key": "env:STORE_SECRET",
        },
    )
    shown = catalog_properties(config, Path("data"))
    assert "swordfish" not in str(shown)
    assert shown["uri"] == "postgresql+psycopg2://user:...@host/db"
    assert shown["s3.endpoint"] == "https://storage.example.com"
    text = readers("s3://b/it's/1", ("a", "b"), shown)
    assert "swordfish" not in str(text)
    assert "os.environ['STORE_SECRET']" in text["pyiceberg"]
    assert "load_catalog('mine'" in text["pyiceberg"]
    assert "'s3://b/it''s/1'" in text["DuckDB"]
    for name in ("pyiceberg", "Polars", "Spark"):
        ast.parse(text[name])


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("uri", "postgresql://user:tro@u/t@host/db"),
        ("uri", "postgresql://host/db?user=me&password=trout"),
        ("uri", "https://host/?token=trout&x=1"),
        ("credential", "client:trout"),
        ("token", "trout"),
        ("header.Authorization", "Bearer trout"),
        ("header.x-api-key", "trout"),
        ("adls.connection-string", "AccountKey=trout"),
        ("adls.account-key", "trout"),
        ("s3.secret-access-key", "trout"),
        ("s3.session-token", "trout"),
        ("password", "trout"),
    ],
)
def test_no_kind_of_secret_is_shown(name: str, value: str) -> None:
    config = LakeConfig(catalog={"type": "rest", name: value}, store_options={name: value})
    shown = catalog_properties(config, Path("data"))[name]
    assert "..." in shown
    assert not any(part in shown for part in ("trout", "tro@", "u/t"))


def test_statistics_show_the_lag(shell: Shell) -> None:
    shell.run("produce", "orders", given="later\n")
    (found,) = shell.json("stats")
    assert (found["lake"]["lag_records"], found["lake"]["tables_behind"]) == (1, 1)
    assert "  lag                        1 record, of 1 topic\n" in shell.text("stats")


def test_statistics_show_failures_of_the_lake_and_nothing_if_there_are_none(shell: Shell) -> None:
    assert "failure" not in shell.text("stats")
    assert "problem" not in shell.text("stats")
    catalog = {"type": "sql", "uri": "sqlite:////nowhere/at/all.db"}
    config = LogConfig(lake=LakeConfig(catalog=catalog, sync_interval_ms=10))
    with lakebed.open(shell.folder, config) as log:
        until(lambda: log.lake.stats().failures > 0)
        facts = dict(dict(_sections(log.stats(), {}))["lake"])
    assert int(facts["failed syncs"]) > 0
    assert "the catalog failed" in facts["last failure"]


# Checkpoints


def test_a_checkpoint_whose_tables_fail_is_one_all_the_same_and_warns(shell: Shell) -> None:
    (shell.folder / "lakebed.toml").write_text(DEAD_CATALOG)
    shell.run("produce", "orders", given="later\n")
    result = shell.run("checkpoint")
    assert "flushed   1 record into 1 segment" in result.stdout
    warning, advice = result.stderr.splitlines()
    assert warning.startswith("warning: the lake is not up to date: the catalog failed")
    assert advice.endswith("(code: catalog_unavailable)")
    (found,) = shell.json("checkpoint")
    (failure,) = found["lake_failures"]
    assert (failure["code"], failure["retriable"]) == ("catalog_unavailable", True)


def test_a_checkpoint_tells_which_table_is_refused(shell: Shell) -> None:
    append_foreign(shell)
    result = shell.run("checkpoint")
    warning, advice = result.stderr.splitlines()
    assert warning.startswith("warning: the table of orders is not up to date: another writer")
    assert advice.endswith("(code: foreign_table)")


def test_a_checkpoint_leaves_the_tables_up_to_date(shell: Shell) -> None:
    shell.run("produce", "orders", given="later\n")
    (found,) = shell.json("checkpoint")
    assert (found["records"], found["lake_failures"]) == (1, [])
    assert found["seconds_in_all"] > found["seconds"]
    assert (one(shell)["records"], one(shell)["lag_records"]) == (4, 0)
    (shell.folder / "lakebed.toml").write_text("[lake]\niceberg = false\n")
    assert "took" in shell.text("checkpoint")
