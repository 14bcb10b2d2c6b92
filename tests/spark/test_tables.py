"""Derived tables made by Spark: what they hold is what a dictionary would, for every reader."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import polars
import pyarrow as pa
import pytest

import lakebed
from lakebed import LakeConfig
from lakebed.errors import (
    ForeignTableError,
    InvalidArgumentError,
    OffsetOutOfRangeError,
    TableChangedError,
    TableNotFoundError,
)
from lakebed.spark.tables import append, materialise, merge, read_table
from tests.foreign.readers import duckdb_connection
from tests.s3 import Server, options
from tests.spark.support import PROCESS_SECONDS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

USERS = pa.schema([("id", pa.int64()), ("region", pa.string()), ("name", pa.string())])
CHANGES = "id long, region string, name string, _deleted boolean, _order long"


@pytest.fixture
def log(tmp_path: Path) -> Iterator[lakebed.Log]:
    with lakebed.Log.open(tmp_path / "log") as opened:
        yield opened


def rows_by_every_reader(spark: SparkSession, log: lakebed.Log, name: str) -> list[dict[str, Any]]:
    """Return the rows of a table, after all readers have agreed on them."""
    table = log.derived.iceberg(name)
    found = _listed(table.scan().to_arrow())
    with duckdb_connection() as connection:
        scan = connection.execute("SELECT * FROM iceberg_scan($1)", [table.metadata_location])
        assert _listed(scan.to_arrow_table()) == found
    assert _listed(polars.scan_iceberg(table).collect().to_arrow()) == found
    assert _listed(read_table(spark, log, name, technical=True).toArrow()) == found
    assert log.derived.describe(name).records == len(found)
    return found


def _listed(table: pa.Table) -> list[dict[str, Any]]:
    rows = table.drop_columns([each for each in table.column_names if each == "_bucket"])
    return sorted(rows.to_pylist(), key=lambda row: repr(sorted(row.items())))


def random_changes(rng: random.Random, model: dict[Any, str], run: int) -> list[tuple[Any, ...]]:
    """Make changes, and apply them to a dictionary in their order, whatever order they come in."""
    changes = []
    for number in range(rng.randrange(1, 60)):
        key = (rng.randrange(40), rng.choice(["north", "south"]))
        deleted = rng.random() < 0.3
        name = None if deleted else f"{run}-{number}"
        changes.append((*key, name, deleted, number))
        if name is None:
            model.pop(key, None)
        else:
            model[key] = name
    rng.shuffle(changes)
    return changes


def frame(spark: SparkSession, changes: list[tuple[Any, ...]]) -> DataFrame:
    return spark.createDataFrame(changes, CHANGES)


def as_model(found: list[dict[str, Any]]) -> dict[Any, str]:
    model = {(row["id"], row["region"]): row["name"] for row in found}
    assert len(model) == len(found)
    return model


def test_a_current_table_holds_what_a_dictionary_would_for_every_reader(
    spark: SparkSession, log: lakebed.Log
) -> None:
    rng = random.Random(7)
    model: dict[Any, str] = {}
    log.derived.create("users", USERS, kind="current", key=["id", "region"], buckets=3)
    first = [(number, "west", str(number), False, 0) for number in range(900)]
    model.update({(key, region): name for key, region, name, *_ in first})
    first += [(number % 40, "north", "old", False, 0) for number in range(40)]
    model.update({(number, "north"): "old" for number in range(40)})
    merge(log, "users", frame(spark, first), writer="test", number=0)
    for run in range(1, 4):
        done = merge(
            log, "users", frame(spark, random_changes(rng, model, run)), writer="test", number=run
        )
        assert not done.duplicate
        assert as_model(rows_by_every_reader(spark, log, "users")) == model
    contents = {each.content for each in log.derived.files("users").files}
    assert contents == {"data", "deletes"}
    log.lake.gc(now=True)
    assert as_model(rows_by_every_reader(spark, log, "users")) == model


def test_a_repeated_merge_is_recognised(spark: SparkSession, log: lakebed.Log) -> None:
    log.derived.create("users", USERS, key=["id"], buckets=2)
    changes = frame(spark, [(1, "north", "ann", False, 0)])
    first = merge(log, "users", changes, writer="test", number=4)
    again = merge(log, "users", changes, writer="test", number=4)
    earlier = merge(log, "users", changes, writer="test", number=3)
    other = merge(log, "users", changes, writer="another", number=0)
    assert (first.duplicate, again.duplicate, earlier.duplicate, other.duplicate) == (
        False,
        True,
        True,
        False,
    )
    assert len(rows_by_every_reader(spark, log, "users")) == 1


def test_a_key_of_a_narrower_type_is_the_same_key(spark: SparkSession, log: lakebed.Log) -> None:
    log.derived.create("users", USERS, key=["id"], buckets=16)
    changes = frame(spark, [(number, "north", "old", False, 0) for number in range(8)])
    merge(log, "users", changes, writer="test", number=0)
    narrow = changes.selectExpr("cast(id as int) id", "'new' name", "_deleted", "_order")
    merge(log, "users", narrow, writer="test", number=1)
    rows = log.derived.iceberg("users").scan().to_arrow()
    found = sorted((row["id"], row["name"]) for row in rows.to_pylist())
    assert found == [(number, "new") for number in range(8)]


def test_changes_without_a_key_or_with_other_columns_are_refused(
    spark: SparkSession, log: lakebed.Log
) -> None:
    log.derived.create("users", USERS, key=["id"], buckets=2)
    with pytest.raises(InvalidArgumentError, match="no key"):
        merge(log, "users", frame(spark, [(None, "n", "x", False, 0)]), writer="test", number=0)
    with pytest.raises(InvalidArgumentError, match="missing=_order"):
        merge(log, "users", frame(spark, []).drop("_order"), writer="test", number=0)
    with pytest.raises(InvalidArgumentError, match="a table with a key"):
        append(log, "users", frame(spark, []), writer="test", number=0)
    assert log.derived.describe("users").version == 0


def test_a_history_keeps_every_version_with_its_validity(
    spark: SparkSession, log: lakebed.Log
) -> None:
    log.derived.create("users", USERS, kind="history", key=["id"], buckets=2)
    kind = f"{CHANGES}, _time timestamp"
    rng = random.Random(3)
    versions: dict[int, list[list[Any]]] = {}
    clock = 0
    for run in range(4):
        changes = []
        for number in range(20):
            clock += 1
            key, deleted = rng.randrange(6), rng.random() < 0.3
            chain = versions.setdefault(key, [])
            if chain and chain[-1][2] is None:
                chain[-1][2] = clock
            if not deleted:
                chain.append([f"{run}-{number}", clock, None])
            name = None if deleted else f"{run}-{number}"
            changes.append((key, "north", name, deleted, number, clock))
        rng.shuffle(changes)
        timed = spark.createDataFrame(changes, kind.replace("timestamp", "long"))
        timed = timed.selectExpr("* except (_time)", "timestamp_micros(_time) as _time")
        merge(log, "users", timed, writer="test", number=run)
    expected = sorted(
        (key, name, start, end) for key, chain in versions.items() for name, start, end in chain
    )
    found = rows_by_every_reader(spark, log, "users")
    assert (
        sorted(
            (row["id"], row["name"], _us(row["valid_from"]), _us(row["valid_to"])) for row in found
        )
        == expected
    )
    assert all(row["is_current"] == (row["valid_to"] is None) for row in found)


def _us(time: Any) -> int | None:
    return None if time is None else int(time.timestamp() * 1_000_000)


def test_rows_are_appended_once(spark: SparkSession, log: lakebed.Log) -> None:
    log.derived.create("visits", USERS, kind="append")
    rows = spark.createDataFrame(
        [(number, "north", None) for number in range(50)], "id long, region string, name string"
    )
    for number in (0, 1, 1):
        append(log, "visits", rows.repartition(2), writer="test", number=number)
    found = rows_by_every_reader(spark, log, "visits")
    assert sorted(row["id"] for row in found) == sorted([*range(50), *range(50)])


def test_a_merge_based_on_another_version_is_refused(
    spark: SparkSession, log: lakebed.Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two jobs that change a table at the same time do not undo each other's work."""
    log.derived.create("users", USERS, key=["id"], buckets=2)
    changes = frame(spark, [(1, "north", "ann", False, 0)])
    before = log.derived.files("users")
    merge(log, "users", changes, writer="one", number=0)
    monkeypatch.setattr(log.derived, "files", lambda _name: before)
    with pytest.raises(TableChangedError, match="expected=0 version=1"):
        merge(log, "users", changes, writer="two", number=0)
    assert log.derived.describe("users").writers == {"one": 0}


def test_what_somebody_else_did_to_a_table_is_an_error(
    spark: SparkSession, log: lakebed.Log
) -> None:
    log.derived.create("visits", USERS, kind="append")
    rows = spark.createDataFrame([(1, "north", None)], "id long, region string, name string")
    append(log, "visits", rows, writer="test", number=0)
    table = log.derived.iceberg("visits")
    table.append(table.scan().to_arrow())
    with pytest.raises(ForeignTableError, match="another writer has changed"):
        append(log, "visits", rows, writer="test", number=1)
    table.catalog.drop_table(table.name())
    with pytest.raises(TableNotFoundError):
        append(log, "visits", rows, writer="test", number=1)


def test_a_table_in_an_object_store_is_written_and_read_by_workers(
    spark: SparkSession, s3: Server, tmp_path: Path
) -> None:
    """Spark has no library for S3; the Python workers have."""
    lake = LakeConfig(store=f"s3://{s3.bucket()}/lake", store_options=options(s3.url))
    with lakebed.Log.open(tmp_path / "log", lakebed.LogConfig(lake=lake)) as log:
        log.derived.create("users", USERS, key=["id"], buckets=2)
        first = [(number, "north", "old", False, 0) for number in range(20)]
        merge(log, "users", frame(spark, first), writer="test", number=0)
        changes = [(number, "north", "new", number == 3, 0) for number in range(5)]
        merge(log, "users", frame(spark, changes), writer="test", number=1)
        table = log.derived.iceberg("users")
        found = _listed(table.scan().to_arrow())
        assert {row["id"]: row["name"] for row in found} == {
            number: "new" if number < 5 else "old" for number in range(20) if number != 3
        }
        assert table.location().startswith("s3://")
        assert _listed(read_table(spark, log, "users").toArrow()) == found


# Being killed


def by_pyiceberg(log: lakebed.Log, name: str) -> dict[Any, Any]:
    found = log.derived.iceberg(name).scan().to_arrow().to_pylist()
    return {row["key"]: row["value"] for row in found}


DRIVER = """
import sys, lakebed, lakebed.spark, lakebed.spark.tables
with lakebed.Log.open(sys.argv[1]) as log:
    spark = lakebed.spark.session(master="local[1,4]", conf={"spark.driver.memory": "512m"})
    lakebed.spark.materialise(spark, log, "orders", buckets=1)
"""


def killed(folder: Path, point: str) -> None:
    """Run a driver that dies at a failpoint, and end what it leaves behind."""
    told = folder.with_name("driver.txt")
    with told.open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-c", DRIVER, str(folder)],
            env={**os.environ, "LAKEBED_FAILPOINTS": f"{point}=kill"},
            stdout=out,
            stderr=out,
            start_new_session=True,
        )
        try:
            assert process.wait(PROCESS_SECONDS) == -signal.SIGKILL, told.read_text()
        finally:
            os.killpg(process.pid, signal.SIGKILL)


@pytest.mark.prove
@pytest.mark.parametrize(
    ("point", "version"),
    [
        ("lake.derived.swapped", 1),
        ("spark.tables.written", 0),
        ("lake.derived.prepared", 0),
    ],
)
def test_a_driver_that_is_killed_is_repeated_and_nothing_counts_twice(
    spark: SparkSession, tmp_path: Path, point: str, version: int
) -> None:
    """The killed run is there in full, or not at all; the next one brings the table to the end."""
    rows = [{"key": b"%d" % (n % 7), "value": b"%d" % n} for n in range(30)]
    with lakebed.Log.open(tmp_path / "log") as log:
        log.create_topic("orders")
        log.append_batch("orders", [*rows, {"key": b"3", "value": None}])
        log.checkpoint()
    killed(tmp_path / "log", point)
    with lakebed.Log.open(tmp_path / "log") as log:
        assert log.derived.describe("orders").version == version
        report = materialise(spark, log, "orders")
        assert report.records == (0 if version else 31)
        expected = {row["key"]: row["value"] for row in rows if row["key"] != b"3"}
        assert by_pyiceberg(log, "orders") == expected
        log.lake.gc(now=True)
        assert by_pyiceberg(log, "orders") == expected
        folder = tmp_path / "log" / "derived"
        assert len(list(folder.rglob("*.parquet"))) == len(log.derived.files("orders").files)


# Materialising


def current(spark: SparkSession, log: lakebed.Log, name: str) -> dict[Any, Any]:
    return {row["key"]: row["value"] for row in rows_by_every_reader(spark, log, name)}


def test_a_raw_topic_becomes_a_table_of_its_current_values(
    spark: SparkSession, log: lakebed.Log
) -> None:
    log.create_topic("orders", partitions=2)
    rng = random.Random(5)
    model: dict[bytes, bytes] = {}
    for run in range(3):
        batch = []
        for number in range(80):
            key = b"%d" % rng.randrange(30)
            value = None if rng.random() < 0.25 else b"%d-%d" % (run, number)
            batch.append({"key": key, "value": value})
            if value is None:
                model.pop(key, None)
            else:
                model[key] = value
        log.append_batch("orders", batch)
        if run == 1:
            log.checkpoint()  # a part is read from segments, and the rest from memory
        report = materialise(spark, log, "orders", buckets=2)
        assert (report.records, report.created) == (80, run == 0)
        assert current(spark, log, "orders") == model
    again = materialise(spark, log, "orders")
    assert (again.records, again.version) == (0, 3)
    assert log.derived.describe("orders").positions["orders"] == {
        number: end for number, (_, end) in log.offsets("orders").items()
    }


def test_a_typed_topic_is_flattened_and_the_table_grows_with_it(
    spark: SparkSession, log: lakebed.Log
) -> None:
    schema = pa.schema([("id", pa.int64()), ("name", pa.string())])
    log.create_topic("users", schema=schema)
    log.append_batch("users", [{"key": b"a", "value": {"id": 1, "name": "ann"}}])
    materialise(spark, log, "users", buckets=1)
    log.alter_topic("users", schema=schema.append(pa.field("mail", pa.string())))
    log.append_batch("users", [{"key": b"b", "value": {"id": 2, "name": "bob", "mail": "b@x"}}])
    log.append_batch("users", [{"key": None, "value": {"id": 3, "name": "eve"}}])
    report = materialise(spark, log, "users")
    assert (report.columns_added, report.without_key) == (1, 1)
    found = rows_by_every_reader(spark, log, "users")
    assert found == [
        {"id": 1, "key": b"a", "mail": None, "name": "ann"},
        {"id": 2, "key": b"b", "mail": "b@x", "name": "bob"},
    ]


def test_fields_of_the_value_can_be_the_key(spark: SparkSession, log: lakebed.Log) -> None:
    schema = pa.schema([("id", pa.int64()), ("name", pa.string())])
    log.create_topic("users", schema=schema)
    log.append_batch(
        "users", [{"value": {"id": number % 3, "name": str(number)}} for number in range(9)]
    )
    log.append_batch("users", [{"key": b"x", "value": None}])
    report = materialise(spark, log, "users", "people", key="id", kind="history", buckets=2)
    assert (report.inserted, report.ignored_tombstones) == (9, 1)
    found = rows_by_every_reader(spark, log, "people")
    assert {row["id"]: row["name"] for row in found if row["is_current"]} == {
        0: "6",
        1: "7",
        2: "8",
    }
    assert len(found) == 9


def test_keys_that_moved_to_another_partition_are_ordered_by_time(
    spark: SparkSession, log: lakebed.Log
) -> None:
    log.create_topic("orders", partitions=2)
    log.append("orders", b"old", key=b"k", partition=1, timestamp=1_000)
    log.append("orders", b"older", key=b"k", partition=1, timestamp=2_000)
    log.append("orders", b"new", key=b"k", partition=0, timestamp=3_000)
    log.append("orders", b"late", key=b"j", partition=0, timestamp=9_000)
    log.append("orders", b"last", key=b"j", partition=0, timestamp=1_000)
    materialise(spark, log, "orders", buckets=1)
    assert current(spark, log, "orders") == {b"k": b"new", b"j": b"last"}


def test_records_that_are_gone_before_the_table_saw_them_are_an_error(
    spark: SparkSession, log: lakebed.Log
) -> None:
    log.create_topic("orders")
    log.append("orders", b"1", key=b"a")
    materialise(spark, log, "orders", buckets=1)
    log.append("orders", b"2", key=b"a")
    log.purge_topic("orders")
    with pytest.raises(OffsetOutOfRangeError, match="drop the table"):
        materialise(spark, log, "orders")
    log.derived.drop("orders")
    log.append("orders", b"3", key=b"a")
    materialise(spark, log, "orders", buckets=1)
    assert current(spark, log, "orders") == {b"a": b"3"}


def test_a_table_that_another_run_brings_further_meanwhile_is_not_ahead_of_its_topic(
    log: lakebed.Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is to be done, so there is no need of Spark."""
    log.create_topic("orders")
    schema = pa.schema([("key", pa.binary()), ("value", pa.binary())])
    log.derived.create("orders", schema, key=["key"], buckets=1)
    describe = log.describe_topic

    def overtaken(topic: str) -> Any:
        found = describe(topic)
        log.append(topic, b"1", key=b"a")
        log.derived.commit(topic, writer="another", number=0, positions={topic: {0: 1}}, expected=0)
        return found

    monkeypatch.setattr(log, "describe_topic", overtaken)
    done = materialise(cast("SparkSession", None), log, "orders")
    assert (done.records, done.version) == (0, 0)


def test_a_partition_that_is_added_while_a_run_begins_is_for_the_next_one(
    spark: SparkSession, log: lakebed.Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    log.create_topic("orders")
    log.append("orders", b"1", key=b"a")
    describe = log.describe_topic

    def grown(name: str) -> Any:
        found = describe(name)
        monkeypatch.undo()
        log.add_partitions(name, 2)
        log.append(name, b"2", key=b"b", partition=1)
        return found

    monkeypatch.setattr(log, "describe_topic", grown)
    assert materialise(spark, log, "orders", buckets=1).inserted == 1
    assert materialise(spark, log, "orders").inserted == 1
    assert log.derived.describe("orders").positions == {"orders": {0: 1, 1: 1}}
