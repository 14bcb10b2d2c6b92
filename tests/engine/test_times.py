"""Times: what can be read back everywhere is accepted by every way in, anything else by none."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lakebed
from lakebed import Log, LogConfig, WalConfig, limits
from lakebed.errors import EntryTooLargeError, InvalidArgumentError
from lakebed.topic.schema import TIMESTAMP
from tests.engine.support import any_time, inner, quiet, rows

LAST = datetime(9999, 12, 31, 23, 59, 59, 999999, tzinfo=UTC)
BEYOND = datetime(9999, 12, 31, 23, 59, 59, tzinfo=timezone(timedelta(hours=-23, minutes=-59)))
"""A `datetime` that Python can write, and cannot read back in UTC."""
OUTSIDE: list[Any] = [
    limits.TIME_US_MAX + 1,
    limits.TIME_US_MIN - 1,
    2**63 - 1,
    -(2**63),
    2**63,
    2**80,
    BEYOND,
]


def _transaction(log: Log, time: Any) -> None:
    with log.transaction() as transaction:
        transaction.append("t", b"x", b"k", timestamp=time)


def _producer(log: Log, time: Any) -> None:
    with log.producer() as producer:
        producer.send("t", b"x", b"k", timestamp=time)


WAYS: dict[str, Callable[[Log, Any], Any]] = {
    "append": lambda log, time: log.append("t", b"x", b"k", timestamp=time),
    "append_async": lambda log, time: log.append_async("t", b"x", b"k", timestamp=time).result(),
    "rows": lambda log, time: log.append_batch(
        "t", [{"value": b"x", "key": b"k", "timestamp": time}]
    ),
    "transaction": _transaction,
    "producer": _producer,
}


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_a_time_outside_the_range_is_refused_by_every_way_in(
    way: Callable[[Log, Any], Any],
) -> None:
    with quiet() as log:
        log.create_topic("t")
        for time in OUTSIDE:
            with pytest.raises(InvalidArgumentError, match="the years 1 to 9999"):
                way(log, time)
        assert rows(log, "t") == []


@pytest.mark.parametrize("time", [limits.TIME_US_MAX, limits.TIME_US_MIN, LAST], ids=str)
@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_the_first_and_the_last_time_are_read_back(
    way: Callable[[Log, Any], Any], time: Any, tmp_path: Path
) -> None:
    with lakebed.open(tmp_path) as log:
        log.create_topic("t")
        way(log, time)
        found = log.table("t").record(b"k")
        assert found is not None
        expected = time if isinstance(time, datetime) else pa.scalar(time, TIMESTAMP).as_py()
        assert found["timestamp"] == expected


@pytest.mark.parametrize("unit", ["s", "ms", "us"])
def test_arrow_timestamps_outside_the_range_are_refused_in_any_unit(unit: str) -> None:
    times = pa.array([0, None, 2**62], pa.timestamp(unit))
    with quiet() as log:
        log.create_topic("t")
        with pytest.raises(InvalidArgumentError, match="the years 1 to 9999") as caught:
            log.append_batch("t", pa.table({"value": ["a", "b", "c"], "timestamp": times}))
        assert caught.value.facts["row"] == 2
        assert rows(log, "t") == []


EVENT = pa.schema(
    [
        pa.field("at", pa.timestamp("us")),
        pa.field("day", pa.date32()),
        pa.field("seen", pa.list_(pa.field("element", TIMESTAMP))),
        pa.field("named", pa.map_(pa.string(), TIMESTAMP)),
        pa.field("inner", pa.struct([pa.field("at", TIMESTAMP)])),
    ]
)
FAR_US = 2**62
FAR_DAYS = 2**30
FAR = {
    "at": FAR_US,
    "day": FAR_DAYS,
    "seen": [1, FAR_US],
    "named": [("first", FAR_US)],
    "inner": {"at": -FAR_US},
}


def _event(**given: Any) -> pa.Table:
    return pa.table({"key": [b"k"], "value": pa.array([given], pa.struct(list(EVENT)))})


@pytest.mark.parametrize("name", FAR)
def test_times_in_values_have_the_same_range(name: str) -> None:
    with quiet() as log:
        log.create_topic("e", schema=EVENT)
        with pytest.raises(InvalidArgumentError, match="the years 1 to 9999") as caught:
            log.append_batch("e", _event(**{name: FAR[name]}))
        assert str(caught.value.facts["column"]).startswith(f"value.{name}")
        log.append("e", {"day": date(9999, 12, 31), "inner": {"at": LAST}}, b"k")
        value = log.table("e").get(b"k")
        assert (value["day"], value["inner"]["at"]) == (date(9999, 12, 31), LAST)


def test_a_refused_record_leaves_a_producer_and_its_batch_alone(tmp_path: Path) -> None:
    with lakebed.open(tmp_path) as log:
        log.create_topic("t")
        with log.producer(linger_ms=60_000) as producer:
            before = producer.send("t", b"before")
            for time in OUTSIDE:
                with pytest.raises(InvalidArgumentError):
                    producer.send("t", b"x", timestamp=time)
            far = producer.send("t", b"far", timestamp=253402214400000000)
            after = producer.send("t", b"after")
            producer.flush()
            assert [sent.result().offset for sent in (before, far, after)] == [0, 1, 2]
        assert rows(log, "t", column="timestamp")[1] == datetime(9999, 12, 31, tzinfo=UTC)


def small_entries() -> LogConfig:
    """Settings under which a topic accepts larger records than an entry can hold."""
    return LogConfig(wal=WalConfig(entry_bytes_max=64 * 1024))


@pytest.mark.parametrize("topic", ["t", "p"])
def test_a_record_that_no_entry_can_hold_is_refused_alone(topic: str, tmp_path: Path) -> None:
    def value(size: int) -> Any:
        return {"text": "x" * size} if topic == "p" else b"x" * size

    with lakebed.open(tmp_path, small_entries()) as log:
        log.create_topic("t")
        log.create_topic("p", schema=pa.schema([pa.field("text", pa.string())]))
        with log.producer(linger_ms=60_000) as producer:
            sent = [producer.send(topic, value(10))]
            with pytest.raises(EntryTooLargeError):
                producer.send(topic, value(64 * 1024))
            with pytest.raises(EntryTooLargeError):
                producer.send(topic, value(64 * 1024 - 100))
            sent += [producer.send(topic, value(60 * 1024)) for _ in range(3)]
            sent += [producer.send(topic, value(1000)) for _ in range(200)]
            producer.flush()
            assert [each.result().offset for each in sent] == list(range(204))
        with log.transaction() as transaction:
            transaction.append(topic, value(10))
            with pytest.raises(EntryTooLargeError):
                transaction.append(topic, value(64 * 1024))
        with pytest.raises(EntryTooLargeError):
            log.append(topic, value(64 * 1024))
        assert len(rows(log, topic)) == 205


@pytest.mark.parametrize("sealed", [False, True])
def test_times_that_an_older_version_wrote_are_read_as_numbers(
    sealed: bool, tmp_path: Path
) -> None:
    with lakebed.open(tmp_path) as log:
        log.create_topic("t")
        log.create_topic("e", schema=EVENT)
        with any_time():
            times = pa.array([FAR_US], TIMESTAMP)
            log.append_batch("t", pa.table({"value": ["x"], "key": ["k"], "timestamp": times}))
            log.append_batch("e", _event(**FAR))
        if sealed:
            log.checkpoint()
    with lakebed.open(tmp_path) as log:
        found = log.table("t").record(b"k")
        assert found is not None and found["timestamp"] == FAR_US
        assert log.table("e").get(b"k") == {
            **FAR,
            "seen": [datetime(1970, 1, 1, 0, 0, 0, 1, tzinfo=UTC), FAR_US],
        }
        assert log.read("t").column("timestamp").cast(pa.int64()).to_pylist() == [FAR_US]
        assert log.offset_for_time("t", timestamp=LAST) == 0
        assert inner(log).stats().maintenance_failures == 0
