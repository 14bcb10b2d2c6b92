"""Rows and lists of Python values, turned into Arrow arrays.

Python values must be looked at one by one; only this module and those for JSON do.
"""

from __future__ import annotations

import datetime
import functools
import struct
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import pyarrow as pa
from pyarrow import types

from lakebed import limits
from lakebed.errors import EntryTooLargeError, RecordTooLargeError
from lakebed.topic.columns import mismatch
from lakebed.topic.schema import HEADERS
from lakebed.topic.times import check_micros

_EPOCH: Final = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_MICROSECOND: Final = datetime.timedelta(microseconds=1)
_KNOWN: Final = frozenset(["value", "key", "headers", "timestamp", "partition", "offset"])
_PLAIN: Final = (bytes, str, bytearray, memoryview)
_BINARY: Final = pa.binary()
_TROUBLE: Final = (pa.ArrowException, TypeError, ValueError, OverflowError, AttributeError)


class Lists(NamedTuple):
    """Records taken apart into one list for each column; None where no record has any."""

    values: list[Any]
    keys: list[Any] | None
    headers: list[Any] | None
    timestamps: list[int] | int


def lists_of(rows: Sequence[Any], now_us: int, *, raw: bool) -> Lists:
    """Take rows apart; a row of a raw topic may be the plain value."""
    if raw and all(isinstance(row, _PLAIN) for row in rows):
        return Lists(list(rows), None, None, now_us)
    dictionaries = [_dictionary(row, row_number, raw=raw) for row_number, row in enumerate(rows)]
    names = set[str]().union(*dictionaries)
    for name in sorted(names - _KNOWN, key=str):
        raise mismatch(str(name), "one of value, key, headers, timestamp", "an unknown name")
    times = _column(dictionaries, names, "timestamp")
    timestamps = now_us if times is None else [_micros(time, now_us) for time in times]
    if isinstance(timestamps, list):
        check_micros(timestamps)
    return Lists(
        _values(dictionaries),
        _column(dictionaries, names, "key"),
        _column(dictionaries, names, "headers"),
        timestamps,
    )


def _dictionary(row: Any, row_number: int, *, raw: bool) -> dict[str, Any]:
    if isinstance(row, dict):
        return row
    if raw and isinstance(row, _PLAIN):
        return {"value": row}
    expected = "a dictionary, bytes or text" if raw else "a dictionary"
    raise mismatch("value", expected, type(row).__name__, row=row_number)


def _values(rows: list[dict[str, Any]]) -> list[Any]:
    try:
        return [row["value"] for row in rows]
    except KeyError:
        row_number = next(row_number for row_number, row in enumerate(rows) if "value" not in row)
        raise mismatch(
            "value", "a value, or None to delete the key", "no such name", row=row_number
        ) from None


def _column(rows: list[dict[str, Any]], names: set[str], name: str) -> list[Any] | None:
    return [row.get(name) for row in rows] if name in names else None


def _micros(time: Any, now_us: int) -> int:
    if time is None:
        return now_us
    if isinstance(time, datetime.datetime):
        zoned = time if time.tzinfo is not None else time.replace(tzinfo=datetime.UTC)
        return (zoned - _EPOCH) // _MICROSECOND
    if isinstance(time, int) and not isinstance(time, bool):
        return time
    raise mismatch("timestamp", "a datetime or int microseconds", type(time).__name__)


def array(values: Sequence[Any], kind: pa.DataType, column: str) -> pa.Array:
    """Return an array of this type, or say which row does not fit it."""
    if len(values) == 1 and kind == _BINARY and type(values[0]) is bytes:
        return _one_binary(values[0])
    try:
        built = pa.array(values, kind)
    except _TROUBLE as error:
        raise _offender(values, kind, column, error) from error
    if isinstance(built, pa.ChunkedArray):
        raise EntryTooLargeError("the batch does not fit into one entry: split it", column=column)
    return built


def _one_binary(value: bytes) -> pa.Array:
    """Return an array of one value, for the producer of single records; the value is not copied."""
    if len(value) > limits.RECORD_BYTES_MAX:
        raise RecordTooLargeError(
            "a record is too large", row=0, bytes=len(value), bytes_max=limits.RECORD_BYTES_MAX
        )
    offsets = pa.py_buffer(struct.pack("=ii", 0, len(value)))
    return pa.Array.from_buffers(_BINARY, 1, [None, offsets, pa.py_buffer(value)], 0)


def _offender(values: Sequence[Any], kind: pa.DataType, column: str, error: Exception) -> Exception:
    for row, value in enumerate(values):
        try:
            pa.array([value], kind)
        except _TROUBLE as cause:
            return mismatch(column, kind, type(value).__name__, row=row, why=cause)
    return mismatch(column, kind, "values that do not fit together", why=error)


def headers_array(headers: Sequence[Any]) -> pa.Array:
    """Return the headers of each record, each a dictionary or None."""
    for row, header in enumerate(headers):
        if header is not None and not isinstance(header, dict):
            expected = "a dictionary of text to bytes"
            raise mismatch("headers", expected, type(header).__name__, row=row)
    pairs = [None if header is None else list(header.items()) for header in headers]
    return array(pairs, HEADERS, "headers")


def value_array(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    """Return the values of a raw topic (bytes or text) or of a typed one (dictionaries)."""
    if types.is_struct(kind):
        _check(values, kind, "value")
    return array(values, kind, "value")


def _check(values: Sequence[Any], kind: pa.DataType, path: str) -> None:
    """Refuse what Arrow would change or leave out without a word.

    That is names which the schema does not have, fractions of integers, text as a list of its
    letters, and true as 1.0.
    """
    if types.is_struct(kind):
        _check_struct(values, kind, path)
    elif types.is_list(kind):
        _check(_elements(values, kind, path), kind.value_type, path)
    elif types.is_map(kind):
        _check(_items(values, kind, path), kind.item_type, path)
    elif types.is_integer(kind):
        if float in set(map(type, values)):
            _check_whole(values, kind, path)
    elif types.is_floating(kind) and bool in set(map(type, values)):
        raise mismatch(path, kind, "bool")


def _check_whole(values: Sequence[Any], kind: pa.DataType, path: str) -> None:
    for value in values:
        if type(value) is float and not value.is_integer():
            raise mismatch(path, kind, f"float {value}")


def _elements(values: Sequence[Any], kind: pa.DataType, path: str) -> list[Any]:
    if not {str, bytes}.isdisjoint(map(type, values)):
        raise mismatch(path, kind, "a value that is no list")
    try:
        return [element for value in values if value is not None for element in value]
    except TypeError as error:
        raise mismatch(path, kind, "a value that is no list") from error


def _items(values: Sequence[Any], kind: pa.DataType, path: str) -> list[Any]:
    pairs = [value.items() if isinstance(value, dict) else value for value in values]
    try:
        return [item for _, item in _elements(pairs, kind, path)]
    except (TypeError, ValueError) as error:
        raise mismatch(path, kind, "a value that is no list of pairs") from error


def _check_struct(values: Sequence[Any], kind: pa.StructType, path: str) -> None:
    present = [value for value in values if value is not None]
    try:
        names = set[str]().union(*map(dict.keys, present))
    except TypeError:
        got = next(type(value).__name__ for value in present if not isinstance(value, dict))
        raise mismatch(path, f"a dictionary for {kind}", got) from None
    field_names, careful = _fields_of(kind)
    for name in sorted(names - field_names, key=str):
        raise mismatch(f"{path}.{name}", "no such field", "a value")
    for field in careful:
        children = [value.get(field.name) for value in present]
        _check(children, field.type, f"{path}.{field.name}")


@functools.lru_cache(maxsize=1024)
def _fields_of(kind: pa.StructType) -> tuple[frozenset[str], list[pa.Field]]:
    """Return the names of a struct's fields, and those fields whose values have to be looked at."""
    names = frozenset(field.name for field in kind)
    return names, [field for field in kind if _is_careful(field.type)]


def _is_careful(kind: pa.DataType) -> bool:
    return bool(
        types.is_struct(kind)
        or types.is_list(kind)
        or types.is_map(kind)
        or types.is_integer(kind)
        or types.is_floating(kind)
    )
