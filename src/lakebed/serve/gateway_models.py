"""What goes in and out of the HTTP gateway, as models: bodies are checked by them.

Answers are written without them; a test compares what is answered with what they say.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, create_model

from lakebed import limits
from lakebed.config import CLEANUPS, COMPRESSIONS, TOPIC_BOUNDS, TopicConfig
from lakebed.engine.audit import AUDIT_TOPIC

NAME_PATTERN: Final = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$"
TOPIC_PATTERN: Final = rf"^({AUDIT_TOPIC}|{NAME_PATTERN[1:-1]})$"
"""Topics that there may be: also the one of the log itself, which administrators read."""

Name = Annotated[str, Field(pattern=NAME_PATTERN)]
Partition = Annotated[int, Field(ge=0, lt=limits.PARTITIONS_MAX)]
Partitions = Annotated[int, Field(ge=1, le=limits.PARTITIONS_MAX)]
Offset = Annotated[int, Field(ge=0, le=limits.OFFSET_MAX)]
Microseconds = Annotated[int, Field(ge=limits.TIME_US_MIN, le=limits.TIME_US_MAX)]
"""Since 1970, from the year 1 to the year 9999."""
Count = Annotated[int, Field(ge=0)]


class Exact(BaseModel):
    """A model without conversions and without further names."""

    model_config = ConfigDict(extra="forbid", strict=True)


class Base64(Exact):
    """Bytes that are not UTF-8."""

    base64: Annotated[
        str,
        Field(
            pattern=r"^([A-Za-z0-9+/]{4})*([A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$",
            description="The bytes, in base64 with its padding.",
        ),
    ]


Bytes = str | Base64 | None
"""Text that stands for its UTF-8 bytes, other bytes, or nothing."""


# Schemas


class ListType(Exact):
    """A list."""

    list: FieldType
    nullable: bool = True


class MapType(Exact):
    """A map; its keys are text unless something else is said."""

    map: FieldType
    keys: FieldType = "string"
    nullable: bool = True


class StructType(Exact):
    """Fields within a field."""

    struct: Annotated[list[SchemaField], Field(min_length=1)]


SimpleType = Literal[
    "bool",
    "int32",
    "int64",
    "float",
    "double",
    "string",
    "binary",
    "date",
    "timestamp",
    "timestamp_ntz",
]
DecimalType = Annotated[
    str, Field(pattern=r"^decimal\(([1-9]|[12][0-9]|3[0-8]), ?([0-9]|[12][0-9]|3[0-8])\)$")
]
FieldType = SimpleType | DecimalType | ListType | MapType | StructType


class SchemaField(Exact):
    """A field of a typed topic's values."""

    name: Annotated[str, Field(min_length=1)]
    type: FieldType
    nullable: bool = True


class TopicSchema(Exact):
    """The fields of a typed topic's values."""

    fields: Annotated[list[SchemaField], Field(min_length=1)]


# Bodies of requests


def _setting(name: str) -> Any:
    if name == "cleanup":
        return Literal[CLEANUPS]
    if name == "compression":
        return Literal[COMPRESSIONS]
    low, high = TOPIC_BOUNDS[name]
    return Annotated[int, Field(ge=low, le=high)]


_SETTINGS: Final[dict[str, Any]] = {
    field.name: (_setting(field.name), field.default) for field in fields(TopicConfig)
}
TopicSettings = create_model(
    "TopicSettings",
    __base__=Exact,
    __doc__="Settings of a topic; those that are left out stay as they are, or at their defaults.",
    **_SETTINGS,
)


class TopicChange(Exact):
    """What to change about a topic."""

    partitions: Partitions | None = None
    topic_schema: Annotated[TopicSchema | None, Field(alias="schema")] = None
    config: TopicSettings | None = None  # type: ignore[valid-type]  # a model made of TopicConfig


class NewTopic(TopicChange):
    """A topic to be made: raw without a schema (values are bytes), typed with one."""

    topic: Name


class NewRecord(Exact):
    """A record to be written; `type`, `topic` and `offset` are passed over."""

    value: Annotated[
        str | dict[str, Any] | None,
        Field(description="Raw topics: text, or base64. Typed ones: an object. null: a tombstone."),
    ]
    key: Bytes = None
    headers: dict[str, Bytes] | None = None
    timestamp: Annotated[
        Microseconds | str | None,
        Field(description="ISO 8601, UTC if it does not say, or microseconds since 1970."),
    ] = None
    partition: Partition | None = None
    type: Literal["record"] | None = None
    topic: str | None = None
    offset: Offset | None = None


class NewRecords(Exact):
    """Records to be written, all or none."""

    records: Annotated[list[NewRecord], Field(min_length=1, max_length=limits.JSON_RECORDS_MAX)]


class CommittedOffset(Exact):
    """The offset at which a group is to go on."""

    topic: Name
    partition: Partition
    offset: Offset


class Commit(Exact):
    """How far a group has come."""

    offsets: Annotated[
        list[CommittedOffset], Field(min_length=1, max_length=limits.JSON_RECORDS_MAX)
    ]


# Answers


class TopicNames(Exact):
    """The topics that the caller may read."""

    topics: list[str]


class TopicPartition(Exact):
    """A partition of a topic."""

    partition: Count
    earliest: Count
    end: Count
    segments: Count
    segment_bytes: Count
    memtable_records: Count


class Topic(Exact):
    """A topic."""

    topic: str
    id: Count
    created_us: int
    records: Count
    partitions: list[TopicPartition]
    topic_schema: Annotated[TopicSchema | None, Field(alias="schema")]
    schema_version: Count
    config: TopicSettings  # type: ignore[valid-type]  # a model made of TopicConfig


class Place(Exact):
    """Where a record is."""

    partition: Count
    offset: Count


class Written(Exact):
    """Where the records are, in the order in which they came."""

    topic: str
    records: list[Place]


class Record(Exact):
    """A record."""

    type: Literal["record"]
    topic: str
    partition: Count
    offset: Count
    timestamp: str
    key: Bytes
    headers: dict[str, Bytes]
    value: Any


class Records(Exact):
    """Records of a partition, and where to go on."""

    topic: str
    partition: Count
    next_offset: Count
    records: list[Record]


class Bounds(Exact):
    """Where a partition begins and ends."""

    partition: Count
    earliest: Count
    end: Count


class Offsets(Exact):
    """Where the partitions of a topic begin and end."""

    topic: str
    partitions: list[Bounds]


class GroupNames(Exact):
    """The consumer groups that the caller may see."""

    groups: list[str]


class GroupPartition(Exact):
    """How far a group has come in a partition."""

    topic: str
    partition: Count
    committed: Count | None
    earliest: Count
    end: Count
    lag: Count
    member: str | None


class Group(Exact):
    """A consumer group."""

    group: str
    lag: Count
    generation: Count
    members: list[str]
    partitions: list[GroupPartition]


class Live(Exact):
    """The process lives."""

    status: Literal["live"]


class Ready(Exact):
    """Whether the log can be used, and why not."""

    ready: bool
    reason: str


class Problem(Exact):
    """An error."""

    code: str
    message: str
    retriable: bool
    advice: str
    facts: dict[str, str | int | float | bool | None]
