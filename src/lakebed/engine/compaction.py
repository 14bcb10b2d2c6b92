"""Compaction that somebody else decides: what is to be compacted, and what came of it.

Whoever reads the files of a plan (a Spark job, say) finds out which records survive: those without
a key, and the last of each key, unless that is a tombstone with a timestamp before
`tombstone_before_us`. The log's owner then rewrites the segments itself (`engine/survival.py`). A
plan changes nothing, and can be used as long as its segments are there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from lakebed.config import TopicConfig, stored_config
from lakebed.engine.core import Core
from lakebed.engine.plan import SealedFile
from lakebed.errors import InvalidArgumentError
from lakebed.state.values import Committed, Partition, Segment, Topic
from lakebed.topic.retention import (
    compaction_hold,
    dirty_bytes,
    is_compacted,
    plan_compaction,
)


@dataclass(frozen=True)
class PartitionCompaction:
    """What of a partition is to be compacted: its segments from the first on."""

    partition: int
    segments: tuple[int, ...]
    """Their ids, in the order of offsets, as `rewrite_segments` wants them."""
    base: int
    end: int
    """Survivors have a bit for each offset from `base` up to, not including, `end`."""
    files: tuple[SealedFile, ...]
    dirty_percent: int
    """The share of their bytes that is new since the last compaction."""


@dataclass(frozen=True)
class CompactionPlan:
    """What of a topic is to be compacted; without partitions, nothing is."""

    topic: str
    now_us: int
    tombstone_before_us: int
    """A tombstone that is the last of its key and older than this goes too."""
    partitions: tuple[PartitionCompaction, ...]


@dataclass(frozen=True)
class RewriteReport:
    """What rewriting segments did."""

    topic: str
    partition: int
    records_kept: int
    records_dropped: int
    segments_removed: int
    """None if nothing was dropped and nothing was worth merging."""
    segments_written: int
    bytes_removed: int
    bytes_written: int
    compacted_to: int
    """The offset below which the partition is compacted now."""


def planned(
    core: Core, topic: Topic, locate: Callable[[int, int, Segment], str], *, force: bool
) -> CompactionPlan:
    """Plan the compaction of a topic; one that is not compacted by key is refused."""
    config = checked_compaction(topic)
    now_us = core.clock.time_us()
    holds = holds_of(core, topic, config, now_us)
    found = []
    for number in range(topic.partitions):
        partition = core.partition((topic.id, number)) or Partition()
        old = plan_compaction(
            partition.segments,
            config,
            compacted_to=partition.compacted_to,
            now_us=now_us,
            hold=holds.get(number),
            force=force,
        )
        if old:
            found.append(_described(topic.id, number, old, partition.compacted_to, locate))
    tombstone_before_us = now_us - config.tombstone_retention_ms * 1000
    return CompactionPlan(topic.name, now_us, tombstone_before_us, tuple(found))


def _described(
    topic: int,
    number: int,
    old: list[Segment],
    compacted_to: int,
    locate: Callable[[int, int, Segment], str],
) -> PartitionCompaction:
    dirty, total = dirty_bytes(old, compacted_to)
    return PartitionCompaction(
        number,
        tuple(each.id for each in old),
        old[0].base,
        old[-1].end,
        tuple(
            SealedFile(
                number,
                locate(topic, number, each),
                each.base,
                each.end,
                each.records,
                each.file_bytes,
            )
            for each in old
        ),
        dirty * 100 // total if total else 0,
    )


def checked_compaction(topic: Topic) -> TopicConfig:
    """Return the settings of a topic that is compacted by key; any other one is refused."""
    config = stored_config(topic.config)
    if not is_compacted(config):
        raise InvalidArgumentError(
            "the topic is not compacted by key: set its `cleanup` to `compact` or `compact,delete`,"
            " as by `lakebed topic alter TOPIC --config cleanup=compact`",
            topic=topic.name,
            cleanup=config.cleanup,
        )
    return config


def holds_of(core: Core, topic: Topic, config: TopicConfig, now_us: int) -> Mapping[int, int]:
    """Return the offset from which groups hold each partition; one that is not held is not in it.

    One pass over what the groups have committed, for all partitions of the topic.
    """
    if not is_compacted(config):
        return {}
    committed: dict[int, list[Committed]] = {}
    for (_, number, partition), each in list(core.state.offsets.items()):
        if number == topic.id:
            committed.setdefault(partition, []).append(each)
    holds = {
        partition: compaction_hold(found, config, now_us=now_us)
        for partition, found in committed.items()
    }
    return {partition: hold for partition, hold in holds.items() if hold is not None}
