"""A backup of a log in use holds everything acknowledged before it, at one point of the log."""

from __future__ import annotations

import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lakebed
from lakebed import LakeConfig, Log, LogConfig, WalConfig
from lakebed.engine.restore import restore, verify_backup
from lakebed.errors import ClosedError, InvalidArgumentError, MissingFileError
from tests.engine.support import PRICE, everything, inner, rows
from tests.waiting import until

SMALL = LogConfig(
    memtable_bytes=256 << 10,
    checkpoint_interval_ms=50,
    retention_interval_ms=20,
    wal=WalConfig(file_bytes=64 << 10),
    lake=LakeConfig(iceberg=False),
)
"""Settings with which everything that a log does automatically happens all the time."""
PLAIN = LogConfig(lake=LakeConfig(iceberg=False))


def lake_files(log: Log) -> set[str]:
    return {each.name for each in (inner(log).folder / "lake").rglob("*.parquet")}


def filled(folder: Path, config: LogConfig = PLAIN) -> Log:
    """Open a log with something of everything in it."""
    log = Log.open(folder, config)
    log.create_topic("plain", 3)
    log.create_topic("typed", 1, PRICE)
    for number in range(60):
        log.append("plain", b"%d" % number, key=b"%d" % (number % 7))
        log.append("typed", {"item": "a", "price": number})
        if number == 30:
            log.checkpoint()
    log.commit_offsets("readers", {("plain", 0): 3})
    return log


def begun(log: Log) -> lakebed.Transaction:
    """Begin a transaction of which so much is written that it has data in the log."""
    transaction = log.transaction("open")
    transaction.append("plain", b"x" * (5 << 20), partition=0)
    until(lambda: any(each.pending for each in inner(log).parts.core.state.transactions.values()))
    return transaction


# What it holds


def test_a_restored_log_is_the_log_as_it_was(tmp_path: Path) -> None:
    with filled(tmp_path / "log") as log:
        transaction = begun(log)
        report = log.backup(tmp_path / "backup")
        found = {topic: everything(log, topic) for topic in log.topics()}
        log.append("plain", b"later", partition=0)
        transaction.abort()
    assert (report.topics, report.records, report.stored_segments) == (2, 120, 0)
    restored = restore(tmp_path / "backup", tmp_path / "new")
    assert (restored.log_id, restored.index) == (report.log_id, report.index)
    assert restored.segments_verified == report.files - 2  # and a staged file, and the snapshot
    assert restored.warnings == ()
    with Log.open(tmp_path / "new", PLAIN) as copy:
        assert {topic: everything(copy, topic) for topic in copy.topics()} == found
        assert copy.describe_topic("typed").schema == PRICE
        assert copy.committed("readers") == {("plain", 0): 3}
        assert copy.stats().open_transactions == 1
        assert copy.stats().applied_index == report.index
        with copy.transaction("open") as following:  # which fences whoever had begun one
            following.append("plain", b"visible", partition=0)
        assert rows(copy, "plain", 0)[-1] == b"visible"
        copy.checkpoint()
        assert copy.verify() > restored.segments_verified


def test_what_was_acknowledged_last_is_part_of_it(tmp_path: Path) -> None:
    """Also if nothing else has happened since a checkpoint, which would not bother."""
    with filled(tmp_path / "log") as log:
        log.checkpoint()
        log.commit_offsets("readers", {("plain", 0): 4})
        log.checkpoint()
        log.commit_offsets("readers", {("plain", 0): 5})
        log.backup(tmp_path / "one")
        log.backup(tmp_path / "two")
    for name in ("one", "two"):
        restore(tmp_path / name, tmp_path / f"of-{name}")
        with Log.open(tmp_path / f"of-{name}", PLAIN) as copy:
            assert copy.committed("readers") == {("plain", 0): 5}


def test_a_log_that_is_empty_has_a_backup(tmp_path: Path) -> None:
    with Log.open(tmp_path / "log", PLAIN) as log:
        assert log.backup(tmp_path / "backup").records == 0
    restore(tmp_path / "backup", tmp_path / "new")
    with Log.open(tmp_path / "new", PLAIN) as copy:
        assert copy.topics() == []
        copy.create_topic("t")
        copy.append("t", b"x")


def test_a_backup_of_a_restored_log_is_as_good(tmp_path: Path) -> None:
    with filled(tmp_path / "log") as log:
        found = everything(log, "plain")
        log.backup(tmp_path / "1")
    for number in range(1, 4):
        restore(tmp_path / f"{number}", tmp_path / f"log{number}")
        with Log.open(tmp_path / f"log{number}", PLAIN) as copy:
            assert everything(copy, "plain") == found
            copy.append("typed", {"item": "b", "price": number})
            copy.backup(tmp_path / f"{number + 1}")


def test_the_settings_come_along(tmp_path: Path) -> None:
    text = "default_partitions = 5\n[lake]\niceberg = false\n"
    (tmp_path / "log").mkdir()
    (tmp_path / "log" / "lakebed.toml").write_text(text)
    with lakebed.open(tmp_path / "log") as log:
        log.create_topic("t")
        log.backup(tmp_path / "backup")
    restore(tmp_path / "backup", tmp_path / "new")
    assert (tmp_path / "new" / "lakebed.toml").read_text() == text
    with lakebed.open(tmp_path / "new") as copy:
        assert len(copy.describe_topic("t").partitions) == 5


def test_files_are_for_their_owner_alone(tmp_path: Path) -> None:
    with filled(tmp_path / "log") as log:
        log.backup(tmp_path / "backup")
    for path in [tmp_path / "backup", *(tmp_path / "backup").rglob("*")]:
        assert path.stat().st_mode & 0o077 == 0, path


# While the log goes on


def test_what_the_log_drops_meanwhile_stays_until_it_is_copied(tmp_path: Path) -> None:
    """Purge, deletion, retention, compaction and merging between two pieces of the copy."""
    with filled(tmp_path / "log") as log:
        log.create_topic("kept", config={"cleanup": "compact", "compact_dirty_percent": 0})
        log.create_topic("gone")
        for number in range(10):
            log.append("kept", b"%d" % number, key=b"k")
            log.append("gone", b"%d" % number)
            log.checkpoint()
        found = {topic: everything(log, topic) for topic in log.topics()}
        told: list[tuple[str, int, int]] = []
        held: set[str] = set()

        def meanwhile(*step: Any) -> None:
            told.append(step)
            if len(told) == 1:
                held.update(lake_files(log))
                log.purge_topic("plain")
                log.delete_topic("gone")
                assert log.retain("kept").records_compacted
                log.append("kept", b"later", key=b"k")
                log.checkpoint()
                log.checkpoint()
                assert lake_files(log) > held

        log.backup(tmp_path / "backup", progress=meanwhile)
        assert (told[-1][1], told[-1][2]) == (told[0][2], told[0][2])
        assert everything(log, "plain") == []
        assert len(lake_files(log) & held) < len(held)  # what waited is gone
        assert log.verify()
        files = lake_files(log)
    with Log.open(tmp_path / "log", PLAIN) as log:
        assert lake_files(log) == files
        assert log.stats().files_removed == 0
    restore(tmp_path / "backup", tmp_path / "new")
    with Log.open(tmp_path / "new", PLAIN) as copy:
        assert {topic: everything(copy, topic) for topic in copy.topics()} == found


def test_data_of_a_transaction_that_ends_meanwhile_stays_until_it_is_copied(
    tmp_path: Path,
) -> None:
    with filled(tmp_path / "log") as log:
        transaction = begun(log)

        def meanwhile(*_: Any) -> None:
            if log.stats().open_transactions:
                transaction.abort()
                log.append("plain", b"y")
                log.checkpoint()
                log.append("plain", b"y")
                log.checkpoint()
                assert list((tmp_path / "log" / "staging").iterdir()) != []

        log.backup(tmp_path / "backup", progress=meanwhile)
        log.append("plain", b"y")
        log.checkpoint()
        assert list((tmp_path / "log" / "staging").iterdir()) == []
    restore(tmp_path / "backup", tmp_path / "new")
    with Log.open(tmp_path / "new", PLAIN) as copy:
        assert copy.stats().open_transactions == 1


def test_a_log_that_everybody_uses_is_backed_up_at_one_point(tmp_path: Path) -> None:
    """Each backup has all that was acknowledged before, no transaction by halves, no hole."""
    ending = threading.Event()
    acknowledged = Counter[str]()
    with Log.open(tmp_path / "log", SMALL) as log:
        log.create_topic("records", 2, config={"segment_bytes": 16 << 10})
        log.create_topic("pairs", 2)
        log.create_topic("latest", 1, config={"cleanup": "compact", "compact_dirty_percent": 0})
        log.create_topic("short", 1, config={"retention_bytes": 0})
        log.create_topic("purged", 1)

        def write() -> None:
            while not ending.is_set():
                number = acknowledged["records"]
                batch = [{"value": b"%d" % each} for each in range(number, number + 50)]
                log.append_batch("records", batch)
                acknowledged["records"] += 50
                log.append("latest", b"%d" % number, key=b"%d" % (number % 3))
                log.append("short", b"s")
                log.append("purged", b"p")
                log.commit_offsets("group", {("records", 0): log.offsets("records")[0][1]})

        def transact() -> None:
            while not ending.is_set():
                with log.transaction() as transaction:
                    for partition in (0, 1):
                        transaction.append("pairs", b"x" * 100, partition=partition)
                acknowledged["pairs"] += 1

        def tidy() -> None:
            while not ending.is_set():
                log.purge_topic("purged")
                log.retain()
                log.checkpoint()

        threads = [threading.Thread(target=each) for each in (write, transact, tidy)]
        for thread in threads:
            thread.start()
        before: list[dict[str, int]] = []
        try:
            for number in range(3):
                goal = acknowledged["records"] + 200
                until(lambda goal=goal: acknowledged["records"] >= goal)  # type: ignore[misc]
                before.append(dict(acknowledged))
                log.backup(tmp_path / f"{number}")
        finally:
            ending.set()
            for thread in threads:
                thread.join(600)
        whole = {number: rows(log, "records", number) for number in (0, 1)}
        assert log.verify()
    for number, least in enumerate(before):
        restore(tmp_path / f"{number}", tmp_path / f"new{number}")
        with Log.open(tmp_path / f"new{number}", PLAIN) as copy:
            found = {each: rows(copy, "records", each) for each in (0, 1)}
            for each in (0, 1):
                assert found[each] == whole[each][: len(found[each])]
            counted = Counter(int(value) for each in found.values() for value in each)
            assert counted == Counter(range(len(counted)))  # each once, and no hole
            assert len(counted) >= least["records"]
            first, second = (copy.offsets("pairs")[each][1] for each in (0, 1))
            assert first == second >= least["pairs"]
            (committed,) = copy.committed("group").values()
            assert committed <= copy.offsets("records")[0][1]
            assert copy.verify()


def test_two_at_once_follow_each_other(tmp_path: Path) -> None:
    with filled(tmp_path / "log") as log:
        done: list[Any] = []
        threads = [
            threading.Thread(target=lambda name=name: done.append(log.backup(tmp_path / name)))
            for name in ("a", "b")
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(600)
        assert len(done) == 2
    for name in ("a", "b"):
        assert verify_backup(tmp_path / name).records == 120


def test_a_log_that_is_closed_ends_its_backup(tmp_path: Path) -> None:
    log = filled(tmp_path / "log")
    closing = threading.Thread(target=log.close)

    def meanwhile(*_: Any) -> None:
        closing.start()
        until(lambda: inner(log).parts.lifecycle.closed)

    with pytest.raises(ClosedError):
        log.backup(tmp_path / "backup", progress=meanwhile)
    closing.join(600)
    assert [each for each in (tmp_path / "backup").rglob("*") if each.is_file()] == []
    with pytest.raises(ClosedError):
        log.backup(tmp_path / "backup")
    with Log.open(tmp_path / "log", PLAIN) as log:
        assert log.backup(tmp_path / "backup").records == 120


def test_a_progress_that_fails_ends_the_backup(tmp_path: Path) -> None:
    with filled(tmp_path / "log") as log:

        def meanwhile(*_: Any) -> None:
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            log.backup(tmp_path / "backup", progress=meanwhile)
        assert log.backup(tmp_path / "backup").records == 120


# Tables and stores


def test_the_tables_of_the_original_are_left_alone(tmp_path: Path) -> None:
    with filled(tmp_path / "log", LogConfig()) as log:
        log.checkpoint()
        log.lake.sync()
        log.backup(tmp_path / "backup")
        restore(tmp_path / "backup", tmp_path / "new")
        with lakebed.open(tmp_path / "new") as copy:
            copy.append("plain", b"only in the copy")
            copy.checkpoint()
            assert copy.lake.sync().errors == {}
            assert copy.lake.table("plain").scan().to_arrow().num_rows == 61
            copy.purge_topic("plain")
            copy.lake.sync()
            copy.lake.gc(now=True)
        assert log.lake.table("plain").scan().to_arrow().num_rows == 60
        assert log.verify()
        assert all(each.problem == "" for each in log.lake.tables())


def stored(folder: Path, store: Path) -> LogConfig:
    """Write settings with a store into a log's folder; return them."""
    folder.mkdir(exist_ok=True)
    store.mkdir()
    url = f"file://{store}"
    (folder / "lakebed.toml").write_text(f"[lake]\niceberg = false\nstore = '{url}'\n")
    return LogConfig(lake=LakeConfig(iceberg=False, store=url))


def test_segments_in_the_store_alone_are_named_and_asked_for(tmp_path: Path) -> None:
    config = stored(tmp_path / "log", tmp_path / "store")
    with filled(tmp_path / "log", config) as log:
        log.checkpoint()
        log.lake.sync()
        log.alter_topic("plain", {"local_bytes": 0})
        log.lake.sync()
        assert log.stats().lake.segments_moved >= 3
        log.append("plain", b"here")
        found = everything(log, "plain")
        report = log.backup(tmp_path / "backup")
    assert report.stored_segments >= 3
    assert report.store == config.lake.store
    restored = restore(tmp_path / "backup", tmp_path / "new")
    assert any(config.lake.store in each for each in restored.warnings)
    assert any("in the store alone" in each for each in restored.warnings)
    with lakebed.open(tmp_path / "new") as copy:
        assert everything(copy, "plain") == found
    gone = sorted((tmp_path / "store").rglob("*/segments/1/*.parquet"))[0]
    gone.unlink()
    with pytest.raises(MissingFileError, match=gone.name):
        restore(tmp_path / "backup", tmp_path / "other")


def test_without_its_store_a_log_is_restored_and_not_opened(tmp_path: Path) -> None:
    config = stored(tmp_path / "log", tmp_path / "store")
    (tmp_path / "log" / "lakebed.toml").unlink()  # they were given in code
    with filled(tmp_path / "log", config) as log:
        log.alter_topic("plain", {"local_bytes": 0})
        log.checkpoint()
        log.lake.sync()
        found = everything(log, "plain")
        log.backup(tmp_path / "backup")
    restored = restore(tmp_path / "backup", tmp_path / "new")
    assert any("was not opened" in each for each in restored.warnings)
    with Log.open(tmp_path / "new", config) as copy:
        assert everything(copy, "plain") == found


def test_a_catalog_elsewhere_is_told(tmp_path: Path) -> None:
    catalog = {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db"}
    config = LogConfig(lake=LakeConfig(catalog=catalog))
    with Log.open(tmp_path / "log", config) as log:
        log.create_topic("t", schema=pa.schema({"a": pa.int64()}))
        log.backup(tmp_path / "backup")
    (warning,) = verify_backup(tmp_path / "backup").warnings
    assert "catalog outside of its folder" in warning
    assert str(tmp_path) not in warning


# Targets


@pytest.mark.parametrize("target", ["log", "log/backup", "log/lake/1/x", ".", "link/backup"])
def test_a_target_that_is_part_of_the_log_is_refused(tmp_path: Path, target: str) -> None:
    with filled(tmp_path / "log") as log:
        (tmp_path / "link").symlink_to(tmp_path / "log", target_is_directory=True)
        with pytest.raises(InvalidArgumentError, match="outside of the log"):
            log.backup(tmp_path / target)


def test_a_target_that_holds_something_is_refused(tmp_path: Path) -> None:
    with filled(tmp_path / "log") as log:
        log.backup(tmp_path / "backup")
        (tmp_path / "other" / "deep").mkdir(parents=True)
        log.backup(tmp_path / "other")  # empty folders are nothing
        (tmp_path / "third" / "deep").mkdir(parents=True)
        (tmp_path / "third" / "deep" / "file").write_text("x")
        (tmp_path / "file").write_text("x")
        for name in ("backup", "third"):
            with pytest.raises(InvalidArgumentError, match="not empty"):
                log.backup(tmp_path / name)
        for bad in (None, 1, b"x", "a\0b"):
            with pytest.raises(InvalidArgumentError, match="not a path"):
                log.backup(bad)  # type: ignore[arg-type]
        with pytest.raises(lakebed.LakebedError, match="not a folder"):
            log.backup(tmp_path / "file")
    assert (tmp_path / "third" / "deep" / "file").read_text() == "x"
    assert verify_backup(tmp_path / "backup").records == 120
