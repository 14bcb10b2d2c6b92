"""How records are shown: each format turns a batch into the bytes that go to stdout."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from typing import Final

import pyarrow as pa

from lakebed.topic.json_records import RecordTexts
from lakebed.topic.json_values import compact, to_json
from lakebed.topic.times import python_values, texts

Format = Callable[[pa.Table], bytes]
"""Gives a batch as bytes."""

_CONTROL: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_BACKSLASHED: Final = "backslashreplace"
_TOMBSTONE: Final = "null"
_SHORT: Final = 60
"""The longest key or value in a table."""
_TABLE_LINE: Final = "{:>9}  {:>12}  {:<27}  {:<16}  {}\n"

NAMES: Final = ("value", "key-value", "table", "json", "raw")


def format_of(name: str, value: pa.DataType, *, terminal: bool) -> Format:
    """Make a format for a topic's values."""
    text = _TextLines(value, terminal=terminal)
    if name == "json":
        return _JsonLines(value)
    if name == "raw":
        return _raw if pa.types.is_binary(value) else text.values
    if name == "key-value":
        return text.pairs
    return _TableLines(text) if name == "table" else text.values


def _raw(table: pa.Table) -> bytes:
    """Return values exactly as they are, with nothing between them."""
    return b"".join(value for value in table.column("value").to_pylist() if value is not None)


class _TextLines:
    """Values as lines of text; bytes that are not UTF-8 are shown in hexadecimal."""

    def __init__(self, value: pa.DataType, *, terminal: bool) -> None:
        self._convert = None if pa.types.is_binary(value) else (to_json(value) or (lambda v: v))
        self._terminal = terminal

    def values(self, table: pa.Table) -> bytes:
        """Return a line for each value."""
        return self.lines(self.texts(table.column("value")))

    def pairs(self, table: pa.Table) -> bytes:
        """Return a line for each record: key, tab, value."""
        keys = [b"" if key is None else key for key in table.column("key").to_pylist()]
        values = self.texts(table.column("value"))
        return self.lines([b"%s\t%s" % pair for pair in zip(keys, values, strict=True)])

    def texts(self, column: pa.ChunkedArray) -> list[bytes]:
        """Return values as they are, typed ones as JSON."""
        values, convert = python_values(column), self._convert
        if convert is not None:
            return [compact(convert(value)).encode() for value in values]
        if column.null_count:
            return [_TOMBSTONE.encode() if value is None else value for value in values]
        return values

    def lines(self, texts: list[bytes]) -> bytes:
        """Join lines, all of them at once unless something must be escaped."""
        whole = b"\n".join(texts) + b"\n"
        try:
            shown = whole.decode()
        except UnicodeDecodeError:
            shown = whole.decode(errors=_BACKSLASHED)
        # Control characters in a record must not reach the terminal.
        return self.harmless(shown).encode()

    def harmless(self, text: str) -> str:
        """Escape control characters on a terminal."""
        return _CONTROL.sub(_escape, text) if self._terminal else text


def _escape(match: re.Match[str]) -> str:
    return f"\\x{ord(match[0]):02x}"


class _JsonLines:
    """A JSON object for each record, each on its line."""

    def __init__(self, value: pa.DataType) -> None:
        self._texts = RecordTexts(value)

    def __call__(self, table: pa.Table) -> bytes:
        """Return the records of a batch."""
        return "".join([f"{text}\n" for text in self._texts(table)]).encode()


class _TableLines:
    """A line for each record, with its place and time; long keys and values are cut."""

    def __init__(self, text: _TextLines) -> None:
        self._text = text
        self._begun = False

    def __call__(self, table: pa.Table) -> bytes:
        """Return the records of a batch, at first with a heading."""
        out = io.StringIO()
        if not self._begun:
            out.write(_TABLE_LINE.format("partition", "offset", "time", "key", "value"))
        self._begun = True
        columns = [table.column(name).to_pylist() for name in ("partition", "offset")]
        columns.append(texts(table.column("timestamp")))
        keys = [b"-" if key is None else key for key in table.column("key").to_pylist()]
        values = self._text.texts(table.column("value"))
        for partition, offset, time, key, value in zip(*columns, keys, values, strict=True):
            shown = _short(key), _short(value)
            out.write(_TABLE_LINE.format(partition, offset, time, *shown))
        return out.getvalue().encode()


def _short(text: bytes) -> str:
    """Return the beginning of a text on one line."""
    shown = text[: 4 * _SHORT].decode(errors=_BACKSLASHED)
    shown = _CONTROL.sub(_escape, shown).replace("\n", "\\n").replace("\t", "\\t")
    return shown if len(shown) <= _SHORT else shown[: _SHORT - 1] + "…"
