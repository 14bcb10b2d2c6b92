"""The times that a log accepts, and how times outside that range are read.

A time is written as microseconds since 1970 in 64 bits, which reach far beyond the years that
Python's `datetime`, Spark and SQL know. Every way in refuses a time that one of them could not read
back: `limits.TIME_US_MIN` to `limits.TIME_US_MAX`, the years 1 to 9999 in UTC. It holds for the
timestamp of a record and for timestamps and dates in the values of a typed topic.

Logs of version 0.6 may hold other times. They are read as they are: by Arrow as the same number, in
Python as that number where a `datetime` or `date` would be, as text with a year of more digits.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime, timedelta
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from lakebed import limits
from lakebed.errors import InvalidArgumentError

_UNITS_US: Final = {"s": 1_000_000, "ms": 1_000, "us": 1}
"""Microseconds of each unit of Arrow in which a time can be outside the range."""
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_DAY_US: Final = 86_400 * 1_000_000

Converter = Callable[[Any], Any]


# In


def check_micros(times_us: Sequence[int]) -> None:
    """Refuse microseconds since 1970 that are outside the range, also those beyond 64 bits."""
    if not times_us or (
        min(times_us) >= limits.TIME_US_MIN and max(times_us) <= limits.TIME_US_MAX
    ):
        return
    for row, time_us in enumerate(times_us):
        if not limits.TIME_US_MIN <= time_us <= limits.TIME_US_MAX:
            raise _outside("timestamp", time_us, row)


def check_array(array: pa.Array, column: str) -> None:
    """Refuse an array of timestamps of any unit, or of dates, with one outside the range."""
    if types.is_date(array.type):
        width, unit_us = pa.int32(), _DAY_US
    else:
        unit_us = _UNITS_US.get(array.type.unit, 0)
        width = pa.int64()
    if not unit_us:
        return  # nanoseconds in 64 bits end in 2262
    numbers = array.view(width)
    least, most = limits.TIME_US_MIN // unit_us, limits.TIME_US_MAX // unit_us
    ends = pc.min_max(numbers)
    first, last = ends["min"].as_py(), ends["max"].as_py()
    if first is None or (least <= first and last <= most):
        return
    outside = pc.or_(pc.less(numbers, least), pc.greater(numbers, most))
    row = pc.index(outside, True).as_py()
    raise _outside(column, numbers[row].as_py() * unit_us, row)


def _outside(column: str, time_us: int, row: int) -> InvalidArgumentError:
    return InvalidArgumentError(
        "a time must be within the years 1 to 9999 in UTC",
        column=column,
        row=row,
        time_us=time_us,
        time_us_min=limits.TIME_US_MIN,
        time_us_max=limits.TIME_US_MAX,
    )


def check_values(array: pa.Array, path: str = "value") -> None:
    """Refuse values of a typed topic that hold a time outside the range, however deeply nested."""
    kind = array.type
    if not has_times(kind):
        return
    if types.is_struct(kind):
        for field, child in zip(kind, array.flatten(), strict=True):
            check_values(child, f"{path}.{field.name}")
    elif types.is_list(kind):
        check_values(array.flatten(), f"{path}.element")
    elif types.is_map(kind):
        if len(array):
            first, last = array.offsets[0].as_py(), array.offsets[-1].as_py()
            check_values(array.keys.slice(first, last - first), f"{path}.key")
            check_values(array.items.slice(first, last - first), f"{path}.value")
    else:
        check_array(array, path)


@functools.lru_cache(maxsize=1024)
def has_times(kind: pa.DataType) -> bool:
    """Return True if a type is, or contains, a timestamp or a date."""
    if types.is_struct(kind):
        return any(has_times(field.type) for field in kind)
    if types.is_list(kind):
        return has_times(kind.value_type)
    if types.is_map(kind):
        return has_times(kind.key_type) or has_times(kind.item_type)
    return bool(types.is_timestamp(kind) or types.is_date(kind))


# Out


def python_values(column: pa.Array | pa.ChunkedArray) -> list[Any]:
    """Return a column as Python values.

    A time that `datetime` or `date` cannot hold is its number: microseconds, or days, since 1970.
    """
    try:
        return column.to_pylist()  # type: ignore[no-any-return]
    except (ValueError, OverflowError):
        restore = _restore(column.type)
        return [restore(value) for value in column.cast(_numeric(column.type)).to_pylist()]


def python_rows(table: pa.Table | pa.RecordBatch) -> list[dict[str, Any]]:
    """Return the rows of a table as dictionaries, with values as `python_values` gives them."""
    names = table.schema.names
    columns = [python_values(table.column(name)) for name in names]
    return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]


def _numeric(kind: pa.DataType) -> pa.DataType:
    """Return a type with numbers in place of its timestamps and dates."""
    if types.is_struct(kind):
        return pa.struct([field.with_type(_numeric(field.type)) for field in kind])
    if types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_numeric(kind.value_type)))
    if types.is_map(kind):
        return pa.map_(
            kind.key_field.with_type(_numeric(kind.key_type)),
            kind.item_field.with_type(_numeric(kind.item_type)),
        )
    if types.is_timestamp(kind):
        return pa.int64()
    return pa.int32() if types.is_date(kind) else kind


def _restore(kind: pa.DataType) -> Converter:
    """Return the function that makes of numbers the times that Python can hold."""
    if not has_times(kind):
        return _same
    if types.is_struct(kind):
        fields = [(field.name, _restore(field.type)) for field in kind]
        return lambda value: value and {name: convert(value[name]) for name, convert in fields}
    if types.is_list(kind):
        element = _restore(kind.value_type)
        return lambda value: value and [element(item) for item in value]
    if types.is_map(kind):
        key, item = _restore(kind.key_type), _restore(kind.item_type)
        return lambda value: value and [(key(name), item(content)) for name, content in value]
    if types.is_date(kind):
        return _date
    return _aware if kind.tz else _naive


def _same(value: Any) -> Any:
    return value


def _aware(time_us: int | None) -> datetime | int | None:
    if time_us is None or not limits.TIME_US_MIN <= time_us <= limits.TIME_US_MAX:
        return time_us
    return _EPOCH + timedelta(microseconds=time_us)


def _naive(time_us: int | None) -> datetime | int | None:
    time = _aware(time_us)
    return time.replace(tzinfo=None) if isinstance(time, datetime) else time


def _date(days: int | None) -> date | int | None:
    time = None if days is None else _aware(days * _DAY_US)
    return time.date() if isinstance(time, datetime) else days


def text_of_micros(time_us: int) -> str:
    """Return any time as ISO 8601 text without a zone; its year may have more than four digits."""
    return str(np.datetime_as_string(np.datetime64(time_us, "us")))


def text_of_days(days: int) -> str:
    """Return any date as ISO 8601 text; its year may have more than four digits."""
    return str(np.datetime_as_string(np.datetime64(days, "D")))


def texts(column: pa.ChunkedArray) -> list[str]:
    """Return timestamps as ISO 8601 text in UTC."""
    numbers = pc.min_max(column.cast(pa.int64()))
    first, last = numbers["min"].as_py(), numbers["max"].as_py()
    if first is None or (first >= limits.TIME_US_MIN and last <= limits.TIME_US_MAX):
        shown = column.cast(pa.timestamp("us")).cast(pa.string()).to_pylist()
        return [f"{text.replace(' ', 'T', 1)}Z" for text in shown]
    return [f"{text_of_micros(time_us)}Z" for time_us in column.cast(pa.int64()).to_pylist()]
