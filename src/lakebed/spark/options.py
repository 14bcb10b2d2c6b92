"""The options of `format("lakebed")`: names, meanings and bounds.

Names are those of Spark's Kafka source where the meaning is the same, and case-insensitive as in
Spark. An unknown name is an error: a misspelt limit would limit nothing.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from lakebed.api.reads import EARLIEST, LATEST
from lakebed.client.config import ClientConfig
from lakebed.errors import InvalidArgumentError
from lakebed.spark.naming import application_log
from lakebed.suggest import did_you_mean
from lakebed.types import GroupName, ProducerName, TopicName

Start = str | Mapping[str, Mapping[int, int]]
"""`earliest`, `latest`, or offsets by topic and partition; -2 is earliest there, -1 latest."""

FIRST: Final = -2
LAST: Final = -1

_CONNECTION: Final = ("log", "token", "ca", "cert", "key", "retryMs")
_SOURCE: Final = (
    *_CONNECTION,
    "topic",
    "subscribe",
    "subscribePattern",
    "startingOffsets",
    "endingOffsets",
    "startingTimestamp",
    "endingTimestamp",
    "failOnDataLoss",
    "maxOffsetsPerTrigger",
    "maxBytesPerTrigger",
    "minPartitions",
    "includeHeaders",
    "consumerGroup",
)
_SINK: Final = (
    *_CONNECTION,
    "topic",
    "keyColumn",
    "partitionColumn",
    "txnAppId",
    "txnVersion",
    "transactionTimeoutMs",
)
_SPARKS_OWN: Final = ("checkpointlocation", "queryname")
"""Options of Spark that it also passes to sources and sinks."""

_TIMEOUT_MS: Final = 3_600_000
_TIMEOUT_MS_MAX: Final = 86_400_000
_RETRY_MS_MAX: Final = 3_600_000


@dataclass(frozen=True)
class Target:
    """Which log, and how it is reached."""

    log: str
    client: ClientConfig
    folder: str | None = None
    """The folder that `log` is the URL of, if the log was named by its folder: another process may
    serve it later, at another URL.
    """


@dataclass(frozen=True)
class SourceOptions:
    """What to read. Exactly one of `topic`, `subscribe` and `pattern` is given."""

    target: Target
    topic: str | None
    subscribe: tuple[str, ...]
    pattern: str | None
    starting: Start
    ending: Start
    starting_us: int | None
    ending_us: int | None
    fail_on_data_loss: bool
    max_offsets: int | None
    max_bytes: int | None
    min_partitions: int | None
    include_headers: bool
    group: str | None


@dataclass(frozen=True)
class SinkOptions:
    """Where to write."""

    target: Target
    topic: str | None
    key_column: str | None
    partition_column: str | None
    application: str | None
    version: int | None
    timeout_ms: int


def source_options(raw: Mapping[str, str], *, streaming: bool | None = None) -> SourceOptions:
    """Read the options of a source, or raise an error that names the one that is wrong."""
    chosen = _OptionReader(raw, _SOURCE)
    named = [name for name in ("topic", "subscribe", "subscribePattern") if chosen.text(name)]
    if len(named) != 1:
        raise InvalidArgumentError(
            "a source needs exactly one of the options topic, subscribe and subscribePattern",
            got=", ".join(named) or "none",
        )
    pattern = chosen.text("subscribePattern")
    if pattern is not None:
        _check_pattern(pattern)
    if streaming is True:
        chosen.refuse("a stream has no end", "endingOffsets", "endingTimestamp")
    if streaming is False:
        chosen.refuse(
            "a batch has no triggers", "maxOffsetsPerTrigger", "maxBytesPerTrigger", "consumerGroup"
        )
    chosen.only_one("startingOffsets", "startingTimestamp")
    chosen.only_one("endingOffsets", "endingTimestamp")
    group = chosen.text("consumerGroup")
    return SourceOptions(
        target=chosen.target(),
        topic=_topic(chosen.text("topic")),
        subscribe=_topics(chosen.text("subscribe")),
        pattern=pattern,
        starting=_offsets(
            "startingOffsets",
            chosen.text("startingOffsets") or (LATEST if streaming else EARLIEST),
        ),
        ending=_offsets("endingOffsets", chosen.text("endingOffsets") or LATEST),
        starting_us=chosen.time_us("startingTimestamp"),
        ending_us=chosen.time_us("endingTimestamp"),
        fail_on_data_loss=chosen.flag("failOnDataLoss", default=True),
        max_offsets=chosen.integer("maxOffsetsPerTrigger"),
        max_bytes=chosen.integer("maxBytesPerTrigger"),
        min_partitions=chosen.integer("minPartitions"),
        include_headers=chosen.flag("includeHeaders", default=False),
        group=None if group is None else str(GroupName(group)),
    )


def sink_options(raw: Mapping[str, str]) -> SinkOptions:
    """Read the options of a sink, or raise an error that names the one that is wrong."""
    chosen = _OptionReader(raw, _SINK)
    application, version = chosen.text("txnAppId"), chosen.integer("txnVersion", least=0)
    if (application is None) != (version is None):
        raise InvalidArgumentError("txnAppId and txnVersion must be set together")
    timeout_ms = chosen.integer("transactionTimeoutMs", most=_TIMEOUT_MS_MAX)
    return SinkOptions(
        target=chosen.target(),
        topic=_topic(chosen.text("topic")),
        key_column=chosen.text("keyColumn"),
        partition_column=chosen.text("partitionColumn"),
        application=None if application is None else str(ProducerName(application)),
        version=version,
        timeout_ms=_TIMEOUT_MS if timeout_ms is None else timeout_ms,
    )


class _OptionReader:
    """Reads options by name, ignoring case."""

    def __init__(self, raw: Mapping[str, str], allowed: tuple[str, ...]) -> None:
        names = {name.lower(): name for name in allowed}
        self._values: dict[str, str] = {}
        for name, value in raw.items():
            if name.lower() in _SPARKS_OWN:
                continue
            if name.lower() == "path":
                raise InvalidArgumentError(
                    "a path is not supported: set the option log to the folder or URL, and the "
                    "option topic",
                    path=value,
                )
            if name.lower() not in names:
                raise InvalidArgumentError(
                    f"unknown option {name!r}{did_you_mean(name, allowed)}",
                    known=", ".join(allowed),
                )
            self._values[names[name.lower()]] = value

    def text(self, name: str) -> str | None:
        value = self._values.get(name)
        if value is None:
            return None
        if not value.strip():
            raise InvalidArgumentError("the option is empty", option=name)
        return value.strip()

    def flag(self, name: str, *, default: bool) -> bool:
        value = self.text(name)
        if value is None:
            return default
        if value.lower() not in ("true", "false"):
            raise InvalidArgumentError("the option must be true or false", option=name, got=value)
        return value.lower() == "true"

    def integer(self, name: str, *, least: int = 1, most: int = 10**18) -> int | None:
        value = self.text(name)
        if value is None:
            return None
        if not re.fullmatch(r"[0-9]{1,18}", value) or not least <= int(value) <= most:
            bounds = f"from {least} on" if most == 10**18 else f"from {least} to {most}"
            raise InvalidArgumentError(
                f"the option must be an integer {bounds}", option=name, got=value
            )
        return int(value)

    def time_us(self, name: str) -> int | None:
        """Return a time in microseconds; the option has milliseconds, or ISO 8601."""
        from datetime import UTC, datetime, timedelta

        value = self.text(name)
        if value is None:
            return None
        if re.fullmatch(r"[0-9]{1,15}", value):
            return int(value) * 1000
        try:
            time = datetime.fromisoformat(value)
        except ValueError as error:
            raise InvalidArgumentError(
                "a time must be milliseconds since 1970, or like 2026-11-15T10:00:00Z",
                option=name,
                got=value,
            ) from error
        time = time if time.tzinfo is not None else time.replace(tzinfo=UTC)
        return (time - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)

    def refuse(self, why: str, *names: str) -> None:
        for name in names:
            if name in self._values:
                raise InvalidArgumentError(f"{why}: leave out the option", option=name)

    def only_one(self, one: str, other: str) -> None:
        if one in self._values and other in self._values:
            raise InvalidArgumentError(f"{one} and {other} are mutually exclusive")

    def target(self) -> Target:
        log = self.text("log") or application_log()
        if not log:
            raise InvalidArgumentError(
                "no log given: set the option log to its folder or URL, or create the session "
                "with lakebed.spark.session(log=...)"
            )
        retry_ms = self.integer("retryMs", least=0, most=_RETRY_MS_MAX)
        client = ClientConfig(
            self.text("token"), self.text("ca"), self.text("cert"), self.text("key")
        )
        if retry_ms is not None:
            client = ClientConfig(client.token, client.ca, client.cert, client.key, retry_ms)
        return Target(log, client)


def _topic(name: str | None) -> str | None:
    return None if name is None else str(TopicName(name))


def _topics(names: str | None) -> tuple[str, ...]:
    if names is None:
        return ()
    topics = [str(TopicName(name.strip())) for name in names.split(",")]
    return tuple(sorted(set(topics)))


def _check_pattern(pattern: str) -> None:
    try:
        re.compile(pattern)
    except re.error as error:
        raise InvalidArgumentError(
            "subscribePattern is not a regular expression", got=pattern, reason=error
        ) from error


def _offsets(name: str, text: str) -> Start:
    """Read offsets as Spark's Kafka source spells them: `{"orders": {"0": 23, "1": -2}}`."""
    if text.lower() in (EARLIEST, LATEST):
        return text.lower()
    try:
        document = json.loads(text)
    except ValueError as error:
        raise _offsets_error(name, text) from error
    if not isinstance(document, dict) or not document:
        raise _offsets_error(name, text)
    return {
        str(TopicName(topic)): _of_partitions(name, text, parts)
        for topic, parts in document.items()
    }


def _of_partitions(name: str, text: str, parts: Any) -> dict[int, int]:
    if not isinstance(parts, dict):
        raise _offsets_error(name, text)
    offsets: dict[int, int] = {}
    for partition, offset in parts.items():
        if not re.fullmatch(r"[0-9]{1,9}", partition) or type(offset) is not int or offset < FIRST:
            raise _offsets_error(name, text)
        offsets[int(partition)] = offset
    return offsets


def _offsets_error(name: str, text: str) -> InvalidArgumentError:
    return InvalidArgumentError(
        'offsets are earliest, latest, or like {"orders": {"0": 23, "1": -2}}'
        " (-2 for earliest, -1 for latest)",
        option=name,
        got=text[:200],
    )
