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
from typing import Any, Final

import msgpack
from crc32c import crc32c

from lakebed.errors import CorruptionError, FormatTooNewError
from lakebed.state.command_codec import marker, segment, texts, token
from lakebed.state.owned import Markers, Producers
from lakebed.state.values import (
    CommittedOffset,
    Group,
    Part,
    Partition,
    Pending,
    ProducerState,
    Run,
    Sequences,
    Token,
    Topic,
    TransactionState,
)

MAGIC: Final = b"LKBSNAP\n"
VERSION: Final = 4
_ACCESS_VERSION: Final = 2
"""The first version with tokens, rules and grants; earlier ones have none."""
_MARKERS_VERSION: Final = 3
"""The first version with markers."""
_DENIALS_VERSION: Final = 4
"""The first version with denials."""
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
        number = self.names.get(name)
        return None if number is None else self.topics.get(number)


def encode_state(state: State) -> bytes:
    """Return a state as bytes: equal states give equal bytes."""
    document = {
        "topics": [state.topics[key] for key in sorted(state.topics)],
        "partitions": [[*key, *state.partitions[key]] for key in sorted(state.partitions)],
        "producers": [state.producers[key] for key in sorted(state.producers)],
        "sequences": [[*key, *state.sequences[key]] for key in sorted(state.sequences)],
        "transactions": [state.transactions[key] for key in sorted(state.transactions)],
        "markers": [[key, *state.markers[key]] for key in sorted(state.markers)],
        "groups": [[key, *state.groups[key]] for key in sorted(state.groups)],
        "offsets": [[*key, *state.offsets[key]] for key in sorted(state.offsets)],
        "tokens": [state.tokens[key] for key in sorted(state.tokens)],
        "rules": sorted(state.rules),
        "grants": sorted(state.grants),
        "denials": sorted(state.denials),
        "numbers": [[key, state.numbers[key]] for key in sorted(state.numbers)],
    }
    body: bytes = _HEAD.pack(MAGIC, VERSION) + msgpack.packb(document)
    return body + _TAIL.pack(len(body), crc32c(body), MAGIC)


def decode_state(data: bytes, source: object) -> State:
    """Return the state of a snapshot's bytes; `source` names them in an error."""
    version, document = _document(data, source)
    try:
        if version < _ACCESS_VERSION:
            document = {**document, "tokens": (), "rules": (), "grants": ()}
            document["numbers"] = (*document["numbers"], ("access", 0))
        if version < _MARKERS_VERSION:
            document = {**document, "markers": ()}
        if version < _DENIALS_VERSION:
            document = {**document, "denials": ()}
        return _state(document)
    except (ValueError, TypeError, KeyError, IndexError, AttributeError) as error:
        raise CorruptionError("a snapshot cannot be read", file=source, cause=error) from error


def _document(data: bytes, source: object) -> tuple[int, dict[str, Any]]:
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
    try:
        document = msgpack.unpackb(
            body[_HEAD.size :], use_list=False, max_str_len=len(data), max_bin_len=len(data)
        )
    except (ValueError, msgpack.UnpackException) as error:
        raise CorruptionError("a snapshot cannot be read", file=source, cause=error) from error
    if not isinstance(document, dict):
        raise CorruptionError("a snapshot is not a document", file=source)
    return version, document


def _state(document: dict[str, Any]) -> State:
    state = State()
    for values in document["topics"]:
        topic = Topic(*values)
        state.topics[topic.id] = topic
        state.names[topic.name] = topic.id
    for number, partition, low, end, flushed, segments, compacted_to in document["partitions"]:
        state.partitions[(number, partition)] = Partition(
            low, end, flushed, tuple(map(segment, segments)), compacted_to
        )
    for values in document["producers"]:
        producer = ProducerState(*values)
        state.producers[producer.id] = producer
        if producer.named:
            state.producer_names[(producer.transactional, producer.name)] = producer.id
    for producer_id, number, partition, epoch, batches in document["sequences"]:
        state.sequences[(producer_id, number, partition)] = Sequences(epoch, batches)
    for values in document["transactions"]:
        transaction = _transaction(values)
        state.transactions[transaction.producer] = transaction
    state.markers = Markers(map(marker, document["markers"]))
    for name, generation, owners in document["groups"]:
        state.groups[name] = Group(generation, owners)
    for name, number, partition, offset, time_us in document["offsets"]:
        state.offsets[(name, number, partition)] = CommittedOffset(offset, time_us)
    for values in document["tokens"]:
        made = token(values)
        state.tokens[made.id] = made
    for values in document["rules"]:
        role, action, pattern = texts(values, 3)
        state.rules[(role, action, pattern)] = True
    for values in document["denials"]:
        role, action, pattern = texts(values, 3)
        state.denials[(role, action, pattern)] = True
    for values in document["grants"]:
        principal, role = texts(values, 2)
        state.grants[(principal, role)] = True
    state.numbers = dict(document["numbers"])
    if set(state.numbers) != set(State().numbers):
        raise ValueError("numbers are missing")
    return state


def _transaction(values: Any) -> TransactionState:
    producer, epoch, started_us, timeout_us, pending, offsets = values
    return TransactionState(
        producer, epoch, started_us, timeout_us, tuple(map(_pending, pending)), offsets
    )


def _pending(values: Any) -> Pending:
    index, number, part, staged, position, checksum = values
    topic, schema, runs, body_bytes = part
    made = Part(topic, schema, tuple(Run(*run) for run in runs), body_bytes)
    return Pending(index, number, made, staged, position, checksum)
