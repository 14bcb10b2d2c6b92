"""What client and server say to each other, beside Arrow's own messages.

Requests, replies and tickets are msgpack: numbers, text, bytes, lists, maps, and these extensions:

    1  one of the reports in `operations/results.py`: [name, {field: value}]
    2  an Arrow schema, as an IPC message
    3  a time: microseconds since 1970, UTC, as text
    4  an error: {code, message, facts}

Nothing that arrives can name anything else: no code, no class that is not listed here. A message
has at most `MESSAGE_BYTES_MAX` bytes, and is refused before it is taken apart.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import msgpack
import msgspec
import pyarrow as pa

from lakebed import errors, limits
from lakebed.errors import LakebedError, ProtocolError
from lakebed.operations.description import MESSAGE_BYTES_MAX
from lakebed.operations.results import REPORTS
from lakebed.wire.private_paths import without_paths
from lakebed.wire.received import check_text

VERSION: Final = 1
STREAM_REQUESTS_MAX: Final = 64
"""Requests of one put stream that are not acknowledged yet; the server reads none beyond them."""
REQUEST_ITEMS_MAX: Final = 1_000_000
"""The most items of a list or map in a request, unless its call allows fewer."""
_FACT_BYTES_MAX: Final = 400
_FACTS_MAX: Final = 10

_DEPTH_MAX: Final = 8
"""So deep may reports stand in reports."""
_EXTENSIONS: Final = (1, 2, 3, 4)
_REPORT, _SCHEMA, _TIME, _ERROR = _EXTENSIONS
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def pack(value: Any) -> bytes:
    """Return a value as bytes."""
    try:
        packed: bytes = msgpack.packb(value, default=_extension)
    except (TypeError, ValueError, OverflowError) as error:
        raise errors.InvalidArgumentError(
            "a value cannot be sent to a server", reason=str(error)
        ) from error
    return packed


def _extension(value: Any) -> Any:
    if isinstance(value, pa.Schema):
        return msgpack.ExtType(_SCHEMA, value.serialize().to_pybytes())
    if isinstance(value, datetime):
        since = (value if value.tzinfo else value.replace(tzinfo=UTC)) - _EPOCH
        return msgpack.ExtType(_TIME, str(since // timedelta(microseconds=1)).encode())
    if isinstance(value, LakebedError):
        return msgpack.ExtType(_ERROR, pack_error(value))
    if type(value).__name__ in REPORTS and dataclasses.is_dataclass(value):
        fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        return msgpack.ExtType(_REPORT, pack([type(value).__name__, fields]))
    if isinstance(value, set | frozenset):
        return sorted(value)
    raise TypeError(f"{type(value).__name__} has no form on the wire")


def unpack(data: Any) -> Any:
    """Return the value of bytes from outside; anything wrong is a `ProtocolError`."""
    return _unpack(_check_size(data), 0)


def unpack_request(data: Any, items_max: int = REQUEST_ITEMS_MAX) -> Any:
    """Return the value of a request, ticket or put message; only answers have reports and errors.

    No list or map of it has more than `items_max` items.
    """
    return _unpack(_check_size(data), 0, (_SCHEMA, _TIME), items_max)


def convert(value: Any, kind: Any, fault: str, **facts: object) -> Any:
    """Return a value that was sent as a value of a type, or raise `ProtocolError`."""
    try:
        return msgspec.convert(value, kind, builtin_types=(bytes, datetime))
    except msgspec.ValidationError as error:
        raise ProtocolError(fault, reason=str(error)[:200], **facts) from error


def _check_size(data: Any) -> Any:
    size = len(data)
    if size > MESSAGE_BYTES_MAX:
        raise ProtocolError("a message is too large", bytes=size, bytes_max=MESSAGE_BYTES_MAX)
    return data


def _unpack(
    data: Any,
    depth: int,
    extensions: tuple[int, ...] = _EXTENSIONS,
    items_max: int = MESSAGE_BYTES_MAX,
) -> Any:
    """Take a message apart that stands in so many others; each of them takes much of the stack."""
    if depth > _DEPTH_MAX:
        raise ProtocolError("a message is nested too deeply", depth_max=_DEPTH_MAX)
    try:
        return msgpack.unpackb(
            data,
            use_list=False,
            strict_map_key=False,
            max_array_len=items_max,
            max_map_len=items_max,
            ext_hook=lambda code, inner: _from_extension(code, inner, depth, extensions),
        )
    except ProtocolError:
        raise
    except (ValueError, TypeError, RecursionError, msgpack.UnpackException) as error:
        raise ProtocolError("a message cannot be read", reason=str(error)[:200]) from error


def _from_extension(code: int, data: bytes, depth: int, extensions: tuple[int, ...]) -> Any:
    if code not in extensions:
        raise ProtocolError("a message holds something unknown", extension=code)
    if code == _SCHEMA:
        return _schema(data)
    if code == _TIME:
        try:
            return _EPOCH + timedelta(microseconds=int(data))
        except (ValueError, OverflowError) as error:
            raise ProtocolError("not a time", reason=str(error)) from error
    if code == _ERROR:
        return unpack_error(data)
    return _report(_unpack(data, depth + 1))


def _schema(data: bytes) -> pa.Schema:
    if len(data) > limits.SCHEMA_BYTES_MAX:
        raise ProtocolError("a schema is too large", bytes=len(data))
    try:
        schema = pa.ipc.read_schema(pa.py_buffer(data))
    except (pa.ArrowException, OSError, ValueError, EOFError) as error:
        raise ProtocolError("not a schema", reason=str(error)[:200]) from error
    check_text(schema)
    return schema


def _report(value: Any) -> Any:
    try:
        name, fields = value
        kind = REPORTS[name]
    except (ValueError, TypeError, KeyError) as error:
        raise ProtocolError("not a report", reason=str(error)[:200]) from error
    return convert(fields, kind, "not a report")


# Errors


def _classes(kind: type[LakebedError]) -> Iterator[type[LakebedError]]:
    yield kind
    for below in kind.__subclasses__():
        yield from _classes(below)


def pack_error(error: LakebedError) -> bytes:
    """Return an error as bytes: its code, its message, its facts, none of them long.

    What a client sent may be a fact; an error travels in headers, which have little room.
    """
    facts = {
        name: value
        if isinstance(value, int | float | bool | None)
        else cut(without_paths(str(value)))
        for name, value in list(error.facts.items())[:_FACTS_MAX]
    }
    document = {"code": error.code, "message": cut(without_paths(error.message)), "facts": facts}
    packed: bytes = msgpack.packb(document, unicode_errors="replace", default=str)
    return packed


def cut(text: str) -> str:
    """Return a text as an error may carry it: not long, and valid Unicode."""
    data = text.encode("utf8", "replace")
    return data.decode() if len(data) <= _FACT_BYTES_MAX else f"{_head(data)}..."


def _head(data: bytes) -> str:
    return data[:_FACT_BYTES_MAX].decode("utf8", "ignore")


def unpack_error(data: bytes) -> LakebedError:
    """Return the error of bytes; one of a code that is not known here keeps its message."""
    try:
        document = msgpack.unpackb(data)
        code, message, facts = document["code"], str(document["message"]), dict(document["facts"])
        facts.pop("message", None)
        # Of those with the same code the first, which is the one that callers know.
        kind = next(
            (subclass for subclass in _classes(LakebedError) if subclass.code == code), None
        )
        if kind is None:
            return LakebedError(message, unknown_code=code, **facts)
        return kind(message, **facts)
    except (ValueError, TypeError, KeyError, msgpack.UnpackException) as error:
        return ProtocolError("an error cannot be read", reason=str(error)[:200])
