"""Derived tables: files that somebody else wrote become part of a table exactly once.

The files are written here as executors write them; `tests/spark/test_tables.py` has Spark do it.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitFailedException, CommitStateUnknownException

from lakebed import LakeConfig, Log, LogConfig
from lakebed.errors import (
    CatalogUnavailableError,
    ForeignTableError,
    InvalidArgumentError,
    InvalidNameError,
    SchemaMismatchError,
    TableChangedError,
    TableExistsError,
    TableNotFoundError,
)
from lakebed.host import ManualClock, OsDisk
from lakebed.host.table_files import TableFiles
from lakebed.iceberg.derived_files import DELETES_SCHEMA
from lakebed.reports.derived import DerivedFile
from tests.engine import support
from tests.engine.support import inner

USERS = pa.schema([("id", pa.int64()), ("name", pa.string())])
FILES = TableFiles({})


@pytest.fixture
def derived_log(tmp_path: Path) -> Iterator[Log]:
    with _opened(tmp_path / "log") as log:
        yield log


def _opened(folder: Path, clock: ManualClock | None = None, **lake: Any) -> Log:
    config = LogConfig(lake=LakeConfig(**lake))
    return support.quiet(folder, config, disk=OsDisk(), clock=clock)


def written(log: Log, name: str, ids: list[int], bucket: int = 0) -> DerivedFile:
    """Write rows as an executor does."""
    table = log.derived.describe(name)
    columns = {"id": ids, "name": [str(each) for each in ids], "_bucket": [bucket] * len(ids)}
    rows = pa.table(
        [pa.array(columns[each.name], each.type) for each in table.schema], table.schema
    )
    place = f"{log.derived.place(name)}/{uuid.uuid4().hex}.parquet"
    done = FILES.write(place, table.schema, [rows])
    return DerivedFile(done.location, bucket, "data", done.rows, done.bytes)


def deleted(log: Log, name: str, file: DerivedFile, positions: list[int]) -> DerivedFile:
    """Write positions of a file's rows that are gone."""
    rows = pa.table([[file.location] * len(positions), positions], schema=DELETES_SCHEMA)
    done = FILES.write(f"{log.derived.place(name)}/{uuid.uuid4().hex}.parquet", rows.schema, [rows])
    return DerivedFile(done.location, file.bucket, "deletes", done.rows, done.bytes)


def commit(log: Log, name: str, number: int, *added: DerivedFile, **more: Any) -> Any:
    expected = more.pop("expected", log.derived.describe(name).version)
    writer = more.pop("writer", "test")
    return log.derived.commit(
        name, writer=writer, number=number, added=added, expected=expected, **more
    )


def ids(log: Log, name: str) -> list[int]:
    return sorted(log.derived.iceberg(name).scan().to_arrow().column("id").to_pylist())


def test_a_table_is_made_once_and_another_of_its_name_is_refused(derived_log: Log) -> None:
    derived = derived_log.derived
    made = derived.create("users", USERS, key=["id"], buckets=2)
    assert (made.kind, made.key, made.buckets, made.version) == ("current", ("id",), 2, 0)
    assert made.schema.names == ["id", "name", "_bucket"]
    assert derived.create("users", USERS, key=["id"], buckets=2) == made
    for change in (
        {"buckets": 3},
        {"key": ["name"]},
        {"kind": "history"},
        {"schema": USERS.append(pa.field("mail", pa.string()))},
        {"schema": pa.schema([("id", pa.int32()), ("name", pa.string())])},
    ):
        given: dict[str, Any] = {"schema": USERS, "key": ["id"], "buckets": 2, **change}
        with pytest.raises(TableExistsError):
            derived.create("users", given.pop("schema"), **given)
    assert derived.tables() == ["users"]


def test_a_table_that_cannot_be_is_refused_with_the_reason(derived_log: Log) -> None:
    create = derived_log.derived.create
    nothing: dict[str, Any] = {}
    cases: list[tuple[Any, dict[str, Any], type[Exception], str]] = [
        (USERS, {"kind": "newest"}, InvalidArgumentError, "kind must be one of"),
        (USERS, nothing, InvalidArgumentError, "needs the names of its key"),
        (USERS, {"key": ["no"]}, InvalidArgumentError, "not in the schema"),
        (USERS, {"key": ["id"], "buckets": 0}, InvalidArgumentError, "buckets must be"),
        (USERS.append(pa.field("ID", pa.int64())), {"key": ["id"]}, InvalidArgumentError, "case"),
        (
            USERS.append(pa.field("_bucket", pa.int64())),
            {"key": ["id"]},
            InvalidArgumentError,
            "_b",
        ),
        (
            pa.schema([("x", pa.float64())]),
            {"key": ["x"]},
            InvalidArgumentError,
            "key columns must be",
        ),
        (pa.schema([("x", pa.null())]), {"kind": "append"}, SchemaMismatchError, "this type"),
    ]
    for schema, options, error, text in cases:
        with pytest.raises(error, match=text):
            create("users", schema, **options)
    with pytest.raises(InvalidNameError):
        create("../users", USERS, key=["id"])
    with pytest.raises(TableNotFoundError):
        derived_log.derived.describe("users")


def test_a_commit_counts_once_for_its_writer_and_number(derived_log: Log) -> None:
    derived_log.derived.create("users", USERS, key=["id"], buckets=2)
    first = written(derived_log, "users", [1, 2])
    ends = {"orders": {0: 7, 1: 9}}
    done = commit(derived_log, "users", 5, first, positions=ends)
    assert (done.duplicate, done.version) == (False, 1)
    again = written(derived_log, "users", [1, 2])
    assert commit(derived_log, "users", 5, again).duplicate
    assert commit(derived_log, "users", 4, again).duplicate
    other = commit(derived_log, "users", 0, written(derived_log, "users", [3], 1), writer="other")
    assert (other.duplicate, other.version) == (False, 2)
    table = derived_log.derived.describe("users")
    assert table.writers == {"test": 5, "other": 0}
    assert table.positions == ends
    assert (table.records, ids(derived_log, "users")) == (3, [1, 2, 3])


def test_positions_can_go_on_without_files(derived_log: Log) -> None:
    derived_log.derived.create("users", USERS, key=["id"], buckets=2)
    commit(derived_log, "users", 0, written(derived_log, "users", [1]))
    done = commit(derived_log, "users", 1, positions={"orders": {0: 3}})
    assert (done.duplicate, done.version) == (False, 2)
    assert derived_log.derived.describe("users").positions == {"orders": {0: 3}}
    commit(derived_log, "users", 2, written(derived_log, "users", [2]))
    assert ids(derived_log, "users") == [1, 2]


def test_deleted_positions_take_rows_out_and_files_go_with_them(derived_log: Log) -> None:
    derived_log.derived.create("users", USERS, key=["id"], buckets=2)
    old = written(derived_log, "users", [1, 2, 3])
    commit(derived_log, "users", 0, old)
    first = deleted(derived_log, "users", old, [1])
    commit(derived_log, "users", 1, first)
    assert ids(derived_log, "users") == [1, 3]
    second = deleted(derived_log, "users", old, [0, 1])
    new = written(derived_log, "users", [9])
    commit(derived_log, "users", 2, second, new, removed=[first.location])
    assert ids(derived_log, "users") == [3, 9]
    assert derived_log.derived.describe("users").records == 2
    whole = written(derived_log, "users", [3, 9])
    gone = [old.location, second.location, new.location]
    commit(derived_log, "users", 3, whole, removed=gone)
    assert ids(derived_log, "users") == [3, 9]
    assert [each.location for each in derived_log.derived.files("users").files] == [whole.location]
    assert derived_log.derived.files("users", [1]).files == ()


def test_what_a_commit_is_based_on_must_still_be_there(derived_log: Log) -> None:
    derived_log.derived.create("users", USERS, key=["id"], buckets=2)
    old = written(derived_log, "users", [1])
    commit(derived_log, "users", 0, old)
    with pytest.raises(TableChangedError, match="has changed since"):
        commit(derived_log, "users", 1, written(derived_log, "users", [2]), expected=0)
    with pytest.raises(TableChangedError, match="not part of the table"):
        commit(derived_log, "users", 1, removed=[old.location + "x"])
    assert ids(derived_log, "users") == [1]


def test_files_that_are_not_the_tables_own_are_refused(derived_log: Log, tmp_path: Path) -> None:
    derived = derived_log.derived
    derived.create("users", USERS, key=["id"], buckets=2)
    derived.create("others", pa.schema([("id", pa.int64()), ("x", pa.int64())]), kind="append")
    right = written(derived_log, "users", [1])
    place = derived.place("users")
    missing = DerivedFile(f"{place}/missing.parquet", 0, "data", 1, 1)
    strange = FILES.write(f"{place}/a.parquet", pa.schema([("y", pa.int64())]), [])
    kind = pa.schema([derived.describe("users").schema.field("id").with_type(pa.string())])
    wrong_type = FILES.write(f"{place}/b.parquet", kind, [])
    cases: list[tuple[DerivedFile, str]] = [
        (DerivedFile(f"file://{tmp_path}/x.parquet", 0, "data", 1, 1), "not where the table's"),
        (DerivedFile(f"{place}/../x.parquet", 0, "data", 1, 1), "not where the table's"),
        (missing, "is missing"),
        (DerivedFile(strange.location, 0, "data", 1, 1), "column that the table does not have"),
        (DerivedFile(wrong_type.location, 0, "data", 1, 1), "of another type than the table"),
        (DerivedFile(right.location, 2, "data", 1, 1), "bucket"),
        (DerivedFile(right.location, 0, "rows", 1, 1), "'data' or 'deletes'"),
    ]
    for file, text in cases:
        with pytest.raises((InvalidArgumentError, SchemaMismatchError), match=text):
            commit(derived_log, "users", 1, file)
    with pytest.raises(InvalidArgumentError, match="twice"):
        commit(derived_log, "users", 1, right, right)
    for wrong in ({"writer": ""}, {"expected": -1}, {"positions": {"t": {"0": "x"}}}):
        with pytest.raises(InvalidArgumentError):
            commit(derived_log, "users", 1, right, **wrong)
    commit(derived_log, "users", 1, right)


def test_a_column_can_be_added_and_old_rows_have_nulls_there(derived_log: Log) -> None:
    derived_log.derived.create("visits", USERS, kind="append")
    commit(derived_log, "visits", 0, written(derived_log, "visits", [1]))
    grown = derived_log.derived.evolve("visits", USERS.append(pa.field("mail", pa.large_string())))
    assert grown.schema.names == ["id", "name", "mail"]
    assert derived_log.derived.evolve("visits", USERS) == grown
    assert derived_log.derived.iceberg("visits").scan().to_arrow().to_pylist() == [
        {"id": 1, "name": "1", "mail": None}
    ]
    with pytest.raises(SchemaMismatchError):
        derived_log.derived.evolve("visits", pa.schema([("id", pa.string())]))


def test_many_commits_leave_few_manifests_and_snapshots(tmp_path: Path) -> None:
    with _opened(tmp_path / "log", snapshots_kept=3) as log:
        log.derived.create("visits", USERS, kind="append")
        for number in range(30):
            commit(log, "visits", number, written(log, "visits", [number]))
        table = log.derived.iceberg("visits")
        assert len(table.metadata.snapshots) == 3
        assert len(table.current_snapshot().manifests(table.io)) <= 22
        assert ids(log, "visits") == list(range(30))
        assert log.derived.describe("visits").writers == {"test": 29}


def _files_below(log: Log) -> set[str]:
    folder = inner(log).folder / "derived"
    return {f"file://{path}" for path in folder.resolve().rglob("*.parquet")}


def test_files_go_when_no_snapshot_needs_them_and_their_time_is_over(tmp_path: Path) -> None:
    clock = ManualClock()
    with _opened(tmp_path / "log", clock, grace_ms=60_000, snapshots_kept=2) as log:
        log.derived.create("users", USERS, key=["id"], buckets=2)
        old = written(log, "users", [1])
        commit(log, "users", 0, old)
        failed = written(log, "users", [5])
        new = written(log, "users", [2])
        commit(log, "users", 1, new, removed=[old.location])
        log.lake.gc()
        assert _files_below(log) == {old.location, failed.location, new.location}
        commit(log, "users", 2)
        last = written(log, "users", [3])
        commit(log, "users", 3, last)
        log.lake.gc()
        clock.advance(30.0)
        log.lake.gc()
        assert old.location in _files_below(log)
        clock.advance(1e9)  # beyond the times that the file system gave the files
        log.lake.gc()
        assert _files_below(log) == {new.location, last.location}
        assert ids(log, "users") == [2, 3]
        assert log.derived.drop("users")
        assert not log.derived.drop("users")
        log.lake.gc(now=True)
        assert _files_below(log) == set()


def test_metadata_goes_though_the_table_is_committed_to_all_the_time(tmp_path: Path) -> None:
    clock = ManualClock()
    with _opened(tmp_path / "log", clock, grace_ms=60_000, snapshots_kept=2) as log:
        log.derived.create("visits", USERS, kind="append")
        for number in range(6):
            commit(log, "visits", number, written(log, "visits", [number]))
            log.lake.gc()
            clock.advance(61.0)  # less than until the times that the file system gives
        folder = inner(log).folder / "derived" / "visits"
        assert len(list(folder.rglob("snap-*.avro"))) == 3  # two are kept, and one waits
        assert ids(log, "visits") == list(range(6))


def test_a_table_that_the_catalog_has_lost_keeps_its_files_and_can_be_restored(
    derived_log: Log,
) -> None:
    derived_log.derived.create("visits", USERS, kind="append")
    file = written(derived_log, "visits", [1])
    commit(derived_log, "visits", 0, file)
    table = inner(derived_log).derived.iceberg("visits")
    table.catalog.drop_table(table.name())
    derived_log.lake.gc(now=True)
    assert _files_below(derived_log) == {file.location}
    with pytest.raises(TableNotFoundError):
        commit(derived_log, "visits", 1, expected=1)
    with pytest.raises(ForeignTableError, match="restore"):
        derived_log.derived.create("visits", USERS, kind="append")
    assert derived_log.derived.restore("visits").writers == {"test": 0}
    assert commit(derived_log, "visits", 0).duplicate
    assert ids(derived_log, "visits") == [1]
    table.catalog.drop_table(table.name())
    assert derived_log.derived.drop("visits")
    with pytest.raises(TableNotFoundError):
        derived_log.derived.restore("visits")
    derived_log.lake.gc(now=True)
    assert _files_below(derived_log) == set()


def test_a_table_that_somebody_else_has_changed_is_refused(derived_log: Log) -> None:
    derived_log.derived.create("visits", USERS, kind="append")
    commit(derived_log, "visits", 0, written(derived_log, "visits", [1]))
    left = derived_log.derived.describe("visits")
    table = inner(derived_log).derived.iceberg("visits")
    table.append(table.scan().to_arrow())
    with pytest.raises(ForeignTableError, match="another writer has changed"):
        commit(derived_log, "visits", 1, expected=1)
    assert left.snapshot is not None
    table.manage_snapshots().set_current_snapshot(left.snapshot).commit()
    commit(derived_log, "visits", 1, written(derived_log, "visits", [2]), expected=1)
    assert ids(derived_log, "visits") == [1, 2]


def test_a_table_of_another_log_is_refused(tmp_path: Path) -> None:
    catalog = {"type": "sql", "uri": f"sqlite:///{tmp_path}/shared.db"}
    with _opened(tmp_path / "one", catalog=catalog) as log:
        log.derived.create("visits", USERS, kind="append")
    with _opened(tmp_path / "two", catalog=catalog) as log:
        assert log.derived.tables() == []
        for call in (log.derived.describe, log.derived.drop, log.derived.place):
            with pytest.raises(ForeignTableError):
                call("visits")
        with pytest.raises(ForeignTableError):
            log.derived.create("visits", USERS, kind="append")


def test_a_commit_that_ends_in_doubt_is_looked_for_and_not_repeated(
    derived_log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    derived_log.derived.create("visits", USERS, kind="append")
    original = SqlCatalog.commit_table
    for number, happens in enumerate((True, False)):
        calls: list[int] = []

        def doubtful(self: Any, *args: Any, _happens: bool = happens, _calls: Any = calls) -> Any:
            _calls.append(1)
            if len(_calls) > 1 or _happens:
                done = original(self, *args)
            if len(_calls) == 1:
                raise CommitStateUnknownException("no answer")
            return done

        monkeypatch.setattr(SqlCatalog, "commit_table", doubtful)
        done = commit(derived_log, "visits", number, written(derived_log, "visits", [number]))
        assert (done.duplicate, done.version) == (False, number + 1)
        assert len(calls) == (1 if happens else 2)
    assert ids(derived_log, "visits") == [0, 1]

    def refuse(*_: Any) -> Any:
        raise CommitFailedException("no")

    monkeypatch.setattr(SqlCatalog, "commit_table", refuse)
    with pytest.raises(CatalogUnavailableError):
        commit(derived_log, "visits", 2, written(derived_log, "visits", [2]))


def test_tables_outlive_their_process_and_are_found_by_any_reader(tmp_path: Path) -> None:
    with _opened(tmp_path / "log") as log:
        log.derived.create("visits", USERS, kind="append")
        commit(log, "visits", 0, written(log, "visits", [1]), positions={"t": {0: 1}})
    with _opened(tmp_path / "log") as log:
        assert commit(log, "visits", 0).duplicate
        assert log.derived.describe("visits").positions == {"t": {0: 1}}
        folder = inner(log).folder.resolve()
    uri = f"sqlite:///{folder}/iceberg/catalog.db"
    with SqlCatalog("lakebed", uri=uri) as catalog:
        assert catalog.list_tables("lakebed_tables") == [("lakebed_tables", "visits")]
        assert catalog.load_table("lakebed_tables.visits").scan().to_arrow().num_rows == 1
