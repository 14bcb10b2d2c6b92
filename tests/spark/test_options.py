"""Options of `format("lakebed")`: each is read, and what cannot be meant is refused by name."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from lakebed.errors import InvalidArgumentError, InvalidNameError
from lakebed.spark.naming import FILE_VARIABLE
from lakebed.spark.options import SinkOptions, SourceOptions, sink_options, source_options
from lakebed.spark.serving import LOG_VARIABLE

URL = "lakebed://127.0.0.1:1"


@pytest.fixture(autouse=True)
def no_log_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (LOG_VARIABLE, FILE_VARIABLE):
        monkeypatch.delenv(name, raising=False)


def source(streaming: bool | None = None, /, **given: str) -> SourceOptions:
    return source_options({"log": URL, "topic": "orders"} | given, streaming=streaming)


def sink(**given: str) -> SinkOptions:
    return sink_options({"log": URL, "topic": "orders"} | given)


SOURCE = [
    ("startingOffsets", "latest", "starting", "latest"),
    ("startingOffsets", "EARLIEST", "starting", "earliest"),
    ("startingOffsets", '{"orders": {"0": 23, "1": -2}}', "starting", {"orders": {0: 23, 1: -2}}),
    ("endingOffsets", '{"orders": {"0": 9}}', "ending", {"orders": {0: 9}}),
    ("startingTimestamp", "1500", "starting_us", 1_500_000),
    ("startingTimestamp", "1970-01-01T00:00:01.5", "starting_us", 1_500_000),
    ("startingTimestamp", "1970-01-01T01:00:01+01:00", "starting_us", 1_000_000),
    ("startingTimestamp", "1969-12-31T23:59:59.5Z", "starting_us", -500_000),
    ("endingTimestamp", "0", "ending_us", 0),
    ("failOnDataLoss", "False", "fail_on_data_loss", False),
    ("maxOffsetsPerTrigger", "7", "max_offsets", 7),
    ("maxBytesPerTrigger", "8", "max_bytes", 8),
    ("minPartitions", "9", "min_partitions", 9),
    ("includeHeaders", "TRUE", "include_headers", True),
    ("consumerGroup", "billing", "group", "billing"),
]


@pytest.mark.parametrize(("name", "text", "field", "value"), SOURCE)
def test_an_option_of_a_source_is_read_whatever_its_case(
    name: str, text: str, field: str, value: Any
) -> None:
    for spelt in (name, name.lower(), name.upper()):
        changed = source(**{spelt: text})
        assert getattr(changed, field) == value
        assert dataclasses.replace(changed, **{field: getattr(source(), field)}) == source()


SINK = [
    ("keyColumn", "id", "key_column", "id"),
    ("partitionColumn", "part", "partition_column", "part"),
    ("transactionTimeoutMs", "5000", "timeout_ms", 5000),
]


@pytest.mark.parametrize(("name", "text", "field", "value"), SINK)
def test_an_option_of_a_sink_is_read_whatever_its_case(
    name: str, text: str, field: str, value: Any
) -> None:
    for spelt in (name, name.lower()):
        changed = sink(**{spelt: text})
        assert getattr(changed, field) == value
        assert dataclasses.replace(changed, **{field: getattr(sink(), field)}) == sink()


def test_a_sink_knows_the_write_of_an_application() -> None:
    chosen = sink(txnAppId="nightly", txnVersion="0")
    assert (chosen.application, chosen.version) == ("nightly", 0)


def test_how_a_log_is_reached_is_read_too() -> None:
    for chosen in (
        source(token="t", ca="a", cert="c", key="k", retryMs="0").target,
        sink(token="t", ca="a", cert="c", key="k", retryMs="0").target,
    ):
        client = chosen.client
        assert chosen.log == URL
        assert (client.token, client.ca, client.cert, client.key) == ("t", "a", "c", "k")
        assert client.retry_ms == 0
        assert "'t'" not in repr(chosen)


def test_topics_are_named_in_one_of_three_ways() -> None:
    assert source().topic == "orders"
    assert source_options({"log": URL, "subscribe": "b, a,b"}).subscribe == ("a", "b")
    assert source_options({"log": URL, "subscribePattern": "o.*"}).pattern == "o.*"
    for given in ({}, {"topic": "a", "subscribe": "b"}):
        with pytest.raises(InvalidArgumentError, match="exactly one of"):
            source_options({"log": URL, **given})


def test_the_log_may_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidArgumentError, match="no log given"):
        source_options({"topic": "orders"})
    monkeypatch.setenv(LOG_VARIABLE, URL)
    assert source_options({"topic": "orders"}).target.log == URL
    assert sink_options({"topic": "orders"}).target.log == URL


def test_a_stream_begins_at_the_end_and_a_batch_at_the_beginning() -> None:
    assert source(True).starting == "latest"
    assert source(False).starting == "earliest"
    assert source(False).ending == "latest"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"maxOffsetPerTrigger": "1"}, "did you mean 'maxOffsetsPerTrigger'?"),
        ({"topics": "a"}, "did you mean 'topic'?"),
        ({"kafka.bootstrap.servers": "x"}, "unknown option 'kafka.bootstrap.servers'"),
        ({"path": "/data"}, "a path is not supported"),
        ({"failOnDataLoss": "no"}, "true or false"),
        ({"minPartitions": "0"}, "an integer from 1 on"),
        ({"minPartitions": "1.5"}, "an integer from 1 on"),
        ({"maxBytesPerTrigger": "-1"}, "option=maxBytesPerTrigger"),
        ({"retryMs": "9999999"}, "from 0 to 3600000"),
        ({"consumerGroup": " "}, "the option is empty option=consumerGroup"),
        ({"startingOffsets": "newest"}, "offsets are earliest, latest, or like"),
        ({"startingOffsets": "[]"}, "option=startingOffsets"),
        ({"startingOffsets": "{}"}, "option=startingOffsets"),
        ({"startingOffsets": '{"orders": 5}'}, "option=startingOffsets"),
        ({"startingOffsets": '{"orders": {"x": 5}}'}, "option=startingOffsets"),
        ({"startingOffsets": '{"orders": {"0": -3}}'}, "option=startingOffsets"),
        ({"startingOffsets": '{"orders": {"0": true}}'}, "option=startingOffsets"),
        ({"endingOffsets": '{"orders": {"0": "5"}}'}, "option=endingOffsets"),
        ({"startingTimestamp": "yesterday"}, "a time must be milliseconds"),
        ({"startingOffsets": "latest", "startingTimestamp": "1"}, "mutually exclusive"),
        ({"endingOffsets": "latest", "endingTimestamp": "1"}, "mutually exclusive"),
    ],
)
def test_a_mistake_in_an_option_of_a_source_is_told(given: dict[str, str], said: str) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        source(**given)
    assert said in str(caught.value)


def test_a_pattern_has_to_be_one() -> None:
    with pytest.raises(InvalidArgumentError, match="not a regular expression"):
        source_options({"log": URL, "subscribePattern": "("})


def test_names_have_to_be_names() -> None:
    for given in ({"topic": "a/b"}, {"subscribe": "a,,b"}):
        with pytest.raises(InvalidNameError):
            source_options({"log": URL, **given})
    with pytest.raises(InvalidNameError):
        source(consumerGroup="a b")


@pytest.mark.parametrize("name", ["maxOffsetsPerTrigger", "maxBytesPerTrigger", "consumerGroup"])
def test_a_batch_has_no_options_of_a_stream(name: str) -> None:
    with pytest.raises(InvalidArgumentError, match="a batch has no triggers"):
        source(False, **{name: "1"})


@pytest.mark.parametrize("name", ["endingOffsets", "endingTimestamp"])
def test_a_stream_has_no_end(name: str) -> None:
    with pytest.raises(InvalidArgumentError, match="a stream has no end"):
        source(True, **{name: "1"})


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"keyColum": "id"}, "did you mean 'keyColumn'?"),
        ({"startingOffsets": "latest"}, "unknown option 'startingOffsets'"),
        ({"txnAppId": "a"}, "must be set together"),
        ({"txnVersion": "1"}, "must be set together"),
        ({"txnAppId": "a", "txnVersion": "-1"}, "from 0 on"),
        ({"transactionTimeoutMs": "0"}, "from 1 to 86400000"),
        ({"transactionTimeoutMs": "86400001"}, "from 1 to 86400000"),
    ],
)
def test_a_mistake_in_an_option_of_a_sink_is_told(given: dict[str, str], said: str) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        sink(**given)
    assert said in str(caught.value)


def test_options_that_are_sparks_own_are_left_to_it() -> None:
    assert sink(checkpointLocation="/tmp/x", queryName="q") == sink()
