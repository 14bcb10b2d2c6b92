"""What a server counts, and how it tells it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client.openmetrics.parser import (
    text_string_to_metric_families as open_metrics_families,
)
from prometheus_client.parser import text_string_to_metric_families

from lakebed import Log
from lakebed.errors import ClosedError
from lakebed.serve.log_metrics import SERIES_MAX
from lakebed.serve.meters import Exposition, Meters
from tests.engine.support import in_threads, inner

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


def parsed(shown: Exposition | str) -> Samples:
    """Read Prometheus text or OpenMetrics with the library's parsers; no series is there twice."""
    text = shown if isinstance(shown, str) else shown.body.decode()
    openmetrics = text.endswith("# EOF\n")
    parse = open_metrics_families if openmetrics else text_string_to_metric_families
    found: Samples = {}
    for family in parse(text):
        assert family.documentation
        assert family.type in ("counter", "gauge", "histogram"), family.name
        for sample in family.samples:
            place = sample.name, frozenset(sample.labels.items())
            assert place not in found
            found[place] = float(sample.value)
    return found


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    with Log.open(tmp_path / "log") as opened:
        yield opened


def test_a_closed_log_has_nothing_to_tell(tmp_path: Path) -> None:
    with Log.open(tmp_path / "log") as log:
        pass
    with pytest.raises(ClosedError):
        Meters().render(log)


def test_labels_with_quotes_backslashes_and_newlines_are_escaped(log: Log) -> None:
    meters, call = Meters(), 'a "b"\\\nc'
    meters.request(call, "ok", 0.1)
    found = parsed(meters.render(inner(log)))
    labels = frozenset({("call", call), ("outcome", "ok")})
    assert found["lakebed_requests_total", labels] == 1


def test_requests_are_counted_by_call_and_outcome_from_many_threads(log: Log) -> None:
    meters = Meters()

    def count(_: int) -> None:
        for _ in range(500):
            meters.request("read", "ok", 0.002)
            meters.count_received(3)
            meters.count_sent(5)
            meters.streams(1)
            meters.streams(-1)

    assert in_threads(8, count) == [None] * 8
    meters.request("read", "overloaded", 99.0)
    found = parsed(meters.render(inner(log)))
    call = ("call", "read")
    assert found["lakebed_requests_total", frozenset({call, ("outcome", "ok")})] == 4000
    assert found["lakebed_requests_total", frozenset({call, ("outcome", "overloaded")})] == 1
    assert found["lakebed_request_seconds_bucket", frozenset({call, ("le", "0.001")})] == 0
    assert found["lakebed_request_seconds_bucket", frozenset({call, ("le", "0.0025")})] == 4000
    assert found["lakebed_request_seconds_bucket", frozenset({call, ("le", "+Inf")})] == 4001
    assert found["lakebed_request_seconds_count", frozenset({call})] == 4001
    assert math.isclose(found["lakebed_request_seconds_sum", frozenset({call})], 107.0)
    assert found["lakebed_received_bytes_total", frozenset()] == 12_000
    assert found["lakebed_sent_bytes_total", frozenset()] == 20_000
    assert found["lakebed_open_streams", frozenset()] == 0


def test_openmetrics_has_the_same_series(log: Log) -> None:
    log.create_topic("a", 2)
    log.append_batch("a", [b"x", b"y"])
    log.commit_offsets("g", {"a": {1: 0}})
    meters = Meters()
    meters.request('a "b"\\\nc', "ok", 0.1)
    plain = meters.render(inner(log))
    accept = "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.3"
    shown = meters.render(inner(log), accept)
    assert plain.content_type == "text/plain; version=0.0.4; charset=utf-8"
    assert shown.content_type.startswith("application/openmetrics-text; version=1.0.0")
    assert shown.body.endswith(b"# EOF\n")
    assert parsed(shown).keys() == parsed(plain).keys()


@pytest.mark.parametrize("version", ["x", "1.x", "\xb2", "2.1.y", "", "-1", "9" * 5000])
def test_a_version_that_is_not_a_number_is_answered(log: Log, version: str) -> None:
    for kind in ("application/openmetrics-text", "text/plain"):
        shown = Meters().render(inner(log), f"{kind}; version={version}; escaping=x")
        assert ("lakebed_open_streams", frozenset()) in parsed(shown)


def numbers(values: dict[str, object]) -> Iterator[str]:
    for name, value in values.items():
        if isinstance(value, dict):
            yield from (f"{name}_{each}" for each in numbers(value))
        elif isinstance(value, int | float) and name != "throttled_ms":
            yield name.replace("age_ms", "age_seconds")


def test_every_number_of_the_logs_statistics_is_told(log: Log) -> None:
    log.create_topic("a")
    log.append("a", b"x")
    log.checkpoint()
    found = {name for name, _ in parsed(Meters().render(inner(log)))}
    for name in numbers(log.stats().as_dict()):
        shown = "lakebed_" + name.replace("wal_counters_", "wal_")
        assert {shown, f"{shown}_total"} & found, name
    assert {"lakebed_throttled_seconds_total", "lakebed_wal_poisoned", "lakebed_info"} <= found
    assert "lakebed_wal_entries_per_sync_bucket" in found


def test_partitions_and_groups_have_series_of_their_own(log: Log) -> None:
    log.create_topic("a", 2)
    log.append_batch("a", [b"x", b"y", b"z"], partition=1)
    log.commit_offsets("g", {"a": {1: 2}})
    found = parsed(Meters().render(inner(log)))
    place = {("topic", "a"), ("partition", "1")}
    assert found["lakebed_partition_end_offset", frozenset(place)] == 3
    assert found["lakebed_partition_earliest_offset", frozenset(place)] == 0
    assert found["lakebed_partition_records", frozenset(place)] == 3
    assert found["lakebed_partition_segment_bytes", frozenset(place)] == 0
    of_group = frozenset({*place, ("group", "g")})
    assert found["lakebed_group_committed_offset", of_group] == 2
    assert found["lakebed_group_lag_records", of_group] == 1
    never = frozenset({("group", "g"), ("topic", "a"), ("partition", "0")})
    assert ("lakebed_group_committed_offset", never) not in found
    assert found["lakebed_group_lag_records", never] == 0


def test_series_of_too_many_partitions_are_summed_by_topic(log: Log) -> None:
    log.create_topic("a", SERIES_MAX)
    log.create_topic("b")
    log.append_batch("a", [b"x"], partition=7)
    log.append_batch("a", [b"x", b"y"], partition=8)
    log.commit_offsets("g", {"a": {7: 1, 8: 1}})
    found = parsed(Meters().render(inner(log)))
    ends = {labels: n for (name, labels), n in found.items() if name.endswith("_end_offset")}
    assert ends == {frozenset({("topic", "a")}): 3, frozenset({("topic", "b")}): 0}
    of_group = frozenset({("group", "g"), ("topic", "a"), ("partition", "8")})
    assert found["lakebed_group_lag_records", of_group] == 1
    log.add_partitions("a", SERIES_MAX + 1)
    found = parsed(Meters().render(inner(log)))
    assert found["lakebed_group_lag_records", frozenset({("group", "g"), ("topic", "a")})] == 1
    assert found["lakebed_group_committed_offset", frozenset({("group", "g"), ("topic", "a")})] == 2
