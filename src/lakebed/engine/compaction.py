"""Compaction that somebody else decides: what is to be compacted, and what came of it.

Whoever reads the files of a plan (a Spark job, say) finds out which records survive: those without
a key, and the last of each key, unless that is a tombstone with a timestamp before
`tombstone_before_us`. The log's owner then rewrites the segments itself
(`engine/compaction_rewrite.py`). A plan changes nothing, and can be used as long as its segments
are there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from lakebed.config import TopicConfig, stored_config
from lakebed.engine.core import Core
from lakebed.errors import InvalidArgumentError
from lakebed.reports.maintenance import CompactionPlan, PartitionCompaction
from lakebed.reports.topics import SealedFile
from lakebed.state.values import CommittedOffset, Partition, Segment, Topic
from lakebed.topic.retention import (
    compaction_hold,
    dirty_bytes,
    is_compacted,
    plan_compaction,
)


def plan_merges(
    core: Core, topic: Topic, locate: Callable[[int, int, Segment], str], *, force: bool
) -> CompactionPlan:
    """Plan the compaction of a topic; one that is not compacted by key is refused."""
    config = check_compaction(topic)
    now_us = core.clock.time_us()
    holds = holds_of(core, topic, config, now_us)
    plans = []
    for index in range(topic.partitions):
        partition = core.partition((topic.id, index)) or Partition()
        old = plan_compaction(
            partition.segments,
            config,
            compacted_to=partition.compacted_to,
            now_us=now_us,
            hold=holds.get(index),
            force=force,
        )
        if old:
            plans.append(_describe(topic.id, index, old, partition.compacted_to, locate))
    tombstone_before_us = now_us - config.tombstone_retention_ms * 1000
    return CompactionPlan(topic.name, now_us, tombstone_before_us, tuple(plans))


def _describe(
    topic: int,
    partition_id: int,
    old: list[Segment],
    compacted_to: int,
    locate: Callable[[int, int, Segment], str],
) -> PartitionCompaction:
    dirty, total = dirty_bytes(old, compacted_to)
    return PartitionCompaction(
        partition_id,
        tuple(segment.id for segment in old),
        old[0].base,
        old[-1].end,
        tuple(
            SealedFile(
                partition_id,
                locate(topic, partition_id, segment),
                segment.base,
                segment.end,
                segment.records,
                segment.file_bytes,
            )
            for segment in old
        ),
        dirty * 100 // total if total else 0,
    )


def check_compaction(topic: Topic) -> TopicConfig:
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
    committed: dict[int, list[CommittedOffset]] = {}
    for (_, topic_id, partition), offset in list(core.state.offsets.items()):
        if topic_id == topic.id:
            committed.setdefault(partition, []).append(offset)
    holds = {
        partition: compaction_hold(offsets, config, now_us=now_us)
        for partition, offsets in committed.items()
    }
    return {partition: hold for partition, hold in holds.items() if hold is not None}
