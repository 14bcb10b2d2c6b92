"""A range of a topic copied into another topic, exactly once even if a process is killed.

The range is fixed when a name is first used, and cut into chunks. Each is written by one commit
under the job's name and the chunk's number, so it exists completely or not at all, and never twice.
Records of a partition keep their order.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from lakebed.errors import InvalidArgumentError, TopicNotFoundError
from lakebed.reports.topics import TopicInfo
from lakebed.spark.failures import translate_failures
from lakebed.spark.jobs.plans import Plans, check_same, job_name
from lakebed.spark.jobs.ranges import Points, Ranges, Time, as_arguments, cut, resolve_ranges
from lakebed.spark.jobs.target import AnyLog, resolve_log
from lakebed.types import Progress, say_nothing

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from lakebed.api.log import Log
    from lakebed.spark.options import Target

CHUNK_RECORDS: Final = 5_000_000
"""Offsets that are copied at a time; a job that is killed loses at most this much work."""


@dataclass(frozen=True)
class ReplayReport:
    """What a replay did."""

    name: str
    """The name to run it again under."""
    source: str
    target: str
    offsets: int
    """Offsets of the range; there may be fewer records."""
    chunks: int
    chunks_before: int
    """Chunks that earlier runs wrote."""
    records: int
    """Written by this run."""
    created: bool
    """Whether the target topic was created."""


def replay(
    spark: SparkSession,
    log: AnyLog,
    source: str,
    target: str,
    *,
    start: Points | None = None,
    until: Points | None = None,
    from_time: Time | None = None,
    to_time: Time | None = None,
    keys: Collection[bytes | str] | None = None,
    keep_timestamps: bool = True,
    keep_partitions: bool = False,
    name: str | None = None,
    chunk_records: int = CHUNK_RECORDS,
    progress: Progress | None = None,
) -> ReplayReport:
    """Copy a range of a topic into another topic, with keys, headers, values and timestamps.

    The range is bounded by offsets (a number for every partition, or a dictionary; `until` is
    exclusive) or by times; without bounds it is what the topic holds now. A target that does not
    exist is created like the source. Run again under the same name, which is derived from the
    arguments if it is None, it writes what is missing and nothing twice.
    """
    if source == target:
        raise InvalidArgumentError("source and target must be different topics", topic=source)
    if chunk_records < 1:
        raise InvalidArgumentError("chunk_records must be 1 or more", got=chunk_records)
    owner, reach = resolve_log(spark, log)
    info = owner.describe_topic(source)
    wanted = _sort_keys(keys)
    arguments = {
        "source": source,
        "source_id": info.id,
        "target": target,
        **as_arguments(start, until, from_time, to_time),
        "keys": None if wanted is None else [key.hex() for key in wanted],
        "keep_timestamps": keep_timestamps,
        "keep_partitions": keep_partitions,
    }
    chosen = job_name("replay", name, arguments)
    plans = Plans(owner)
    plan = plans.get(chosen)
    if plan is None:
        ranges = resolve_ranges(
            owner, source, start=start, until=until, from_time=from_time, to_time=to_time
        )
        plan = {"job": "replay", "arguments": arguments, "ranges": ranges, "chunk": chunk_records}
        plan = plans.settle(chosen, plan)
    check_same(chosen, plan, arguments)
    created = _ensure_topic(owner, info, target)
    copy = _Copy(spark, reach, info, target, wanted)
    copy.timestamps, copy.partitions = keep_timestamps, keep_partitions
    return _run(owner, copy, chosen, plan, progress or say_nothing, created=created)


def _sort_keys(keys: Collection[bytes | str] | None) -> list[bytes] | None:
    if keys is None:
        return None
    return sorted(key.encode() if isinstance(key, str) else key for key in keys)


def _run(
    owner: Log, copy: _Copy, name: str, plan: dict[str, Any], tell: Progress, *, created: bool
) -> ReplayReport:
    """Write the missing chunks of a plan, in their order."""
    ranges = {int(partition): (low, end) for partition, (low, end) in plan["ranges"].items()}
    chunks = cut(ranges, plan["chunk"])
    total = _offsets(ranges)
    last = owner.committed_number(name)
    before = 0 if last is None else min(len(chunks), last + 1)
    source, target = copy.source.name, copy.target
    records = done = 0
    with translate_failures("replay", name=name, source=source, target=target):
        for index, chunk in enumerate(chunks):
            if index >= before:
                records += copy.write(chunk, name, index)
            done += _offsets(chunk)
            tell("replaying records", done, total)
    return ReplayReport(name, source, target, total, len(chunks), before, records, created=created)


def _offsets(ranges: Ranges) -> int:
    return sum(end - low for low, end in ranges.values())


def _ensure_topic(owner: Log, info: TopicInfo, target: str) -> bool:
    """Create the target if it does not exist; return whether it was created."""
    try:
        owner.describe_topic(target)
    except TopicNotFoundError:
        owner.get_or_create_topic(target, len(info.partitions), info.schema)
        return True
    return False


class _Copy:
    """Copies chunks."""

    def __init__(
        self,
        spark: SparkSession,
        reach: Target,
        source: TopicInfo,
        target: str,
        keys: list[bytes] | None,
    ) -> None:
        self._spark = spark
        self._reach = reach
        self.source = source
        self.target = target
        self._keys = keys
        self.timestamps = True
        self.partitions = False

    def write(self, ranges: Ranges, name: str, chunk_index: int) -> int:
        """Write a chunk, exactly once; return how many records it has."""
        from pyspark.sql import Observation
        from pyspark.sql import functions as f

        from lakebed.spark.jobs.writing import write

        counts = Observation()
        frame = self._frame(ranges).observe(counts, f.count(f.lit(1)).alias("records"))
        write(frame, self._reach, self.target, name, chunk_index)
        return int(counts.get["records"] or 0)

    def _frame(self, ranges: Ranges) -> DataFrame:
        """Return a chunk's records; tasks and records are in the order of offsets."""
        from pyspark.sql import functions as f

        from lakebed.spark.batch_reads import target_options

        bounds = [{str(part): span[side] for part, span in ranges.items()} for side in (0, 1)]
        name = self.source.name
        reader = self._spark.read.format("lakebed")
        for option, value in target_options(self._reach, name, headers=True):
            reader = reader.option(option, value)
        frame = (
            reader.option("startingOffsets", json.dumps({name: bounds[0]}))
            .option("endingOffsets", json.dumps({name: bounds[1]}))
            .load()
        )
        if self._keys is not None:
            frame = frame.where(f.col("key").isin([f.lit(key) for key in self._keys]))
        columns: list[Any] = ["key", "headers", "value"]
        columns += ["timestamp"] if self.timestamps else []
        columns += ["partition"] if self.partitions else []
        return frame.select(*columns)
