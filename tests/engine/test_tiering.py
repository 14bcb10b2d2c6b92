"""Segments go to the object store and off the local disk, and nobody who reads can tell."""

from __future__ import annotations

import random
import shutil
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lakebed import Log, LogConfig, WalConfig
from lakebed.config import LakeConfig, SyncMode
from lakebed.errors import (
    CorruptionError,
    InvalidArgumentError,
    MissingFileError,
    StoreDeniedError,
    StoreNotFoundError,
    StoreUnavailableError,
)
from lakebed.host import SimDisk
from lakebed.host.sim_disk import Survival
from lakebed.iceberg import tiering
from lakebed.reports.lake import SyncReport
from lakebed.state.commands import PlaceSegments
from lakebed.state.values import BOTH, LOCAL, STORE, Segment
from tests.engine.support import armed, inner, lake_parts, quiet, rows, submit, topic_tables
from tests.foreign.readers import contents, read_duckdb, read_pyiceberg
from tests.s3 import FOREVER, KEY, REGION, SECRET, Proxy, Server, options, proxy, s3
from tests.waiting import until

__all__ = ["proxy", "s3"]

AWAY = {"local_bytes": 0}
"""Nothing stays on the local disk."""


def lake(url: str, **more: Any) -> LogConfig:
    """Return settings with a store."""
    return LogConfig(lake=LakeConfig(store=url, **more))


def opened(folder: Path, config: LogConfig | None = None) -> Log:
    """Open a log on a real disk that does nothing automatically."""
    return Log.open(folder, config, threaded=False)


@pytest.fixture(params=["s3", "file"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> LogConfig:
    """Return settings with each kind of store in turn."""
    if request.param == "file":
        (tmp_path / "store").mkdir()
        return lake(f"file://{tmp_path}/store")
    server: Server = request.getfixturevalue("s3")
    return lake(f"s3://{server.bucket()}/some/where", store_options=options(server.url))


@pytest.fixture
def drive(tmp_path: Path) -> LogConfig:
    """Return settings with a folder as the store."""
    (tmp_path / "store").mkdir()
    return lake(f"file://{tmp_path}/store")


def fill(log: Log, topic: str = "t", count: int = 40, times: int = 3) -> list[bytes]:
    """Append records and make a segment of them, several times; return their values in order."""
    log.get_or_create_topic(topic)
    begun = log.offsets(topic)[0][1]
    values = [b"%s %d" % (topic.encode(), begun + each) for each in range(count * times)]
    for first in range(0, len(values), count):
        batch = values[first : first + count]
        log.append_batch(topic, [{"value": each, "key": each[-2:]} for each in batch])
        log.checkpoint()
    return values


def segments(log: Log, topic: str = "t") -> list[Segment]:
    """Return the segments of a topic's first partition."""
    found = inner(log).parts.core.state.topic(topic)
    assert found is not None
    return list(inner(log).parts.core.state.partitions[(found.id, 0)].segments)


def places(log: Log, topic: str = "t") -> list[int]:
    """Return where each segment is."""
    return [each.place for each in segments(log, topic)]


def local_files(log: Log) -> list[Path]:
    """Return every file of the local lake."""
    return sorted(path for path in (inner(log).folder / "lake").rglob("*") if path.is_file())


def objects(log: Log) -> list[str]:
    """Return the name of every object in the log's store."""
    store = lake_parts(log).store
    assert store is not None
    return [each.name for each in store.listing()]


def object_of(log: Log, segment: Segment, topic: int = 1) -> str:
    """Return the name of a segment's object."""
    return lake_parts(log).locations.object_name(topic, 0, segment)


def put(log: Log, name: str, data: bytes) -> None:
    """Put an object into a log's store behind its back."""
    store = lake_parts(log).store
    assert store is not None
    store.put(name, memoryview(data))


def get(log: Log, name: str) -> bytes:
    """Return the bytes of an object."""
    store = lake_parts(log).store
    pieces: list[bytes] = []
    assert store is not None

    def begin() -> Callable[[memoryview], object]:
        pieces.clear()
        return lambda piece: pieces.append(bytes(piece))

    store.fetch(name, begin)
    return b"".join(pieces)


def forget_fetched(log: Log) -> None:
    """Remove the local copies of what is in the store, as an administrator may."""
    for path in (inner(log).folder / "fetched").iterdir():
        path.unlink()
    for segment in segments(log):
        inner(log).parts.segment_reader.forget(segment.id)


def shown(log: Log, topic: str = "t") -> Counter[Any]:
    """Return what pyiceberg reads in a topic's table."""
    return contents(read_pyiceberg(log.lake.table(topic)))


def sealed(log: Log, topic: str = "t") -> Counter[Any]:
    """Return the records of a topic that are in segments, read through the log."""
    found = inner(log).parts.core.state.topic(topic)
    assert found is not None
    total: Counter[Any] = Counter()
    for number in range(found.partitions):
        partition = inner(log).parts.core.state.partitions[(found.id, number)]
        offset = partition.low
        while offset < partition.flushed:
            table = log.read(topic, number, offset, max_records=partition.flushed - offset)
            if not table.num_rows:
                break
            total += contents(table)
            offset = table.column("offset")[-1].as_py() + 1
    return total


# The way there


def test_segments_are_in_the_store_before_the_table_shows_them(
    store: LogConfig, tmp_path: Path
) -> None:
    """A sync uploads, says so in the log, and only then registers: the table is in the store."""
    with opened(tmp_path / "log", store) as log:
        fill(log)
        assert places(log) == [LOCAL] * 3
        report = log.lake.sync()
        assert (report.segments_uploaded, report.files_added, report.segments_moved) == (3, 3, 0)
        assert places(log) == [BOTH] * 3
        assert len(local_files(log)) == 3
        files = [task.file.file_path for task in log.lake.table("t").scan().plan_files()]
        assert sorted(files) == sorted(
            f"{inner(log).config.lake.store}/{object_of(log, each)}" for each in segments(log)
        )
        assert shown(log) == sealed(log)
        assert log.lake.sync() == SyncReport(), "a second one has nothing to do"


def test_a_reader_that_knows_nothing_of_us_reads_the_table_in_s3(
    s3: Server, tmp_path: Path
) -> None:
    """DuckDB reads metadata, manifests and segments from the bucket, by the version hint."""
    config = lake(f"s3://{s3.bucket()}/lake", store_options=options(s3.url))
    with opened(tmp_path / "log", config) as log:
        fill(log)
        log.lake.sync()
        secret = {
            "KEY_ID": KEY,
            "SECRET": SECRET,
            "REGION": REGION,
            "ENDPOINT": s3.url.removeprefix("http://"),
            "URL_STYLE": "path",
            "USE_SSL": "false",
        }
        found = read_duckdb(log.lake.describe("t").metadata, s3=secret)
        assert contents(found) == sealed(log)


def test_a_table_never_shows_an_object_that_was_not_uploaded(
    drive: LogConfig, tmp_path: Path
) -> None:
    """An upload that fails leaves segment and table as they were; the next one catches up."""
    with opened(tmp_path / "log", drive) as log:
        fill(log, times=2)
        log.lake.sync()
        before = shown(log)
        fill(log, times=1)
        (tmp_path / "store").rename(tmp_path / "away")
        with pytest.raises(StoreNotFoundError):
            log.lake.sync("t")
        (tmp_path / "away").rename(tmp_path / "store")
        assert places(log) == [BOTH, BOTH, LOCAL]
        assert contents(read_pyiceberg(topic_tables(log).table("t"))) == before
        log.lake.sync()
        assert shown(log) == sealed(log) > before


def test_what_is_sealed_while_others_are_uploaded_is_not_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sync that comes too early for a segment leaves the topic behind, and it is synced again.

    A pass uploads what is behind, and uploads again for each table: a segment is sealed after both.
    """
    uploaded, resume = threading.Semaphore(0), threading.Semaphore(0)

    class Pause:
        def hit(self) -> None:
            uploaded.release()
            assert resume.acquire(timeout=60)

    (tmp_path / "store").mkdir()
    config = lake(f"file://{tmp_path}/store", sync_interval_ms=50)
    with Log.open(tmp_path / "log", config) as log:
        monkeypatch.setattr(tiering, "_UPLOADED", Pause())
        fill(log, times=1)
        for _ in range(2):
            assert uploaded.acquire(timeout=60)
            fill(log, times=1)
            resume.release()
        monkeypatch.undo()
        resume.release(9)
        until(lambda: places(log) == [BOTH] * 3 and log.lake.stats().lag_records == 0)
        assert shown(log) == sealed(log)


@pytest.mark.parametrize("damaged", [[0], [2], [0, 1]])
def test_a_damaged_segment_is_not_uploaded(
    drive: LogConfig, tmp_path: Path, damaged: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    """What is damaged here is not taken for sound elsewhere; the other segments go."""
    with opened(tmp_path / "log", drive) as log:
        fill(log)
        files = local_files(log)
        for number in damaged:
            damage(files[number])
        with pytest.raises(CorruptionError, match="damaged") as caught:
            log.lake.sync("t")
        assert caught.value.facts["path"] == files[damaged[0]]
        assert all(str(files[number]) in caplog.text for number in damaged[1:])
        assert places(log) == [LOCAL if number in damaged else BOTH for number in range(3)]
        assert len(objects(log)) == 3 - len(damaged)


def test_a_place_never_goes_back(drive: LogConfig, tmp_path: Path) -> None:
    """An entry that comes late does not let a segment be looked for where it is not."""
    with opened(tmp_path / "log", drive) as log:
        log.create_topic("t", config=AWAY)
        values = fill(log)
        log.lake.sync()
        late = PlaceSegments(tuple((1, 0, each.id, LOCAL) for each in segments(log)))
        assert submit(log, late) == 3
        assert places(log) == [STORE] * 3
        assert rows(log, "t") == values


# Off the local disk


def check_reads(log: Log, values: list[bytes]) -> None:
    """Compare every way to read with what was written."""
    assert rows(log, "t") == values
    table = log.table("t")
    assert table.scan(columns=["value"]).read_all().column("value").to_pylist() == values
    latest = {value[-2:]: value for value in values}
    assert sorted(table.latest(columns=["value"]).column("value").to_pylist()) == sorted(
        latest.values()
    )
    for key in list(latest)[:5]:
        assert table.get(key) == latest[key]
    with log.consumer(partitions=[("t", 0)], start="earliest") as consumer:
        read: list[bytes] = []
        while (batch := consumer.poll()).num_rows:
            read += batch.column("value").to_pylist()
    assert read == values
    times = log.read("t", max_records=len(values)).column("timestamp").to_pylist()
    middle = times[len(times) // 2]
    assert log.offset_for_time("t", timestamp=middle) == times.index(middle)


def test_what_was_moved_is_read_as_before(store: LogConfig, tmp_path: Path) -> None:
    """With every local file gone, every way to read gives the same, also after reopening."""
    with opened(tmp_path / "log", store) as log:
        limit = "local_ms" if store.lake.store.startswith("file") else "local_bytes"
        log.create_topic("t", config={limit: 0})
        values = fill(log)
        report = log.lake.sync()
        assert report.segments_moved == 3
        assert places(log) == [STORE] * 3
        assert local_files(log) == []
        check_reads(log, values)
        assert shown(log) == sealed(log)
        assert log.verify() == 3
        assert log.lake.stats().segments_moved == 3
        values += fill(log, times=1)
        check_reads(log, values)
        log.lake.sync()
        assert local_files(log) == []
    with opened(tmp_path / "log", store) as log:
        assert places(log) == [STORE] * 4
        check_reads(log, values)
        assert log.verify() == 4
        assert log.lake.sync() == SyncReport()
        assert shown(log) == sealed(log)


def test_whoever_looked_before_a_move_reads_on(drive: LogConfig, tmp_path: Path) -> None:
    """A merge that was planned with local files finds them where they are now."""
    with opened(tmp_path / "log", drive) as log:
        values = fill(log)
        before = segments(log)
        log.alter_topic("t", config=AWAY)
        log.lake.sync()
        assert (places(log), local_files(log)) == ([STORE] * 3, [])
        found = [
            batch for each in before for batch in inner(log).parts.segment_reader.scan(1, 0, each)
        ]
        assert [each for batch in found for each in batch.column("value").to_pylist()] == values


def test_a_key_that_moved_segments_do_not_hold_is_ruled_out_without_fetching_them(
    drive: LogConfig, tmp_path: Path
) -> None:
    """What was known of the keys of a segment is known after it has left the local disk."""
    with opened(tmp_path / "log", drive) as log:
        log.create_topic("t", config=AWAY)
        fill(log)
        assert log.table("t").get(b"9x") is None
        assert log.lake.sync().segments_moved == 3
        assert log.table("t").get(b"9x") is None
        assert log.lake.stats().store_downloads == 0


def test_some_bytes_stay_on_the_local_disk(drive: LogConfig, tmp_path: Path) -> None:
    """A limit in bytes keeps the newest segments that are within it, and at least reaches it."""
    with opened(tmp_path / "log", drive) as log:
        fill(log, times=4)
        sizes = [each.file_bytes for each in segments(log)]
        log.alter_topic("t", config={"local_bytes": sizes[2] + sizes[3]})
        log.lake.sync()
        assert places(log) == [STORE, STORE, BOTH, BOTH]
        assert len(local_files(log)) == 2


def test_the_cache_of_what_comes_back_stays_within_its_bound(
    drive: LogConfig, tmp_path: Path
) -> None:
    """With room for one segment of many, reads are right and the files are few."""
    with opened(tmp_path / "log", drive) as log:
        log.create_topic("t", config=AWAY)
        values = fill(log, times=6)
        log.lake.sync()
        one = max(each.file_bytes for each in segments(log))
    config = lake(
        drive.lake.store,
        store_options=drive.lake.store_options,
        store_cache_bytes=one * 2,
    )
    with opened(tmp_path / "log", config) as log:
        check_reads(log, values)
        log.verify()
        kept = sum(path.stat().st_size for path in (inner(log).folder / "fetched").iterdir())
        stats = log.lake.stats()
        assert 0 < kept == stats.cache_bytes <= one * 2
        assert stats.cache_misses > 6
        assert stats.cache_evictions >= stats.cache_misses - 2
        assert stats.store_downloaded_bytes >= sum(each.file_bytes for each in segments(log))
        log.verify("t")
        assert log.lake.stats().cache_misses > stats.cache_misses


def test_a_second_reader_of_what_came_back_is_served_locally(
    drive: LogConfig, tmp_path: Path
) -> None:
    """What was fetched once is not fetched again, also by the next process."""
    with opened(tmp_path / "log", drive) as log:
        log.create_topic("t", config=AWAY)
        values = fill(log)
        log.lake.sync()
        assert rows(log, "t") == values
        assert log.lake.stats().store_downloads == 3
    with opened(tmp_path / "log", drive) as log:
        assert rows(log, "t") == values
        stats = log.lake.stats()
        assert (stats.store_downloads, stats.cache_hits, stats.cache_misses) == (0, 3, 0)


# Everything that removes or rewrites


def test_retention_purge_and_deletion_reach_the_store(store: LogConfig, tmp_path: Path) -> None:
    """What the log gives up leaves the table, and then the store."""
    with opened(tmp_path / "log", store) as log:
        log.create_topic("t", config=AWAY)
        values = fill(log, times=4)
        log.lake.sync()
        sizes = [each.file_bytes for each in segments(log)]
        log.alter_topic("t", config={**AWAY, "retention_bytes": sizes[2] + sizes[3]})
        assert log.retain().segments_removed == 2
        log.lake.sync()
        assert shown(log) == sealed(log)
        assert rows(log, "t") == values[80:]
        log.lake.gc(now=True)
        kept = [each for each in objects(log) if "/segments/" in each]
        assert kept == sorted(object_of(log, each) for each in segments(log))
        log.purge_topic("t")
        log.lake.sync()
        assert not shown(log)
        log.lake.gc(now=True)
        assert not [each for each in objects(log) if "/segments/" in each]
        more = fill(log, times=1)
        log.lake.sync()
        assert rows(log, "t") == more
        assert shown(log) == sealed(log)
        log.delete_topic("t")
        log.lake.sync()
        log.lake.gc(now=True)
        assert objects(log) == []


def test_a_topic_that_is_deleted_leaves_nothing_without_a_sync(
    drive: LogConfig, tmp_path: Path
) -> None:
    """Removing files before the table is dropped does not stop the next sync."""
    with opened(tmp_path / "log", drive) as log:
        fill(log)
        fill(log, "other", times=1)
        log.lake.sync()
        log.delete_topic("t")
        log.lake.gc(now=True)
        log.lake.sync()
        log.lake.gc(now=True)
        assert {each.split("/")[2] for each in objects(log)} == {"2"}
        assert shown(log, "other") == sealed(log, "other")
        assert log.lake.stats().failures == 0


def test_merging_and_compaction_read_from_the_store_and_write_to_it(
    drive: LogConfig, tmp_path: Path
) -> None:
    """Rewritten segments replace those in the store, in log and table alike."""
    with opened(tmp_path / "log", drive) as log:
        values = fill(log, count=10, times=9)
        log.lake.sync()
        for path in local_files(log):
            path.unlink()
        assert log.retain().segments_merged >= 8
        assert LOCAL in places(log)
        assert rows(log, "t") == values
        log.alter_topic("t", config=AWAY)
        log.lake.sync()
        assert set(places(log)) == {STORE}
        assert shown(log) == sealed(log)
        log.create_topic("c", config={**AWAY, "cleanup": "compact", "compact_dirty_percent": 0})
        for number in range(30):
            log.append("c", b"%d" % number, key=b"%d" % (number % 4))
            if number % 10 == 9:
                log.checkpoint()
                log.lake.sync()
        log.retain()
        log.lake.sync()
        assert rows(log, "c") == [b"26", b"27", b"28", b"29"]
        assert shown(log, "c") == sealed(log, "c")
        log.lake.gc(now=True)
        kept = {each for each in objects(log) if "/segments/" in each}
        assert kept == {
            *(object_of(log, each) for each in segments(log)),
            *(object_of(log, each, 2) for each in segments(log, "c")),
        }
        log.verify()


def test_two_logs_share_a_bucket_and_leave_each_other_alone(s3: Server, tmp_path: Path) -> None:
    """Objects of one log are not touched by the removal, or the end, of another."""
    store = lake(f"s3://{s3.bucket()}/some/where", store_options=options(s3.url))
    with opened(tmp_path / "a", store) as one, opened(tmp_path / "b", store) as other:
        fill(one)
        values = fill(other)
        one.lake.sync()
        other.lake.sync()
        theirs = [each for each in objects(other) if each.startswith(lake_parts(other).log_id)]
        one.delete_topic("t")
        one.lake.sync()
        one.lake.gc(now=True)
        assert objects(other) == theirs
        assert rows(other, "t") == values
        assert shown(other) == sealed(other)


def test_an_older_copy_does_not_remove_what_the_original_has_written_since(
    drive: LogConfig, tmp_path: Path
) -> None:
    """A copy knows nothing of these objects, and they may be all that the original has."""
    with opened(tmp_path / "log", drive) as log:
        log.create_topic("t", config=AWAY)
        values = fill(log)
        log.lake.sync()
    shutil.copytree(tmp_path / "log", tmp_path / "copy")
    with opened(tmp_path / "log", drive) as log:
        values += fill(log)
        fill(log, "new")
        log.lake.sync()
    with opened(tmp_path / "copy", drive) as copy:
        copy.lake.sync()
        copy.lake.gc(now=True)
    with opened(tmp_path / "log", drive) as log:
        assert not log.lake.sync().failures
        assert log.verify() == 9
        assert rows(log, "t") == values
        assert shown(log) == sealed(log)
        assert shown(log, "new") == sealed(log, "new")


@pytest.mark.parametrize("stored", [False, True])
def test_what_a_crash_left_half_written_is_removed(
    drive: LogConfig, tmp_path: Path, stored: bool
) -> None:
    """Halves of objects and of metadata go after the grace period, like everything unneeded."""
    with opened(tmp_path / "log", drive if stored else None) as log:
        fill(log)
        log.lake.sync()
        table = Path(log.lake.describe("t").location.removeprefix("file://"))
        halves = [table / "metadata" / "1-m0.avro.77.tmp"]
        if stored:
            halves.append(tmp_path / "store" / (object_of(log, segments(log)[0]) + ".tmp"))
        for path in halves:
            path.write_bytes(b"half")
        log.lake.gc()
        assert all(path.exists() for path in halves), "they may be in the making"
        assert log.lake.gc(now=True).files_removed >= len(halves)
        assert not any(path.exists() for path in halves)
        assert shown(log) == sealed(log)


# Damage and loss


def damage(path: Path) -> None:
    """Turn over a bit in the first column chunk."""
    data = bytearray(path.read_bytes())
    data[10] ^= 1
    path.write_bytes(data)


def ruin(path: Path, segment: Segment, where: str) -> None:
    """Turn over bits in everything before the tail, or in the tail."""
    data = bytearray(path.read_bytes())
    tail = segment.file_bytes - segment.tail_bytes
    for place in range(4, tail) if where == "chunks" else range(tail, len(data) - 8):
        data[place] ^= 255
    path.write_bytes(data)


READS: dict[str, Callable[[Log], object]] = {
    "read": lambda log: rows(log, "t"),
    "scan": lambda log: log.table("t").scan().read_all(),
    "latest": lambda log: log.table("t").latest(),
    "get": lambda log: log.table("t").get(b" 1"),
    "time": lambda log: log.offset_for_time("t", timestamp=1),
    "verify": lambda log: log.verify(),
}


@pytest.mark.parametrize("read", READS)
def test_a_fetched_copy_that_was_damaged_meanwhile_is_fetched_again(
    drive: LogConfig, tmp_path: Path, read: str
) -> None:
    """Whoever reads after a restart notices nothing: the store has the segment."""
    with opened(tmp_path / "log", drive) as log:
        log.create_topic("t", config=AWAY)
        fill(log)
        log.lake.sync()
        expected = READS[read](log)
        log.verify()
        for path in (inner(log).folder / "fetched").iterdir():
            damage(path)
    with opened(tmp_path / "log", drive) as log:
        assert READS[read](log) == expected
        assert log.lake.stats().cache_misses > 0
        log.verify()


@pytest.mark.parametrize("where", ["chunks", "tail"])
@pytest.mark.parametrize("read", READS)
def test_a_fetched_copy_that_is_damaged_while_the_log_is_open_is_fetched_again(
    drive: LogConfig, tmp_path: Path, read: str, where: str
) -> None:
    """So is one that was sound when it came, also of a segment that should be here too."""
    with opened(tmp_path / "log", drive) as log:
        values = fill(log)
        log.lake.sync()
        for path in local_files(log):
            path.unlink()
        expected = READS[read](log)
        log.verify()
        for segment in segments(log):
            name = object_of(log, segment).replace("/", "+")
            ruin(inner(log).folder / "fetched" / name, segment, where)
            inner(log).parts.segment_reader.forget(segment.id)
        downloads = log.lake.stats().store_downloads
        assert READS[read](log) == expected
        assert log.lake.stats().store_downloads > downloads
        assert rows(log, "t") == values


def test_a_scan_of_large_records_goes_on_with_the_copy_that_was_fetched_again(
    drive: LogConfig, tmp_path: Path
) -> None:
    """Its parts are decoded one after the other, from the sound copy as soon as there is one."""
    values = [b"%d" % number + bytes(4_000) for number in range(8_000)]
    with opened(tmp_path / "log", drive) as log:
        log.create_topic("t", config=AWAY)
        log.append_batch("t", [{"value": value} for value in values])
        log.checkpoint()
        log.lake.sync()
        log.verify()
        (path,) = (inner(log).folder / "fetched").iterdir()
        ruin(path, segments(log)[0], "chunks")
        batches = list(log.table("t").scan(["value"]))
        assert len(batches) > 1
        assert [value for batch in batches for value in batch.column(0).to_pylist()] == values
        assert log.lake.stats().store_downloads == 2


@pytest.mark.parametrize("how", ["damaged", "shorter", "missing"])
def test_an_object_that_is_damaged_is_named(drive: LogConfig, tmp_path: Path, how: str) -> None:
    """Reading gives an error that says which object, and the others are read."""
    with opened(tmp_path / "log", drive) as log:
        log.create_topic("t", config=AWAY)
        values = fill(log)
        log.lake.sync()
        name = object_of(log, segments(log)[1])
        data = bytearray(get(log, name))
        data[10] ^= 1
        if how == "missing":
            store = lake_parts(log).store
            assert store is not None
            store.remove(name)
        else:
            put(log, name, bytes(data[: len(data) - 5 if how == "shorter" else None]))
        forget_fetched(log)
        kind = MissingFileError if how == "missing" else CorruptionError
        for read in (log.verify, lambda: rows(log, "t"), lambda: log.table("t").scan().read_all()):
            with pytest.raises(kind) as caught:
                read()
            assert name in str(caught.value)
        assert log.read("t", 0, 80).column("value").to_pylist() == values[80:]


def test_a_local_copy_that_somebody_removed_is_read_from_the_store(
    drive: LogConfig, tmp_path: Path
) -> None:
    """As long as the store has it, nothing is lost: not when it is open, and not at opening."""
    with opened(tmp_path / "log", drive) as log:
        values = fill(log)
        log.lake.sync()
        local_files(log)[1].unlink()
        inner(log).parts.segment_reader.forget(segments(log)[1].id)
        check_reads(log, values)
        assert log.verify() == 3
    with opened(tmp_path / "log", drive) as log:
        assert log.verify() == 3
        check_reads(log, values)


# A store that fails


def test_a_bucket_that_is_missing_is_reported_and_nothing_is_lost(
    s3: Server, tmp_path: Path
) -> None:
    """The log goes on without it, and catches up when it is there."""
    name = s3.bucket() + "-later"
    config = lake(f"s3://{name}/lake", store_options=options(s3.url))
    with opened(tmp_path / "log", config) as log:
        values = fill(log)
        with pytest.raises(StoreNotFoundError):
            log.lake.sync()
        values += fill(log, times=1)
        assert rows(log, "t") == values
        s3.request("PUT", f"/{name}")
        assert log.lake.sync().segments_uploaded == 4
        assert shown(log) == sealed(log)
        assert rows(log, "t") == values


def test_a_store_that_refuses_fails_or_cuts_uploads_loses_nothing(
    s3: Server, proxy: Proxy, tmp_path: Path
) -> None:
    """Each failure is typed, writers go on, and the next sync finishes what was begun."""
    bucket = s3.bucket()
    given = options(proxy.url)
    config = lake(f"s3://{bucket}/lake", store_options=given)
    with opened(tmp_path / "log", config) as log:
        values = fill(log)
        proxy.answer(403, "AccessDenied", method="PUT", times=FOREVER)
        with pytest.raises(StoreDeniedError):
            log.lake.sync()
        assert places(log) == [LOCAL] * 3
        assert s3.keys(bucket) == []
        proxy.behave()
        proxy.cut(method="PUT", times=1)
        log.lake.sync()
        assert log.lake.stats().store_retries == 1
        values += fill(log, times=2)
        proxy.answer(500, "InternalError", method="PUT", containing="/segments/", times=FOREVER)
        with pytest.raises(StoreUnavailableError):
            log.lake.sync()
        assert shown_by_head(log) == len(values) - 80
        values += fill(log, times=1)
        assert rows(log, "t") == values
        proxy.behave()
        assert log.lake.sync().segments_uploaded == 3
        assert shown(log) == sealed(log)
        assert rows(log, "t") == values
        assert log.lake.gc(now=True).segments_removed == 0
        log.verify()


def shown_by_head(log: Log) -> int:
    """Count the records that a table shows as it is, without a sync."""
    return int(read_pyiceberg(topic_tables(log).table("t")).num_rows)


def test_what_was_uploaded_before_a_failure_is_not_uploaded_again(
    s3: Server, proxy: Proxy, tmp_path: Path
) -> None:
    """A store that fails now and then is filled nevertheless."""
    given = options(proxy.url)
    config = lake(f"s3://{s3.bucket()}/lake", store_options=given)
    with opened(tmp_path / "log", config) as log:
        fill(log, times=4)
        last = object_of(log, segments(log)[3]).rpartition("/")[2]
        proxy.answer(403, "AccessDenied", method="PUT", containing=last, times=1)
        with pytest.raises(StoreDeniedError):
            log.lake.sync()
        assert places(log) == [BOTH, BOTH, BOTH, LOCAL]
        assert log.lake.sync().segments_uploaded == 1


def test_a_store_that_is_down_when_one_reads_is_said_to_be(
    s3: Server, proxy: Proxy, tmp_path: Path
) -> None:
    """The error is typed and can be repeated; what is local or fetched is read all the same."""
    given = options(proxy.url)
    config = lake(f"s3://{s3.bucket()}/lake", store_options=given)
    with opened(tmp_path / "log", config) as log:
        log.create_topic("t", config=AWAY)
        values = fill(log)
        log.lake.sync()
        proxy.answer(503, "SlowDown", times=FOREVER)
        with pytest.raises(StoreUnavailableError):
            log.read("t")
        fresh = log.append("t", b"new").offset
        assert log.read("t", 0, fresh).column("value").to_pylist() == [b"new"]
        proxy.behave()
        assert rows(log, "t") == [*values, b"new"]
        assert log.lake.stats().store_failures == 1


def test_the_lake_thread_tells_of_a_store_that_is_missing_and_catches_up(tmp_path: Path) -> None:
    """By itself too: the failure is in the statistics, and goes on to be tried."""
    config = lake(f"file://{tmp_path}/store", sync_interval_ms=100)
    with Log.open(tmp_path / "log", config) as log:
        values = fill(log)
        until(lambda: "the folder does not exist" in (log.lake.stats().last_failure or ""))
        assert rows(log, "t") == values
        (tmp_path / "store").mkdir()
        until(lambda: log.lake.stats().lag_records == 0 and places(log) == [BOTH] * 3)
        assert shown(log) == sealed(log)


def test_segments_move_by_age_though_nothing_else_happens(tmp_path: Path) -> None:
    """The lake thread looks at the clock, not only at what has changed."""
    (tmp_path / "store").mkdir()
    config = lake(f"file://{tmp_path}/store", sync_interval_ms=100)
    with Log.open(tmp_path / "log", config) as log:
        values = fill(log)
        until(lambda: places(log) == [BOTH] * 3 and log.lake.stats().lag_records == 0)
        log.alter_topic("t", config={"local_ms": 1})
        until(lambda: places(log) == [STORE] * 3 and not local_files(log))
        assert rows(log, "t") == values


# A store that comes and goes


def test_a_store_that_comes_later_gets_everything(store: LogConfig, tmp_path: Path) -> None:
    """Segments are uploaded, and the table moves to the store with its records."""
    with opened(tmp_path / "log") as log:
        values = fill(log)
        log.lake.sync()
        before = shown(log)
    with opened(tmp_path / "log", store) as log:
        report = log.lake.sync()
        assert (report.segments_uploaded, report.files_added) == (3, 3)
        assert log.lake.describe("t").location.startswith(store.lake.store)
        assert shown(log) == before == sealed(log)
        log.lake.gc(now=True)
        assert not list((inner(log).folder / "iceberg").glob("*/metadata/*")), (
            "the old table is gone"
        )
        assert rows(log, "t") == values


def test_a_store_that_the_settings_have_lost_is_asked_for(drive: LogConfig, tmp_path: Path) -> None:
    """A log whose segments are there alone is refused at opening, untouched."""
    with opened(tmp_path / "log", drive) as log:
        log.create_topic("t", config=AWAY)
        values = fill(log)
        log.lake.sync()
    with pytest.raises(InvalidArgumentError, match="store") as caught:
        opened(tmp_path / "log")
    assert caught.value.facts["segments"] == 3
    with opened(tmp_path / "log", drive) as log:
        check_reads(log, values)


def test_a_log_without_its_store_goes_on_if_it_has_every_file(
    drive: LogConfig, tmp_path: Path
) -> None:
    """Files in both places are enough; one that is missing is missed at opening."""
    with opened(tmp_path / "log", drive) as log:
        values = fill(log)
        log.lake.sync()
    with opened(tmp_path / "log") as log:
        assert rows(log, "t") == values
        log.lake.sync()
        assert shown(log) == sealed(log)
        lost = local_files(log)[0]
    lost.unlink()
    with pytest.raises(MissingFileError):
        opened(tmp_path / "log")
    with opened(tmp_path / "log", drive) as log:
        assert rows(log, "t") == values


def test_another_store_than_before_is_not_taken_for_the_old_one(
    drive: LogConfig, tmp_path: Path
) -> None:
    """A table is not made to show objects that are not there; the old store is as good as ever."""
    with opened(tmp_path / "log", drive) as log:
        values = fill(log)
        log.lake.sync()
    (tmp_path / "wrong").mkdir()
    wrong = lake(f"file://{tmp_path}/wrong")
    with opened(tmp_path / "log", wrong) as log, pytest.raises(MissingFileError, match="store"):
        log.lake.sync("t")
    with opened(tmp_path / "log", drive) as log:
        log.lake.sync()
        assert shown(log) == sealed(log)
        assert rows(log, "t") == values


# What survives


def test_local_files_go_only_when_the_entry_that_says_so_survives_a_power_cut(
    tmp_path: Path,
) -> None:
    """Also in a log that syncs later: else a cut would leave entries that need removed files."""
    (tmp_path / "store").mkdir()
    config = replace(lake(f"file://{tmp_path}/store"), wal=WalConfig(sync=SyncMode.OS))
    disk = SimDisk()
    log = quiet(config=config, disk=disk)
    log.create_topic("t", config=AWAY)
    values = fill(log)
    log.lake.sync()
    assert places(log) == [STORE] * 3
    log = quiet(config=config, disk=disk.crash(Survival.LOST, random.Random(1)))
    assert rows(log, "t") == values


def test_a_folder_that_cannot_be_emptied_does_not_stop_the_move(
    drive: LogConfig, tmp_path: Path
) -> None:
    """A local file that is in the way still goes when the log is next opened."""
    with opened(tmp_path / "log", drive) as log:
        log.create_topic("t", config=AWAY)
        values = fill(log)
        with armed("engine.tier.moved=error"), pytest.raises(Exception, match="failpoint"):
            log.lake.sync("t")
        assert places(log) == [STORE] * 3
        assert len(local_files(log)) == 3
        assert rows(log, "t") == values
    with opened(tmp_path / "log", drive) as log:
        assert local_files(log) == []
        assert rows(log, "t") == values


def test_an_older_copy_removes_nothing_that_the_original_made_since(
    drive: LogConfig, tmp_path: Path
) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    with opened(first, drive) as log:
        fill(log, "old", times=1)
        log.lake.sync()
    shutil.copytree(first, second)
    with opened(first, drive) as log:
        log.create_topic("new", config={"local_ms": 0})
        values = fill(log, "new", times=1)
        log.lake.sync()
        assert places(log, "new") == [STORE]
        there = objects(log)
    with opened(second, drive) as copy:
        copy.lake.gc(now=True)
        fill(copy, "old", times=3)  # numbers of segments that the original has given, too
        copy.lake.gc(now=True)
        assert set(there) <= set(objects(copy))
    with opened(first, drive) as log:
        assert [row["value"] for row in log.table("new").scan().read_all().to_pylist()] == values


def test_objects_dropped_since_the_log_was_opened_go(drive: LogConfig, tmp_path: Path) -> None:
    with opened(tmp_path / "log", drive) as log:
        fill(log)
        log.lake.sync()
        log.delete_topic("t")
        log.lake.sync()
        log.lake.gc(now=True)
        log.lake.gc(now=True)
        assert objects(log) == []


def test_a_catalog_that_is_down_does_not_keep_segments_from_the_store(
    tmp_path: Path, drive: LogConfig
) -> None:
    """Nor on the local disk: copies go when they are old enough."""
    nowhere = {"type": "sql", "uri": f"sqlite:///{tmp_path}/nowhere/catalog.db"}
    config = LogConfig(lake=replace(drive.lake, catalog=nowhere))
    with opened(tmp_path / "log", config) as log:
        values = fill(log)
        log.alter_topic("t", config={"local_ms": 0})
        inner(log).lake._worker.run(inner(log).lake._jobs)
        assert log.lake.stats().failures > 0
        assert places(log) == [STORE] * 3
        assert log.read("t", 0, 0)["value"].to_pylist() == values
