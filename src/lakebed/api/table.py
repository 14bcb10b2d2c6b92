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
        """Read the current records, partition by partition, in the order of offsets.

        Memory is bounded. Records appended after the call are not included; records removed before
        the scan reaches them are skipped, with a warning in the log file.

        Args:
            columns: names of columns of `schema`; default: all.
            where: a filter such as `pc.field("value", "amount") > 5`; row groups that cannot match
                are not decoded.
            partitions: numbers of partitions; default: all.
            start: first offset, for every partition or by partition.
            until: end (exclusive), for every partition or by partition.
        """

    @abc.abstractmethod
    def plan(
        self,
        *,
        partitions: Collection[int] | None = None,
        start: Points | None = None,
        until: Points | None = None,
    ) -> ScanPlan:
        """Return the files that hold the records of a range, and the offsets in no file yet.

        For readers of the files; the arguments are those of `scan`.
        """

    @abc.abstractmethod
    def get(self, key: bytes | str, default: Any = None) -> Any:
        """Return the current value of a key: bytes for a raw topic, a dictionary for a typed one.

        Args:
            key: bytes or text.
            default: result for a key that was never written or was deleted.
        """

    @abc.abstractmethod
    def record(self, key: bytes | str) -> dict[str, Any] | None:
        """Return the latest record of a key with all columns, tombstones included, or None."""

    @abc.abstractmethod
    def latest(self, columns: Sequence[str] | None = None) -> pa.Table:
        """Return the current record of each key, in the order of partitions and offsets.

        Deleted keys and records without a key are not included. If several partitions hold a key,
        the latest timestamp wins. If records are removed while it reads, it starts again; after
        several attempts it returns what is left, with a warning in the log file.

        Args:
            columns: names of columns; default: all.
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

        In a compacted topic, a record that was current then and replaced since may be gone.

        Args:
            offset: end of the records, for every partition or by partition; others are whole.
            time: last timestamp, instead of `offset`.
            columns: names of columns; default: all.
            where: a filter, as in `scan`.

        Raises:
            OffsetOutOfRangeError: the offset is above the end, or the point before all records.
        """

    @abc.abstractmethod
    def iceberg(self) -> Any:
        """Return the pyiceberg table of the topic, with everything that is in files now.

        Records since the last checkpoint are not included.
        """


def check_where(where: object) -> None:
    """Refuse what is not a predicate, and what Arrow cannot show or cannot evaluate safely."""
    if not isinstance(where, pc.Expression):
        raise InvalidArgumentError(
            "where must be an expression, such as pyarrow.compute.field('offset') > 5",
            got=repr(where),
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


def check_time(time: datetime | int | None) -> int:
    """Return a time as microseconds since 1970, if that many there are."""
    time_us = microseconds(time)
    if not -(1 << 63) <= time_us < 1 << 63:
        raise InvalidArgumentError("time must fit into 64 bits of microseconds", time_us=time_us)
    return time_us


def check_key(key: object) -> bytes:
    """Return a key as it is stored: text as UTF-8."""
    try:
        if isinstance(key, str):
            return key.encode()
        if isinstance(key, bytes | bytearray | memoryview):
            return bytes(key)
    except UnicodeEncodeError as error:
        raise InvalidArgumentError("key must be bytes or str", reason=error) from error
    raise InvalidArgumentError("key must be bytes or str", got=type(key).__name__)
