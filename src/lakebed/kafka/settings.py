"""Settings of topics and of the broker, as Kafka's admin clients name them.

There are three lists. *Mapped* settings act under the name that the log has for them. *Accepted*
ones have no meaning for a log that is one process and syncs every write; they may be given, are not
kept, and are shown as what holds. Everything else is refused, also a mapped or accepted one with a
value that would not be honoured: a setting is never ignored that a user counts on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from lakebed.config import TopicConfig
from lakebed.errors import InvalidArgumentError
from lakebed.kafka.codes import INVALID_CONFIG, Refusal

if TYPE_CHECKING:
    from lakebed.config import ServeConfig

BOOLEAN, TEXT, INT, LONG, DOUBLE, LIST = 1, 2, 3, 5, 6, 7
FROM_TOPIC: Final = 1
FROM_BROKER: Final = 4
FROM_DEFAULT: Final = 5
_FOREVER: Final = str(2**63 - 1)


class _Mapped(NamedTuple):
    """A setting of Kafka that a setting of a topic does."""

    name: str
    kind: int
    read: Callable[[str], Any] = int
    show: Callable[[Any], str] = str


def _cleanup(text: str) -> str:
    words = sorted({word.strip() for word in text.split(",")})
    return ",".join(words)


def _percent(text: str) -> int:
    return round(float(text) * 100)


def _compression(text: str) -> str:
    return {"uncompressed": "none", "producer": TopicConfig().compression}.get(text, text)


MAPPED: Final[dict[str, _Mapped]] = {
    "cleanup.policy": _Mapped("cleanup", LIST, _cleanup),
    "compression.type": _Mapped(
        "compression", TEXT, _compression, lambda value: {"none": "uncompressed"}.get(value, value)
    ),
    "delete.retention.ms": _Mapped("tombstone_retention_ms", LONG),
    "local.retention.bytes": _Mapped("local_bytes", LONG),
    "local.retention.ms": _Mapped("local_ms", LONG),
    "max.message.bytes": _Mapped("record_bytes_max", INT),
    "min.cleanable.dirty.ratio": _Mapped(
        "compact_dirty_percent", DOUBLE, _percent, lambda value: str(value / 100)
    ),
    "min.compaction.lag.ms": _Mapped("compact_lag_ms", LONG),
    "retention.bytes": _Mapped("retention_bytes", LONG),
    "retention.ms": _Mapped("retention_ms", LONG),
    "segment.bytes": _Mapped("segment_bytes", INT),
    "segment.ms": _Mapped("segment_ms", LONG),
}

ACCEPTED: Final[dict[str, tuple[str, int]]] = {
    "file.delete.delay.ms": ("0", LONG),
    "flush.messages": ("1", LONG),
    "flush.ms": ("0", LONG),
    "follower.replication.throttled.replicas": ("", LIST),
    "index.interval.bytes": ("4096", INT),
    "leader.replication.throttled.replicas": ("", LIST),
    "message.downconversion.enable": ("false", BOOLEAN),
    "min.insync.replicas": ("1", INT),
    "preallocate": ("false", BOOLEAN),
    "segment.index.bytes": ("10485760", INT),
    "segment.jitter.ms": ("0", LONG),
    "unclean.leader.election.enable": ("false", BOOLEAN),
}
"""Settings without an effect, what holds instead, and their type."""

ONLY: Final[dict[str, tuple[str, int, frozenset[str]]]] = {
    "max.compaction.lag.ms": (_FOREVER, LONG, frozenset([_FOREVER])),
    "message.timestamp.after.max.ms": (_FOREVER, LONG, frozenset([_FOREVER])),
    "message.timestamp.before.max.ms": (_FOREVER, LONG, frozenset([_FOREVER])),
    "message.timestamp.type": ("CreateTime", TEXT, frozenset(["CreateTime"])),
    "remote.storage.enable": ("false", BOOLEAN, frozenset(["false"])),
}
"""Settings of which only one value is honoured, and every other one refused."""


def topic_settings(pairs: Iterable[tuple[str, str | None]]) -> dict[str, Any]:
    """Return settings of a topic by the names that the log has for them, or raise `Refusal`."""
    settings: dict[str, Any] = {}
    for name, value in pairs:
        if name in MAPPED:
            mapped = MAPPED[name]
            settings[mapped.name] = _read(name, mapped, value)
        elif name in ONLY:
            if value is not None and value not in ONLY[name][2]:
                raise Refusal(INVALID_CONFIG, f"{name}={value} is not supported")
        elif name not in ACCEPTED:
            raise Refusal(INVALID_CONFIG, f"unknown topic config name: {name}")
    try:
        TopicConfig.of(settings)
    except InvalidArgumentError as error:
        raise Refusal(INVALID_CONFIG, str(error)) from error
    return settings


def _read(name: str, mapped: _Mapped, value: str | None) -> Any:
    if value is None:
        return getattr(TopicConfig(), mapped.name)
    try:
        return mapped.read(value)
    except (ValueError, OverflowError):
        raise Refusal(INVALID_CONFIG, f"invalid value {value!r} for {name}") from None


def describe_topic(config: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return every setting of a topic with what holds."""
    defaults = TopicConfig()
    rows = []
    for name, mapped in MAPPED.items():
        value, default = config[mapped.name], getattr(defaults, mapped.name)
        source = FROM_DEFAULT if value == default else FROM_TOPIC
        rows.append(_row(name, mapped.show(value), mapped.kind, source, is_fixed=False))
    for name, (value, kind) in ACCEPTED.items():
        rows.append(_row(name, value, kind, FROM_DEFAULT, is_fixed=False))
    for name, (value, kind, _) in ONLY.items():
        rows.append(_row(name, value, kind, FROM_DEFAULT, is_fixed=False))
    return sorted(rows, key=lambda row: str(row["name"]))


def describe_broker(config: ServeConfig, partitions: int) -> list[dict[str, Any]]:
    """Return the settings of the broker that consoles and clients ask for."""
    topic = TopicConfig()
    rows: list[tuple[str, str, int]] = [
        ("auto.create.topics.enable", str(config.kafka_auto_create_topics).lower(), BOOLEAN),
        ("broker.id", "1", INT),
        ("compression.type", topic.compression, TEXT),
        ("connections.max.idle.ms", "-1", LONG),
        ("default.replication.factor", "1", INT),
        ("delete.topic.enable", "true", BOOLEAN),
        ("log.cleanup.policy", topic.cleanup, LIST),
        ("log.flush.interval.messages", "1", LONG),
        ("log.message.timestamp.type", "CreateTime", TEXT),
        ("log.retention.bytes", str(topic.retention_bytes), LONG),
        ("log.retention.ms", str(topic.retention_ms), LONG),
        ("log.segment.bytes", str(topic.segment_bytes), INT),
        ("max.connections", str(config.connections_max), INT),
        ("message.max.bytes", str(topic.record_bytes_max), INT),
        ("min.insync.replicas", "1", INT),
        ("num.partitions", str(partitions), INT),
        ("offsets.retention.minutes", "-1", INT),
        ("socket.request.max.bytes", str(config.request_bytes_max), INT),
    ]
    return [_row(name, value, kind, FROM_BROKER, is_fixed=True) for name, value, kind in rows]


def _row(name: str, value: str, kind: int, source: int, *, is_fixed: bool) -> dict[str, Any]:
    return {
        "name": name,
        "value": value,
        "read_only": is_fixed,
        "config_source": source,
        "config_type": kind,
        "synonyms": [{"name": name, "value": value, "source": source}],
    }
