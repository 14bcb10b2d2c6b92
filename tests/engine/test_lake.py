"""Topics as Iceberg tables: exactly what is sealed, whatever becomes of the catalog or the table.

`tests/foreign/test_lake.py` has other programs read the tables. Here the tables, the catalogs and
those who meddle with them are pyiceberg's, SQLite's and PostgreSQL's own.
"""

from __future__ import annotations

import contextlib
import logging
import shutil
import sqlite3
import threading
import urllib.parse
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import (
    CommitFailedException,
    CommitStateUnknownException,
)
from pyiceberg.expressions import EqualTo
from pyiceberg.table import StaticTable, Table
from pyiceberg.transforms import BucketTransform
from pyiceberg.types import StringType
from sqlalchemy.exc import OperationalError

from lakebed import LakeConfig, Log, LogConfig, limits
from lakebed.errors import (
    CatalogUnavailableError,
    ClosedError,
    CorruptionError,
    ForeignTableError,
    InvalidArgumentError,
    TopicNotFoundError,
)
from lakebed.host import ManualClock, failpoints
from lakebed.iceberg import catalog as own_catalog
from lakebed.iceberg import gc as removal
from lakebed.reports.lake import SyncReport
from tests.engine.support import PRICE, any_time, in_threads, inner
from tests.waiting import until

Records = list[tuple[int, int, Any]]

OLDEST = {"segment_bytes": 4096, "retention_bytes": 1}
"""Settings with which `retain` leaves the newest segment of a partition."""


def opened(folder: Path, *, threaded: bool = False, **lake: Any) -> Log:
    """Open a log that does nothing automatically unless it is told to."""
    config = LogConfig(lake=LakeConfig(**lake), retention_interval_ms=86_400_000)
    return Log.open(folder, config, threaded=threaded)


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    """A log with a topic of two partitions, and nothing sealed."""
    with opened(tmp_path / "log") as made:
        made.create_topic("orders", 2)
        yield made


@contextlib.contextmanager
def outside(log: Log) -> Iterator[SqlCatalog]:
    """Somebody else's connection to a log's own catalog."""
    path = urllib.parse.quote(f"{inner(log).folder}/iceberg/catalog.db")
    catalog = SqlCatalog("lakebed", uri=f"sqlite:///{path}")
    try:
        yield catalog
    finally:
        catalog.close()


def seal(log: Log, topic: str = "orders", records: int = 4) -> None:
    """Write records to every partition and put them into segments."""
    for partition in log.offsets(topic):
        log.append_batch(topic, [b"%d" % each for each in range(records)], partition=partition)
    log.checkpoint()


def written(log: Log, topic: str = "orders") -> Records:
    """Return what the log has, all of it sealed."""
    tables = [log.read(topic, partition) for partition in log.offsets(topic)]
    return records_of(pa.concat_tables(tables))


def shown(table: Table) -> Records:
    """Return what a table has."""
    return records_of(table.scan().to_arrow())


def records_of(table: pa.Table) -> Records:
    names = ("partition", "offset", "value")
    return sorted(
        zip(*(table.column(each).to_pylist() for each in names), strict=True),
        key=lambda each: each[:2],
    )


def agrees(log: Log, topic: str = "orders") -> bool:
    """Return whether a table shows the log's records once it is synced, each once."""
    return shown(log.lake.table(topic)) == written(log, topic)


def files(table: Table) -> list[str]:
    return sorted(task.file.file_path for task in table.scan().plan_files())


def table_of(log: Log, topic: str = "orders") -> Table:
    """Look at a table without syncing it."""
    with outside(log) as catalog:
        return catalog.load_table(("lakebed", topic))


# What a sync does


def test_a_synced_table_shows_what_is_sealed_and_a_second_sync_changes_nothing(log: Log) -> None:
    seal(log)
    log.append("orders", b"in memory", partition=0)
    assert log.lake.sync() == SyncReport(tables_changed=1, files_added=2)
    before = table_of(log).metadata_location
    assert log.lake.sync() == SyncReport()
    assert log.lake.sync("orders") == SyncReport()
    assert table_of(log).metadata_location == before
    assert shown(table_of(log)) == written(log)[:4] + written(log)[5:]
    assert log.lake.describe("orders").lag_records == 1


def test_many_changes_are_one_snapshot(log: Log) -> None:
    seal(log)
    log.lake.sync()
    log.alter_topic("orders", OLDEST)
    for _ in range(3):
        seal(log)
    log.retain("orders")
    log.lake.sync()
    assert [each.operation for each in log.lake.history("orders")] == ["append", "overwrite"]
    assert all(each.ours for each in log.lake.history("orders"))
    assert agrees(log)


def test_a_topic_without_records_has_an_empty_table_once_it_is_synced(log: Log) -> None:
    assert not log.lake.describe("orders").exists
    table = log.lake.table("orders")
    assert table.scan().to_arrow().num_rows == 0
    assert table.schema().column_names[:3] == ["partition", "offset", "timestamp"]
    assert log.lake.describe("orders").exists
    assert log.lake.history("orders") == []
    seal(log)
    assert agrees(log)


@pytest.mark.parametrize("name", ["a.b.c", "Orders", "orders-2_X", "0"])
def test_a_table_has_the_name_of_its_topic(log: Log, name: str) -> None:
    log.create_topic(name)
    seal(log, name)
    assert agrees(log, name)
    with outside(log) as catalog:
        assert ("lakebed", name) in catalog.list_tables("lakebed")


def test_topics_whose_names_differ_in_case_have_tables_of_their_own(log: Log) -> None:
    log.create_topic("ORDERS")
    seal(log, "ORDERS", 1)
    seal(log, "orders", 2)
    assert agrees(log, "ORDERS")
    assert agrees(log, "orders")


def test_a_deleted_topic_has_no_table_and_one_of_its_name_begins_anew(log: Log) -> None:
    seal(log)
    log.create_topic("kept")
    log.lake.sync()
    log.delete_topic("orders")
    assert log.lake.sync().tables_dropped == 1
    with outside(log) as catalog:
        assert catalog.list_tables("lakebed") == [("lakebed", "kept")]
    log.create_topic("orders", 1)
    log.append("orders", b"another")
    log.checkpoint()
    assert shown(log.lake.table("orders")) == [(0, 0, b"another")]


def test_a_topic_deleted_and_made_again_between_two_syncs_has_the_new_table(log: Log) -> None:
    seal(log)
    first = log.lake.table("orders")
    log.delete_topic("orders")
    log.create_topic("orders", 3)
    seal(log, records=2)
    again = log.lake.table("orders")
    assert shown(again) == written(log)
    assert again.metadata.table_uuid != first.metadata.table_uuid


def test_added_partitions_are_in_the_table(log: Log) -> None:
    seal(log)
    log.lake.sync()
    log.add_partitions("orders", 5)
    seal(log)
    assert agrees(log)
    assert {each[0] for each in shown(table_of(log))} == {0, 1, 2, 3, 4}


def test_a_purged_topic_empties_its_table_by_itself(tmp_path: Path) -> None:
    with opened(tmp_path, threaded=True, sync_interval_ms=20) as log:
        log.create_topic("orders", 2)
        seal(log)
        until(lambda: log.lake.stats().lag_records == 0)
        log.purge_topic("orders")
        until(lambda: shown(table_of(log)) == [])


def test_a_topic_that_was_purged_before_a_restart_empties_its_table_by_itself(
    tmp_path: Path,
) -> None:
    with opened(tmp_path) as log:
        log.create_topic("orders", 2)
        seal(log)
        log.lake.sync()
        log.purge_topic("orders")
    with opened(tmp_path, threaded=True, sync_interval_ms=20) as log:
        until(lambda: shown(table_of(log)) == [])


def test_snapshots_beyond_those_to_keep_are_gone(tmp_path: Path) -> None:
    for kept in (1, 3):
        with opened(tmp_path / str(kept), snapshots_kept=kept) as log:
            log.create_topic("orders")
            for _ in range(kept + 2):
                seal(log)
                log.lake.sync()
            assert len(table_of(log).metadata.snapshots) == kept
            assert agrees(log)


def test_a_snapshot_that_somebody_has_named_stays(tmp_path: Path) -> None:
    with opened(tmp_path, snapshots_kept=1) as log:
        log.create_topic("orders")
        seal(log)
        table = log.lake.table("orders")
        named = table.metadata.current_snapshot_id
        assert named is not None
        table.manage_snapshots().create_tag(named, "audit").commit()
        for _ in range(3):
            seal(log)
            log.lake.sync()
        log.purge_topic("orders")
        log.lake.sync()
        log.lake.gc(now=True)
        assert len(table_of(log).scan(snapshot_id=named).to_arrow()) == 4
        assert agrees(log)


def test_settings_and_names_are_checked(log: Log, tmp_path: Path) -> None:
    with pytest.raises(TopicNotFoundError):
        log.lake.sync("nothing")
    with pytest.raises(InvalidArgumentError, match="needs the name of a topic"):
        log.lake.sync(take_over=True)
    with opened(tmp_path / "none", iceberg=False) as none:
        none.create_topic("orders")
        seal(none)
        with pytest.raises(InvalidArgumentError, match="neither tables nor a store"):
            none.lake.sync()
    assert not (tmp_path / "none" / "iceberg").exists()
    with opened(tmp_path / "odd", catalog={"type": "sql", "uri": "nosuch://x"}) as odd:
        odd.create_topic("orders")
        with pytest.raises((InvalidArgumentError, CatalogUnavailableError)):
            odd.lake.sync()


@pytest.mark.parametrize("name", ["with space", "näme", "100%25+a&b=c", "a:b@c;d", "[x]*'\""])
def test_a_folder_may_have_any_name_that_a_location_can_have(tmp_path: Path, name: str) -> None:
    with opened(tmp_path / name) as log:
        log.create_topic("orders")
        seal(log)
        assert agrees(log)
        log.alter_topic("orders", OLDEST)
        seal(log)
        log.retain()
        assert agrees(log)
        assert log.lake.gc(now=True).segments_removed == 1
        assert agrees(log)


@pytest.mark.parametrize("sign", "#?")
def test_a_folder_that_no_location_can_name_is_refused(tmp_path: Path, sign: str) -> None:
    with opened(tmp_path / f"a{sign}b") as log:
        log.create_topic("orders")
        seal(log)
        with pytest.raises(InvalidArgumentError, match="this character in its path"):
            log.lake.sync("orders")
        assert len(written(log)) == 4


def test_a_log_may_be_opened_by_a_relative_path_and_by_a_link(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They name the same tables."""
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    monkeypatch.chdir(tmp_path)
    found = set()
    for folder in ("real/log", "link/log", tmp_path / "link" / "log"):
        with opened(Path(folder)) as log:
            log.get_or_create_topic("orders")
            seal(log)
            table = log.lake.table("orders")
            found.add(table.metadata.table_uuid)
            assert shown(table) == written(log)
    assert len(found) == 1


def test_the_namespace_may_have_levels(tmp_path: Path) -> None:
    with opened(tmp_path, namespace="company.events") as log:
        log.create_topic("a.b")
        seal(log, "a.b")
        assert agrees(log, "a.b")
        with outside(log) as catalog:
            assert catalog.list_tables("company.events") == [("company", "events", "a.b")]


def test_a_damaged_segment_keeps_its_own_table_back_and_no_other(log: Log) -> None:
    log.create_topic("others")
    seal(log)
    seal(log, "others")
    for path in segment_files(log):
        if path.parent.name == "1":
            path.write_bytes(path.read_bytes()[:-20] + b"\0" * 20)
    report = log.lake.sync()
    assert len(report.failures) == 1
    assert agrees(log, "others")
    with pytest.raises(CorruptionError):
        log.lake.sync("orders")


# A catalog that fails


class Counted:
    """How often the real `commit_table` was called, and what happens before and after it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls = 0
        self.before: Callable[[int], None] = lambda call: None
        self.after: Callable[[int], None] = lambda call: None
        real = SqlCatalog.commit_table

        def commit(catalog: SqlCatalog, *arguments: Any, **named: Any) -> Any:
            self.calls += 1
            call = self.calls
            self.before(call)
            made = real(catalog, *arguments, **named)
            self.after(call)
            return made

        monkeypatch.setattr(SqlCatalog, "commit_table", commit)


@pytest.fixture
def commits(monkeypatch: pytest.MonkeyPatch) -> Counted:
    """Every swap of a catalog, to stand in its way."""
    return Counted(monkeypatch)


def fail_at(number: int, error: Exception) -> Callable[[int], None]:
    def act(call: int) -> None:
        if call == number:
            raise error

    return act


@pytest.mark.parametrize(
    "error",
    [
        CommitStateUnknownException("the answer was lost"),
        ConnectionResetError("the answer was lost"),
        OperationalError("UPDATE", None, Exception("the answer was lost")),
    ],
    ids=lambda each: type(each).__name__,
)
@pytest.mark.parametrize("landed", [True, False], ids=["landed", "did not land"])
def test_a_swap_with_an_unknown_outcome_is_neither_lost_nor_done_twice(
    log: Log, commits: Counted, *, landed: bool, error: Exception
) -> None:
    seal(log)
    log.lake.sync()
    seal(log)
    act = fail_at(commits.calls + 1, error)
    commits.before, commits.after = (commits.after, act) if landed else (act, commits.after)
    log.lake.sync()
    assert shown(table_of(log)) == written(log)
    assert len(log.lake.history("orders")) == 2
    assert log.lake.stats().conflicts == 1


def test_a_swap_that_never_succeeds_is_an_error_that_says_why_and_comes_right_later(
    log: Log, commits: Counted
) -> None:
    seal(log)

    def refuse(call: int) -> None:
        raise CommitFailedException("no quorum")

    commits.before = refuse
    with pytest.raises(CatalogUnavailableError, match="no quorum") as caught:
        log.lake.sync()
    assert caught.value.retriable
    assert log.lake.describe("orders").lag_records == 8
    commits.before = lambda call: None
    assert agrees(log)
    log.lake.gc(now=True)
    assert agrees(log)


def test_somebody_who_commits_between_our_look_and_our_swap_is_seen(
    log: Log, commits: Counted
) -> None:
    """A property is kept, and needs no second attempt. Records that were taken out come back."""
    seal(log)
    log.lake.sync()

    def meddle(change: Callable[[Table], object]) -> Callable[[int], None]:
        at = commits.calls + 1

        def act(call: int) -> None:
            if call == at:
                with outside(log) as catalog:
                    change(catalog.load_table("lakebed.orders"))

        return act

    def name_owner(table: Table) -> None:
        with table.transaction() as change:
            change.set_properties({"owner": "me"})

    seal(log)
    commits.before = meddle(name_owner)
    assert agrees(log)
    assert table_of(log).properties["owner"] == "me"
    seal(log)
    commits.before = meddle(lambda table: table.delete("partition = 0"))
    assert agrees(log)
    assert log.lake.stats().conflicts == 1


def test_pyicebergs_own_repetition_stays_off_whatever_the_table_says(
    log: Log, commits: Counted, tmp_path: Path
) -> None:
    """With it, a foreign file that came in between would be taken for ours forever."""
    seal(log)
    log.lake.sync()
    with outside(log) as catalog, catalog.load_table("lakebed.orders").transaction() as change:
        change.set_properties({"commit.retry.num-retries": "4"})
    seal(log)
    at = commits.calls + 2  # after the one that restores the settings

    def act(call: int) -> None:
        if call == at:
            put_stranger(log, tmp_path)

    commits.before = act
    with pytest.raises(ForeignTableError, match="put files into the table"):
        log.lake.sync("orders")


def test_a_locked_catalog_delays_the_table_and_nobody_else(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(own_catalog, "_LOCK_SECONDS", 0.05)
    seal(log)
    log.lake.sync()
    seal(log)
    with contextlib.closing(sqlite3.connect(f"{inner(log).folder}/iceberg/catalog.db")) as other:
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(CatalogUnavailableError, match="locked") as caught:
            log.lake.sync()
        assert caught.value.retriable
        with pytest.raises(CatalogUnavailableError):
            log.lake.gc()
        described = log.lake.describe("orders")
        assert "locked" in described.problem
        assert described.exists is None, "whether there is a table is not known"
        seal(log)
        assert len(written(log)) == 24
    assert agrees(log)
    assert len(log.lake.history("orders")) == 2


def test_a_catalog_locked_for_writing_alone_is_not_written_twice_afterwards(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(own_catalog, "_LOCK_SECONDS", 0.02)
    seal(log)
    log.lake.sync()
    seal(log)
    with contextlib.closing(sqlite3.connect(f"{inner(log).folder}/iceberg/catalog.db")) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(CatalogUnavailableError, match="locked"):
            log.lake.sync()
        assert len(shown(table_of(log))) == 8
    assert agrees(log)


def test_lag_rises_while_the_catalog_is_locked_and_falls_when_it_is_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Writers and readers go on meanwhile."""
    monkeypatch.setattr(own_catalog, "_LOCK_SECONDS", 0.02)
    with opened(tmp_path, threaded=True, sync_interval_ms=20) as log:
        log.create_topic("orders")
        seal(log)
        until(lambda: log.lake.stats().lag_records == 0)
        assert log.lake.stats().lag_seconds == 0
        with contextlib.closing(sqlite3.connect(f"{tmp_path}/iceberg/catalog.db")) as other:
            other.execute("BEGIN EXCLUSIVE")
            failures = log.lake.stats().failures
            seal(log)
            first = log.lake.stats()
            until(lambda: log.lake.stats().failures > failures)
            seal(log)
            stats = log.lake.stats()
            assert (first.lag_records, stats.lag_records, stats.tables_behind) == (4, 8, 1)
            assert stats.lag_seconds > first.lag_seconds
            assert "locked" in (stats.last_failure or "")
            assert len(written(log)) == 12
        until(lambda: log.lake.stats().lag_records == 0)
        assert log.lake.stats().lag_seconds == 0
        assert shown(table_of(log)) == written(log)


# Our own catalog can be made anew


def remove(path: Path) -> None:
    path.unlink()


def overwrite(path: Path) -> None:
    path.write_bytes(b"garbage " * 1000)


def overwrite_shortly(path: Path) -> None:
    path.write_bytes(b"garbage")


def ruin_pages(path: Path) -> None:
    whole = path.read_bytes()
    path.write_bytes(whole[:1024] + b"\xa5" * (len(whole) - 1024))


def replace_it(path: Path) -> None:
    other = path.with_name("other.db")
    other.write_bytes(b"garbage " * 1000)
    other.rename(path)


DAMAGE = [remove, overwrite, overwrite_shortly, ruin_pages, replace_it]


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("reopened", [False, True], ids=["open", "reopened"])
def test_a_catalog_that_is_gone_or_damaged_is_made_anew(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    damage: Callable[[Path], None],
    *,
    reopened: bool,
) -> None:
    with contextlib.ExitStack() as stack:
        log = stack.enter_context(opened(tmp_path))
        log.create_topic("orders", 2)
        seal(log)
        log.lake.sync()
        if reopened:
            stack.close()
        damage(tmp_path / "iceberg" / "catalog.db")
        if reopened:
            log = stack.enter_context(opened(tmp_path))
        seal(log)
        assert agrees(log)
        log.lake.gc(now=True)
        assert agrees(log)
    aside = tmp_path / "iceberg" / "catalog.db.damaged"
    assert aside.exists() == (damage is not remove)
    if damage is not remove:
        assert "is damaged, and is created again" in caplog.text
        assert (tmp_path / "iceberg" / "catalog.db").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("kind", ["*.metadata.json", "snap-*.avro", "*-m*.avro"])
@pytest.mark.parametrize("how", ["gone", "damaged"])
def test_a_table_whose_metadata_is_gone_or_damaged_is_made_anew_and_others_go_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, kind: str, how: str
) -> None:
    with opened(tmp_path) as log:
        for name in ("orders", "others"):
            log.create_topic(name)
            seal(log, name)
        log.lake.sync()
        place = Path(log.lake.describe("orders").location.removeprefix("file://"))
    hit = sorted(place.rglob(kind))
    assert hit
    for path in hit:
        if how == "gone":
            path.unlink()
        else:
            path.write_bytes(b"garbage")
    with opened(tmp_path) as log:
        log.lake.gc(now=True)
        log.lake.tables()
        seal(log, "others")
        seal(log, "orders")
        assert log.lake.sync().failures == []
        assert agrees(log, "others")
        assert agrees(log, "orders")
        assert log.lake.stats().foreign_changes == 1
    assert "table orders is created again" in caplog.text


# Somebody else changes a table


def put_stranger(log: Log, folder: Path) -> str:
    """Have somebody append a file of their own; return where it is."""
    path = folder / "stranger.parquet"
    with outside(log) as catalog:
        table = catalog.load_table("lakebed.orders")
        some = table.scan().to_arrow().filter(pa.compute.field("partition") == 0).slice(0, 1)
        pq.write_table(some, path)
        table.add_files([str(path)])
    return str(path)


def rewrite(log: Log, folder: Path) -> None:
    """Have somebody write our records into files of their own, as compaction does."""
    with outside(log) as catalog:
        table = catalog.load_table("lakebed.orders")
        table.overwrite(table.scan().to_arrow())


def delete_row(log: Log, folder: Path) -> None:
    """Have somebody delete one record, which rewrites the file that has it."""
    with outside(log) as catalog:
        catalog.load_table("lakebed.orders").delete("offset = 1")


def add_column(log: Log, folder: Path) -> None:
    with outside(log) as catalog, catalog.load_table("lakebed.orders").update_schema() as change:
        change.add_column("extra", StringType())


def rename_column(log: Log, folder: Path) -> None:
    with outside(log) as catalog, catalog.load_table("lakebed.orders").update_schema() as change:
        change.rename_column("key", "id")


def partition_otherwise(log: Log, folder: Path) -> None:
    with outside(log) as catalog, catalog.load_table("lakebed.orders").update_spec() as change:
        change.add_field("offset", BucketTransform(4), "bucket")


def disown(log: Log, folder: Path) -> None:
    with outside(log) as catalog, catalog.load_table("lakebed.orders").transaction() as change:
        change.remove_properties("lakebed.log")


def replace_table(log: Log, folder: Path) -> None:
    """Have somebody put a table of their own in the place of ours."""
    with outside(log) as catalog:
        catalog.drop_table("lakebed.orders")
        schema = pa.schema([("mine", pa.int64())])
        made = catalog.create_table("lakebed.orders", schema, location=f"file://{folder}/mine")
        made.append(pa.table({"mine": [1, 2, 3]}))


REFUSED = [
    put_stranger,
    rewrite,
    delete_row,
    add_column,
    rename_column,
    partition_otherwise,
    disown,
    replace_table,
]


@pytest.mark.parametrize("change", REFUSED)
def test_a_change_that_cannot_be_carried_on_with_is_refused_until_the_table_is_taken_over(
    log: Log, tmp_path: Path, change: Callable[[Log, Path], object]
) -> None:
    """The log works on, and so do the tables of its other topics."""
    log.create_topic("others")
    seal(log)
    seal(log, "others")
    log.lake.sync()
    change(log, tmp_path)
    theirs = table_of(log).metadata_location
    seal(log)
    seal(log, "others")
    report = log.lake.sync()
    assert len(report.failures) == 1
    assert report.failures[0].startswith("orders: ")
    assert shown(table_of(log, "others")) == written(log, "others")
    with pytest.raises(ForeignTableError) as caught:
        log.lake.sync("orders")
    assert "orders" in str(caught.value)
    assert table_of(log).metadata_location == theirs
    assert len(written(log)) == 16
    assert log.lake.stats().foreign_changes == 1
    log.lake.gc(now=True)
    assert table_of(log).scan().to_arrow().num_rows > 0
    log.lake.sync("orders", take_over=True)
    assert agrees(log)
    assert log.lake.sync().failures == []
    log.lake.gc(now=True)
    assert agrees(log)
    seal(log)
    assert agrees(log)


def delete_file(log: Log, folder: Path) -> None:
    """Have somebody delete every record of a partition, and so whole files."""
    with outside(log) as catalog:
        catalog.load_table("lakebed.orders").delete("partition = 1")


def roll_back(log: Log, folder: Path) -> None:
    with outside(log) as catalog:
        table = catalog.load_table("lakebed.orders")
        oldest = min(table.metadata.snapshots, key=lambda each: each.sequence_number or 0)
        table.manage_snapshots().rollback_to_snapshot(oldest.snapshot_id).commit()


def expire(log: Log, folder: Path) -> None:
    with outside(log) as catalog:
        table = catalog.load_table("lakebed.orders")
        older = [
            each.snapshot_id
            for each in table.metadata.snapshots
            if each.snapshot_id != table.metadata.current_snapshot_id
        ]
        table.maintenance.expire_snapshots().by_ids(older).commit()


def set_property(log: Log, folder: Path) -> None:
    with outside(log) as catalog, catalog.load_table("lakebed.orders").transaction() as change:
        change.set_properties({"owner": "me", "commit.manifest-merge.enabled": "false"})


def spoil_position(log: Log, folder: Path) -> None:
    with outside(log) as catalog, catalog.load_table("lakebed.orders").transaction() as change:
        change.set_properties({"lakebed.position": "far", "lakebed.offsets": "{}"})


def drop(log: Log, folder: Path) -> None:
    with outside(log) as catalog:
        catalog.drop_table("lakebed.orders")


CARRIED_ON = [delete_file, roll_back, expire, set_property, spoil_position, drop]


@pytest.mark.parametrize("change", CARRIED_ON)
@pytest.mark.parametrize("reopened", [False, True], ids=["open", "reopened"])
def test_a_change_that_leaves_only_our_files_is_carried_on_with(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    change: Callable[[Log, Path], object],
    *,
    reopened: bool,
) -> None:
    """Nothing is missing afterwards and nothing is there twice, with new records or without."""
    with opened(tmp_path / "log") as log:
        log.create_topic("orders", 2)
        for _ in range(3):
            seal(log)
            log.lake.sync()
        change(log, tmp_path)
        if not reopened:
            assert agrees(log)
            change(log, tmp_path)
            seal(log)
            assert agrees(log)
    with opened(tmp_path / "log") as log:
        assert agrees(log)
        seal(log)
        assert agrees(log)
        log.lake.gc(now=True)
        assert agrees(log)
    if change in (delete_file, roll_back):
        assert "was changed by another writer, and is restored" in caplog.text


def test_the_counters_tell_of_a_foreign_change_that_was_carried_on_with(log: Log) -> None:
    seal(log)
    log.lake.sync()
    assert log.lake.stats().foreign_changes == 0
    delete_file(log, inner(log).folder)
    log.lake.sync()
    log.lake.sync()
    assert log.lake.stats().foreign_changes == 1


# Copies of a log


def test_a_copied_folder_gets_tables_of_its_own_and_leaves_the_original_alone(
    tmp_path: Path,
) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    with opened(first) as log:
        log.create_topic("orders", 2)
        log.create_topic("others")
        log.alter_topic("orders", OLDEST)
        for _ in range(3):
            seal(log)
            seal(log, "others")
            log.lake.sync()
    shutil.copytree(first, second)
    before = {path: path.read_bytes() for path in first.rglob("*") if path.is_file()}
    with opened(second) as copy:
        seal(copy)
        copy.retain()
        copy.lake.gc(now=True)
        copy.delete_topic("others")
        copy.lake.sync()
        copy.lake.gc(now=True)
        assert agrees(copy)
        assert all(str(second) in place for place in files(table_of(copy)))
        assert str(second) in table_of(copy).metadata_location
    assert {path: path.read_bytes() for path in first.rglob("*") if path.is_file()} == before


def test_a_moved_folder_makes_its_tables_anew(tmp_path: Path) -> None:
    with opened(tmp_path / "here") as log:
        log.create_topic("orders", 2)
        seal(log)
        log.lake.sync()
    (tmp_path / "here").rename(tmp_path / "there")
    with opened(tmp_path / "there") as log:
        assert agrees(log)
        seal(log)
        assert agrees(log)
        log.lake.gc(now=True)
        assert agrees(log)


def test_a_copy_does_not_take_the_tables_of_the_original_in_a_catalog_that_both_use(
    tmp_path: Path,
) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    shared = {"type": "sql", "uri": f"sqlite:///{tmp_path}/shared.db"}
    with opened(first, catalog=shared) as log:
        log.create_topic("orders")
        log.create_topic("others")
        seal(log)
        seal(log, "others")
        log.lake.sync()
    shutil.copytree(first, second)
    with opened(second, catalog=shared) as copy:
        copy.delete_topic("others")
        seal(copy)
        assert copy.lake.sync().tables_dropped == 0
        with pytest.raises(ForeignTableError, match="was moved"):
            copy.lake.sync("orders")
    with opened(first, catalog=shared) as log:
        assert agrees(log)
        assert agrees(log, "others")
    with opened(second, catalog=shared) as copy:
        copy.lake.sync("orders", take_over=True)
        assert agrees(copy)


def test_two_logs_do_not_share_a_table(tmp_path: Path) -> None:
    """Whoever takes it over has it, and the other is refused."""
    shared = {"type": "sql", "uri": f"sqlite:///{tmp_path}/shared.db"}
    with (
        opened(tmp_path / "one", catalog=shared) as one,
        opened(tmp_path / "two", catalog=shared) as two,
    ):
        for number, log in enumerate((one, two), 1):
            log.create_topic("orders")
            seal(log, records=number)
        assert agrees(one)
        one.lake.sync("orders", take_over=True)
        assert len(one.lake.history("orders")) == 1
        with pytest.raises(ForeignTableError, match="belongs to another log"):
            two.lake.sync("orders")
        assert "another log" in two.lake.describe("orders").problem
        two.lake.sync("orders", take_over=True)
        assert agrees(two)
        one.lake.gc(now=True)
        assert agrees(two)
        with pytest.raises(ForeignTableError, match="belongs to another log"):
            one.lake.sync("orders")
        one.delete_topic("orders")
        assert one.lake.sync().tables_dropped == 0
        assert agrees(two)


@pytest.mark.parametrize("metadata", ["there", "gone"])
def test_an_older_copy_of_the_log_is_refused(tmp_path: Path, metadata: str) -> None:
    """A backup was put back, with or without the metadata that the catalog knows of."""
    folder, backup = tmp_path / "log", tmp_path / "backup"
    shared = {"type": "sql", "uri": f"sqlite:///{tmp_path}/shared.db"}
    with opened(folder, catalog=shared) as log:
        for name in ("orders", "again"):
            log.create_topic(name)
            seal(log, name)
    shutil.copytree(folder, backup)
    with opened(folder, catalog=shared) as log:
        log.delete_topic("again")
        for name in ("again", "later"):
            log.create_topic(name)
        for name in log.topics():
            seal(log, name)
        log.lake.sync()
        known = {name: log.lake.describe(name).metadata for name in log.topics()}
    if metadata == "there":
        shutil.copytree(folder / "iceberg", backup / "iceberg")
    shutil.rmtree(folder)
    backup.rename(folder)
    with opened(folder, catalog=shared) as log:
        report = log.lake.sync()
        reason = "ahead of the log" if metadata == "there" else "a file of the table is missing"
        assert [reason in each for each in report.failures] == [True, True]
        with contextlib.closing(sqlite3.connect(tmp_path / "shared.db")) as catalog:
            rows = catalog.execute("SELECT table_name, metadata_location FROM iceberg_tables")
            assert dict(rows.fetchall()) == known
        for name in ("orders", "again"):
            log.lake.sync(name, take_over=True)
            assert agrees(log, name)


# Files that are not needed any more


def segment_files(log: Log) -> set[Path]:
    return set(inner(log).folder.glob("lake/*/*.parquet"))


def metadata_files(log: Log) -> set[Path]:
    return {path for path in inner(log).folder.glob("iceberg/*/metadata/*") if path.is_file()}


def test_a_removed_segment_stays_while_a_snapshot_refers_to_it(tmp_path: Path) -> None:
    with opened(tmp_path, grace_ms=0) as log:
        log.create_topic("orders", 1, config=OLDEST)
        seal(log)
        log.lake.sync()
        first = segment_files(log)
        old = table_of(log).metadata.current_snapshot_id
        seal(log)
        log.retain()
        log.lake.gc()
        assert first < segment_files(log)
        log.lake.sync()
        assert log.lake.gc().segments_removed == 0
        assert table_of(log).scan(snapshot_id=old).to_arrow().num_rows == 4
        assert log.lake.stats().files_waiting > 0
        assert log.lake.gc(now=True).segments_removed == 1
        assert not first & segment_files(log)
        assert agrees(log)


def test_a_grace_period_goes_on_while_the_log_is_closed(tmp_path: Path) -> None:
    clock = ManualClock()
    config = LogConfig(lake=LakeConfig(grace_ms=60_000, snapshot_age_ms=0, snapshots_kept=1))

    def again() -> Log:
        return Log.open(tmp_path, config, clock=clock, threaded=False)

    with again() as log:
        log.create_topic("orders", 1, config=OLDEST)
        for _ in range(2):
            seal(log)
            log.lake.sync()
        log.retain()
        log.lake.sync()
        assert log.lake.gc().segments_removed == 0
    clock.advance(40)
    with again() as log:
        assert log.lake.gc().segments_removed == 0
    clock.advance(21)
    with again() as log:
        assert log.lake.gc().segments_removed == 1
        assert agrees(log)


@pytest.mark.parametrize("text", ["{", "[1]", '{"x": "y"}'])
def test_grace_periods_that_cannot_be_read_begin_anew(tmp_path: Path, text: str) -> None:
    with opened(tmp_path, grace_ms=0, snapshot_age_ms=0, snapshots_kept=1) as log:
        log.create_topic("orders", 1, config=OLDEST)
        for _ in range(2):
            seal(log)
            log.lake.sync()
        (tmp_path / "iceberg" / "unneeded.json").write_text(text)
        log.retain()
        log.lake.sync()
        assert log.lake.gc().segments_removed == 1
        assert agrees(log)


def test_a_table_says_what_is_wrong_with_it_before_and_after_a_sync_refuses_it(
    log: Log, tmp_path: Path
) -> None:
    seal(log)
    log.lake.sync()
    assert log.lake.describe("orders").problem == ""
    put_stranger(log, tmp_path)
    assert "another writer has changed the table" in log.lake.describe("orders").problem
    with pytest.raises(ForeignTableError):
        log.lake.sync("orders")
    assert "has put files into the table" in log.lake.tables()[0].problem
    log.lake.sync("orders", take_over=True)
    assert log.lake.describe("orders").problem == ""


def test_a_deleted_topics_folder_does_not_go_on_answering(log: Log) -> None:
    seal(log)
    log.lake.sync()
    hint = inner(log).folder / "iceberg" / "1" / "metadata" / "version-hint.text"
    assert hint.exists()
    log.delete_topic("orders")
    log.lake.sync()
    assert not hint.exists()


def test_metadata_stays_readable_for_the_grace_period(log: Log) -> None:
    seal(log)
    log.lake.sync()
    given = table_of(log).metadata_location
    for _ in range(15):
        seal(log)
        log.lake.sync()
    log.lake.gc()
    assert StaticTable.from_metadata(given).scan().to_arrow().num_rows == 8


def test_a_file_stays_for_the_grace_period(tmp_path: Path) -> None:
    with opened(tmp_path, grace_ms=3_600_000, snapshot_age_ms=0, snapshots_kept=1) as log:
        log.create_topic("orders", 1, config=OLDEST)
        for _ in range(3):
            seal(log)
            log.lake.sync()
        log.retain()
        log.lake.sync()
        before = segment_files(log), metadata_files(log)
        report = log.lake.gc()
        assert (report.segments_removed, report.files_removed) == (0, 0)
        assert report.waiting > 2
        assert (segment_files(log), metadata_files(log)) >= before
    with opened(tmp_path, grace_ms=3_600_000, snapshot_age_ms=0, snapshots_kept=1) as log:
        report = log.lake.gc()
        assert (report.segments_removed, report.files_removed) == (0, 0)
        assert segment_files(log) == before[0]
        log.lake.gc(now=True)
        assert len(segment_files(log)) == 1
        assert agrees(log)


def test_a_segment_that_was_never_in_a_table_goes_at_once(log: Log) -> None:
    log.alter_topic("orders", OLDEST)
    seal(log)
    seal(log)
    log.retain()
    assert len(segment_files(log)) == 2


def test_what_a_failed_swap_left_goes_and_nothing_else(log: Log, commits: Counted) -> None:
    seal(log)
    log.lake.sync()

    def refuse(call: int) -> None:
        raise ConnectionResetError("no answer")

    commits.before = refuse
    seal(log)
    with pytest.raises(CatalogUnavailableError, match="no answer"):
        log.lake.sync()
    commits.before = lambda call: None
    log.lake.sync()
    before = metadata_files(log)
    needed = table_of(log)
    removed = log.lake.gc(now=True).files_removed
    assert removed > 0
    assert len(metadata_files(log)) == len(before) - removed
    assert shown(needed) == written(log)
    assert log.lake.gc(now=True).files_removed == 0
    assert agrees(log)


def test_the_files_of_a_deleted_topic_go(log: Log) -> None:
    seal(log)
    log.lake.sync()
    log.delete_topic("orders")
    log.lake.sync()
    log.lake.gc(now=True)
    assert not segment_files(log)
    assert not metadata_files(log)


@pytest.mark.parametrize("point", ["engine.removal.segment_removed", "engine.removal.file_removed"])
@pytest.mark.parametrize("nth", [1, 2])
def test_a_removal_that_is_cut_short_is_finished_after_a_restart(
    tmp_path: Path, point: str, nth: int
) -> None:
    with opened(tmp_path, snapshots_kept=1) as log:
        log.create_topic("orders", 2, config=OLDEST)
        for _ in range(4):
            seal(log)
            log.lake.sync()
        log.retain()
        log.lake.sync()
        failpoints.arm(f"{point}=error@{nth}")
        try:
            with pytest.raises(Exception, match="failpoint"):
                log.lake.gc(now=True)
        finally:
            failpoints.disarm()
        assert shown(table_of(log)) == written(log)
    with opened(tmp_path, snapshots_kept=1) as log:
        assert shown(table_of(log)) == written(log)
        log.lake.gc(now=True)
        assert agrees(log)
        assert len(segment_files(log)) == 2
        assert log.lake.gc(now=True).files_removed == 0


POINTS = ["created", "prepared", "swapped", "hinted"]


@pytest.mark.parametrize("point", POINTS)
def test_a_sync_that_fails_anywhere_is_finished_by_the_next(log: Log, point: str) -> None:
    seal(log)
    failpoints.arm(f"lake.table.{point}=error")
    try:
        with pytest.raises(CatalogUnavailableError):
            log.lake.sync()
    finally:
        failpoints.disarm()
    assert agrees(log)
    assert len(log.lake.history("orders")) == 1
    log.lake.gc(now=True)
    assert agrees(log)
    hint = inner(log).folder / "iceberg" / "1" / "metadata" / "version-hint.text"
    assert hint.read_text() + ".metadata.json" == Path(table_of(log).metadata_location).name


# Many at once, and closing


def test_several_threads_sync_at_once(log: Log) -> None:
    seal(log)
    outcomes = in_threads(4, lambda number: log.lake.sync("orders"))
    assert sum(each.files_added for each in outcomes) == 2
    assert len(log.lake.history("orders")) == 1
    assert agrees(log)


def test_writers_cleanup_and_syncs_get_along(tmp_path: Path) -> None:
    """Every table that anybody sees meanwhile can be read whole."""
    with opened(tmp_path, threaded=True, sync_interval_ms=10, grace_ms=60_000) as log:
        log.create_topic("orders", 2, config={"segment_bytes": 4096, "retention_bytes": 20_000})
        log.lake.sync()

        def work(number: int) -> None:
            for _ in range(12):
                if number == 0:
                    seal(log, records=50)
                elif number == 1:
                    log.retain()
                elif number == 2:
                    log.lake.sync()
                else:
                    table_of(log).scan().to_arrow()

        assert in_threads(4, work) == [None] * 4
        assert log.lake.sync().failures == []
        assert agrees(log)
        assert log.lake.stats().failures == 0
        assert log.stats().maintenance_failures == 0


def test_a_closed_log_syncs_no_more_and_closing_twice_is_nothing(tmp_path: Path) -> None:
    log = opened(tmp_path, threaded=True)
    log.create_topic("orders")
    seal(log)
    log.lake.sync()
    log.close()
    log.close()
    for call in (log.lake.sync, log.lake.gc, log.lake.tables):
        with pytest.raises(ClosedError):
            call()
    for by_name in (log.lake.table, log.lake.describe, log.lake.history):
        with pytest.raises(ClosedError):
            by_name("orders")


def test_what_is_sealed_before_closing_is_in_the_table_after_it(tmp_path: Path) -> None:
    log = opened(tmp_path, threaded=True, sync_interval_ms=86_400_000)
    log.create_topic("orders", 2)
    seal(log)
    wanted = written(log)
    log.close()
    assert shown(table_of(log)) == wanted


def test_closing_while_a_sync_runs_waits_for_it_and_refuses_the_next(
    tmp_path: Path, commits: Counted
) -> None:
    entered, go_on = threading.Event(), threading.Event()

    def wait(call: int) -> None:
        entered.set()
        go_on.wait(600)

    log = opened(tmp_path)
    log.create_topic("orders", 2)
    seal(log)
    wanted = written(log)
    commits.before = wait
    outcomes: list[Any] = []

    def sync() -> None:
        try:
            outcomes.append(log.lake.sync())
        except ClosedError as error:
            outcomes.append(error)

    first = threading.Thread(target=sync)
    first.start()
    assert entered.wait(600)
    second = threading.Thread(target=sync)
    second.start()
    closing = threading.Thread(target=log.close)
    closing.start()
    until(lambda: inner(log).lake._worker.stopping)
    go_on.set()
    for thread in (first, second, closing):
        thread.join(600)
        assert not thread.is_alive()
    assert isinstance(outcomes[0], SyncReport)
    assert isinstance(outcomes[1], ClosedError)
    assert shown(table_of(log)) == wanted


@pytest.mark.parametrize("swaps", [30, pytest.param(200, marks=pytest.mark.prove)])
def test_a_swap_costs_the_same_after_many(tmp_path: Path, swaps: int) -> None:
    """Segments come and go; manifests, snapshots and files stay few."""
    with opened(tmp_path, snapshots_kept=3, grace_ms=0, snapshot_age_ms=0) as log:
        log.create_topic("orders", 1, config={"segment_bytes": 4096, "retention_bytes": 8000})
        manifests = []
        for number in range(swaps):
            log.append("orders", b"x")
            log.checkpoint()
            log.retain()
            table = log.lake.table("orders")
            newest = table.current_snapshot()
            manifests.append(len(newest.manifests(table.io)))
            if number % 10 == 0:
                log.lake.gc()
        assert max(manifests[20:]) <= max(manifests[:20]) <= 21
        assert len(table.metadata.snapshots) == 3
        assert shown(table) == written(log)
        log.lake.gc(now=True)
        assert len(metadata_files(log)) < 60
        assert agrees(log)


def test_a_typed_topic_grows_its_table(log: Log) -> None:
    log.create_topic("typed", 1, PRICE)
    log.append_batch("typed", [{"value": {"item": "a", "price": 1}}])
    log.checkpoint()
    log.lake.sync()
    log.alter_topic("typed", schema=PRICE.append(pa.field("currency", pa.string())))
    log.append_batch("typed", [{"value": {"item": "b", "price": 2, "currency": "EUR"}}])
    log.checkpoint()
    values = [each[2] for each in shown(log.lake.table("typed"))]
    assert values == [
        {"item": "a", "price": 1, "currency": None},
        {"item": "b", "price": 2, "currency": "EUR"},
    ]
    assert len(log.lake.history("typed")) == 2


@pytest.fixture(autouse=True)
def _say_everything(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "lakebed.lake")


# Found by review


def test_a_key_without_statistics_is_found_all_the_same(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The Parquet library bounds no row group with a key over 4 KiB; the others bound no file."""
    monkeypatch.setattr(limits, "ROW_GROUP_RECORDS", 2)
    keys = [b"m", b"n", b"z" * 5000, b"a"]
    log.append_batch("orders", [{"key": key, "value": b"v"} for key in keys], partition=0)
    log.checkpoint()
    table = log.lake.table("orders")
    equal: Any = EqualTo
    for key in keys:
        assert table.scan(row_filter=equal("key", key)).to_arrow().num_rows == 1, key[:1]


def test_a_record_of_no_year_of_the_calendar_holds_up_no_table(log: Log) -> None:
    time = pa.array([2**61], pa.int64()).cast(pa.timestamp("us", "UTC"))
    with any_time():
        log.append_batch("orders", pa.table({"timestamp": time, "value": [b"v"]}), partition=0)
    log.create_topic("other", 1)
    log.append("other", b"v")
    log.checkpoint()
    assert log.lake.sync().failures == []
    assert [each.records for each in log.lake.tables()] == [1, 1]


def test_a_table_that_fails_in_pyiceberg_holds_up_no_other(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("second", "third"):
        log.create_topic(name, 1)
    for name in ("orders", "second", "third"):
        log.append(name, b"v", partition=0)
    log.checkpoint()
    load = own_catalog.Catalog.load

    def failing(self: own_catalog.Catalog, name: str) -> Any:
        if name == "second":
            raise ZeroDivisionError("a bug of somebody's")
        return load(self, name)

    monkeypatch.setattr(own_catalog.Catalog, "load", failing)
    report = log.lake.sync()
    assert list(report.errors) == ["second"]
    monkeypatch.undo()
    assert [each.records for each in log.lake.tables()] == [1, 0, 1]
    assert log.lake.sync().failures == []


def test_a_callback_of_the_committing_thread_cannot_wait_for_the_lake(tmp_path: Path) -> None:
    refused: list[type[BaseException]] = []
    with opened(tmp_path, threaded=True) as log:
        log.create_topic("orders", 1)
        for call in (lambda: log.lake.describe("orders"), log.lake.tables, log.lake.sync):

            def ask(_: object, call: Callable[[], object] = call) -> None:
                try:
                    call()
                except InvalidArgumentError as error:
                    refused.append(type(error))

            future = log.append_async("orders", b"v")
            future.add_done_callback(ask)
            future.result(600)
        log.append("orders", b"last")
    assert all(each is InvalidArgumentError for each in refused)


def test_a_callback_of_a_sync_cannot_use_the_lake(log: Log) -> None:
    seal(log)
    told: list[str] = []

    def progress(doing: str, done: int, total: int) -> None:
        with pytest.raises(InvalidArgumentError, match="cannot call the lake"):
            log.lake.describe("orders")
        told.append(doing)

    log.lake.sync(progress=progress)
    assert told
    assert agrees(log)


def test_an_unchanged_table_is_not_read_again_for_each_segment_that_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(tmp_path) as log:
        log.create_topic("orders", 1, config=OLDEST)
        for _ in range(3):
            seal(log)
            log.lake.sync()
        log.retain()
        log.lake.sync()
        log.lake.gc()
        reads: list[object] = []
        monkeypatch.setattr(removal, "files_in_use", reads.append)
        for _ in range(3):
            inner(log).lake._collect_garbage()
        assert reads == []
        assert log.lake.stats().files_waiting > 0
