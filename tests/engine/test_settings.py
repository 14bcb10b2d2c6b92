"""Each setting of a topic and of a log has a test here that shows its effect, named after it."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

import lakebed
from lakebed import LakeConfig, Log, LogConfig, ServeConfig, TopicConfig, WalConfig
from lakebed.config import setting_names
from lakebed.errors import (
    DeviceError,
    EntryTooLargeError,
    FencedError,
    InvalidArgumentError,
    OverloadedError,
    RecordTooLargeError,
    TopicNotFoundError,
)
from lakebed.host import Fault, FaultyDisk, ManualClock, Mode, OsDisk, SimDisk
from lakebed.limits import KIB, MERGE_SEGMENTS_MIN
from lakebed.state.commands import Write
from lakebed.state.values import BOTH, STORE
from tests.engine.support import PRICE, armed, inner, opened, quiet, rows
from tests.waiting import until

HOUR = 3600.0


def flushed(log: Log, topic: str, *values: bytes, **more: Any) -> None:
    """Write records into a segment of their own."""
    log.append_batch(topic, [{"value": value, **more} for value in values])
    log.checkpoint()


def segments(log: Log, topic: str = "t") -> list[Any]:
    """Return the segments of a topic's first partition."""
    partition = inner(log).parts.core.state.partitions[(log.describe_topic(topic).id, 0)]
    return list(partition.segments)


# Settings of a topic


def test_setting_retention_ms() -> None:
    """Segments whose newest record is older than this go; younger ones stay."""
    clock, disk = ManualClock(), SimDisk()
    with quiet(clock=clock, disk=disk) as log:
        log.create_topic("t", config={"retention_ms": 60_000})
        flushed(log, "t", b"old", b"older")
        clock.advance(50)
        flushed(log, "t", b"young")
        clock.advance(5)
        assert log.retain("t").records_removed == 0
        clock.advance(10)
        report = log.retain("t")
        assert (report.records_removed, report.segments_removed) == (2, 1)
        assert log.offsets("t") == {0: (2, 3)}
        assert rows(log, "t") == [b"young"]
        assert len(disk.names(Path("/log/lake/1"))) == 1
        log.alter_topic("t", {"retention_ms": -1})
        clock.advance(HOUR)
        assert log.retain("t").records_removed == 0


def test_setting_retention_bytes() -> None:
    """The oldest segments go as long as the others have at least so many bytes."""
    with quiet() as log:
        log.create_topic("t")
        for value in (b"a", b"b", b"c", b"d"):
            flushed(log, "t", value)
        sizes = [each.file_bytes for each in segments(log)]
        log.alter_topic("t", {"retention_bytes": sizes[2] + sizes[3]})
        assert log.retain().records_removed == 2
        assert rows(log, "t") == [b"c", b"d"]
        log.alter_topic("t", {"retention_bytes": 0})
        assert log.retain().records_removed == 2
        assert log.offsets("t") == {0: (4, 4)}


@pytest.mark.parametrize(
    ("cleanup", "left"),
    [
        ("delete", []),
        ("compact", [b"new a", b"new b"]),
        ("compact,delete", [b"new b"]),
    ],
)
def test_setting_cleanup(cleanup: str, left: list[bytes]) -> None:
    """`delete` applies retention, `compact` keeps the last of each key, or both."""
    clock = ManualClock()
    with quiet(clock=clock) as log:
        log.create_topic("t", config={"cleanup": cleanup, "retention_ms": 60_000})
        log.append_batch("t", [{"key": b"a", "value": b"old a"}, {"key": b"b", "value": b"old b"}])
        log.append("t", b"new a", b"a")
        log.checkpoint()
        clock.advance(0 if cleanup == "delete" else 50)
        flushed(log, "t", b"new b", key=b"b")
        clock.advance(120 if cleanup != "compact,delete" else 30)
        log.retain()
        assert rows(log, "t") == left


def test_setting_segment_bytes_cuts_a_flush() -> None:
    """A flush of more is cut into several segments."""
    with quiet() as log:
        log.create_topic("t", config={"segment_bytes": 4 * KIB, "compression": "none"})
        for number in range(20):
            log.append("t", bytes([number]) * 1000)
        assert log.checkpoint().segments >= 4
        assert all(each.file_bytes < 12 * KIB for each in segments(log))
        assert rows(log, "t") == [bytes([number]) * 1000 for number in range(20)]


def test_setting_segment_bytes_bounds_merging() -> None:
    """Small segments are merged up to this size, and not beyond it."""
    with quiet() as log:
        log.create_topic("t", config={"segment_bytes": 4 * KIB})
        for number in range(MERGE_SEGMENTS_MIN):
            flushed(log, "t", b"%d" % number)
        assert log.retain().segments_merged == 0
        log.alter_topic("t", {"segment_bytes": 1024 * KIB})
        assert log.retain().segments_merged == MERGE_SEGMENTS_MIN
        assert len(segments(log)) == 1
        assert rows(log, "t") == [b"%d" % number for number in range(MERGE_SEGMENTS_MIN)]
        assert log.verify() == 1


def test_setting_segment_ms() -> None:
    """After this time a record is put into a segment."""
    clock = ManualClock()
    with quiet(clock=clock) as log:
        log.create_topic("t", config={"segment_ms": 1000})
        log.create_topic("slow")
        log.append("t", b"x")
        log.tick()
        assert segments(log) == []
        clock.advance(1.1)
        log.tick()
        assert len(segments(log)) == 1
        log.append("slow", b"x")
        clock.advance(1.1)
        log.tick()
        assert segments(log, "slow") == []


@pytest.mark.parametrize("compression", ["zstd", "snappy", "lz4", "gzip", "none"])
def test_setting_compression(compression: str) -> None:
    """Segments are really compressed that way, merged and compacted ones too."""
    disk = SimDisk()
    with quiet(disk=disk) as log:
        log.create_topic("t", config={"compression": compression, "cleanup": "compact"})
        flushed(log, "t", b"x" * 1000, b"x" * 1000, key=b"k")
        assert codec(disk, log) == {compression}
        log.retain()
        assert [each.records for each in segments(log)] == [1]
        assert codec(disk, log) == {compression}


def codec(disk: SimDisk, log: Log) -> set[str]:
    path = inner(log).parts.segment_folder.path(log.describe_topic("t").id, 0, segments(log)[0].id)
    file = disk.open(path, Mode.READ)
    data = bytes(file.map().view(0, file.size()))
    group = pq.ParquetFile(io.BytesIO(data)).metadata.row_group(0)
    names = {group.column(number).compression.lower() for number in range(group.num_columns)}
    return {{"uncompressed": "none"}.get(name, name) for name in names}


def test_setting_record_bytes_max() -> None:
    """A larger record is refused however it is written, and nothing of its batch is kept."""
    large, fits = b"v" * 98 + b"xyz", b"v" * 98
    with quiet() as log:
        log.create_topic("t", config={"record_bytes_max": 100})
        log.append("t", fits, b"kk")
        with pytest.raises(RecordTooLargeError):
            log.append("t", large)
        with pytest.raises(RecordTooLargeError):
            log.append("t", fits, b"key")
        with pytest.raises(RecordTooLargeError):
            log.append("t", fits, headers={"a": b"bc"})
        with pytest.raises(RecordTooLargeError) as caught:
            log.append_batch("t", [fits, large])
        assert caught.value.facts["row"] == 1
        with log.transaction() as tx:
            with pytest.raises(RecordTooLargeError):
                tx.append("t", large)
            with pytest.raises(RecordTooLargeError):
                tx.append_batch("t", [large])
        with log.producer() as producer:
            with pytest.raises(RecordTooLargeError):
                producer.send("t", large)
            producer.send("t", fits)
            with pytest.raises(RecordTooLargeError):
                producer.send("t", large)
        assert log.offsets("t") == {0: (0, 2)}


def test_setting_tombstone_retention_ms() -> None:
    """A tombstone stays for this time, and then goes at the next compaction."""
    clock = ManualClock()
    with quiet(clock=clock) as log:
        log.create_topic("t", config={"cleanup": "compact", "tombstone_retention_ms": 60_000})
        flushed(log, "t", b"a", key=b"a")
        log.append("t", None, b"a")
        log.checkpoint()
        log.retain()
        assert rows(log, "t") == [None]
        clock.advance(61)
        flushed(log, "t", b"b", b"c", b"d", key=b"b")
        log.alter_topic("t", {"compact_dirty_percent": 0})
        log.retain()
        assert rows(log, "t") == [b"d"]
        assert rows(log, "t", column="offset") == [4]


def test_setting_compact_dirty_percent() -> None:
    """Compaction begins when so much of the segments is new since the last one."""
    with quiet() as log:
        log.create_topic("t", config={"cleanup": "compact", "compact_dirty_percent": 100})
        flushed(log, "t", b"a1", b"a2", key=b"a")
        assert log.retain().records_compacted == 1
        flushed(log, "t", b"a3", b"a4", key=b"a")
        assert log.retain().records_compacted == 0
        log.alter_topic("t", {"compact_dirty_percent": 30})
        assert log.retain().records_compacted == 2
        assert rows(log, "t") == [b"a4"]


def test_setting_compact_lag_ms() -> None:
    """Records are compacted once they are as old as this, whether automatically or by force."""
    clock = ManualClock()
    with quiet(clock=clock) as log:
        log.create_topic("t", config={"cleanup": "compact", "compact_lag_ms": 60_000})
        flushed(log, "t", b"a1", b"a2", key=b"a")
        clock.advance(59)
        assert log.retain().records_compacted == 0
        assert log.plan_compaction("t", force=True).partitions == ()
        clock.advance(1)
        assert log.plan_compaction("t").partitions[0].end == 2
        assert log.retain().records_compacted == 1
        assert rows(log, "t") == [b"a2"]


def test_setting_compact_hold_ms() -> None:
    """What a group has yet to read stays as it is while the group is alive."""
    clock = ManualClock()
    with quiet(clock=clock) as log:
        log.create_topic("t", config={"cleanup": "compact", "compact_hold_ms": 60_000})
        flushed(log, "t", b"a1", b"a2", key=b"a")
        flushed(log, "t", b"a3", b"a4", key=b"a")
        log.commit_offsets("readers", {("t", 0): 2})
        log.commit_offsets("others", {("t", 0): 4})
        assert log.plan_compaction("t", force=True).partitions[0].end == 2
        assert log.retain().records_compacted == 1
        assert rows(log, "t") == [b"a2", b"a3", b"a4"]
        clock.advance(60)
        assert log.plan_compaction("t", force=True).partitions == ()
        clock.advance(1)
        assert log.retain().records_compacted == 2
        assert rows(log, "t") == [b"a4"]
        log.alter_topic("t", {"compact_hold_ms": 0})
        flushed(log, "t", b"a5", b"a6", key=b"a")
        log.commit_offsets("readers", {("t", 0): 4})
        assert log.retain().records_compacted == 2


# Settings of a log


def test_setting_wal(tmp_path: Path) -> None:
    """The settings of the WAL are those it gets: here, the largest entry."""
    config = LogConfig(wal=WalConfig(entry_bytes_max=64 * KIB))
    with lakebed.open(tmp_path, config) as log:
        log.create_topic("t")
        with pytest.raises(EntryTooLargeError):
            log.append_batch("t", [b"x" * 70_000])
        with pytest.raises(EntryTooLargeError):
            log.append("t", b"x" * 70_000)
        with pytest.raises(EntryTooLargeError):
            log.append_async("t", b"x" * 70_000)
        assert log.append("t", b"x" * 60_000).offset == 0
        futures = [log.append_async("t", b"x" * 1000) for _ in range(300)]
        assert [future.result(600).offset for future in futures] == list(range(1, 301))
    with lakebed.open(tmp_path, config) as log:
        assert log.offsets("t") == {0: (0, 301)}


def test_setting_memtable_bytes(tmp_path: Path) -> None:
    """A checkpoint begins at half of it, and memory stays below it."""
    with lakebed.open(tmp_path, LogConfig(memtable_bytes=1024 * KIB)) as log:
        log.create_topic("t")
        for _ in range(40):
            log.append_batch("t", [b"x" * 1000] * 100)
            assert log.stats().memtable_bytes < 1200 * KIB
        until(lambda: log.stats().checkpoints > 0)
        until(lambda: log.stats().memtable_bytes < 600 * KIB)
        assert log.offsets("t") == {0: (0, 4000)}


def test_setting_wal_bytes(tmp_path: Path) -> None:
    """A checkpoint begins after so many bytes of WAL, whatever is in memory."""
    with lakebed.open(tmp_path, LogConfig(wal_bytes=64 * KIB)) as log:
        log.create_topic("t")
        log.append("t", b"x")
        for number in range(2000):
            log.commit_offsets("g", {("t", 0): number % 2})
        until(lambda: log.stats().checkpoints > 1)
        assert log.stats().rejected_writes == 0


def test_writers_that_wait_for_the_wal_go_on_after_a_checkpoint(tmp_path: Path) -> None:
    config = LogConfig(wal_bytes=64 * KIB, write_timeout_ms=20_000)
    with lakebed.open(tmp_path, config) as log, armed("engine.checkpoint.frozen=delay:300"):
        log.create_topic("t")
        for _ in range(10):
            log.append("t", b"x" * 30 * KIB)
        assert log.stats().stopped_writes > 0
        assert log.stats().throttled_ms < 10_000
        assert log.offsets("t") == {0: (0, 10)}


def test_setting_checkpoint_interval_ms() -> None:
    """What is in memory for this time is put into a segment."""
    clock = ManualClock()
    with quiet(config=LogConfig(checkpoint_interval_ms=5000), clock=clock) as log:
        log.create_topic("t")
        log.append("t", b"x")
        clock.advance(4.9)
        log.tick()
        assert log.stats().checkpoints == 0
        clock.advance(0.2)
        log.tick()
        assert (log.stats().checkpoints, log.stats().memtable_records) == (1, 0)


def test_the_thread_takes_checkpoints_by_itself(tmp_path: Path) -> None:
    with lakebed.open(tmp_path, LogConfig(checkpoint_interval_ms=20)) as log:
        log.create_topic("t")
        log.append("t", b"x")
        until(lambda: log.describe_topic("t").partitions[0].segments == 1)


def test_setting_write_timeout_ms(tmp_path: Path) -> None:
    """A writer waits so long for room, then is told why there is none; room lets it go on."""
    config = LogConfig(memtable_bytes=64 * KIB, write_timeout_ms=50)
    disk = FaultyDisk(OsDisk())
    with opened(tmp_path, config, disk=disk) as log:
        log.create_topic("t")
        disk.fault = Fault("make_folder", disk.calls["make_folder"] + 1, 5, lasting=True)
        written = 0
        with pytest.raises(OverloadedError) as caught:
            for _ in range(100):
                log.append_batch("t", [b"x" * 10_000])
                written += 1
        assert caught.value.retriable
        assert int(str(caught.value.facts["waited_ms"])) >= 50
        assert log.offsets("t") == {0: (0, written)}
        assert log.stats().rejected_writes == 1
        until(lambda: log.stats().maintenance_failures > 0)
        assert "making" in str(log.stats().last_failure)
        disk.fault = None
        log.checkpoint()
        assert log.append("t", b"x").offset == written


def test_setting_cache_bytes() -> None:
    """Row groups are kept for the next reader, up to so many bytes."""
    with quiet(config=LogConfig(cache_bytes=0)) as log:
        log.create_topic("t")
        flushed(log, "t", *[b"x" * 100] * 100)
        log.read("t")
        assert log.stats().cache_bytes == 0
    with quiet() as log:
        log.create_topic("t")
        flushed(log, "t", *[b"x" * 100] * 100)
        log.read("t")
        log.read("t")
        assert log.stats().cache_bytes > 10_000
        assert log.stats().cache_hits > 0


def test_setting_retention_interval_ms() -> None:
    """Retention is looked at so often without being asked for."""
    clock = ManualClock()
    with quiet(config=LogConfig(retention_interval_ms=10_000), clock=clock) as log:
        log.create_topic("t", config={"retention_ms": 0})
        flushed(log, "t", b"x")
        clock.advance(9)
        log.tick()
        assert len(segments(log)) == 1
        clock.advance(2)
        log.tick()
        assert segments(log) == []


def test_setting_producer_expiry_ms() -> None:
    """A producer that writes nothing for this time is forgotten, and fenced if it comes back."""
    clock = ManualClock()
    config = LogConfig(producer_expiry_ms=60_000, retention_interval_ms=1000)
    with quiet(config=config, clock=clock) as log:
        log.create_topic("t")
        quietly = log.producer("quiet")
        quietly.send("t", b"x").result(600)
        busy = log.producer("busy")
        clock.advance(50)
        busy.send("t", b"x").result(600)
        clock.advance(20)
        log.tick()
        assert log.stats().producers == 1
        assert {key[0] for key in inner(log).parts.core.state.sequences} == {busy.id}
        busy.send("t", b"y").result(600)
        assert isinstance(quietly.send("t", b"y").exception(30), FencedError)
        busy.close()
        with pytest.raises(FencedError):
            quietly.close()


def with_store(folder: Path, clock: ManualClock | None = None) -> Log:
    """Open a log with a store that is a folder, and without tables."""
    (folder / "store").mkdir(exist_ok=True)
    config = LogConfig(lake=LakeConfig(iceberg=False, store=f"file://{folder}/store"))
    return quiet(folder / "log", config, disk=OsDisk(), clock=clock)


def local_files(folder: Path) -> int:
    """Count the segments on the local disk."""
    return len(list((folder / "log" / "lake").rglob("*.parquet")))


def test_setting_local_ms(tmp_path: Path) -> None:
    """Segments whose newest record is older than this leave the local disk, and can be read."""
    clock = ManualClock()
    with with_store(tmp_path, clock) as log:
        log.create_topic("t", config={"local_ms": 60_000})
        flushed(log, "t", b"old")
        clock.advance(50)
        flushed(log, "t", b"young")
        clock.advance(5)
        assert log.lake.sync().segments_moved == 0
        assert local_files(tmp_path) == 2
        clock.advance(10)
        assert log.lake.sync().segments_moved == 1
        assert local_files(tmp_path) == 1
        assert [each.place for each in segments(log)] == [STORE, BOTH]
        assert rows(log, "t") == [b"old", b"young"]
        log.alter_topic("t", {"local_ms": -1})
        clock.advance(HOUR)
        assert log.lake.sync().segments_moved == 0


def test_setting_local_bytes(tmp_path: Path) -> None:
    """The oldest segments leave the local disk as long as the others have so many bytes."""
    with with_store(tmp_path) as log:
        log.create_topic("t")
        for value in (b"a", b"b", b"c", b"d"):
            flushed(log, "t", value)
        sizes = [each.file_bytes for each in segments(log)]
        assert log.lake.sync().segments_moved == 0
        log.alter_topic("t", {"local_bytes": sizes[2] + sizes[3]})
        assert log.lake.sync("t").segments_moved == 2
        assert local_files(tmp_path) == 2
        log.alter_topic("t", {"local_bytes": 0})
        assert log.lake.sync("t").segments_moved == 2
        assert local_files(tmp_path) == 0
        assert rows(log, "t") == [b"a", b"b", b"c", b"d"]


def test_setting_lake(tmp_path: Path) -> None:
    """It reaches the lake; `test_lake_settings.py` shows what each setting of it does."""
    with lakebed.open(tmp_path / "on") as log:
        assert log.lake.stats().iceberg
    with lakebed.open(tmp_path / "off", LogConfig(lake=LakeConfig(iceberg=False))) as log:
        assert not log.lake.stats().iceberg


def test_setting_serve(tmp_path: Path) -> None:
    """It is there for whoever serves the log; `tests/test_config.py` has its bounds."""
    with lakebed.open(tmp_path, LogConfig(serve=ServeConfig(port=1))) as log:
        assert inner(log).config.serve.port == 1


def test_setting_default_partitions() -> None:
    """A topic that does not say how many partitions it wants gets so many."""
    with quiet(config=LogConfig(default_partitions=3)) as log:
        assert len(log.create_topic("t").partitions) == 3
        assert len(log.create_topic("u", 2, PRICE).partitions) == 2


@pytest.mark.parametrize("setting", [name for name in setting_names(LogConfig) if name != "wal"])
def test_a_setting_out_of_bounds_is_refused(setting: str) -> None:
    for value in (-1, 2**70, "1", None, True):
        with pytest.raises(InvalidArgumentError, match=setting):
            LogConfig(**{setting: value})  # type: ignore[arg-type]


def test_a_log_takes_settings_of_its_own_kind_only(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match="not a LogConfig got=dict"):
        lakebed.open(tmp_path, {"memtable_bytes": 1})  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("setting", setting_names(TopicConfig) + setting_names(LogConfig))
def test_each_setting_has_its_test(setting: str) -> None:
    names = [name for name in vars(sys.modules[__name__]) if name.startswith("test_setting_")]
    assert any(name.startswith(f"test_setting_{setting}") for name in names)


def test_a_failing_checkpoint_is_a_typed_error_and_the_log_goes_on(tmp_path: Path) -> None:
    disk = FaultyDisk(OsDisk())
    with opened(tmp_path, disk=disk) as log:
        log.create_topic("t")
        log.append("t", b"x")
        for kind in ("make_folder", "sync", "rename", "sync_folder"):
            disk.fault = Fault(kind, disk.calls[kind] + 1, 5, lasting=True)
            with pytest.raises(DeviceError):
                log.checkpoint()
            disk.fault = None
            log.append("t", b"y")
        report = log.checkpoint()
        assert report.records == 5
        assert len(rows(log, "t")) == 5


def test_a_record_for_a_topic_that_is_not_there_makes_none() -> None:
    with quiet() as log:
        with pytest.raises(TopicNotFoundError, match="topic 'nowhere' does not exist"):
            log.append("nowhere", b"x")
        assert log.topics() == []


def test_an_entry_that_flushes_nothing_does_not_use_up_the_budget_for_good() -> None:
    log = quiet(config=LogConfig(wal_bytes=64 << 10))
    log.create_topic("t", 1)
    encoded = inner(log).parts.writing.encode_rows(
        inner(log).parts.writing.target("t"), [{"value": bytes(400 << 10)}], 0
    )
    assert encoded is not None
    log.delete_topic("t")
    log.checkpoint()
    inner(log).parts.writing.submit(Write(0, (encoded.part,)), (encoded.body,))
    assert inner(log).parts.budget.share_used() > 1
    log.checkpoint()
    assert inner(log).parts.budget.share_used() < 1


def test_settings_are_taken_as_they_are_shown(tmp_path: Path) -> None:
    with lakebed.open(tmp_path / "log", LogConfig(wal=WalConfig(sync="interval"))) as log:  # type: ignore[arg-type]
        assert log.stats().wal.sync == "interval"
        made = log.create_topic("t", config=TopicConfig(compression="lz4"))
        assert made.config["compression"] == "lz4"
        log.append_batch("t", [b"a", b"b"])
        log.purge_topic("t")
        assert log.read("t").num_rows == 0
