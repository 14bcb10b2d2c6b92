"""The form of commands: each is the payload of an entry.

    version u8 | kind u8 | reserved u16 | envelope length u32 | envelope, msgpack | zeros to 64 |
    body 0 | zeros to 64 | body 1 | ...

Numbers of the head are little endian. The envelope is a msgpack array of the command's fields in
order: integers, text, bytes and arrays of these. Bodies are Arrow IPC messages of one record
batch each; the envelope's parts say how long each is. Everything that a command needs to be applied
comes with it: times and names are chosen by whoever writes it, ids and offsets follow from the
state. Bodies begin at multiples of 64 bytes, so that Arrow's buffers can be used where they lie.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

import msgpack

from lakebed.errors import CorruptionError, FormatTooNewError
from lakebed.state.commands import (
    AbortTransaction,
    AddPartitions,
    AlterTopic,
    BeginTransaction,
    ChangeGroup,
    Command,
    CommitOffsets,
    CommitTogether,
    CommitTransaction,
    CreateTopic,
    DeleteGroup,
    DeleteTopic,
    ExpireProducers,
    Flush,
    ForgetProducer,
    PlaceSegments,
    ProducerWrite,
    PurgeTopic,
    PutToken,
    RegisterProducer,
    ReplaceSegments,
    RevokeToken,
    SetDenial,
    SetGrant,
    SetRule,
    StagedFile,
    TransactionWrite,
    Trim,
    Write,
    WriteMany,
    parts_of,
)
from lakebed.state.values import Marker, Part, Run, Segment, Token

if TYPE_CHECKING:
    from typing_extensions import Buffer


VERSION: Final = 1

_HEAD: Final = struct.Struct("<BBHI")

_PADDING: Final = tuple(bytes(-length & 63) for length in range(64))

_KINDS: Final[dict[int, type]] = {
    1: CreateTopic,
    2: AlterTopic,
    3: AddPartitions,
    4: DeleteTopic,
    5: PurgeTopic,
    6: Write,
    7: ProducerWrite,
    8: RegisterProducer,
    9: BeginTransaction,
    10: TransactionWrite,
    11: CommitTransaction,
    12: AbortTransaction,
    13: ExpireProducers,
    14: CommitOffsets,
    15: ChangeGroup,
    16: DeleteGroup,
    17: Flush,
    18: ReplaceSegments,
    19: Trim,
    20: ForgetProducer,
    21: PlaceSegments,
    22: PutToken,
    23: RevokeToken,
    24: SetRule,
    25: SetGrant,
    26: CommitTogether,
    27: SetDenial,
    28: WriteMany,
}

NUMBERS: Final = {kind: number for number, kind in _KINDS.items()}


def encode(command: Command, bodies: Sequence[Buffer] = ()) -> list[Buffer]:
    """Return a command as the parts of an entry's payload; bodies are not copied."""
    envelope = msgpack.packb(command)
    head = _HEAD.pack(VERSION, NUMBERS[type(command)], 0, len(envelope))
    parts: list[Buffer] = [head + envelope + _PADDING[(len(head) + len(envelope)) & 63]]
    for body in bodies:
        parts.append(body)
        padding = _PADDING[memoryview(body).nbytes & 63]
        if padding:
            parts.append(padding)
    return parts


def decode(payload: memoryview) -> tuple[Command, list[memoryview]]:
    """Return the command of an entry and its bodies, which are views."""
    if len(payload) < _HEAD.size:
        raise CorruptionError("an entry is too short for a command", bytes=len(payload))
    version, number, _, length = _HEAD.unpack_from(payload)
    if version > VERSION:
        raise FormatTooNewError("a command was written by a newer version", version=version)
    kind = _KINDS.get(number)
    if version != VERSION or kind is None or _HEAD.size + length > len(payload):
        raise CorruptionError("an entry is not a command", version=version, kind=number)
    try:
        fields = msgpack.unpackb(payload[_HEAD.size : _HEAD.size + length], use_list=False)
        command = _build(kind, fields)
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        raise CorruptionError(
            "a command cannot be read", kind=kind.__name__, cause=error
        ) from error
    start = (_HEAD.size + length + 63) & -64
    return command, _bodies(payload, start, parts_of(command))


def _bodies(payload: memoryview, start: int, parts: tuple[Part, ...]) -> list[memoryview]:
    bodies = []
    for part in parts:
        end = start + part.body_bytes
        if end > len(payload):
            raise CorruptionError(
                "an entry is shorter than its parts", bytes=len(payload), needed=end
            )
        bodies.append(payload[start:end])
        start = (end + 63) & -64
    return bodies


def _build(kind: type, fields: Any) -> Command:
    """Make a command of plain data, checking that it has the shape of one."""
    if kind is Write:
        time_us, parts = fields
        return Write(_whole(time_us), tuple(_part(each) for each in parts))
    shape = _SHAPES[kind]
    if not isinstance(fields, tuple) or len(fields) != len(shape):
        raise ValueError("wrong number of fields")
    command: Command = kind(*(check(field) for check, field in zip(shape, fields, strict=True)))
    return command


def _whole(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise ValueError("not an integer")
    return value


def _integer(value: Any) -> int:
    if type(value) is not int:
        raise ValueError("not an integer")
    return value


def _text(value: Any) -> str:
    if type(value) is not str:
        raise ValueError("not text")
    return value


def _bytes(value: Any) -> bytes:
    if type(value) is not bytes:
        raise ValueError("not bytes")
    return value


def _digest(value: Any) -> bytes:
    if len(_bytes(value)) != 32:
        raise ValueError("not a digest")
    return bytes(value)


def _present(value: Any) -> int:
    if type(value) is not int or value not in (0, 1):
        raise ValueError("neither 0 nor 1")
    return value


def _setting(value: Any) -> int | str:
    return value if type(value) is str else _integer(value)


Check = Callable[[Any], Any]


def _tuple_of(*checks: Check) -> Check:
    def check(value: Any) -> tuple[Any, ...]:
        if type(value) is not tuple or len(value) != len(checks):
            raise ValueError("wrong number of fields")
        return tuple(each(field) for each, field in zip(checks, value, strict=True))

    return check


def _many(check: Check) -> Check:
    def check_all(value: Any) -> tuple[Any, ...]:
        if type(value) is not tuple:
            raise ValueError("not a list")
        return tuple(map(check, value))

    return check_all


def _part(value: Any) -> Part:
    topic, schema, runs, body_bytes = value
    checked = tuple(Run(_whole(partition), _whole(records)) for partition, records in runs)
    return Part(_whole(topic), _whole(schema), checked, _whole(body_bytes))


def _claim(value: Any) -> tuple[int, ...]:
    """Take plain data as the claim of a run: none, or producer, epoch and first sequence."""
    return () if value == () else _tuple_of(_whole, _whole, _whole)(value)


def segment(value: Any) -> Segment:
    """Make a segment of plain data."""
    made = Segment(*value)
    if set(map(type, made)) != {int} or min(made[:7]) < 0:
        raise ValueError("not a segment")
    return made


def token(value: Any) -> Token:
    """Make a token of plain data."""
    name, principal, digest, created_us, expires_us, revoked_us = value
    return Token(
        _text(name),
        _text(principal),
        _digest(digest),
        _integer(created_us),
        _whole(expires_us),
        _integer(revoked_us),
    )


def marker(value: Any) -> tuple[str, Marker]:
    """Make a marker of plain data, with its name."""
    name, number, time_us, keep_us = value
    return _text(name), Marker(_whole(number), _integer(time_us), _whole(keep_us))


def texts(value: Any, count: int) -> tuple[str, ...]:
    """Take plain data as so many texts."""
    return _tuple_of(*(_text for _ in range(count)))(value)  # type: ignore[no-any-return]


def _staged(value: Any) -> StagedFile:
    number, producer, epoch, bodies = value
    checked = _many(_tuple_of(_whole, _whole, _whole, _whole))(bodies)
    return StagedFile(_whole(number), _whole(producer), _whole(epoch), checked)


_SETTINGS: Final = _many(_tuple_of(_text, _setting))

_OWNERS: Final = _many(_tuple_of(_whole, _whole, _text))

_OFFSETS: Final = _many(_tuple_of(_text, _text, _whole, _whole, _whole))

_SHAPES: Final[dict[type, tuple[Check, ...]]] = {
    CreateTopic: (_text, _whole, _bytes, _SETTINGS, _integer),
    AlterTopic: (_whole, _SETTINGS, _bytes, _whole),
    AddPartitions: (_whole, _whole),
    DeleteTopic: (_whole,),
    PurgeTopic: (_whole,),
    ProducerWrite: (_integer, _whole, _whole, _many(_whole), _part),
    WriteMany: (_integer, _many(_part), _many(_many(_claim))),
    RegisterProducer: (_text, _integer),
    BeginTransaction: (_text, _whole, _integer),
    TransactionWrite: (_whole, _whole, _integer, _many(_part)),
    CommitTransaction: (
        _whole,
        _whole,
        _integer,
        _many(_part),
        _OFFSETS,
    ),
    AbortTransaction: (_whole, _whole, _text),
    ExpireProducers: (_integer,),
    ForgetProducer: (_whole, _whole),
    CommitOffsets: (_text, _text, _many(_tuple_of(_whole, _whole, _whole)), _integer),
    ChangeGroup: (_text, _OWNERS),
    DeleteGroup: (_text,),
    Flush: (_many(_tuple_of(_whole, _whole, segment)), _many(_staged)),
    ReplaceSegments: (_whole, _whole, _many(_whole), _many(segment), _whole),
    Trim: (_whole, _many(_tuple_of(_whole, _whole))),
    PlaceSegments: (_many(_tuple_of(_whole, _whole, _whole, _whole)),),
    PutToken: (_text, _text, _digest, _integer, _whole),
    RevokeToken: (_text, _integer),
    SetRule: (_text, _text, _text, _present),
    SetGrant: (_text, _text, _present),
    SetDenial: (_text, _text, _text, _present),
    CommitTogether: (
        _text,
        _whole,
        _integer,
        _whole,
        _many(_tuple_of(_whole, _whole)),
        _OFFSETS,
    ),
}
