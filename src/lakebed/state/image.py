"""The state of a log as plain data: dictionaries of values that never change themselves.

A copy is therefore a copy of a few dictionaries, quick enough to be taken while writers wait, and
stays as it was while the original goes on. As bytes (a snapshot):

    magic 8 bytes | version u32 | msgpack document | length u64 | CRC32C u32 | magic 8 bytes

Everything in the document is sorted, so equal states give equal bytes. Length and checksum cover
all that stands before them.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import Final

from crc32c import crc32c
from msgspec import Struct, msgpack

from lakebed.errors import CorruptionError, FormatTooNewError
from lakebed.state.command_codec import encode_values
from lakebed.state.owned import Markers, Producers
from lakebed.state.values import (
    CommittedOffset,
    Group,
    Marker,
    NonNegative,
    Partition,
    ProducerState,
    Segment,
    Sequences,
    Token,
    Topic,
    TransactionState,
)

MAGIC: Final = b"LKBSNAP\n"
VERSION: Final = 4
_SINCE: Final = {"tokens": 2, "rules": 2, "grants": 2, "markers": 3, "denials": 4}
"""The first version with a list that later versions must have."""
_HEAD: Final = struct.Struct("<8sI")
_TAIL: Final = struct.Struct("<QI8s")


@dataclass
class State:
    """Everything that the log knows, except records. Changed by the machine alone."""

    topics: dict[int, Topic] = field(default_factory=dict)
    names: dict[str, int] = field(default_factory=dict)
    """Topics by name."""
    partitions: dict[tuple[int, int], Partition] = field(default_factory=dict)
    producers: Producers = field(default_factory=Producers)
    producer_names: dict[tuple[bool, str], int] = field(default_factory=dict)
    """Producers by (transactional, name)."""
    sequences: dict[tuple[int, int, int], Sequences] = field(default_factory=dict)
    """By producer, topic and partition."""
    transactions: dict[int, TransactionState] = field(default_factory=dict)
    """The open ones, by producer."""
    markers: Markers = field(default_factory=Markers)
    """How far those have come who commit transactions together, by their name."""
    groups: dict[str, Group] = field(default_factory=dict)
    offsets: dict[tuple[str, int, int], CommittedOffset] = field(default_factory=dict)
    """Committed offsets by group, topic and partition."""
    tokens: dict[str, Token] = field(default_factory=dict)
    """By id."""
    rules: dict[tuple[str, str, str], bool] = field(default_factory=dict)
    """What roles may do, by role, action and pattern; each is True."""
    grants: dict[tuple[str, str], bool] = field(default_factory=dict)
    """Who has which role, by principal and role; each is True."""
    denials: dict[tuple[str, str, str], bool] = field(default_factory=dict)
    """What roles must not do, by role, action and pattern; each is True."""
    numbers: dict[str, int] = field(
        default_factory=lambda: {
            "applied": 0,
            "topic": 1,
            "producer": 1,
            "segment": 1,
            "staged": 1,
            "access": 0,
        }
    )
    """The last applied index, the next id of each kind, and how often access was changed."""

    def copy(self) -> State:
        """Take a copy that stays as it is."""
        return State(**{name: value.copy() for name, value in vars(self).items()})

    def topic(self, name: str) -> Topic | None:
        """Find a topic by its name."""
        topic_id = self.names.get(name)
        return None if topic_id is None else self.topics.get(topic_id)


class _Document(Struct, kw_only=True):
    """A state as it is written: lists of values, with their keys where they do not hold them."""

    topics: tuple[Topic, ...]
    partitions: tuple[tuple[int, int, int, int, int, tuple[Segment, ...], int], ...]
    producers: tuple[ProducerState, ...]
    sequences: tuple[tuple[int, int, int, int, tuple[tuple[int, int, int], ...]], ...]
    transactions: tuple[TransactionState, ...]
    markers: tuple[tuple[str, NonNegative, int, NonNegative], ...] | None = None
    groups: tuple[tuple[str, int, tuple[tuple[int, int, str], ...]], ...]
    offsets: tuple[tuple[str, int, int, int, int], ...]
    tokens: tuple[Token, ...] | None = None
    rules: tuple[tuple[str, str, str], ...] | None = None
    grants: tuple[tuple[str, str], ...] | None = None
    denials: tuple[tuple[str, str, str], ...] | None = None
    numbers: tuple[tuple[str, int], ...]


_DECODER: Final = msgpack.Decoder(_Document)


def encode_state(state: State) -> bytes:
    """Return a state as bytes: equal states give equal bytes."""
    document = _Document(
        topics=tuple(state.topics[key] for key in sorted(state.topics)),
        partitions=tuple((*key, *state.partitions[key]) for key in sorted(state.partitions)),
        producers=tuple(state.producers[key] for key in sorted(state.producers)),
        sequences=tuple((*key, *state.sequences[key]) for key in sorted(state.sequences)),
        transactions=tuple(state.transactions[key] for key in sorted(state.transactions)),
        markers=tuple((key, *state.markers[key]) for key in sorted(state.markers)),
        groups=tuple((key, *state.groups[key]) for key in sorted(state.groups)),
        offsets=tuple((*key, *state.offsets[key]) for key in sorted(state.offsets)),
        tokens=tuple(state.tokens[key] for key in sorted(state.tokens)),
        rules=tuple(sorted(state.rules)),
        grants=tuple(sorted(state.grants)),
        denials=tuple(sorted(state.denials)),
        numbers=tuple(sorted(state.numbers.items())),
    )
    body: bytes = _HEAD.pack(MAGIC, VERSION) + encode_values(document)
    return body + _TAIL.pack(len(body), crc32c(body), MAGIC)


def decode_state(data: bytes, source: object) -> State:
    """Return the state of a snapshot's bytes; `source` names them in an error."""
    version, body = _body(data, source)
    try:
        document = _DECODER.decode(body)
        for name, since in _SINCE.items():
            if version < since:
                setattr(document, name, ())
            elif getattr(document, name) is None:
                raise ValueError(f"it has no {name}")
        return _state(document, version)
    except (ValueError, RecursionError) as error:
        raise CorruptionError("a snapshot cannot be read", file=source, cause=error) from error


def _body(data: bytes, source: object) -> tuple[int, memoryview]:
    """Return the version and the document of a snapshot whose checksum is right."""
    if len(data) < _HEAD.size + _TAIL.size:
        raise CorruptionError("a snapshot is too short", file=source, bytes=len(data))
    magic, version = _HEAD.unpack_from(data)
    length, checksum, end = _TAIL.unpack_from(data, len(data) - _TAIL.size)
    body = memoryview(data)[: -_TAIL.size]
    if end != MAGIC or length != len(body):
        raise CorruptionError(
            "a snapshot is cut short", file=source, bytes=len(body), bytes_written=length
        )
    if crc32c(body) != checksum:
        raise CorruptionError("a snapshot is damaged", file=source, checksum=f"{checksum:08x}")
    if magic != MAGIC:
        raise CorruptionError("this is not a snapshot", file=source)
    if version > VERSION:
        raise FormatTooNewError(
            "a snapshot was written by a newer version", file=source, version=version
        )
    return version, body[_HEAD.size :]


def _state(document: _Document, version: int) -> State:
    state = State()
    state.topics = {topic.id: topic for topic in document.topics}
    state.names = {topic.name: topic.id for topic in document.topics}
    for topic, partition, low, end, flushed, segments, compacted_to in document.partitions:
        state.partitions[(topic, partition)] = Partition(low, end, flushed, segments, compacted_to)
    for producer in document.producers:
        state.producers[producer.id] = producer
        if producer.named:
            state.producer_names[(producer.transactional, producer.name)] = producer.id
    for producer_id, topic, partition, epoch, batches in document.sequences:
        state.sequences[(producer_id, topic, partition)] = Sequences(epoch, batches)
    state.transactions = {
        transaction.producer: transaction for transaction in document.transactions
    }
    state.markers = Markers((name, Marker(*values)) for name, *values in document.markers or ())
    for name, generation, owners in document.groups:
        state.groups[name] = Group(generation, owners)
    for name, topic, partition, offset, time_us in document.offsets:
        state.offsets[(name, topic, partition)] = CommittedOffset(offset, time_us)
    state.tokens = {token.id: token for token in document.tokens or ()}
    state.rules = dict.fromkeys(document.rules or (), True)
    state.grants = dict.fromkeys(document.grants or (), True)
    state.denials = dict.fromkeys(document.denials or (), True)
    state.numbers = dict(document.numbers)
    if version < _SINCE["rules"]:
        state.numbers["access"] = 0
    if set(state.numbers) != set(State().numbers):
        raise ValueError("numbers are missing")
    return state
