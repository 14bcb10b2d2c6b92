"""Counters and the current state of a log, collected from its parts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lakebed.reports.stats import LogStats

if TYPE_CHECKING:
    from lakebed.engine.parts import Parts


def collect_stats(parts: Parts) -> LogStats:
    """Return counters and the current state of a log."""
    core, budget, maintenance = parts.core, parts.budget, parts.maintenance
    checkpointer, recovered, cache = parts.checkpointer, parts.recovered, parts.segment_reader.stats
    state = core.state
    partitions = list(state.partitions.values())
    failure = maintenance.last_failure
    return LogStats(
        topics=len(parts.topics.names()),
        partitions=len(parts.topics.partitions()),
        segments=sum(len(partition.segments) for partition in partitions),
        segment_bytes=sum(
            segment.file_bytes for partition in partitions for segment in partition.segments
        ),
        memtable_bytes=core.used["memory_bytes"],
        memtable_records=sum(partition.end - partition.flushed for partition in partitions),
        memtable_budget_bytes=parts.config.memtable_bytes,
        records_written=core.used["records"],
        open_transactions=len(state.transactions),
        transactions_timed_out=maintenance.transactions_timed_out,
        groups=len(state.groups),
        members_expelled=maintenance.members_expelled,
        producers=len(state.producers),
        applied_index=state.numbers["applied"],
        checkpoints=checkpointer.count,
        last_checkpoint=checkpointer.last,
        checkpoint_age_ms=checkpointer.age_ms(),
        throttled_ms=int(budget.throttled_seconds * 1000),
        stopped_writes=budget.stopped_writes,
        rejected_writes=budget.rejected_writes,
        disk_full=budget.disk_full,
        maintenance_failures=maintenance.failures,
        last_failure=None if failure is None else str(failure),
        cleanup_failures=parts.cleanup.failures.listing(state.topics.__contains__),
        cache_bytes=cache.cached_bytes,
        cache_hits=cache.hits,
        cache_misses=cache.misses,
        snapshot_index=recovered.snapshot_index,
        replayed_entries=recovered.replayed_entries,
        snapshots_passed_over=recovered.snapshots_passed_over,
        files_removed=recovered.files_removed,
        files_quarantined=recovered.files_quarantined,
        wal=parts.wal.stats(),
        lake=parts.lake.stats(),
        shipping=None if parts.shipping is None else parts.shipping.stats(),
        replica=None if parts.replica is None else parts.replica.stats(),
    )
