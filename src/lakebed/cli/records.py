"""Lines as records: what a line means, and which line is to blame if it means nothing."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from lakebed.cli.lines import Lines
from lakebed.errors import InvalidArgumentError, SchemaMismatchError
from lakebed.topic.json_records import TROUBLE, RecordRows, by_partition, reason
from lakebed.topic.json_values import UnfitError, from_json
from lakebed.topic.schema import HEADERS


class Batch(NamedTuple):
    """Records of one file that are ready to be written, and the lines they come from."""

    rows: pa.Table | list[dict[str, Any]]
    source: str
    lines: Sequence[int]
    partition: int | None = None

    def part(self, start: int, stop: int) -> Batch:
        """Return some of them."""
        rows: Any = self.rows
        part = rows[start:stop] if isinstance(rows, list) else rows.slice(start, stop - start)
        return self._replace(rows=part, lines=self.lines[start:stop])


Meaning = Callable[[Lines], Iterator[Batch]]
"""Gives the records of lines: those before a bad line first, then the error."""


class Plain:
    """Each line is a value of a raw topic, or a key and a value."""

    def __init__(self, separator: bytes | None, headers: dict[str, bytes]) -> None:
        self._separator = separator
        self._headers = headers

    def __call__(self, lines: Lines) -> Iterator[Batch]:
        """Return the records, all at once."""
        numbers = range(lines.first, lines.first + len(lines.values))
        if self._separator is None:
            yield Batch(self._table({"value": lines.values}), lines.source, numbers)
            return
        good = _first_without(lines.values, self._separator)
        table = self._table(_split(lines.values.slice(0, good), self._separator))
        yield Batch(table, lines.source, numbers[:good])
        if good < len(lines.values):
            raise InvalidArgumentError(
                "a line has no key separator",
                file=lines.source,
                line=numbers[good],
                separator=repr(self._separator.decode()),
            )

    def _table(self, columns: dict[str, pa.Array]) -> pa.Table:
        if self._headers:
            one = pa.array([list(self._headers.items())], HEADERS)
            zeros = pa.repeat(pa.scalar(0), len(columns["value"]))
            columns["headers"] = one.take(zeros)
        return pa.table(columns)


def _first_without(values: pa.Array, separator: bytes) -> int:
    row: int = pc.index(pc.match_substring(values, separator), False).as_py()
    return len(values) if row < 0 else row


def _split(values: pa.Array, separator: bytes) -> dict[str, pa.Array]:
    parts = pc.split_pattern(values, separator, max_splits=1)
    return {"key": pc.list_element(parts, 0), "value": pc.list_element(parts, 1)}


class JsonValues:
    """Each line is the JSON of a typed topic's value; empty lines are passed over."""

    def __init__(
        self, schema: pa.Schema, separator: bytes | None, headers: dict[str, bytes]
    ) -> None:
        self._convert = from_json(pa.struct(list(schema)))
        self._separator = separator
        self._headers = headers

    def __call__(self, lines: Lines) -> Iterator[Batch]:
        """Return the records before the first bad line, then raise."""
        return _each(lines, self._row)

    def _row(self, line: bytes) -> dict[str, Any]:
        key = None
        if self._separator is not None:
            key, separator, line = line.partition(self._separator)
            if not separator:
                raise UnfitError(f"no key separator {self._separator.decode()!r}")
        value = json.loads(line)
        row = {"value": value if self._convert is None else self._convert(value)}
        if key is not None:
            row["key"] = key
        if self._headers:
            row["headers"] = self._headers
        return row


class JsonRecords:
    """Each line is a JSON object with value and, if wanted, key, headers, timestamp, partition."""

    def __init__(self, schema: pa.Schema | None, headers: dict[str, bytes]) -> None:
        self._row = RecordRows(schema, headers)

    def __call__(self, lines: Lines) -> Iterator[Batch]:
        """Return the records before the first bad line, then raise."""
        for batch in _each(lines, lambda line: self._row(json.loads(line))):
            yield from _by_partition(batch)


def _each(lines: Lines, row_of: Callable[[bytes], dict[str, Any]]) -> Iterator[Batch]:
    """Return the records of lines that must be looked at one by one."""
    rows: list[dict[str, Any]] = []
    numbers: list[int] = []
    trouble: Exception | None = None
    line = lines.first - 1
    for line, text in enumerate(lines.values.to_pylist(), lines.first):
        if text.isspace() or not text:
            continue
        try:
            rows.append(row_of(text))
        except TROUBLE as error:
            trouble = error
            break
        numbers.append(line)
    if rows:
        yield Batch(rows, lines.source, numbers)
    if trouble is not None:
        raise bad_line(lines.source, line, trouble) from trouble


def bad_line(source: str, line: int, error: Exception) -> SchemaMismatchError:
    """Return which line is to blame."""
    return SchemaMismatchError(
        "the line is not a valid record", file=source, line=line, why=reason(error)
    )


def _by_partition(batch: Batch) -> Iterator[Batch]:
    """Split records that name their partition from the others, and from each other."""
    rows = batch.rows
    for partition, numbers in by_partition(rows).items():
        yield Batch(
            [rows[row] for row in numbers],
            batch.source,
            [batch.lines[row] for row in numbers],
            partition,
        )
