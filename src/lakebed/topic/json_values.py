"""Values as JSON and back, for the command line and HTTP.

Text is text. Bytes are text if they are UTF-8, otherwise `{"base64": "..."}`. Times are ISO 8601 in
UTC, dates ISO 8601, decimals text with every digit; of a double, what JSON has no number for is
`"NaN"`, `"Infinity"` or `"-Infinity"`. A map with text keys is an object, any other a list of
pairs. Coming in, a time may also be a number of microseconds since 1970, and a decimal a number.

A converter is made once for a type. None stands for the one that changes nothing.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal, InvalidOperation
from typing import Any, Final

import pyarrow as pa
from pyarrow import types

from lakebed.topic.times import text_of_days, text_of_micros

Converter = Callable[[Any], Any]

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_FLOATS: Final = {"NaN", "Infinity", "-Infinity"}
_TROUBLE: Final = (ValueError, TypeError, OverflowError, InvalidOperation, binascii.Error)

compact: Final = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
"""Return JSON without a byte too many."""


class UnfitError(ValueError):
    """A JSON value does not fit its type; the message says where and why."""


# Out


def bytes_to_json(value: bytes | None) -> object:
    """Return bytes as text if they are text."""
    if value is None:
        return None
    try:
        return value.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(value).decode()}


def date_to_json(value: date | int) -> str:
    """Return a date as text; one that `date` cannot hold comes as days since 1970."""
    return text_of_days(value) if isinstance(value, int) else value.isoformat()


def _time_out(kind: pa.DataType) -> Converter:
    """Make the converter of times; one that `datetime` cannot hold comes as microseconds."""
    zone = "Z" if kind.tz else ""
    return _unless_none(
        lambda time: text_of_micros(time) + zone if isinstance(time, int) else time_to_json(time)
    )


def time_to_json(value: datetime) -> str:
    """Return a time in UTC, or one without a time zone as it is."""
    text = value.strftime("%Y-%m-%dT%H:%M:%S.%f").rjust(26, "0")  # also before the year 1000
    return text if value.tzinfo is None else text + "Z"


def to_json(kind: pa.DataType) -> Converter | None:
    """Make the converter from what Arrow gives to what JSON can say."""
    if types.is_binary(kind):
        return bytes_to_json
    if types.is_timestamp(kind):
        return _time_out(kind)
    if types.is_date(kind):
        return _unless_none(date_to_json)
    if types.is_decimal(kind):
        return _unless_none(str)
    if types.is_floating(kind):
        return _float_out
    if types.is_list(kind):
        return _list(to_json(kind.value_type))
    if types.is_map(kind):
        return _map_out(kind)
    if types.is_struct(kind):
        return _struct({field.name: to_json(field.type) for field in kind})
    return None


def _unless_none(convert: Converter) -> Converter:
    return lambda value: None if value is None else convert(value)


def _float_out(value: float | None) -> object:
    if value is None or math.isfinite(value):
        return value
    return "NaN" if value != value else "Infinity" if value > 0 else "-Infinity"


def _list(element: Converter | None) -> Converter | None:
    if element is None:
        return None
    return lambda value: [element(item) for item in value] if isinstance(value, list) else value


def _map_out(kind: pa.MapType) -> Converter:
    key, item = to_json(kind.key_type) or _same, to_json(kind.item_type) or _same
    whole: Callable[[Any], Any] = dict if types.is_string(kind.key_type) else list
    return _unless_none(lambda pairs: whole([(key(name), item(value)) for name, value in pairs]))


def _same(value: Any) -> Any:
    return value


def _struct(fields: dict[str, Converter | None]) -> Converter | None:
    needed = {name: converter for name, converter in fields.items() if converter is not None}
    if not needed:
        return None

    def convert(value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        converted = {name: needed[name](value[name]) for name in needed if name in value}
        return {**value, **converted}

    return convert


# In


def bytes_from_json(value: Any) -> bytes | None:
    """Take bytes: text, `{"base64": "..."}`, or any other JSON value as its compact text."""
    if value is None:
        return None
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, dict) and value.keys() == {"base64"} and isinstance(value["base64"], str):
        try:
            return base64.b64decode(value["base64"], validate=True)
        except _TROUBLE as error:
            raise UnfitError(f"not base64: {error}") from None
    return compact(value).encode()


def time_from_json(value: Any) -> datetime:
    """Take a time: ISO 8601, UTC if it does not say, or microseconds since 1970."""
    if isinstance(value, int) and not isinstance(value, bool):
        return _EPOCH + timedelta(microseconds=value)
    if not isinstance(value, str):
        raise UnfitError("a time must be ISO 8601 text or microseconds since 1970")
    time = datetime.fromisoformat(value)
    return time if time.tzinfo else time.replace(tzinfo=UTC)


def from_json(kind: pa.DataType, path: str = "value") -> Converter | None:
    """Make the converter from JSON to what Arrow takes."""
    if types.is_list(kind):
        return _list_in(from_json(kind.value_type, path), path)
    if types.is_map(kind):
        return _map_in(kind, path)
    if types.is_struct(kind):
        return _struct(
            {field.name: from_json(field.type, f"{path}.{field.name}") for field in kind}
        )
    convert = _simple_in(kind)
    return None if convert is None else _name_path_in_errors(convert, path)


def _simple_in(kind: pa.DataType) -> Converter | None:
    if types.is_binary(kind):
        return bytes_from_json
    if types.is_timestamp(kind):
        return time_from_json if kind.tz else lambda value: _naive(time_from_json(value))
    if types.is_date(kind):
        return date.fromisoformat
    if types.is_decimal(kind):
        return _decimal
    if types.is_floating(kind):
        return _float_in
    if types.is_integer(kind):
        return _whole
    return None


def _float_in(value: Any) -> Any:
    if isinstance(value, bool):
        raise UnfitError(f"{value!r} is not a number")  # Arrow would take it for one
    return float(value) if value in _FLOATS else value


def _whole(value: Any) -> int:
    if type(value) is int:
        return value
    if isinstance(value, float) and value.is_integer():
        return int(value)
    raise UnfitError(f"{value!r} is not an integer")  # Arrow would cut off the rest


def _decimal(value: Any) -> Decimal:
    try:
        return Decimal(str(value))
    except InvalidOperation:
        raise UnfitError(f"{value!r} is not a number") from None


def _naive(value: datetime) -> datetime:
    return value.astimezone(UTC).replace(tzinfo=None)


def _name_path_in_errors(convert: Converter, path: str) -> Converter:
    """Wrap a converter so that its errors name the path of the value."""

    def convert_or_name_path(value: Any) -> Any:
        if value is None:
            return None
        try:
            return convert(value)
        except _TROUBLE as error:
            raise UnfitError(f"{path}: {error}") from None

    return convert_or_name_path


def _list_in(element: Converter | None, path: str) -> Converter:
    def convert(value: Any) -> Any:
        if not isinstance(value, list):  # Arrow would take a text for a list of its letters
            raise UnfitError(f"{path}: a list is expected")
        return value if element is None else [element(item) for item in value]

    return _unless_none(convert)


def _map_in(kind: pa.MapType, path: str) -> Converter:
    key = from_json(kind.key_type, path) or _same
    item = from_json(kind.item_type, path) or _same

    def convert(value: Any) -> Any:
        if isinstance(value, dict):
            value = list(value.items())
        if not isinstance(value, list) or not all(
            isinstance(pair, list | tuple) and len(pair) == 2 for pair in value
        ):
            raise UnfitError(f"{path}: a map is an object or a list of pairs")
        return [(key(name), item(inner)) for name, inner in value]

    return _unless_none(convert)
