"""What a server counts, and `/metrics`: that together with what the log reports about itself.

Counting is a few additions under a lock. prometheus_client writes the answer, as Prometheus text or
as OpenMetrics.
"""

from __future__ import annotations

import bisect
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Final, NamedTuple

from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)

from lakebed.serve.log_metrics import buckets, log_families, series

if TYPE_CHECKING:
    from lakebed.engine.log import EmbeddedLog
    from lakebed.serve.access_log import AccessLog

SECONDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
"""Upper bounds of the buckets in which requests are counted by their time."""


class Exposition(NamedTuple):
    """An answer to `GET /metrics`."""

    content_type: str
    body: bytes


class _Collector:
    """Families that were collected, as prometheus_client's encoders take them."""

    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = list(families)

    def collect(self) -> Iterable[Metric]:
        """Return them."""
        return self._families


def expose(families: Iterable[Metric], accept: str = "") -> Exposition:
    """Write families as the header `Accept` asks for: OpenMetrics, or Prometheus text."""
    collector = _Collector(families)
    try:
        encode, content_type = choose_encoder(accept)
        return Exposition(content_type, encode(collector))
    except (TypeError, ValueError):  # the header names a version that is not a number
        encode, content_type = choose_encoder("")
        return Exposition(content_type, encode(collector))


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

    def count_received(self, nbytes: int) -> None:
        """Count bytes that came in."""
        with self._guard:
            self._received += nbytes

    def count_sent(self, nbytes: int) -> None:
        """Count bytes that went out."""
        with self._guard:
            self._sent += nbytes

    def count_exchange(self, received: int, sent: int) -> None:
        """Count the bytes of a call and its reply."""
        with self._guard:
            self._received += received
            self._sent += sent

    def streams(self, change: int) -> None:
        """Count a stream that was opened (1) or has ended (-1)."""
        with self._guard:
            self._streams += change

    def count_closed(self, reason: str) -> None:
        """Count a connection of Flight that the server has closed."""
        with self._guard:
            self._closed[reason] = self._closed.get(reason, 0) + 1

    def http_event(self, event: str) -> None:
        """Count something that happened to an HTTP connection."""
        with self._guard:
            self._http_events[event] = self._http_events.get(event, 0) + 1

    def render(self, log: EmbeddedLog, accept: str = "") -> Exposition:
        """Return everything, the log's own counters included, as the header `accept` asks for."""
        return expose((*self._families(), *log_families(log)), accept)

    def _families(self) -> Iterator[Metric]:
        with self._guard:
            outcomes = sorted(self._outcomes.items())
            times = [(call, list(row.counts), row.seconds) for call, row in self._times.items()]
            received, sent, streams = self._received, self._sent, self._streams
            closed, events = sorted(self._closed.items()), sorted(self._http_events.items())
            watched = list(self._watched)
        yield series(
            CounterMetricFamily,
            "lakebed_requests",
            "Requests that have ended, by call and outcome: ok, or the code of the error.",
            ("call", "outcome"),
            outcomes,
        )
        histogram = HistogramMetricFamily(
            "lakebed_request_seconds", "Time of requests, by call.", labels=("call",)
        )
        for call, counts, seconds in sorted(times):
            histogram.add_metric((call,), buckets(SECONDS, counts), seconds)
        yield histogram
        meaning = "Bytes that came in with requests."
        yield CounterMetricFamily("lakebed_received_bytes", meaning, value=received)
        meaning = "Bytes that went out with answers."
        yield CounterMetricFamily("lakebed_sent_bytes", meaning, value=sent)
        for name, meaning, count in watched:
            yield CounterMetricFamily(f"lakebed_{name}", meaning, value=count())
        yield GaugeMetricFamily("lakebed_open_streams", "Streams that are open.", value=streams)
        yield series(
            CounterMetricFamily,
            "lakebed_connections_closed",
            "Connections of Flight that the server has closed, by reason.",
            ("reason",),
            (((reason,), count) for reason, count in closed),
        )
        yield series(
            CounterMetricFamily,
            "lakebed_http_events",
            "HTTP connections that were refused, closed or failed, by what happened.",
            ("event",),
            (((event,), count) for event, count in events),
        )


class _Times:
    """The times of one call: how many fell into each bucket, the last one without a bound."""

    __slots__ = ("counts", "seconds")

    def __init__(self) -> None:
        self.counts = [0] * (len(SECONDS) + 1)
        self.seconds = 0.0
