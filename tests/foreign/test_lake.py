"""The tables of topics as other programs read them: exactly what the log has sealed, each time.

pyiceberg, DuckDB, Polars and Spark read the same tables; what each finds is held against what the
log itself gives, record by record.
"""

from __future__ import annotations

import datetime
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import pyarrow as pa
import pytest
from pyiceberg import expressions
from pyiceberg.catalog.sql import SqlCatalog

from lakebed import LakeConfig, Log, LogConfig
from lakebed.errors import CatalogUnavailableError
from tests.foreign.postgres import PostgresServer
from tests.foreign.readers import (
    Contents,
    contents,
    duckdb_connection,
    duckdb_scan,
    read_polars,
    read_pyiceberg,
    read_spark,
    static,
)
from tests.waiting import until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EqualTo: Any = expressions.EqualTo  # typed as if they took no plain values
GreaterThanOrEqual: Any = expressions.GreaterThanOrEqual
LessThan: Any = expressions.LessThan

MIDNIGHT = datetime.datetime(2024, 5, 1, tzinfo=datetime.UTC)
TYPED = pa.schema(
    [
        pa.field("item", pa.string()),
        pa.field("price", pa.int64()),
        pa.field("place", pa.struct([pa.field("lat", pa.float64())])),
        pa.field("steps", pa.list_(pa.struct([pa.field("n", pa.int32())]))),
    ]
)
LONGER = TYPED.append(pa.field("note", pa.string()))
"""With a field at the end."""
DEEPER = LONGER.set(
    2,
    pa.field("place", pa.struct([pa.field("lat", pa.float64()), pa.field("alt", pa.int32())])),
)
"""With a field inside a struct as well."""


def opened(folder: Path, *, threaded: bool = False, **lake: Any) -> Log:
    config = LogConfig(lake=LakeConfig(**lake), retention_interval_ms=86_400_000)
    return Log.open(folder, config, threaded=threaded)


def rows(first: int, end: int) -> list[dict[str, Any]]:
    """Return raw records: keys that come again, null keys, tombstones, headers of every kind."""
    return [
        {
            "key": None if number % 7 == 0 else b"key \xff%d" % (number % 20),
            "value": None if number % 5 == 0 and number % 7 else b"\x00\xff%d" % number,
            "headers": ({}, None, {"trace": b"\x00\xff", "none": None}, {"empty": b""})[number % 4],
            "timestamp": MIDNIGHT + datetime.timedelta(seconds=number),
        }
        for number in range(first, end)
    ]


def typed_rows(schema: pa.Schema, first: int, end: int) -> list[dict[str, Any]]:
    """Return typed records with nulls at every depth."""
    return [
        {"key": b"%d" % (number % 9), "value": _typed(schema, number) if number % 6 else None}
        for number in range(first, end)
    ]


def _typed(schema: pa.Schema, number: int) -> dict[str, Any]:
    place = {"lat": number / 3, "alt": number}
    inside = [field.name for field in schema.field("place").type]
    value = {
        "item": None if number % 4 == 0 else f"näme {number}",
        "price": number,
        "place": None if number % 3 == 0 else {name: place[name] for name in inside},
        "steps": [] if number % 2 else [{"n": number}, None],
        "note": f"note {number}",
    }
    return {name: value[name] for name in schema.names}


def fill(log: Log, topic: str = "raw", first: int = 0, end: int = 60, parts: int = 3) -> None:
    """Write records and put them into segments, some at a time."""
    step = (end - first) // parts
    for start in range(first, end, step):
        log.append_batch(topic, rows(start, start + step))
        log.checkpoint()


def whole(log: Log, topic: str) -> pa.Table:
    """Return everything that the log has of a topic, as it gives it to a consumer."""
    tables = []
    for partition in log.offsets(topic):
        offset: int | str = "earliest"
        while (found := log.read(topic, partition, offset)).num_rows:
            tables.append(found)
            offset = found.column("offset")[-1].as_py() + 1
    if not tables:
        return log.read(topic, 0, "latest")
    return pa.concat_tables(tables)


Agree = Callable[..., Contents]


@pytest.fixture(scope="module")
def connection() -> Iterator[duckdb.DuckDBPyConnection]:
    """DuckDB, started once."""
    with duckdb_connection() as made:
        yield made


@pytest.fixture
def agree(connection: duckdb.DuckDBPyConnection) -> Agree:
    """Check that every reader finds in a topic's table what the log has, all of it sealed."""

    def check(log: Log, topic: str = "raw", spark: SparkSession | None = None) -> Contents:
        table = log.lake.table(topic)
        wanted = contents(whole(log, topic))
        folder = table.location().removeprefix("file://")
        found = {
            "pyiceberg": read_pyiceberg(table),
            "pyiceberg, no catalog": read_pyiceberg(static(table.metadata_location)),
            "duckdb": duckdb_scan(connection, table.metadata_location),
            "duckdb, folder": duckdb_scan(connection, folder),
            "polars, native": read_polars(table.metadata_location, reader="native"),
            "polars, pyiceberg": read_polars(table, reader="pyiceberg"),
        }
        if spark is not None:
            found["spark"] = read_spark(spark, table)
        for reader, records in found.items():
            assert contents(records) == wanted, reader
        assert all(count == 1 for count in wanted.values())
        return wanted

    return check


def test_readers_agree_with_the_log_after_each_checkpoint_and_after_a_restart(
    tmp_path: Path, agree: Agree, spark: SparkSession
) -> None:
    with opened(tmp_path) as log:
        log.create_topic("raw", 3)
        log.create_topic("typed", 2, TYPED)
        agree(log)
        agree(log, "typed")
        for first in (0, 60):
            fill(log, first=first, end=first + 60)
            log.append_batch("typed", typed_rows(TYPED, first, first + 30))
            log.checkpoint()
            assert len(agree(log)) == first + 60
            agree(log, "typed")
        log.append_batch("raw", rows(200, 220))
        assert read_pyiceberg(log.lake.table("raw")).num_rows == 120
    with opened(tmp_path) as log:
        log.checkpoint()
        assert len(agree(log, spark=spark)) == 140
        agree(log, "typed", spark)


def test_every_table_that_readers_see_while_others_write_is_whole(
    tmp_path: Path, connection: duckdb.DuckDBPyConnection, agree: Agree
) -> None:
    """No record is missing before the last one of its partition, and none is there twice."""
    with opened(tmp_path, threaded=True, sync_interval_ms=10, snapshots_kept=5) as log:
        log.create_topic("raw", 3)
        fill(log, end=30)
        folder = log.lake.table("raw").location().removeprefix("file://")
        done = threading.Event()
        writer = threading.Thread(target=_write_on, args=(log, done))
        writer.start()
        seen: set[int] = set()
        try:
            while len(seen) < 5:
                assert writer.is_alive()
                for table in (
                    duckdb_scan(connection, folder),
                    read_pyiceberg(static(log.lake.describe("raw").metadata)),
                ):
                    assert _is_prefix(table)
                    seen.add(table.num_rows)
        finally:
            done.set()
            writer.join()
        agree(log)


def _write_on(log: Log, done: threading.Event) -> None:
    first = 30
    while not done.is_set():
        fill(log, first=first, end=first + 15, parts=1)
        first += 15


def _is_prefix(table: pa.Table) -> bool:
    parts: dict[int, list[int]] = {}
    columns = (table.column(name).to_pylist() for name in ("partition", "offset"))
    for partition, offset in zip(*columns, strict=True):
        parts.setdefault(partition, []).append(offset)
    return all(sorted(each) == list(range(len(each))) for each in parts.values())


WRITER = """
import sys
import lakebed
from tests.foreign.test_lake import opened, rows
log = opened(sys.argv[1], threaded=True, sync_interval_ms=10)
log.get_or_create_topic("raw", 3)
number = 0
while True:
    log.append_batch("raw", rows(number, number + 5))
    number += 5
    print(number, log.lake.stats().tables_changed, flush=True)
    if number % 25 == 0:
        log.checkpoint()
"""

KILLS = ["created=kill@1", "prepared=kill@3", "swapped=kill@2", "hinted=kill@2", ""]


@pytest.mark.prove
def test_a_process_that_is_killed_again_and_again_leaves_every_record_once(
    tmp_path: Path, agree: Agree
) -> None:
    """Killed at each step of a sync, and then at any time."""
    written = 0
    for point in KILLS:
        written += _killed(tmp_path, f"lake.table.{point}" if point else "")
        if point.startswith(("swapped", "hinted")):
            with opened(tmp_path) as log:
                log.checkpoint()
                agree(log)
    with opened(tmp_path) as log:
        log.checkpoint()
        assert written <= len(agree(log)) <= written + 5 * len(KILLS)
        log.lake.gc(now=True)
        agree(log)


def _killed(folder: Path, failpoint: str) -> int:
    """Write in a process until it is killed; return how many records it said were written."""
    environment = {**os.environ, "LAKEBED_FAILPOINTS": failpoint}
    command = [sys.executable, "-c", WRITER, str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment, text=True) as child:
        assert child.stdout is not None
        number = 0
        for line in child.stdout:
            if not line.endswith("\n"):
                break  # it was killed in the middle of it
            number, changed = map(int, line.split())
            if not failpoint and changed >= 3:
                child.kill()
        assert child.wait() == -9
    return number


def test_readers_follow_merges_compaction_retention_and_purges(
    tmp_path: Path, agree: Agree, spark: SparkSession
) -> None:
    """Each removes files from under the table, which forgets older snapshots as well."""
    with opened(tmp_path, snapshots_kept=2) as log:
        log.create_topic("raw", 3)
        fill(log, end=120, parts=8)
        before = agree(log)
        assert log.retain().segments_merged > 0
        assert agree(log) == before
        _collect(log)
        agree(log)

        settings = {"cleanup": "compact", "compact_dirty_percent": 0, "tombstone_retention_ms": 0}
        log.alter_topic("raw", settings)
        fill(log, first=120, end=180)
        assert log.retain().records_compacted > 0
        assert len(agree(log)) < 180
        _collect(log)
        agree(log, spark=spark)

        log.alter_topic("raw", {"cleanup": "delete", "segment_bytes": 4096, "retention_bytes": 1})
        fill(log, first=180, end=240)
        assert log.retain().segments_removed > 0
        agree(log)
        _collect(log)
        agree(log)

        log.purge_topic("raw")
        assert not agree(log)
        _collect(log)
        assert not agree(log)
        fill(log, first=240, end=300, parts=1)
        assert len(agree(log)) == 60
        assert len(log.lake.history("raw")) == 2


def _collect(log: Log) -> None:
    """Remove everything that the newest snapshot does not need, and see that something went."""
    report = log.lake.gc(now=True)
    assert report.segments_removed > 0
    assert report.waiting == 0
    assert len(log.lake.history("raw")) == 1


@pytest.mark.prove
def test_readers_follow_a_schema_that_grows_at_its_end_and_within(
    tmp_path: Path, agree: Agree, spark: SparkSession
) -> None:
    """Old and new segments are read together; merging them changes nothing."""
    with opened(tmp_path) as log:
        log.create_topic("typed", 2, TYPED)
        for number, schema in enumerate((TYPED, LONGER, DEEPER)):
            log.alter_topic("typed", schema=schema)
            agree(log, "typed")
            for first in range(30 * number, 30 * number + 30, 10):
                log.append_batch("typed", typed_rows(schema, first, first + 10))
                log.checkpoint()
            agree(log, "typed")
        table = log.lake.table("typed")
        assert table.schema().find_field("value.place.alt").field_id > 15
        before = agree(log, "typed")
    with opened(tmp_path) as log:
        assert log.retain().segments_merged > 0
        assert agree(log, "typed", spark) == before
        (tmp_path / "iceberg" / "catalog.db").unlink()
        assert agree(log, "typed") == before
        log.lake.gc(now=True)
        assert agree(log, "typed") == before


def test_statistics_rule_out_files_and_only_those_without_a_match(
    tmp_path: Path, connection: duckdb.DuckDBPyConnection
) -> None:
    with opened(tmp_path) as log:
        log.create_topic("raw", 1)
        for first in range(0, 80, 10):
            batch = rows(first, first + 10)
            for number, row in enumerate(batch):
                row["key"] = b"key %03d" % (first + number)
            log.append_batch("raw", batch)
            log.checkpoint()
        table = log.lake.table("raw")
        minute = (MIDNIGHT + datetime.timedelta(minutes=1)).isoformat()
        for predicate, sql, files, records in (
            (GreaterThanOrEqual("offset", 70), '"offset" >= 70', 1, 10),
            (LessThan("offset", 11), '"offset" < 11', 2, 11),
            (GreaterThanOrEqual("timestamp", minute), f"timestamp >= '{minute}'", 2, 20),
            (EqualTo("key", b"key 042"), "key = 'key 042'::BLOB", 1, 1),
            (
                expressions.And(GreaterThanOrEqual("key", b"key 015"), LessThan("key", b"key 025")),
                "key >= 'key 015'::BLOB AND key < 'key 025'::BLOB",
                2,
                10,
            ),
            (EqualTo("partition", 1), "partition = 1", 0, 0),
        ):
            scan = table.scan(row_filter=predicate)
            assert len(list(scan.plan_files())) == files, sql
            assert scan.to_arrow().num_rows == records, sql
            assert duckdb_scan(connection, table.metadata_location, sql).num_rows == records, sql


def test_statistics_of_long_keys_hide_no_record(
    tmp_path: Path, connection: duckdb.DuckDBPyConnection
) -> None:
    """They are cut, and the greatest has no successor of that length.

    DuckDB 1.5 finds bytes that are no plain text in no file whose footer names a bloom filter, its
    own files included: so ours must not.
    """
    keys = [b"\xff" * length for length in (1, 15, 16, 17, 40)] + [b"a" * 40, b"a" * 40 + b"\xff"]
    with opened(tmp_path) as log:
        log.create_topic("raw", 1)
        for key in keys:
            log.append("raw", b"x", key)
            log.checkpoint()
        table = log.lake.table("raw")
        for key in keys:
            blob = "'" + "".join(f"\\x{each:02x}" for each in key) + "'::BLOB"
            assert table.scan(row_filter=EqualTo("key", key)).to_arrow().num_rows == 1
            for sql in (f"key = {blob}", f"key >= {blob} AND key <= {blob}"):
                assert duckdb_scan(connection, table.metadata_location, sql).num_rows == 1


def test_filters_on_typed_values_find_every_record(
    tmp_path: Path, connection: duckdb.DuckDBPyConnection
) -> None:
    """Also on fields that older files do not have, at the end and within."""
    with opened(tmp_path) as log:
        log.create_topic("typed", 1, TYPED)
        for number, schema in enumerate((TYPED, LONGER, DEEPER)):
            log.alter_topic("typed", schema=schema)
            log.append_batch("typed", typed_rows(schema, 30 * number, 30 * number + 30))
            log.checkpoint()
        table = log.lake.table("typed")
        values = whole(log, "typed").column("value").to_pylist()
        for name, least in (("price", 10), ("place.alt", 65), ("note", "note 5")):
            there = [_field(each, name) for each in values]
            wanted = sum(each is not None and each >= least for each in there)
            sql = f"value.{name} >= {least!r}"
            assert wanted > 1
            assert duckdb_scan(connection, table.metadata_location, sql).num_rows == wanted, name
            scan = table.scan(row_filter=GreaterThanOrEqual(f"value.{name}", least))
            assert sum(each.file.record_count for each in scan.plan_files()) >= wanted


def _field(value: Any, path: str) -> Any:
    for name in path.split("."):
        value = None if value is None else value.get(name)
    return value


# PostgreSQL as the catalog


def test_a_table_in_postgresql_catches_up_after_the_server_was_stopped_and_killed(
    tmp_path: Path, postgres_server: PostgresServer, agree: Agree
) -> None:
    """Writers and readers of the log notice nothing."""
    catalog = {"type": "sql", "uri": postgres_server.uri}
    with opened(tmp_path / "log", catalog=catalog) as log:
        log.create_topic("raw", 3)
        fill(log)
        agree(log)
        for number, end in enumerate((postgres_server.stop, postgres_server.kill), 1):
            end()
            fill(log, first=60 * number, end=60 * number + 60)
            with pytest.raises(CatalogUnavailableError) as caught:
                log.lake.sync()
            assert caught.value.retriable
            assert log.lake.stats().lag_records == 60
            assert log.lake.describe("raw").problem
            assert whole(log, "raw").num_rows == 60 * number + 60
            postgres_server.start()
            assert len(agree(log)) == 60 * number + 60
            assert log.lake.stats().lag_records == 0
        assert len(log.lake.history("raw")) == 3
    theirs = SqlCatalog("lakebed", **catalog)
    assert theirs.list_tables("lakebed") == [("lakebed", "raw")]
    theirs.close()


@pytest.mark.parametrize("landed", [True, False], ids=["after it landed", "before it landed"])
def test_a_server_that_dies_during_a_swap_leaves_nothing_twice(
    tmp_path: Path,
    postgres_server: PostgresServer,
    agree: Agree,
    monkeypatch: pytest.MonkeyPatch,
    *,
    landed: bool,
) -> None:
    real = SqlCatalog.commit_table
    deaths = iter([True])

    def commit(catalog: SqlCatalog, *arguments: Any) -> Any:
        answer = real(catalog, *arguments) if landed else None
        if next(deaths, False):
            postgres_server.kill()
            if landed:
                raise ConnectionResetError("the answer was lost")
        return real(catalog, *arguments) if answer is None else answer

    with opened(
        tmp_path,
        threaded=True,
        sync_interval_ms=20,
        catalog={"type": "sql", "uri": postgres_server.uri},
    ) as log:
        log.create_topic("raw", 3)
        monkeypatch.setattr(SqlCatalog, "commit_table", commit)
        fill(log)
        until(lambda: log.lake.stats().failures > 0)
        fill(log, first=60, end=120)
        assert log.lake.stats().lag_records == 120
        postgres_server.start()
        until(lambda: log.lake.stats().lag_records == 0)
        assert log.lake.stats().conflicts == 1
        assert len(agree(log)) == 120
