"""Readers and writers of messages, compiled from the schemas that `kio` has as dataclasses.

A request is read into named tuples, an answer is written from dictionaries: what a version does not
have is left out, and what a dictionary lacks has the schema's default, so one dictionary serves
every version. Error codes are numbers, times are milliseconds, UUIDs are 16 bytes.

kio's own reader is not used: it allocates as many elements as an array announces before it looks at
them, and a request of ten bytes that announces 2^32 of them ends the process. Here an array
announces at most as many elements as bytes follow it, and `ELEMENTS_MAX` in a request.
"""

from __future__ import annotations

import struct
import types
import typing
from collections import namedtuple
from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from datetime import timedelta
from functools import cache
from pkgutil import resolve_name
from typing import Any, Final

from kio.schema.index import api_key_map, schema_name_map
from kio.static.constants import EntityType

ELEMENTS_MAX: Final = 100_000
"""Elements of all arrays of a request."""
_VARINT_BYTES_MAX: Final = 5
_NO_UUID: Final = bytes(16)


class BadRequestError(Exception):
    """A request is not one of the protocol: its connection is closed."""


class KafkaFrame:
    """The bytes of a request, and how many elements it may have yet."""

    __slots__ = ("data", "left")

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.left = ELEMENTS_MAX

    def count(self, count: int, position: int) -> int:
        """Check the announced length of an array that begins at a position."""
        self.left -= count
        if count > len(self.data) - position or self.left < 0:
            raise BadRequestError("an array is longer than the request allows")
        return count


Reader = Callable[[KafkaFrame, int], tuple[Any, int]]
Writer = Callable[[bytearray, Any], None]


# Reading


def read_varint(data: bytes, start: int) -> tuple[int, int]:
    """Read an unsigned varint of at most 32 bits."""
    value = shift = 0
    for position in range(start, start + _VARINT_BYTES_MAX):
        byte = data[position]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position + 1
        shift += 7
    raise BadRequestError("a varint is too long")


def _take(frame: KafkaFrame, position: int, length: int) -> tuple[bytes, int]:
    end = position + length
    if length < 0 or end > len(frame.data):
        raise BadRequestError("a value is longer than its request")
    return frame.data[position:end], end


def _text(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError as error:
        raise BadRequestError("a text is not UTF-8") from error


def _number_reader(form: str) -> Reader:
    layout = struct.Struct(form)
    unpack, size = layout.unpack_from, layout.size

    def read(frame: KafkaFrame, position: int) -> tuple[Any, int]:
        return unpack(frame.data, position)[0], position + size

    return read


def _length_prefixed_reader(form: str, *, compact: bool, text: bool) -> Reader:
    """Return a reader of text or bytes whose length comes first; a negative one is null."""
    layout = struct.Struct(form)

    def read(frame: KafkaFrame, position: int) -> tuple[Any, int]:
        if compact:
            length, position = read_varint(frame.data, position)
            length -= 1
        else:
            length, position = layout.unpack_from(frame.data, position)[0], position + layout.size
        if length < 0:
            return None, position
        value, position = _take(frame, position, length)
        return (_text(value) if text else value), position

    return read


def _read_uuid(frame: KafkaFrame, position: int) -> tuple[bytes, int]:
    return _take(frame, position, 16)


def _read_bool(frame: KafkaFrame, position: int) -> tuple[bool, int]:
    return frame.data[position] != 0, position + 1


def _not_null(read: Reader, name: str) -> Reader:
    def check(frame: KafkaFrame, position: int) -> tuple[Any, int]:
        value, position = read(frame, position)
        if value is None:
            raise BadRequestError(f"{name} is null")
        return value, position

    return check


def _array_reader(item: Reader, *, compact: bool) -> Reader:
    def read(frame: KafkaFrame, position: int) -> tuple[Any, int]:
        if compact:
            count, position = read_varint(frame.data, position)
            count -= 1
        else:
            count, position = struct.unpack_from(">i", frame.data, position)[0], position + 4
        if count < 0:
            return None, position
        items = []
        for _ in range(frame.count(count, position)):
            value, position = item(frame, position)
            items.append(value)
        return tuple(items), position

    return read


# Writing


def write_varint(out: bytearray, value: int) -> None:
    """Write an unsigned varint."""
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)


def _number_writer(form: str) -> Writer:
    pack = struct.Struct(form).pack

    def write(out: bytearray, value: Any) -> None:
        out += pack(value)

    return write


def _length_prefixed_writer(form: str, *, compact: bool) -> Writer:
    pack = struct.Struct(form).pack

    def write(out: bytearray, value: Any) -> None:
        if value is None:
            out += b"\0" if compact else pack(-1)
            return
        data = value.encode() if isinstance(value, str) else value
        if compact:
            write_varint(out, len(data) + 1)
        else:
            out += pack(len(data))
        out += data

    return write


def _write_uuid(out: bytearray, value: Any) -> None:
    out += value or _NO_UUID


def _write_bool(out: bytearray, value: Any) -> None:
    out.append(1 if value else 0)


def _array_writer(item: Writer, *, compact: bool) -> Writer:
    pack = struct.Struct(">i").pack

    def write(out: bytearray, values: Any) -> None:
        count = -1 if values is None else len(values)
        if compact:
            write_varint(out, count + 1)
        else:
            out += pack(count)
        for value in values or ():
            item(out, value)

    return write


# Schemas

_FORMS: Final = {
    "int8": ">b",
    "int16": ">h",
    "int32": ">i",
    "int64": ">q",
    "uint16": ">H",
    "uint32": ">I",
    "float64": ">d",
    "error_code": ">h",
    "timedelta_i32": ">i",
    "timedelta_i64": ">q",
    "datetime_i64": ">q",
}
_SIZED: Final = {"string": ">h", "bytes": ">i", "records": ">i"}


class _Shape(typing.NamedTuple):
    """What a field is: of which kind, an array or not, null or not, under which tag."""

    kind: Any
    """The name of a primitive type, or a dataclass."""
    is_array: bool
    is_nullable: bool
    tag: int | None


def _shape(field: Field[Any]) -> _Shape:
    kind: Any = field.type
    nullable = is_array = False
    if isinstance(kind, types.UnionType):
        options = typing.get_args(kind)
        nullable = types.NoneType in options
        kind = next(option for option in options if option is not types.NoneType)
    if typing.get_origin(kind) is tuple:
        is_array, kind = True, typing.get_args(kind)[0]
        if isinstance(kind, types.UnionType):
            kind = next(
                argument for argument in typing.get_args(kind) if argument is not types.NoneType
            )
    if not is_dataclass(kind):
        kind = field.metadata["kafka_type"]
    return _Shape(kind, is_array, nullable, field.metadata.get("tag"))


def _default(field: Field[Any], shape: _Shape) -> Any:
    """Return the default of a field as a dictionary would have it."""
    if field.default is not MISSING:
        value = field.default
        if isinstance(value, timedelta):
            return int(value.total_seconds() * 1000)
        if value is None and shape.kind == "datetime_i64":
            return -1
        return int(value) if isinstance(value, int) and not isinstance(value, bool) else value
    if shape.is_array:
        return None if shape.is_nullable else ()
    if shape.is_nullable or shape.kind == "uuid":
        return -1 if shape.kind == "datetime_i64" else None
    if is_dataclass(shape.kind):
        return {}
    return {"string": "", "bytes": b"", "records": None, "bool": False}.get(shape.kind, 0)


def _primitive_reader(kind: str, *, flexible: bool) -> Reader:
    if kind in _FORMS:
        return _number_reader(_FORMS[kind])
    if kind in _SIZED:
        return _length_prefixed_reader(_SIZED[kind], compact=flexible, text=kind == "string")
    return {"uuid": _read_uuid, "bool": _read_bool}[kind]


def _primitive_writer(kind: str, *, flexible: bool) -> Writer:
    if kind in _FORMS:
        return _number_writer(_FORMS[kind])
    if kind in _SIZED:
        return _length_prefixed_writer(_SIZED[kind], compact=flexible)
    return {"uuid": _write_uuid, "bool": _write_bool}[kind]


def _field_reader(field: Field[Any], shape: _Shape, *, flexible: bool) -> Reader:
    if is_dataclass(shape.kind):
        entity: Any = shape.kind
        read = compile_reader(entity)
        if shape.is_nullable and not shape.is_array:
            read = _nullable_reader(read)
    else:
        read = _primitive_reader(shape.kind, flexible=flexible)
        if shape.is_array and shape.kind in _SIZED:
            read = _not_null(read, field.name)
    if shape.is_array:
        read = _array_reader(read, compact=flexible)
    needs = shape.is_array or shape.kind in _SIZED
    return _not_null(read, field.name) if needs and not shape.is_nullable else read


def _nullable_reader(read: Reader) -> Reader:
    def read_or_null(frame: KafkaFrame, position: int) -> tuple[Any, int]:
        return (None, position + 1) if frame.data[position] == 0xFF else read(frame, position + 1)

    return read_or_null


def _nullable_writer(write: Writer) -> Writer:
    def write_or_null(out: bytearray, value: Any) -> None:
        if value is None:
            out += b"\xff"
        else:
            out += b"\x01"
            write(out, value)

    return write_or_null


def _field_writer(shape: _Shape, *, flexible: bool) -> Writer:
    if is_dataclass(shape.kind):
        entity: Any = shape.kind
        write = compile_writer(entity)
        if shape.is_nullable and not shape.is_array:
            write = _nullable_writer(write)
    else:
        write = _primitive_writer(shape.kind, flexible=flexible)
    return _array_writer(write, compact=flexible) if shape.is_array else write


@cache
def compile_reader(entity: Any) -> Reader:
    """Return the reader of a message or a part of one."""
    flexible: bool = entity.__flexible__
    plain: list[Reader] = []
    tagged: dict[int, tuple[int, Reader]] = {}
    defaults: list[Any] = []
    entity_fields = fields(entity)
    made = namedtuple(entity.__name__, [field.name for field in entity_fields])  # type: ignore[misc]
    order = [index for index, field in enumerate(entity_fields) if "tag" not in field.metadata]
    for index, field in enumerate(entity_fields):
        shape = _shape(field)
        read = _field_reader(field, shape, flexible=flexible)
        defaults.append(_default(field, shape))
        if shape.tag is None:
            plain.append(read)
        else:
            tagged[shape.tag] = (index, read)

    def read_entity(frame: KafkaFrame, position: int) -> tuple[Any, int]:
        values = list(defaults)
        for index, read in zip(order, plain, strict=True):
            values[index], position = read(frame, position)
        if flexible:
            count, position = read_varint(frame.data, position)
            for _ in range(frame.count(count, position)):
                tag, position = read_varint(frame.data, position)
                size, position = read_varint(frame.data, position)
                if tag in tagged:
                    index, read = tagged[tag]
                    values[index], _end = read(frame, position)
                _, position = _take(frame, position, size)
        return made(*values), position

    return read_entity


@cache
def compile_writer(entity: Any) -> Writer:
    """Return the writer of a message or a part of one."""
    flexible: bool = entity.__flexible__
    plain: list[tuple[str, Writer, Any]] = []
    tagged: list[tuple[int, str, Writer, Any]] = []
    for field in fields(entity):
        shape = _shape(field)
        write = _field_writer(shape, flexible=flexible)
        default = _default(field, shape)
        if shape.tag is None:
            plain.append((field.name, write, default))
        else:
            tagged.append((shape.tag, field.name, write, default))
    tagged.sort(key=lambda tag: tag[0])

    def write_entity(out: bytearray, values: Mapping[str, Any]) -> None:
        for name, write, default in plain:
            write(out, values.get(name, default))
        if flexible:
            _write_tags(out, values, tagged)

    return write_entity


def _write_tags(
    out: bytearray, values: Mapping[str, Any], tagged: list[tuple[int, str, Writer, Any]]
) -> None:
    present = [tag for tag in tagged if values.get(tag[1], tag[3]) != tag[3]]
    write_varint(out, len(present))
    for tag, name, write, _ in present:
        value = bytearray()
        write(value, values[name])
        write_varint(out, tag)
        write_varint(out, len(value))
        out += value


@cache
def request_reader(key: int, version: int) -> tuple[Reader, bool]:
    """Return the reader of a request, and whether its header has tags."""
    entity: Any = resolve_name(schema_name_map[api_key_map[key]][version][EntityType.request])
    return compile_reader(entity), bool(entity.__flexible__)


@cache
def answer_writer(key: int, version: int) -> tuple[Writer, bool]:
    """Return the writer of an answer, and whether its header has tags."""
    entity: Any = resolve_name(schema_name_map[api_key_map[key]][version][EntityType.response])
    return compile_writer(entity), bool(entity.__flexible__)
