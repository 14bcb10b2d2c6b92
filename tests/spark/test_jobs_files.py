"""Files out of a topic and back: nothing lost, nothing twice, bad rows told."""

from __future__ import annotations

import csv
import json
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import lakebed
import lakebed.spark
from lakebed.errors import BadRecordError, InvalidArgumentError, MissingFileError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

USERS = pa.schema([("id", pa.int64()), ("name", pa.string()), ("seen", pa.timestamp("us", "UTC"))])
SEEN = datetime(2026, 5, 4, 3, 2, 1, 123456, UTC)


def records(log: lakebed.Log, topic: str) -> list[dict[str, Any]]:
    return list(log.table(topic).scan().read_all().to_pylist())


def told(rows: list[dict[str, Any]], *names: str) -> Counter[str]:
    return Counter(str([row[name] for name in names]) for row in rows)


def users(count: int, first: int = 0) -> list[dict[str, Any]]:
    return [
        {"id": number, "name": f'n,"{number}', "seen": SEEN}
        for number in range(first, first + count)
    ]


@pytest.mark.prove
def test_an_export_that_is_imported_again_is_the_same_topic(
    spark: SparkSession, log: lakebed.Log, tmp_path: Path
) -> None:
    log.create_topic("a", 2)
    log.append_batch(
        "a",
        [
            {"key": b"\xff%d" % n if n % 2 else None, "value": b"v%d" % n if n % 3 != 1 else None}
            for n in range(100)
            if n % 2 or n % 3 != 1
        ],
    )
    log.checkpoint()
    log.append("a", b"hot", key="h", headers={"x": b"y"})
    target = str(tmp_path / "out" / "a")
    report = lakebed.spark.export(spark, log, "a", target, files=1, progress=lambda *_: None)
    assert (report.records, report.files, report.left_out) == (85, 1, 0)
    assert report.offsets == {str(n): tuple(bounds) for n, bounds in log.offsets("a").items()}
    assert [each.name for each in (tmp_path / "out").iterdir()] == ["a"]
    done = lakebed.spark.import_(spark, log, target, "b", layout="records")
    assert (done.records, done.created) == (85, True)
    names = ("key", "value", "timestamp", "headers")
    assert told(records(log, "b"), *names) == told(records(log, "a"), *names)
    with pytest.raises(InvalidArgumentError, match="the target exists"):
        lakebed.spark.export(spark, log, "a", target)
    cut = lakebed.spark.export(spark, log, "a", target, start=10, until=20, overwrite=True)
    assert cut.records == 20 == pq.read_table(target).num_rows
    assert [each.name for each in (tmp_path / "out").iterdir()] == ["a"]


def test_json_and_csv_say_what_the_records_say(
    spark: SparkSession, log: lakebed.Log, tmp_path: Path
) -> None:
    log.create_topic("raw")
    log.append("raw", b"text", key=b"\xff", headers={"h": b"1"}, timestamp=SEEN)
    log.append("raw", b"\xfe\x00", key="k", timestamp=SEEN)
    lakebed.spark.export(spark, log, "raw", str(tmp_path / "j"), format="json", files=1)
    (file,) = (tmp_path / "j").glob("part*")
    time = "2026-05-04T03:02:01.123456Z"
    common = {"partition": 0, "timestamp": time}
    assert [json.loads(line) for line in file.read_text().splitlines()] == [
        common | {"offset": 0, "key_base64": "/w==", "headers": {"h": "1"}, "value": "text"},
        common | {"offset": 1, "key": "k", "value_base64": "/gA="},
    ]
    log.create_topic("typed", schema=USERS)
    log.append_batch(
        "typed", [{"value": each} for each in users(2)] + [{"key": "k", "value": None}]
    )
    report = lakebed.spark.export(
        spark, log, "typed", str(tmp_path / "c"), format="csv", layout="fields", files=1
    )
    assert (report.records, report.left_out) == (2, 1)
    (file,) = (tmp_path / "c").glob("part*")
    with file.open(newline="") as lines:
        assert list(csv.DictReader(lines)) == [
            {"id": str(n), "name": f'n,"{n}', "seen": time} for n in range(2)
        ]
    done = lakebed.spark.import_(
        spark, log, str(tmp_path / "c"), "back", format="csv", key="id", timestamp="seen"
    )
    assert done.records == 2
    assert [
        (row["key"], row["value"]["name"], row["timestamp"]) for row in records(log, "back")
    ] == [(str(n).encode(), f'n,"{n}', SEEN) for n in range(2)]


def test_each_file_is_imported_once_whatever_dies_and_comes_meanwhile(
    spark: SparkSession, log: lakebed.Log, tmp_path: Path
) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    for number in range(3):
        pq.write_table(pa.Table.from_pylist(users(10, number * 10), USERS), folder / f"{number}.pq")
    (folder / "_SUCCESS").touch()

    def die(_doing: str, done: int, _total: int) -> None:
        if done == 1:
            raise KeyboardInterrupt

    def run(**more: Any) -> Any:
        return lakebed.spark.import_(
            spark, log, [str(folder)], "users", key="id", partitions=2, chunk_bytes=1, **more
        )

    with pytest.raises(KeyboardInterrupt):
        run(progress=die)
    assert len(records(log, "users")) == 10
    report = run()
    assert (report.files, report.files_before, report.records, report.created) == (3, 1, 20, False)
    pq.write_table(pa.Table.from_pylist(users(5, 30), USERS), folder / "3.pq")
    assert run().records == 5
    assert run().records == 0
    found = records(log, "users")
    assert sorted(row["value"]["id"] for row in found) == list(range(35))
    assert all(row["key"] == str(row["value"]["id"]).encode() for row in found)
    assert {row["partition"] for row in found} == {0, 1}
    pq.write_table(pa.Table.from_pylist(users(1, 99), USERS), folder / "3.pq")
    with pytest.raises(InvalidArgumentError, match="has changed"):
        run()


def test_rows_that_cannot_be_read_are_refused_or_go_to_a_topic_of_their_own(
    spark: SparkSession, log: lakebed.Log, tmp_path: Path
) -> None:
    file = tmp_path / "rows.json"
    file.write_text('{"id": 1, "name": "a"}\n{"id": oops\n{"id": 3, "seen": "x"}\n{"id": 4}\n')
    log.create_topic("users", schema=USERS)
    spark.sparkContext.setLogLevel("OFF")
    try:
        with pytest.raises(BadRecordError) as caught:
            lakebed.spark.import_(spark, log, str(file), "users", format="json")
    finally:
        spark.sparkContext.setLogLevel("ERROR")
    assert caught.value.facts["rows"] == 2
    assert str(caught.value.facts["file"]).endswith("rows.json")
    assert records(log, "users") == []
    for expected in (2, 0):
        report = lakebed.spark.import_(
            spark, log, str(file), "users", format="json", dead_letters="dead"
        )
        assert (report.records, report.bad) == (expected, expected)
    assert [row["value"]["id"] for row in records(log, "users")] == [1, 4]
    letters = records(log, "dead")
    assert [row["value"] for row in letters] == [b'{"id": oops', b'{"id": 3, "seen": "x"}']
    assert letters[0]["headers"][0][1].endswith(b"rows.json")


def test_a_row_of_csv_is_bad_by_any_of_its_columns(
    spark: SparkSession, log: lakebed.Log, tmp_path: Path
) -> None:
    (tmp_path / "menu.csv").write_text("id,name,cents\n1,coffee,250\n2,tea,oops\n3,juice,300\n")
    report = lakebed.spark.import_(
        spark,
        log,
        str(tmp_path / "menu.csv"),
        "menu",
        format="csv",
        schema="id BIGINT, name STRING, cents INT",
        dead_letters="dead",
    )
    assert (report.records, report.bad) == (2, 1)
    assert [row["value"] for row in records(log, "dead")] == [b"2,tea,oops"]


def test_rows_become_json_documents_of_a_raw_topic(
    spark: SparkSession, log: lakebed.Log, tmp_path: Path
) -> None:
    pq.write_table(pa.table({"id": [1], "tags": [["a", "b"]]}), tmp_path / "rows.parquet")
    lakebed.spark.import_(spark, log, str(tmp_path / "*.parquet"), "docs", layout="json", key="id")
    (row,) = records(log, "docs")
    assert (row["key"], json.loads(row["value"])) == (b"1", {"id": 1, "tags": ["a", "b"]})


def test_an_iceberg_table_is_imported_by_the_ids_of_its_columns(
    spark: SparkSession, log: lakebed.Log, tmp_path: Path
) -> None:
    from pyiceberg.catalog.sql import SqlCatalog

    uri = f"sqlite:///{tmp_path}/catalog.db"
    schema = pa.schema([("id", pa.int64()), ("name", pa.string())])
    renamed = pa.schema([("id", pa.int64()), ("called", pa.string())])
    with SqlCatalog("c", uri=uri, warehouse=f"file://{tmp_path}/tables") as catalog:
        catalog.create_namespace("n")
        table = catalog.create_table("n.users", schema)
        table.append(pa.Table.from_pylist([{"id": 1, "name": "one"}], schema))
        with table.update_schema() as update:
            update.rename_column("name", "called")
        table = catalog.load_table("n.users")
        table.append(pa.table({"id": [2], "called": ["two"]}, renamed))
        location = catalog.load_table("n.users").metadata_location
    by_id = "spark.sql.parquet.fieldId.read.enabled"
    before = spark.conf.get(by_id)
    report = lakebed.spark.import_(spark, log, location, "users", format="iceberg", key="id")
    assert (report.files, report.records) == (2, 2)
    assert (spark.conf.get(by_id), before) == ("false", "false")  # the session is as it was
    values = sorted((row["value"]["id"], row["value"]["called"]) for row in records(log, "users"))
    assert values == [(1, "one"), (2, "two")]
    with pytest.raises(MissingFileError, match="the Iceberg table does not exist"):
        lakebed.spark.import_(spark, log, str(tmp_path / "none"), "users", format="iceberg")


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ("id BIGINTT", 'Unsupported data type "BIGINTT" (line 1, pos 3)'),
        ("id BIGINT name", "Syntax error at or near 'name' (line 1, pos 10)"),
        ("BIGINT", "it names no columns"),
        ("", "it names no columns"),
        ("id BIGINT, ID STRING", "it names id twice"),
    ],
)
def test_a_schema_that_is_wrong_is_told_before_anything_is_read(
    spark: SparkSession, log: lakebed.Log, schema: str, reason: str
) -> None:
    with pytest.raises(InvalidArgumentError, match="schema is wrong, nothing was read") as caught:
        lakebed.spark.import_(spark, log, "/no/such.csv", "new", format="csv", schema=schema)
    assert caught.value.facts == {"schema": repr(schema), "reason": reason}
    assert log.topics() == []


def test_files_of_a_log_are_imported_without_page_indexes(
    spark: SparkSession, log: lakebed.Log, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark's reader fails in them now and then; whoever wants them can say so."""
    from pyspark.sql import DataFrameReader

    from lakebed.spark.jobs.import_sources import source_of

    log.create_topic("users", schema=USERS)
    log.append_batch("users", [{"key": "k", "value": each} for each in users(3)])
    log.checkpoint()
    paths = [str(each) for each in (tmp_path / "log" / "lake").rglob("*.parquet")]
    given: list[dict[str, Any]] = []
    real = DataFrameReader.options

    def options(reader: DataFrameReader, **more: Any) -> DataFrameReader:
        given.append(more)
        return real(reader, **more)

    monkeypatch.setattr(DataFrameReader, "options", options)
    report = lakebed.spark.import_(spark, log, paths, "copy", layout="records")
    assert report.records == 3
    name = "parquet.filter.columnindex.enabled"
    assert [each[name] for each in given] == ["false"] * len(given)
    source = source_of(spark, "parquet", paths, {name: "true"}, None)
    source.schema(paths)
    assert given[-1] == {name: "true"}


def test_calls_that_make_no_sense_are_refused(
    spark: SparkSession, log: lakebed.Log, tmp_path: Path
) -> None:
    log.create_topic("raw")
    pq.write_table(pa.table({"id": [1]}), tmp_path / "rows.parquet")
    file = str(tmp_path / "rows.parquet")
    wrong: list[dict[str, Any]] = [{"format": "xml"}, {"layout": "rows"}, {"key": "none"}]
    wrong += [{"timestamp": "none"}, {"layout": "records"}]
    for more in wrong:
        with pytest.raises(InvalidArgumentError):
            lakebed.spark.import_(spark, log, file, "new", **more)
    with pytest.raises(InvalidArgumentError, match="the file does not exist"):
        lakebed.spark.import_(spark, log, str(tmp_path / "none"), "new")
    for more in ({"format": "xml"}, {"layout": "rows"}, {"layout": "fields"}):
        with pytest.raises(InvalidArgumentError):
            lakebed.spark.export(spark, log, "raw", str(tmp_path / "out"), **more)  # type: ignore[arg-type]
