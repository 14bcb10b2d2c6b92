"""Compaction that somebody else decides: plans, survivors, and the owner that rewrites."""

from __future__ import annotations

import random
import signal
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lakebed import LakeConfig, Log, LogConfig
from lakebed.engine.rewriting import Rewriting
from lakebed.errors import (
    CorruptionError,
    DeviceError,
    InvalidArgumentError,
    LakebedError,
    MissingFileError,
    PartitionNotFoundError,
    StalePlanError,
    SurvivorsError,
    TopicNotFoundError,
)
from lakebed.host import ManualClock, OsDisk, SimDisk, failpoints
from lakebed.limits import KIB
from lakebed.reports.maintenance import (
    CompactionPlan,
    PartitionCompaction,
    RewriteReport,
)
from lakebed.state.values import Partition
from lakebed.topic.survivors import pack_survivors
from tests.engine.support import PRICE, armed, inner, opened, quiet, rows, state_of
from tests.proof.engine_child import ForkedChild

PLAIN = LogConfig(lake=LakeConfig(iceberg=False))
COMPACT = {"cleanup": "compact"}


def flushed(log: Log, *records: tuple[bytes | None, bytes | None], topic: str = "t") -> None:
    """Write keys and values into a segment of their own."""
    log.append_batch(topic, [{"key": key, "value": value} for key, value in records])
    log.checkpoint()


def filled(log: Log, **settings: Any) -> Log:
    """Make a topic of three segments, in which keys are written again and one is deleted."""
    log.create_topic("t", config={**COMPACT, **settings})
    flushed(log, (b"a", b"a0"), (b"b", b"b1"), (None, b"free2"))
    flushed(log, (b"a", b"a3"), (b"c", b"c4"), (b"c", None))
    flushed(log, (b"b", b"b6"), (b"d", b"d7"))
    return log


LEFT = [b"free2", b"a3", None, b"b6", b"d7"]
"""What a compaction leaves of it while the tombstone is young."""


def partition_of(log: Log, topic: str = "t", number: int = 0) -> Partition:
    """Return a partition as the state has it."""
    return inner(log).parts.core.state.partitions[(log.describe_topic(topic).id, number)]


def decided(log: Log, plan: CompactionPlan, part: PartitionCompaction) -> list[int]:
    """Decide what survives, record by record, from what a scan gives."""
    last: dict[bytes, int] = {}
    kept: list[int] = []
    table = log.table(plan.topic).scan(
        ["offset", "timestamp", "key", "value"],
        partitions=[part.partition],
        start=part.base,
        until=part.end,
    )
    for row in table.read_all().to_pylist():
        if row["key"] is None:
            kept.append(row["offset"])
            continue
        last.pop(row["key"], None)
        time_us = int(row["timestamp"].timestamp() * 1_000_000)
        if row["value"] is not None or time_us >= plan.tombstone_before_us:
            last[row["key"]] = row["offset"]
    return sorted([*kept, *last.values()])


def packed(part: PartitionCompaction, offsets: Sequence[int]) -> bytes:
    return pack_survivors(np.array(offsets, dtype=np.int64), base=part.base, end=part.end)


def compact(log: Log, topic: str = "t") -> list[RewriteReport]:
    """Compact a topic as a job elsewhere would."""
    plan = log.plan_compaction(topic, force=True)
    return [
        log.rewrite_segments(
            topic, each.partition, each.segments, packed(each, decided(log, plan, each))
        )
        for each in plan.partitions
    ]


def part_of(log: Log) -> PartitionCompaction:
    """Plan the compaction of the topic's only partition."""
    (part,) = log.plan_compaction("t", force=True).partitions
    return part


# Plans


def test_a_plan_tells_what_is_to_be_compacted_and_where_it_is(tmp_path: Path) -> None:
    clock = ManualClock()
    with filled(quiet(tmp_path, PLAIN, disk=OsDisk(), clock=clock)) as log:
        log.append("t", b"in memory", b"a")
        plan = log.plan_compaction("t")
        assert (plan.topic, plan.now_us) == ("t", clock.time_us())
        assert plan.tombstone_before_us == plan.now_us - 86_400_000_000
        (part,) = plan.partitions
        old = partition_of(log).segments
        assert part.segments == tuple(each.id for each in old)
        assert (part.partition, part.base, part.end, part.dirty_percent) == (0, 0, 8, 100)
        assert [(each.start, each.until, each.records) for each in part.files] == [
            (0, 3, 3),
            (3, 6, 3),
            (6, 8, 2),
        ]
        assert [each.bytes for each in part.files] == [each.file_bytes for each in old]
        keys = [
            key
            for each in part.files
            for key in pq.read_table(urlsplit(each.location).path, columns=["key"])["key"]
        ]
        assert [key.as_py() for key in keys] == [b"a", b"b", None, b"a", b"c", b"c", b"b", b"d"]


def test_a_plan_waits_for_enough_that_is_new_unless_forced() -> None:
    with filled(quiet(), compact_dirty_percent=60) as log:
        compact(log)
        assert log.plan_compaction("t").partitions == ()
        assert log.plan_compaction("t", force=True).partitions == ()
        flushed(log, (b"a", b"a8"))
        assert log.plan_compaction("t").partitions == ()
        assert 0 < part_of(log).dirty_percent < 60


def test_only_partitions_that_need_it_are_in_a_plan() -> None:
    with quiet() as log:
        log.create_topic("t", 3, config=COMPACT)
        log.append("t", b"v", b"k", partition=1)
        log.checkpoint()
        assert [each.partition for each in log.plan_compaction("t").partitions] == [1]


@pytest.mark.parametrize("force", [False, True])
def test_a_topic_that_is_not_compacted_is_refused_with_what_to_change(force: bool) -> None:
    with filled(quiet()) as log:
        part = part_of(log)
        log.alter_topic("t", {"cleanup": "delete"})
        with pytest.raises(InvalidArgumentError, match="set its `cleanup` to `compact`"):
            log.plan_compaction("t", force=force)
        with pytest.raises(InvalidArgumentError, match="set its `cleanup` to `compact`"):
            log.rewrite_segments("t", 0, part.segments, packed(part, []))


def test_a_plan_of_what_does_not_exist_is_refused() -> None:
    with filled(quiet()) as log:
        part = part_of(log)
        with pytest.raises(TopicNotFoundError):
            log.plan_compaction("none")
        with pytest.raises(TopicNotFoundError):
            log.rewrite_segments("none", 0, part.segments, b"")
        with pytest.raises(PartitionNotFoundError):
            log.rewrite_segments("t", 1, part.segments, b"")
        for wrong in ([], "12", ["1"], 5, [True]):
            with pytest.raises(InvalidArgumentError, match="list of ids"):
                log.rewrite_segments("t", 0, wrong, b"")  # type: ignore[arg-type]


# Rewriting


def test_only_the_survivors_are_left_and_offsets_stay() -> None:
    clock, disk = ManualClock(), SimDisk()
    with filled(quiet(clock=clock, disk=disk)) as log:
        old = partition_of(log).segments
        (report,) = compact(log)
        assert rows(log, "t") == LEFT
        assert rows(log, "t", column="offset") == [2, 3, 5, 6, 7]
        (new,) = partition_of(log).segments
        assert report == RewriteReport(
            topic="t",
            partition=0,
            records_kept=5,
            records_dropped=3,
            segments_removed=3,
            segments_written=1,
            bytes_removed=sum(each.file_bytes for each in old),
            bytes_written=new.file_bytes,
            compacted_to=8,
        )
        assert (new.base, new.end) == (0, 8)
        assert len(disk.names(Path("/log/lake/1"))) == 1
        log.verify()
        clock.advance(90_000)
        flushed(log, (b"e", b"e8"))
        compact(log)
        assert rows(log, "t") == [*(each for each in LEFT if each is not None), b"e8"]


def test_it_leaves_what_the_logs_own_compaction_leaves() -> None:
    dice = random.Random(5)
    clock = ManualClock()
    with quiet(clock=clock) as log:
        for topic in ("t", "own"):
            log.create_topic(topic, config={**COMPACT, "tombstone_retention_ms": 5_000})
        for _ in range(12):
            clock.advance(1)
            batch = [
                {
                    "key": dice.choice([None, *(b"%d" % each for each in range(20))]),
                    "value": b"%d" % dice.randrange(1000),
                    "timestamp": clock.time_us(),
                }
                for _ in range(40)
            ]
            for row in batch:
                if row["key"] is not None and dice.random() < 0.4:
                    row["value"] = None
            for topic in ("t", "own"):
                log.append_batch(topic, batch)
            log.checkpoint()
        (report,) = compact(log)
        assert log.retain("own").records_compacted == report.records_dropped > 100
        assert log.table("t").scan().read_all() == log.table("own").scan().read_all()


def test_a_typed_topic_gets_the_fields_it_has_now() -> None:
    with quiet() as log:
        log.create_topic("t", schema=PRICE, config=COMPACT)
        for price in (1, 2):
            log.append("t", {"item": "x", "price": price}, b"x")
            log.checkpoint()
        log.alter_topic("t", schema=PRICE.append(pa.field("note", pa.string())))
        compact(log)
        assert rows(log, "t") == [{"item": "x", "price": 2, "note": None}]
        log.verify()


def test_nothing_is_left_if_nothing_survives() -> None:
    clock = ManualClock()
    with quiet(clock=clock) as log:
        log.create_topic("t", config={**COMPACT, "tombstone_retention_ms": 0})
        flushed(log, (b"a", b"v"), (b"a", None))
        clock.advance(1)
        (report,) = compact(log)
        assert (report.records_kept, report.segments_written) == (0, 0)
        assert log.offsets("t") == {0: (0, 2)}
        assert rows(log, "t") == []
        assert log.append("t", b"next").offset == 2


def test_if_nothing_goes_and_nothing_is_worth_merging_no_file_is_touched() -> None:
    with quiet() as log:
        log.create_topic("t", config=COMPACT)
        flushed(log, (b"a", b"1"))
        flushed(log, (b"b", b"2"))
        before = partition_of(log)
        (report,) = compact(log)
        assert (report.records_dropped, report.segments_removed, report.compacted_to) == (0, 0, 2)
        assert partition_of(log) == before._replace(compacted_to=2)
        assert log.plan_compaction("t", force=True).partitions == ()


def test_small_segments_are_merged_also_if_nothing_goes() -> None:
    with quiet() as log:
        log.create_topic("t", config=COMPACT)
        for number in range(10):
            flushed(log, (b"%d" % number, b"v"))
        (report,) = compact(log)
        assert (report.records_dropped, report.segments_removed) == (0, 10)
        assert len(partition_of(log).segments) == 1
        assert len(rows(log, "t")) == 10


@pytest.mark.parametrize("flushes", [1, 20])
def test_what_is_written_has_the_size_of_a_segment(flushes: int) -> None:
    """Whether one large file is cut or many small ones are merged."""
    dice = random.Random(6)
    with quiet() as log:
        log.create_topic("t", config=COMPACT)
        for flush in range(flushes):
            count = 2000 // flushes
            batch = [(b"%d" % each, dice.randbytes(100)) for each in range(count)]
            flushed(log, *batch, *[(b"%d-%d" % (flush, each), b"v") for each in range(count)])
        wanted = rows(log, "t", column="offset")
        log.alter_topic("t", {"segment_bytes": 40 * KIB})
        plan = log.plan_compaction("t", force=True)
        (part,) = plan.partitions
        kept = decided(log, plan, part)[1:]
        kept = kept[:-1] if flushes == 1 else kept
        (report,) = [log.rewrite_segments("t", 0, part.segments, packed(part, kept))]
        segments = partition_of(log).segments
        assert report.segments_written == len(segments) > 1
        assert [each.base for each in segments[1:]] == [each.end for each in segments[:-1]]
        assert (segments[0].base, segments[-1].end) == (0, 2 * (2000 // flushes) * flushes)
        assert all(each.file_bytes < 120 * KIB for each in segments)
        assert rows(log, "t", column="offset") == kept
        assert set(kept) < set(wanted)
        log.verify()


def test_a_partition_can_be_rewritten_in_several_calls_from_its_beginning_on() -> None:
    clock = ManualClock()
    with filled(quiet(clock=clock), tombstone_retention_ms=0) as log:
        clock.advance(1)
        plan = log.plan_compaction("t", force=True)
        (part,) = plan.partitions
        kept = decided(log, plan, part)
        for number, file in enumerate(part.files):
            mine = [each for each in kept if file.start <= each < file.until]
            bits = pack_survivors(np.array(mine, dtype=np.int64), base=file.start, end=file.until)
            report = log.rewrite_segments("t", 0, part.segments[number : number + 1], bits)
            assert report.compacted_to == file.until
        assert rows(log, "t") == [b"free2", b"a3", b"b6", b"d7"]
        assert log.plan_compaction("t", force=True).partitions == ()


def test_out_of_turn_no_tombstone_goes_and_nothing_counts_as_compacted() -> None:
    """An older value before it would be current again."""
    with filled(quiet()) as log:
        part = part_of(log)
        run, bounds = part.segments[1:2], {"base": 3, "end": 6}
        with pytest.raises(SurvivorsError, match="tombstones") as caught:
            bits = pack_survivors(np.array([3, 4], dtype=np.int64), **bounds)
            log.rewrite_segments("t", 0, run, bits)
        assert caught.value.facts["records"] == 1
        bits = pack_survivors(np.array([3, 5], dtype=np.int64), **bounds)
        assert log.rewrite_segments("t", 0, run, bits).compacted_to == 0
        compact(log)
        assert rows(log, "t") == LEFT


# What is refused


def refused(log: Log, part: PartitionCompaction, bits: bytes, kind: type[LakebedError]) -> Any:
    """Have survivors refused; see that nothing has changed and no file is left."""
    folder = inner(log).folder / "lake" / "1"
    before, files = state_of(log), inner(log).parts.segment_folder.disk.names(folder)
    with pytest.raises(kind) as caught:
        log.rewrite_segments("t", 0, part.segments, bits)
    assert state_of(log) == before
    assert inner(log).parts.segment_folder.disk.names(folder) == files
    log.verify()
    return caught.value


def test_a_record_without_a_key_is_never_dropped() -> None:
    with filled(quiet()) as log:
        part = part_of(log)
        error = refused(log, part, packed(part, [3, 5, 6, 7]), SurvivorsError)
        assert "without a key" in error.message
        assert error.facts["records"] == 1


def test_a_survivor_has_a_record() -> None:
    with filled(quiet()) as log:
        compact(log)
        flushed(log, (b"e", b"e8"))
        part = part_of(log)
        error = refused(log, part, packed(part, [0, 2, 3, 5, 6, 7, 8]), SurvivorsError)
        assert (error.facts["survivors"], error.facts["found"]) == (7, 6)


def test_a_key_survives_once() -> None:
    """It is seen in what was written, which is read again before it counts."""
    with filled(quiet()) as log:
        part = part_of(log)
        error = refused(log, part, packed(part, [0, 2, 3, 5, 6, 7]), SurvivorsError)
        assert "more than once" in error.message
        assert error.facts["records"] == 1
        compact(log)
        assert rows(log, "t") == LEFT


def test_survivors_of_another_length_are_refused() -> None:
    with filled(quiet()) as log:
        part = part_of(log)
        for size in (0, 2, 1 << 24):
            bits = pa.compress(bytes(size), codec="zstd", asbytes=True)
            error = refused(log, part, bits, InvalidArgumentError)
            assert error.facts["bytes_expected"] == 1
            assert error.facts["bytes_found"] == (size if size == 0 else "more than 1")
        assert "zstd" in refused(log, part, b"no", InvalidArgumentError).message
        error = refused(log, part, None, InvalidArgumentError)  # type: ignore[arg-type]
        assert error.facts["got"] == "NoneType"


def test_segments_that_were_replaced_are_planned_again() -> None:
    with filled(quiet()) as log:
        part = part_of(log)
        bits = packed(part, [2, 3, 5, 6, 7])
        compact(log)
        error = refused(log, part, bits, StalePlanError)
        assert error.retriable
        assert (error.facts["segments"], error.facts["gone"]) == (3, 3)


def test_segments_that_are_no_run_are_refused() -> None:
    with filled(quiet()) as log:
        one, two, three = part_of(log).segments
        before = state_of(log)
        for wrong in ([one, three], [two, one], [one, one], [three, 99], [99]):
            with pytest.raises(StalePlanError, match="not there in this order") as caught:
                log.rewrite_segments("t", 0, wrong, b"")
            assert caught.value.facts["gone"] == wrong.count(99)
            assert state_of(log) == before


def test_a_group_that_went_back_since_the_plan_keeps_what_it_reads() -> None:
    with filled(quiet()) as log:
        part = part_of(log)
        log.commit_offsets("g", {("t", 0): 3})
        error = refused(log, part, packed(part, [2, 3, 5, 6, 7]), StalePlanError)
        assert error.facts["hold"] == 3
        log.commit_offsets("g", {("t", 0): 8})
        assert log.rewrite_segments(
            "t", 0, part.segments, packed(part, [2, 3, 5, 6, 7])
        ).records_dropped


def test_what_was_damaged_on_its_way_to_the_disk_never_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = Rewriting.write

    def damage(self: Rewriting, *args: Any, **options: Any) -> Any:
        segment = write(self, *args, **options)
        (path,) = tmp_path.glob(f"lake/1/*{segment.id:020d}.parquet")
        data = bytearray(path.read_bytes())
        data[segment.file_bytes // 4] ^= 1
        path.write_bytes(data)
        return segment

    with filled(quiet(tmp_path, PLAIN, disk=OsDisk())) as log:
        part = part_of(log)
        monkeypatch.setattr(Rewriting, "write", damage)
        refused(log, part, packed(part, [2, 3, 5, 6, 7]), CorruptionError)
        monkeypatch.undo()
        compact(log)
        assert rows(log, "t") == LEFT


def test_a_row_that_was_lost_on_its_way_never_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    write = Rewriting.write

    def lose(self: Rewriting, topic: Any, key: Any, batches: Any, **options: Any) -> Any:
        return write(self, topic, key, (each.slice(1) for each in batches), **options)

    with filled(quiet()) as log:
        part = part_of(log)
        monkeypatch.setattr(Rewriting, "write", lose)
        error = refused(log, part, packed(part, [2, 3, 5, 6, 7]), CorruptionError)
        assert error.facts["expected"] > error.facts["found"]


# Beside others


def test_old_files_stay_for_the_grace_period_of_the_tables(tmp_path: Path) -> None:
    """A job that still reads the planned files finds them, and the table shows what is left."""
    config = LogConfig(lake=LakeConfig(grace_ms=3_600_000), retention_interval_ms=86_400_000)
    with filled(Log.open(tmp_path, config, threaded=False)) as log:
        log.lake.sync()
        files = [Path(urlsplit(each.location).path) for each in part_of(log).files]
        compact(log)
        log.lake.sync()
        assert [pq.read_metadata(each).num_rows for each in files] == [3, 3, 2]
        table = log.table("t").iceberg().scan(selected_fields=("offset",)).to_arrow()
        assert sorted(table["offset"].to_pylist()) == [2, 3, 5, 6, 7]
        log.lake.gc()
        assert all(each.exists() for each in files)


def test_a_reader_in_the_middle_of_a_scan_does_not_notice(tmp_path: Path) -> None:
    keys = pa.array([b"%d" % each for each in range(70_000)], pa.binary())
    with opened(tmp_path, PLAIN, disk=OsDisk()) as log:
        log.create_topic("t", config=COMPACT)
        for _ in range(3):
            log.append_batch("t", pa.table({"key": keys, "value": keys}))
            log.checkpoint()
        reader = log.table("t").scan(["offset"])
        first = reader.read_next_batch()["offset"].to_pylist()
        part, kept = part_of(log), list(range(140_000, 210_000))
        report = log.rewrite_segments("t", 0, part.segments, packed(part, kept))
        assert report.records_dropped == 140_000
        seen = [*first, *reader.read_all()["offset"].to_pylist()]
        assert seen == sorted(set(seen))
        assert set(kept) <= set(seen)
        assert rows(log, "t", column="offset") == kept


def test_writers_and_checkpoints_go_on_while_segments_are_rewritten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And a cleanup waits until it is done."""
    begun, go_on = threading.Event(), threading.Event()
    write = Rewriting.write

    def wait(self: Rewriting, *args: Any, **options: Any) -> Any:
        begun.set()
        assert go_on.wait(600)
        return write(self, *args, **options)

    with filled(opened(tmp_path, PLAIN, disk=OsDisk())) as log:
        monkeypatch.setattr(Rewriting, "write", wait)
        rewriter = threading.Thread(target=compact, args=(log,))
        rewriter.start()
        assert begun.wait(600)
        flushed(log, (b"e", b"e8"))
        log.tick()
        cleaner = threading.Thread(target=log.retain)
        cleaner.start()
        flushed(log, (b"f", b"f9"))
        assert cleaner.is_alive()
        go_on.set()
        rewriter.join(600)
        cleaner.join(600)
        assert not rewriter.is_alive()
        assert not cleaner.is_alive()
        assert rows(log, "t") == [*LEFT, b"e8", b"f9"]
        log.verify()


def test_a_purge_meanwhile_makes_the_plan_stale(monkeypatch: pytest.MonkeyPatch) -> None:
    write = Rewriting.write

    def purge(self: Rewriting, *args: Any, **options: Any) -> Any:
        segment = write(self, *args, **options)
        log.purge_topic("t")
        return segment

    disk = SimDisk()
    with filled(quiet(disk=disk)) as log:
        part = part_of(log)
        monkeypatch.setattr(Rewriting, "write", purge)
        with pytest.raises(StalePlanError, match="removed in the meantime"):
            log.rewrite_segments("t", 0, part.segments, packed(part, [2, 3, 5, 6, 7]))
        assert rows(log, "t") == []
        assert disk.names(Path("/log/lake/1")) == []


def test_files_that_a_purge_removes_while_they_are_read_make_the_plan_stale(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And not a damaged log."""
    scan = Rewriting.scan

    def purge(self: Rewriting, *args: Any) -> Any:
        log.purge_topic("t")
        for each in part.segments:
            inner(log).parts.segment_reader.forget(each)
        return scan(self, *args)

    with filled(quiet()) as log:
        part = part_of(log)
        monkeypatch.setattr(Rewriting, "scan", purge)
        with pytest.raises(StalePlanError, match="not there in this order"):
            log.rewrite_segments("t", 0, part.segments, packed(part, [2, 3, 5, 6, 7]))
        assert rows(log, "t") == []


def test_a_file_that_is_missing_though_the_log_has_it_is_told(tmp_path: Path) -> None:
    with filled(quiet(tmp_path, PLAIN, disk=OsDisk())) as log:
        part, before = part_of(log), state_of(log)
        gone = Path(urlsplit(part.files[1].location).path)
        gone.unlink()
        for each in part.segments:
            inner(log).parts.segment_reader.forget(each)
        with pytest.raises(MissingFileError, match=gone.name):
            log.rewrite_segments("t", 0, part.segments, packed(part, [2, 3, 5, 6, 7]))
        assert state_of(log) == before


# Steps at which it fails, or the process dies

POINTS = (
    "lake.segment.written",
    "lake.segment.synced",
    "lake.segment.renamed",
    "lake.folder.synced",
    "engine.cleanup.rewritten",
    "engine.rewrite.verified",
    "wal.group.written",
    "wal.group.synced",
    "engine.cleanup.logged",
)


@pytest.mark.parametrize("point", [each for each in POINTS if not each.startswith("wal.")])
def test_a_failing_step_leaves_all_or_nothing_and_it_can_be_repeated(point: str) -> None:
    disk = SimDisk()
    with filled(quiet(disk=disk)) as log:
        before = rows(log, "t")
        with armed(f"{point}=error"), pytest.raises(DeviceError):
            compact(log)
        assert rows(log, "t") == (LEFT if point == "engine.cleanup.logged" else before)
        compact(log)
        assert rows(log, "t") == LEFT
        log.verify()
        log.retain()
        known = {each.id for each in partition_of(log).segments}
        names = disk.names(Path("/log/lake/1"))
        assert len(names) - len(known) <= (1 if "renamed" in point else 0)


def main(folder: str, failpoint: str) -> None:
    """Be the process that dies: compact a topic, with a failpoint armed."""
    with filled(Log.open(folder, PLAIN, threaded=False)) as log:
        failpoints.arm(failpoint)
        compact(log)


@pytest.mark.parametrize("point", POINTS)
def test_a_kill_at_any_step_leaves_the_records_before_or_after(point: str, tmp_path: Path) -> None:
    errors, folder = tmp_path / "stderr", tmp_path / "log"
    with ForkedChild(
        folder, f"{point}=kill", take=lambda _: None, errors=errors, module=__name__
    ) as child:
        assert child.wait() == -signal.SIGKILL, child.errors()
    with Log.open(folder, PLAIN, threaded=False) as log:
        found = rows(log, "t")
        everything = [b"a0", b"b1", b"free2", b"a3", b"c4", None, b"b6", b"d7"]
        assert found in (everything, LEFT)
        assert found == LEFT or point != "engine.cleanup.logged"
        log.verify()
        compact(log)
        assert rows(log, "t") == LEFT
        log.verify()
