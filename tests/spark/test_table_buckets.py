"""What a task does with a bucket, without Spark: many runs against a dictionary, with folding."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lakebed
from lakebed.errors import TableChangedError
from lakebed.host.table_files import TableFiles
from lakebed.reports.derived import DATA, DELETES, DerivedFile
from lakebed.spark.tables.appending import commit_files
from lakebed.spark.tables.bucket import REMOVED, REPORT, Task
from lakebed.spark.tables.folding import DELETED_SHARE, FILES_MAX, buckets_to_fold, by_bucket
from lakebed.spark.tables.rows import RowOrder, conform, in_order, key_codes, latest, matching_rows

BUCKETS = 3
FILES = TableFiles({})
SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string())])
CHANGES = pa.schema(
    [
        ("id", pa.int64()),
        ("name", pa.string()),
        ("_bucket", pa.int32()),
        ("_deleted", pa.bool_()),
        ("_order_0", pa.int64()),
    ]
)


@pytest.fixture
def log(tmp_path: Path) -> Iterator[lakebed.Log]:
    with lakebed.Log.open(tmp_path / "log", threaded=False) as opened:
        yield opened


def run(
    log: lakebed.Log, changes: list[tuple[int, str | None, bool]], number: int
) -> frozenset[int]:
    """Do what the driver and its tasks do; return the buckets that were to be folded."""
    before = log.derived.files("users")
    files = by_bucket(before.files)
    chosen = buckets_to_fold(files, BUCKETS)
    place = log.derived.place("users")
    task = Task(before.table, files, place, FILES, RowOrder(("_order_0",)), chosen)
    told: list[dict[str, Any]] = []
    for bucket in range(BUCKETS):
        rows = [
            (key, name, bucket, gone, order)
            for order, (key, name, gone) in enumerate(changes)
            if key % BUCKETS == bucket
        ]
        if rows:
            table = pa.table([list(each) for each in zip(*rows, strict=True)], schema=CHANGES)
            told += task.run(bucket, table).to_pylist()
    added = [
        DerivedFile(row["location"], row["bucket"], row["what"], row["rows"], row["bytes"])
        for row in told
        if row["what"] in (DATA, DELETES)
    ]
    removed = [row["location"] for row in told if row["what"] == REMOVED]
    log.derived.commit(
        "users",
        writer="test",
        number=number,
        added=added,
        removed=removed,
        expected=before.table.version,
    )
    return chosen


def test_many_runs_leave_what_a_dictionary_holds_and_few_files(log: lakebed.Log) -> None:
    log.derived.create("users", SCHEMA, key=["id"], buckets=BUCKETS)
    rng = random.Random(11)
    model: dict[int, str] = {}
    folds = 0
    model.update(dict.fromkeys(range(600), "first"))
    run(log, [(key, "first", False) for key in model], 0)
    for number in range(1, 20):
        changes: list[tuple[int, str | None, bool]] = []
        for each in range(rng.randrange(1, 50)):
            key, gone = rng.randrange(600), rng.random() < 0.2
            changes.append((key, None if gone else f"{number}-{each}", gone))
            if gone:
                model.pop(key, None)
            else:
                model[key] = f"{number}-{each}"
        folds += len(run(log, changes, number))
        if number % 3 != 1:
            continue
        rows = log.derived.iceberg("users").scan().to_arrow().to_pylist()
        assert {row["id"]: row["name"] for row in rows} == model
        assert len(rows) == len(model) == log.derived.describe("users").records
        assert all(row["_bucket"] == row["id"] % BUCKETS for row in rows)
    assert folds > 0
    files = log.derived.files("users").files
    assert sum(each.content == DELETES for each in files) <= BUCKETS
    assert len(files) < BUCKETS * FILES_MAX


def test_a_file_of_which_every_row_is_gone_goes_with_its_positions(log: lakebed.Log) -> None:
    log.derived.create("users", SCHEMA, key=["id"], buckets=BUCKETS)
    run(log, [(key, "old", False) for key in range(0, 300, 3)], 0)
    run(log, [(0, "new", False)], 1)
    run(log, [(0, "newer", False)], 2)
    kinds = [each.content for each in log.derived.files("users").files]
    assert sorted(kinds) == [DATA, DATA, DELETES]
    run(log, [(key, None, True) for key in range(0, 300, 3)], 3)
    assert log.derived.files("users").files == ()
    assert log.derived.describe("users").records == 0


def test_deletes_of_keys_that_are_not_there_change_nothing(log: lakebed.Log) -> None:
    log.derived.create("users", SCHEMA, key=["id"], buckets=BUCKETS)
    run(log, [(1, "one", False)], 0)
    before = log.derived.files("users").files
    run(log, [(4, None, True)], 1)
    after = log.derived.files("users")
    assert (after.files, after.table.version) == (before, 2)


def _told(log: lakebed.Log, changes: pa.Table, *order: str) -> list[dict[str, Any]]:
    before = log.derived.files("users")
    place = log.derived.place("users")
    files = by_bucket(before.files)
    task = Task(before.table, files, place, FILES, RowOrder(order or ("_order_0",)), frozenset())
    told: list[dict[str, Any]] = task.run(1, changes).to_pylist()
    return told


def test_keys_of_another_type_are_the_same_keys(log: lakebed.Log) -> None:
    log.derived.create("users", SCHEMA, key=["id"], buckets=BUCKETS)
    run(log, [(1, "old", False)], 0)
    narrow = pa.table([[1], ["new"], [1], [False], [0]], schema=CHANGES)
    narrow = narrow.set_column(0, "id", narrow.column("id").cast(pa.int32()))
    counts = {row["what"]: row["rows"] for row in _told(log, narrow)}
    assert (counts["inserted"], counts["deleted"]) == (1, 1)
    text = narrow.set_column(0, "id", pa.array(["one"]))
    (told,) = _told(log, text)
    assert (told["what"], told["location"]) == ("refused", "a change has a key of another type")


@pytest.mark.parametrize("missing", ["_order_0", "_time"])
def test_a_change_of_a_history_without_an_order_or_time_is_refused(
    log: lakebed.Log, missing: str
) -> None:
    log.derived.create("users", SCHEMA, kind="history", key=["id"], buckets=BUCKETS)
    times = pa.timestamp("us", "UTC")
    changes = pa.table([[1], ["ann"], [1], [False], [0]], schema=CHANGES)
    changes = changes.append_column("_time", pa.array([5], times))
    changes = changes.append_column("_order_1", pa.array([7]))
    assert _told(log, changes, "_order_0", "_order_1")[0]["what"] == "inserted"
    index = changes.schema.get_field_index(missing)
    kind = changes.schema.field(missing).type
    changes = changes.set_column(index, missing, pa.nulls(1, kind))
    (told,) = _told(log, changes, "_order_0", "_order_1")
    assert (told["what"], told["location"]) == (
        "refused",
        "a change of a history has no order or no time",
    )


def test_files_of_an_append_are_committed_though_the_table_has_changed_meanwhile(
    log: lakebed.Log,
) -> None:
    before = log.derived.create("visits", SCHEMA, kind="append")
    log.derived.commit("visits", writer="another", number=0, expected=0)
    place = f"{log.derived.place('visits')}/a.parquet"
    rows = conform(pa.table({"id": [1]}), before.schema)
    done = FILES.write(place, before.schema, [rows])
    told = pa.table([[0], [DATA], [done.location], [1], [done.bytes]], schema=REPORT)
    report = commit_files(log, before, told, "test", 0, None)
    assert (report.version, report.duplicate) == (2, False)
    assert commit_files(log, before, told, "test", 0, None).duplicate
    log.derived.drop("visits")
    log.derived.create("visits", SCHEMA, kind="append")
    log.derived.commit("visits", writer="another", number=0, expected=0)
    with pytest.raises(TableChangedError):
        commit_files(log, before, told, "test", 0, None)


def _files(bucket: int, rows: int, deleted: int, count: int = 1) -> list[DerivedFile]:
    data = [DerivedFile(f"{bucket}-{each}", bucket, DATA, rows, 1) for each in range(count)]
    return [*data, DerivedFile(f"{bucket}-d", bucket, DELETES, deleted, 1)]


def test_the_fullest_buckets_are_folded_first_an_eighth_at_a_time() -> None:
    share = int(100 * DELETED_SHARE)
    files = [
        *_files(0, 100, share - 1),
        *_files(1, 100, share),
        *_files(2, 100, share + 9),
        *_files(3, 1000, 0, FILES_MAX),
    ]
    assert buckets_to_fold(by_bucket(files), 8) == {2}
    assert buckets_to_fold(by_bucket(files), 16) == {1, 2}
    assert buckets_to_fold(by_bucket(files), 32) == {1, 2, 3}


# Rows by their keys


def test_the_latest_change_of_each_key_is_found_for_keys_of_several_columns() -> None:
    rows = pa.table(
        {
            "a": [1, 1, 2, 1, 2],
            "b": ["x", "y", "x", "x", "x"],
            "order": [5, 1, 9, 4, 10],
            "value": ["a", "b", "c", "d", "e"],
        }
    )
    kept = latest(rows, ["a", "b"], RowOrder(("order",)))
    assert sorted(kept.column("value").to_pylist()) == ["a", "b", "e"]
    assert len(set(key_codes(rows, ["a", "b"]).tolist())) == 3
    wanted = pa.table({"a": [2, 1, 7], "b": ["x", "y", "x"]})
    assert matching_rows(rows, wanted, ["a", "b"]).tolist() == [1, 2, 4]
    assert matching_rows(rows, wanted, ["a"]).tolist() == [0, 1, 2, 3, 4]


def test_keys_in_several_partitions_have_an_order_of_their_own() -> None:
    rows = pa.table(
        {
            "key": ["k", "k", "j", "j"],
            "part": [0, 1, 0, 0],
            "at": [9, 0, 1, 2],
            "time": [5, 4, 9, 1],
        }
    )
    order = RowOrder(("part", "at", "time"), ("time", "part", "at"))
    codes = key_codes(rows, ["key"])
    assert in_order(rows, codes, order).tolist() == [1, 0, 2, 3]
    assert in_order(rows, codes, RowOrder(("part", "at"))).tolist() == [0, 1, 2, 3]


def test_an_old_version_without_an_order_comes_first_and_counts_as_no_move() -> None:
    rows = pa.table(
        {"key": ["k", "k", "k"], "part": [0, 0, None], "at": [1, 0, None], "time": [4, 5, None]}
    )
    order = RowOrder(("part", "at", "time"), ("time", "part", "at"))
    assert in_order(rows, key_codes(rows, ["key"]), order).tolist() == [2, 1, 0]


def test_rows_of_an_older_file_get_the_columns_they_lack() -> None:
    rows = pa.table({"id": pa.array([1], pa.int32())})
    assert conform(rows, SCHEMA).to_pylist() == [{"id": 1, "name": None}]
