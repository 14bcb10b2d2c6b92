"""A topic as a table, embedded or served: its interface, and the checks of its arguments."""

from __future__ import annotations

import abc
import re
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from lakebed.api.reads import microseconds
from lakebed.errors import InvalidArgumentError
from lakebed.reports.topics import ScanPlan

Points = int | Mapping[int, int]
"""An offset for every partition, or one for each that is named."""


class Table(abc.ABC):
    """The records of a topic, as a table of the columns that readers get. Any thread."""

    name: str
    """The topic."""

    @property
    @abc.abstractmethod
    def schema(self) -> pa.Schema:
        """Return the columns as readers see them now."""

    @abc.abstractmethod
    def scan(
        self,
        columns: Sequence[str] | None = None,
        where: pc.Expression | None = None,
        *,
        partitions: Collection[int] | None = None,
        start: Points | None = None,
        until: Points | None = None,
    ) -> pa.RecordBatchReader:
        """Read the records there are now, partition after partition, in the order of offsets.

        `columns` are some of those of `schema`; they come in its order. `where` is an expression
        over them, `pc.field("value", "amount") > 5` for a field of a typed topic. `start` and
        `until` (exclusive) bound the offsets: a number for every partition, or a dictionary with
        one for each that is to be bounded. What lies outside the log is not in the scan.

        Memory is bounded: batches are decoded shortly before they are asked for. Records appended
        after the call are not in it. Those that retention or a purge removes before the scan comes
        to them are left out, which the log file tells. Row groups that cannot satisfy `where` are
        not decoded.
        """

    @abc.abstractmethod
    def plan(
        self,
        *,
        partitions: Collection[int] | None = None,
        start: Points | None = None,
        until: Points | None = None,
    ) -> ScanPlan:
        """Return which files hold the records of a range, and what of it is in no file yet.

        For readers that get at the files by themselves; the bounds are those of `scan`.
        """

    @abc.abstractmethod
    def get(self, key: bytes | str, default: Any = None) -> Any:
        """Return the current value of a key: bytes of a raw topic, a dictionary of a typed one.

        A key that was never written, or was deleted by a tombstone, has the value `default`.
        """

    @abc.abstractmethod
    def record(self, key: bytes | str) -> dict[str, Any] | None:
        """Return the latest record of a key with all its columns, also if it is a tombstone."""

    @abc.abstractmethod
    def latest(self, columns: Sequence[str] | None = None) -> pa.Table:
        """Return the current record of each key, in the order of partitions and offsets.

        Keys that were deleted and records without a key are not in it. If partitions hold a key in
        common, the record of the latest timestamp is current. Values that were replaced are read
        only where they stand in a row group with a current one.

        If records are removed while it reads, it begins again; after several times it gives those
        that are left, which the log file tells.
        """

    @abc.abstractmethod
    def as_of(
        self,
        offset: Points | None = None,
        time: datetime | int | None = None,
        columns: Sequence[str] | None = None,
        where: pc.Expression | None = None,
    ) -> pa.Table:
        """Return the records that the table had at an earlier point.

        The point is either an `offset`, when the next record of a partition was to be that one (a
        number for every partition, or a dictionary; partitions not named are whole), or a `time`:
        records with a timestamp up to and including it. An offset above the end, or a point before
        everything that retention has left, is an `OffsetOutOfRangeError`.

        Of a compacted topic it shows what is left: a record that was current then and replaced
        since may be gone.
        """

    @abc.abstractmethod
    def iceberg(self) -> Any:
        """Return the topic's table as pyiceberg knows it, showing everything that is in files now.

        Records since the last checkpoint are not in it; `log.checkpoint()` puts them there.
        """


def checked_where(where: object) -> None:
    """Refuse what is not a predicate, and what Arrow cannot show or cannot evaluate safely."""
    if not isinstance(where, pc.Expression):
        raise InvalidArgumentError(
            "where is an expression, such as pyarrow.compute.field('offset') > 5", got=repr(where)
        )
    try:
        text = _without_texts(where)
    except UnicodeDecodeError as error:
        raise InvalidArgumentError(
            "a pattern of the predicate must be UTF-8", reason=str(error)
        ) from error
    if "null[large_" in text:
        raise InvalidArgumentError(
            "the predicate holds a null of type large_string or large_binary, which Arrow cannot"
            " cast: use is_null(), or a null without a type",
            where=where,
        )


def by_position(where: pc.Expression) -> Exception | None:
    """Refuse a field that is named by its number: a scan does not read all columns."""
    if "FieldPath(" in _without_texts(where):
        return ValueError("name fields by their names, not by their positions")
    return None


def _without_texts(where: pc.Expression) -> str:
    """Return a predicate as Arrow shows it, with its texts left out."""
    return re.sub(r'"(?:[^"\\]|\\.)*"', "", str(where))


def checked_time(time: datetime | int | None) -> int:
    """Return a time as microseconds since 1970, if that many there are."""
    time_us = microseconds(time)
    if not -(1 << 63) <= time_us < 1 << 63:
        raise InvalidArgumentError("a time is 64 bits of microseconds", time_us=time_us)
    return time_us


def checked_key(key: object) -> bytes:
    """Return a key as it is stored: text as UTF-8."""
    try:
        if isinstance(key, str):
            return key.encode()
        if isinstance(key, bytes | bytearray | memoryview):
            return bytes(key)
    except UnicodeEncodeError as error:
        raise InvalidArgumentError("a key is bytes or text", reason=error) from error
    raise InvalidArgumentError("a key is bytes or text", got=type(key).__name__)
