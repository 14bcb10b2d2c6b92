"""What a log reports about itself, as families of Prometheus series.

With many partitions the series of partitions are summed, so that an answer has a bounded length.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.utils import floatToGoString

from lakebed.errors import GroupNotFoundError, TopicNotFoundError
from lakebed.version import __version__

if TYPE_CHECKING:
    from lakebed.engine.log import EmbeddedLog
    from lakebed.reports.maintenance import CleanupFailure

SERIES_MAX: Final = 1_000
"""Series of one kind beyond which those of partitions, and then those of topics, are summed."""

_COUNTERS: Final = frozenset(
    [
        *("cache_hits", "cache_misses", "checkpoints", "maintenance_failures"),
        *("members_expelled", "records_written", "rejected_writes", "stopped_writes"),
        *("throttled_seconds", "transactions_timed_out"),
        *("lake_bytes_moved", "lake_cache_evictions", "lake_cache_hits", "lake_cache_misses"),
        *("lake_conflicts", "lake_failures", "lake_files_removed", "lake_foreign_changes"),
        *("lake_segments_moved", "lake_store_downloaded_bytes", "lake_store_downloads"),
        *("lake_store_failures", "lake_store_retries", "lake_store_uploaded_bytes"),
        *("lake_store_uploads", "lake_syncs", "lake_tables_changed"),
        *("shipping_puts", "shipping_slot_bytes", "shipping_slots"),
    ]
)
"""What only grows while a log is open; those of the WAL are under `wal.counters`."""

Row = tuple[tuple[str, ...], tuple[int | None, ...]]
"""Values of labels, and a value for each of several families."""


def log_families(log: EmbeddedLog) -> Iterator[Metric]:
    """Return every number of the log's statistics, topics and groups."""
    if log.parts.replica is not None:
        yield role("replica")
    elif log.parts.shipping is not None:
        yield role("owner")
    yield from _stats(log)
    yield from _topics(log)
    yield from _groups(log)


def role(name: str) -> Metric:
    """Return the role of a server."""
    meaning = "1 for the role of this server."
    return series(GaugeMetricFamily, "lakebed_role", meaning, ("role",), [((name,), 1)])


def series(
    kind: type[CounterMetricFamily | GaugeMetricFamily],
    name: str,
    meaning: str,
    labels: Sequence[str],
    samples: Iterable[tuple[Sequence[str], float]],
) -> Metric:
    """Return a family of series with labels."""
    family = kind(name, meaning, labels=labels)
    for values, value in samples:
        family.add_metric(values, value)
    return family


def buckets(bounds: Iterable[float], counts: Sequence[int]) -> list[tuple[str, float]]:
    """Return the buckets of a histogram: how many fell below each bound, the last without one."""
    names = [*map(floatToGoString, bounds), "+Inf"]
    return list(zip(names, itertools.accumulate(counts), strict=True))


def _stats(log: EmbeddedLog) -> Iterator[Metric]:
    """Return every number of `Log.stats`, and the words of it that say what log this is."""
    report = log.stats()
    yield from _cleanup(report.cleanup_failures)
    stats = report.as_dict()
    wal = stats["wal"]
    labels, identity = ("version", "log_id", "sync"), (__version__, wal["log_id"], wal["sync"])
    meaning = "The log that is served."
    yield series(GaugeMetricFamily, "lakebed_info", meaning, labels, [(identity, 1)])
    meaning = "Whether a failed write or sync has ended writing."
    poisoned = int(wal["poisoned"] is not None)
    yield GaugeMetricFamily("lakebed_wal_poisoned", meaning, value=poisoned)
    stats["throttled_seconds"] = stats.pop("throttled_ms") / 1000
    age_ms = stats.pop("checkpoint_age_ms")
    stats["checkpoint_age_seconds"] = None if age_ms is None else age_ms / 1000
    counts = wal["counters"].pop("entries_per_sync")
    for name, value in _numbers("", stats):
        shown = name.replace("wal_counters_", "wal_")
        meaning = f"The log's {shown.replace('_', ' ')}"
        if name in _COUNTERS or name.startswith("wal_counters_"):
            meaning += ", since it was opened."
            yield CounterMetricFamily(f"lakebed_{shown}", meaning, value=value)
        else:
            yield GaugeMetricFamily(f"lakebed_{shown}", f"{meaning}.", value=value)
    histogram = HistogramMetricFamily(
        "lakebed_wal_entries_per_sync", "Entries that shared a group commit.", labels=()
    )
    bounds = [2**slot for slot in range(len(counts) - 1)]
    histogram.add_metric((), buckets(bounds, counts), wal["counters"]["appends"])
    yield histogram


def _cleanup(failures: Sequence[CleanupFailure]) -> Iterator[Metric]:
    """Return which topics could not be cleaned up; those without a failure have no series."""
    shown = failures[:SERIES_MAX]
    yield series(
        CounterMetricFamily,
        "lakebed_topic_cleanup_failures",
        "Failures of a topic's retention, compaction or merging, since the log was opened.",
        ("topic",),
        (((row.topic,), row.failures) for row in shown),
    )
    yield series(
        GaugeMetricFamily,
        "lakebed_topic_cleanup_failing",
        "Whether a topic's last retention, compaction or merging failed.",
        ("topic",),
        (((row.topic,), int(row.failing)) for row in shown),
    )


def _numbers(prefix: str, values: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """Return every number of nested tables, under the names of its tables and its own."""
    for name, value in values.items():
        if isinstance(value, dict):
            yield from _numbers(f"{prefix}{name}_", value)
        elif isinstance(value, int | float):  # also true and false, as 1 and 0
            yield f"{prefix}{name}", value if isinstance(value, float) else int(value)


def _topics(log: EmbeddedLog) -> Iterator[Metric]:
    rows: list[Row] = []
    for topic in log.topics():
        try:
            partitions = log.describe_topic(topic).partitions
        except TopicNotFoundError:
            continue  # it was deleted a moment ago
        for row in partitions:
            labels = topic, str(row.partition)
            offsets = row.earliest, row.end, row.end - row.earliest
            rows.append((labels, (*offsets, row.memtable_records, row.segments, row.segment_bytes)))
    families = (
        ("earliest_offset", "The first offset."),
        ("end_offset", "The offset behind the last record."),
        ("records", "Offsets from the earliest to the end; compaction may have left fewer."),
        ("memtable_records", "Records that are in no segment yet."),
        ("segments", "Segments."),
        ("segment_bytes", "Bytes of segments."),
    )
    return _gauges("lakebed_partition_", families, ("topic", "partition"), rows)


def _groups(log: EmbeddedLog) -> Iterator[Metric]:
    rows: list[Row] = []
    for group in log.groups():
        try:
            partitions = log.describe_group(group).partitions
        except (GroupNotFoundError, TopicNotFoundError):
            continue  # it, or a topic of it, was deleted a moment ago
        for row in partitions:
            labels = group, row.topic, str(row.partition)
            rows.append((labels, (row.committed, row.lag)))
    families = (
        ("committed_offset", "The next offset of a group."),
        ("lag_records", "Records that a group has not committed yet."),
    )
    return _gauges("lakebed_group_", families, ("group", "topic", "partition"), rows)


def _gauges(
    prefix: str,
    families: Sequence[tuple[str, str]],
    labels: Sequence[str],
    rows: Sequence[Row],
) -> Iterator[Metric]:
    """Return series by all their labels, or summed over the last ones if they are too many."""
    while len(rows) > SERIES_MAX:
        labels = labels[:-1]
        rows = _sum(rows, len(labels))
    for column, (name, meaning) in enumerate(families):
        samples = (
            (names, value) for names, values in rows if (value := values[column]) is not None
        )
        yield series(GaugeMetricFamily, prefix + name, meaning, labels, samples)


def _sum(rows: Sequence[Row], labels: int) -> list[Row]:
    sums: dict[tuple[str, ...], list[int | None]] = {}
    for names, values in rows:
        row = sums.setdefault(names[:labels], [None] * len(values))
        for column, value in enumerate(values):
            if value is not None:
                row[column] = (row[column] or 0) + value
    return [(names, tuple(values)) for names, values in sums.items()]
