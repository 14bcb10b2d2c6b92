"""What a server counts, and everything it tells as Prometheus text (format 0.0.4).

Counting is a few additions under a lock. Telling looks at the log when somebody asks; with many
partitions the series of each are summed, so that an answer has a bounded length.
"""

from __future__ import annotations

import bisect
import itertools
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from lakebed.errors import GroupNotFoundError, TopicNotFoundError
from lakebed.version import __version__

if TYPE_CHECKING:
    from lakebed.engine.log import EmbeddedLog
    from lakebed.reports.maintenance import CleanupFailure
    from lakebed.serve.access_log import AccessLog

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
SECONDS: Final = (
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    2.5,
    5.0,
    10.0,
    30.0,
)
"""Upper bounds of the buckets in which requests are counted by their time."""
SERIES_MAX: Final = 1_000
"""Series of one kind beyond which those of partitions, and then those of topics, are summed."""

_COUNTERS: Final = frozenset(
    [
        "cache_hits",
        "cache_misses",
        "checkpoints",
        "maintenance_failures",
        "members_expelled",
        "records_written",
        "rejected_writes",
        "stopped_writes",
        "throttled_seconds",
        "transactions_timed_out",
        "lake_bytes_moved",
        "lake_cache_evictions",
        "lake_cache_hits",
        "lake_cache_misses",
        "lake_conflicts",
        "lake_failures",
        "lake_files_removed",
        "lake_foreign_changes",
        "lake_segments_moved",
        "lake_store_downloaded_bytes",
        "lake_store_downloads",
        "lake_store_failures",
        "lake_store_retries",
        "lake_store_uploaded_bytes",
        "lake_store_uploads",
        "lake_syncs",
        "lake_tables_changed",
        "shipping_puts",
        "shipping_slot_bytes",
        "shipping_slots",
    ]
)
"""What only grows while a log is open; those of the WAL stand together under `wal.counters`."""
_ESCAPES: Final = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})

Row = tuple[tuple[str, ...], tuple[int | None, ...]]
"""Values of labels, and a value for each of several families."""


class Meters:
    """The counters of a server. Any thread."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._outcomes: dict[tuple[str, str], int] = {}
        self._times: dict[str, _Times] = {}
        self._received = 0
        self._sent = 0
        self._streams = 0
        self._closed: dict[str, int] = {}
        self._http_events: dict[str, int] = {}
        self.access_log: AccessLog | None = None
        """Told of each request whose principal is known."""
        self._watched: list[tuple[str, str, Callable[[], int]]] = []

    def watch(self, name: str, meaning: str, count: Callable[[], int]) -> None:
        """Show a counter of another part of the server, as `lakebed_<name>_total`."""
        with self._guard:
            self._watched.append((name, meaning, count))

    def request(self, call: str, outcome: str, seconds: float, principal: object = None) -> None:
        """Count a request that has ended: `ok`, or the code of its error."""
        if self.access_log is not None:
            self.access_log.request(principal, call, outcome, seconds)
        bucket = bisect.bisect_left(SECONDS, seconds)
        with self._guard:
            self._outcomes[(call, outcome)] = self._outcomes.get((call, outcome), 0) + 1
            times = self._times.get(call)
            if times is None:
                times = self._times[call] = _Times()
            times.counts[bucket] += 1
            times.seconds += seconds

    def received(self, nbytes: int) -> None:
        """Count bytes that came in."""
        with self._guard:
            self._received += nbytes

    def sent(self, nbytes: int) -> None:
        """Count bytes that went out."""
        with self._guard:
            self._sent += nbytes

    def exchanged(self, received: int, sent: int) -> None:
        """Count the bytes of a call and its reply."""
        with self._guard:
            self._received += received
            self._sent += sent

    def streams(self, change: int) -> None:
        """Count a stream that was opened (1) or has ended (-1)."""
        with self._guard:
            self._streams += change

    def closed(self, reason: str) -> None:
        """Count a connection of Flight that the server has closed."""
        with self._guard:
            self._closed[reason] = self._closed.get(reason, 0) + 1

    def http_event(self, event: str) -> None:
        """Count something that happened to an HTTP connection."""
        with self._guard:
            self._http_events[event] = self._http_events.get(event, 0) + 1

    def render(self, log: EmbeddedLog) -> str:
        """Return everything, the log's own counters included, as Prometheus text."""
        text = _Text()
        self._own(text)
        parts = log.parts
        if parts.shipping is not None or parts.replica is not None:
            role = "owner" if parts.replica is None else "replica"
            meaning = "1 for the role of this server."
            text.family("lakebed_role", "gauge", meaning, [({"role": role}, 1)])
        _tell_stats(text, log)
        _tell_topics(text, log)
        _tell_groups(text, log)
        return text.whole()

    def _own(self, text: _Text) -> None:
        with self._guard:
            outcomes = dict(self._outcomes)
            times = {call: (list(each.counts), each.seconds) for call, each in self._times.items()}
            received, sent, streams = self._received, self._sent, self._streams
            closed = dict(self._closed)
            events = dict(self._http_events)
            watched = list(self._watched)
        text.family(
            "lakebed_requests_total",
            "counter",
            "Requests that have ended, by call and outcome: ok, or the code of the error.",
            (
                ({"call": call, "outcome": outcome}, count)
                for (call, outcome), count in sorted(outcomes.items())
            ),
        )
        text.histogram(
            "lakebed_request_seconds",
            "Time of requests, by call.",
            SECONDS,
            (({"call": call}, *found) for call, found in sorted(times.items())),
        )
        for name, value, meaning in (
            ("received", received, "came in with requests"),
            ("sent", sent, "went out with answers"),
        ):
            meaning = f"Bytes that {meaning}."
            text.family(f"lakebed_{name}_bytes_total", "counter", meaning, [({}, value)])
        for name, meaning, count in watched:
            text.family(f"lakebed_{name}_total", "counter", meaning, [({}, count())])
        text.family("lakebed_open_streams", "gauge", "Streams that are open.", [({}, streams)])
        text.family(
            "lakebed_connections_closed_total",
            "counter",
            "Connections of Flight that the server has closed, by reason.",
            (({"reason": reason}, count) for reason, count in sorted(closed.items())),
        )
        text.family(
            "lakebed_http_events_total",
            "counter",
            "HTTP connections that were refused, closed or failed, by what happened.",
            (({"event": event}, count) for event, count in sorted(events.items())),
        )


class _Times:
    """The times of one call: how many fell into each bucket, the last one without a bound."""

    __slots__ = ("counts", "seconds")

    def __init__(self) -> None:
        self.counts = [0] * (len(SECONDS) + 1)
        self.seconds = 0.0


class _Text:
    """Prometheus text in the making."""

    def __init__(self) -> None:
        self._lines: list[str] = []

    def family(
        self,
        name: str,
        kind: str,
        meaning: str,
        samples: Iterable[tuple[Mapping[str, str], float]],
    ) -> None:
        """Add a family of series."""
        self._head(name, kind, meaning)
        self._lines += [f"{name}{_labels(labels)} {value}" for labels, value in samples]

    def histogram(
        self,
        name: str,
        meaning: str,
        bounds: Sequence[float],
        samples: Iterable[tuple[Mapping[str, str], Sequence[int], float]],
    ) -> None:
        """Add histograms: how many fell below each bound, the sum, the count."""
        self._head(name, "histogram", meaning)
        for labels, counts, total in samples:
            below = list(itertools.accumulate(counts))
            for bound, count in zip([*map(str, bounds), "+Inf"], below, strict=True):
                self._lines.append(f"{name}_bucket{_labels({**labels, 'le': bound})} {count}")
            self._lines.append(f"{name}_sum{_labels(labels)} {total}")
            self._lines.append(f"{name}_count{_labels(labels)} {below[-1]}")

    def whole(self) -> str:
        """Return the text."""
        return "\n".join(self._lines) + "\n"

    def _head(self, name: str, kind: str, meaning: str) -> None:
        self._lines += [f"# HELP {name} {meaning}", f"# TYPE {name} {kind}"]


def _labels(labels: Mapping[str, str]) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items()) + "}"


def _escaped(text: str) -> str:
    return text.translate(_ESCAPES)


# The log


def _tell_stats(text: _Text, log: EmbeddedLog) -> None:
    """Return every number of `Log.stats`, and the words of it that say what log this is."""
    found = log.stats()
    _tell_cleanup(text, found.cleanup_failures)
    stats = found.as_dict()
    wal = stats["wal"]
    identity = {"version": __version__, "log_id": wal["log_id"], "sync": wal["sync"]}
    text.family("lakebed_info", "gauge", "The log that is served.", [(identity, 1)])
    poisoned = int(wal["poisoned"] is not None)
    meaning = "Whether a failed write or sync has ended writing."
    text.family("lakebed_wal_poisoned", "gauge", meaning, [({}, poisoned)])
    stats["throttled_seconds"] = stats.pop("throttled_ms") / 1000
    age_ms = stats.pop("checkpoint_age_ms")
    stats["checkpoint_age_seconds"] = None if age_ms is None else age_ms / 1000
    counts = wal["counters"].pop("entries_per_sync")
    for name, value in _numbers("", stats):
        counter = name in _COUNTERS or name.startswith("wal_counters_")
        shown = name.replace("wal_counters_", "wal_")
        text.family(
            f"lakebed_{shown}_total" if counter else f"lakebed_{shown}",
            "counter" if counter else "gauge",
            f"The log's {shown.replace('_', ' ')}{', since it was opened' if counter else ''}.",
            [({}, value)],
        )
    text.histogram(
        "lakebed_wal_entries_per_sync",
        "Entries that shared a group commit.",
        [2**slot for slot in range(len(counts) - 1)],
        [({}, counts, wal["counters"]["appends"])],
    )


def _tell_cleanup(text: _Text, failures: Sequence[CleanupFailure]) -> None:
    """Return which topics could not be cleaned up; those without a failure have no series."""
    shown = failures[:SERIES_MAX]
    text.family(
        "lakebed_topic_cleanup_failures_total",
        "counter",
        "Failures of a topic's retention, compaction or merging, since the log was opened.",
        [({"topic": each.topic}, each.failures) for each in shown],
    )
    text.family(
        "lakebed_topic_cleanup_failing",
        "gauge",
        "Whether a topic's last retention, compaction or merging failed.",
        [({"topic": each.topic}, int(each.failing)) for each in shown],
    )


def _numbers(prefix: str, values: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """Return every number of nested tables, under the names of its tables and its own."""
    for name, value in values.items():
        if isinstance(value, dict):
            yield from _numbers(f"{prefix}{name}_", value)
        elif isinstance(value, int | float):  # also true and false, as 1 and 0
            yield f"{prefix}{name}", value if isinstance(value, float) else int(value)


def _tell_topics(text: _Text, log: EmbeddedLog) -> None:
    rows: list[Row] = []
    for name in log.topics():
        try:
            partitions = log.describe_topic(name).partitions
        except TopicNotFoundError:
            continue  # it was deleted a moment ago
        rows += [
            (
                (name, str(each.partition)),
                (
                    each.earliest,
                    each.end,
                    each.end - each.earliest,
                    each.memtable_records,
                    each.segments,
                    each.segment_bytes,
                ),
            )
            for each in partitions
        ]
    families = (
        ("earliest_offset", "The first offset."),
        ("end_offset", "The offset behind the last record."),
        ("records", "Offsets from the earliest to the end; compaction may have left fewer."),
        ("memtable_records", "Records that are in no segment yet."),
        ("segments", "Segments."),
        ("segment_bytes", "Bytes of segments."),
    )
    _tell_rows(text, "lakebed_partition_", families, ("topic", "partition"), rows)


def _tell_groups(text: _Text, log: EmbeddedLog) -> None:
    rows: list[Row] = []
    for name in log.groups():
        try:
            partitions = log.describe_group(name).partitions
        except (GroupNotFoundError, TopicNotFoundError):
            continue  # it, or a topic of it, was deleted a moment ago
        rows += [
            ((name, each.topic, str(each.partition)), (each.committed, each.lag))
            for each in partitions
        ]
    families = (
        ("committed_offset", "The next offset of a group."),
        ("lag_records", "Records that a group has not committed yet."),
    )
    _tell_rows(text, "lakebed_group_", families, ("group", "topic", "partition"), rows)


def _tell_rows(
    text: _Text,
    prefix: str,
    families: Sequence[tuple[str, str]],
    labels: Sequence[str],
    rows: Sequence[Row],
) -> None:
    """Return series by all their labels, or summed over the last ones if they are too many."""
    while len(rows) > SERIES_MAX:
        labels = labels[:-1]
        rows = _summed(rows, len(labels))
    for number, (name, meaning) in enumerate(families):
        text.family(
            prefix + name,
            "gauge",
            meaning,
            (
                (dict(zip(labels, places, strict=True)), value)
                for places, values in rows
                if (value := values[number]) is not None
            ),
        )


def _summed(rows: Sequence[Row], places: int) -> list[Row]:
    sums: dict[tuple[str, ...], list[int | None]] = {}
    for labels, values in rows:
        found = sums.setdefault(labels[:places], [None] * len(values))
        for number, value in enumerate(values):
            if value is not None:
                found[number] = (found[number] or 0) + value
    return [(labels, tuple(values)) for labels, values in sums.items()]
