"""Records as JSON objects and back: one shape for the command line and HTTP.

    {"type": "record", "topic": "orders", "partition": 0, "offset": 7,
     "timestamp": "2026-01-31T12:00:00.000000Z", "key": BYTES, "headers": {"name": BYTES, ...},
     "value": BYTES or what the topic's schema says}
    BYTES  text if it is UTF-8, otherwise {"base64": "..."}; null if there is none

Coming in, only `value` is needed; `type`, `topic` and `offset` are passed over, so that what was
read can be written again. How a value of a typed topic is written stands in `json_values`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

import pyarrow as pa

from lakebed.topic.json_values import (
    UnfitError,
    bytes_from_json,
    bytes_to_json,
    from_json,
    time_from_json,
    to_json,
)
from lakebed.topic.times import python_values, texts

_NAMES: Final = ("value", "key", "headers", "timestamp", "partition")
_IGNORED: Final = frozenset(["type", "topic", "offset"])
_json: Final = json.JSONEncoder().encode
_quoted: Final = json.encoder.encode_basestring_ascii


class RecordTexts:
    """Writes records of one type of value: whole columns of JSON texts, then a text for each."""

    def __init__(self, value: pa.DataType) -> None:
        self._raw = pa.types.is_binary(value)
        self._convert = to_json(value) or (lambda value: value)

    def __call__(self, table: pa.Table) -> list[str]:
        """Return the JSON text of each record."""
        topic = _quoted(table.schema.metadata[b"topic"].decode())
        rows = zip(
            table.column("partition").to_pylist(),
            table.column("offset").to_pylist(),
            texts(table.column("timestamp")),
            _bytes_json(table.column("key")),
            _headers_json(table.column("headers")),
            self._values(table.column("value")),
            strict=True,
        )
        head = f'{{"type": "record", "topic": {topic}, "partition": '
        return [
            f'{head}{partition}, "offset": {offset}, "timestamp": "{time}", "key": {key}, '
            f'"headers": {headers}, "value": {value}}}'
            for partition, offset, time, key, headers, value in rows
        ]

    def _values(self, column: pa.ChunkedArray) -> list[str]:
        if self._raw:
            return _bytes_json(column)
        return [_json(self._convert(value)) for value in python_values(column)]


def _bytes_json(column: pa.ChunkedArray) -> list[str]:
    """Return bytes as JSON: all of them at once if they are text."""
    if column.null_count == len(column):
        return ["null"] * len(column)
    try:
        texts = column.cast(pa.string()).to_pylist()
    except pa.ArrowInvalid:
        return [_json(bytes_to_json(value)) for value in column.to_pylist()]
    if column.null_count:
        return ["null" if text is None else _quoted(text) for text in texts]
    return list(map(_quoted, texts))


def _headers_json(column: pa.ChunkedArray) -> list[str]:
    if column.null_count == len(column):
        return ["{}"] * len(column)
    return [
        _json({name: bytes_to_json(value) for name, value in headers or ()})
        for headers in column.to_pylist()
    ]


class RecordRows:
    """Reads records of one schema (None: a raw topic) as rows that can be appended.

    A row may have a `partition`. What does not fit is an `UnfitError`, or one of `TROUBLE`.
    """

    def __init__(
        self, schema: pa.Schema | None, headers: Mapping[str, bytes] | None = None
    ) -> None:
        self._value = bytes_from_json if schema is None else from_json(pa.struct(list(schema)))
        self._headers = headers or {}

    def __call__(self, document: Any) -> dict[str, Any]:
        """Return the row of a JSON object."""
        if not isinstance(document, dict):
            raise UnfitError("not a JSON object")
        for name in document.keys() - _IGNORED:
            if name not in _NAMES:
                raise UnfitError(f"unknown field {name!r}; fields are {', '.join(_NAMES)}")
        if "value" not in document:
            raise UnfitError("value is missing; null deletes the key")
        value = document["value"]
        row: dict[str, Any] = {"value": self._value(value) if self._value else value}
        if document.get("key") is not None:
            row["key"] = bytes_from_json(document["key"])
        if document.get("timestamp") is not None:
            row["timestamp"] = _time(document["timestamp"])
        headers = {**self._headers, **_headers(document.get("headers"))}
        if headers:
            row["headers"] = headers
        if document.get("partition") is not None:
            row["partition"] = _partition(document["partition"])
        return row


TROUBLE: Final = (ValueError, TypeError, OverflowError, RecursionError)
"""What reading a record may raise if its JSON does not fit."""


def reason(error: Exception) -> str:
    """Return why a JSON text is no record."""
    why = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
    return f"not JSON: {why}" if isinstance(error, json.JSONDecodeError) else why


def by_partition(rows: list[dict[str, Any]]) -> dict[int | None, list[int]]:
    """Return which rows go to each partition that is named, and to none; names none in them."""
    rows_of: dict[int | None, list[int]] = {}
    for index, row in enumerate(rows):
        rows_of.setdefault(row.pop("partition", None), []).append(index)
    return rows_of


def _headers(headers: Any) -> dict[str, bytes | None]:
    if headers is None:
        return {}
    if not isinstance(headers, dict):
        raise UnfitError("headers must be an object of names and values")
    return {name: bytes_from_json(value) for name, value in headers.items()}


def _time(time: Any) -> Any:
    """Return a record's time; whether a log accepts it is checked where every record is."""
    return time if type(time) is int else time_from_json(time)


def _partition(partition: Any) -> int:
    if not isinstance(partition, int) or isinstance(partition, bool):
        raise UnfitError("partition must be an integer")
    return partition
