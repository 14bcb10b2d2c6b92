"""A topic of a served log as a table: the server scans, the client gets batches."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from lakebed.api.table import (
    Points,
    Table,
    by_position,
    check_key,
    check_time,
    check_where,
)
from lakebed.client.connection import Connection
from lakebed.client.reading import as_list, check_named
from lakebed.errors import ClosedError, InvalidArgumentError
from lakebed.reports.topics import ScanPlan
from lakebed.topic.times import python_rows
from lakebed.wire.predicates import pack_predicate


class RemoteTable(Table):
    """The records of a topic of a served log. Any thread; for its methods see `Table`."""

    def __init__(self, connection: Connection, name: str) -> None:
        check_named(name)
        self._connection = connection
        self._id = connection.call("describe_topic", name=name).id
        self.name = name

    @property
    def schema(self) -> pa.Schema:
        """Return the columns as readers see them now."""
        ticket = {
            "call": "range",
            "topic": self.name,
            "id": self._id,
            "partition": 0,
            "offset": "latest",
        }
        schema: pa.Schema = self._connection.stream(ticket).schema
        return schema

    def scan(
        self,
        columns: Sequence[str] | None = None,
        where: pc.Expression | None = None,
        *,
        partitions: Collection[int] | None = None,
        start: Points | None = None,
        until: Points | None = None,
    ) -> pa.RecordBatchReader:
        """Read the records there are now, partition after partition, in the order of offsets."""
        reader = self._connection.stream(
            {
                "call": "scan",
                "topic": self.name,
                "id": self._id,
                "columns": as_list(columns),
                "where": _pack(where),
                "partitions": as_list(partitions),
                "start": _points(start),
                "until": _points(until),
            }
        )
        return pa.RecordBatchReader.from_batches(reader.schema, self._batches(reader))

    def _batches(self, reader: Any) -> Iterator[pa.RecordBatch]:
        try:
            for chunk in reader:
                if self._connection.closed:
                    raise ClosedError("the log is closed")
                yield chunk.data
        except (pa.ArrowException, OSError) as failure:
            raise self._connection.error_of(failure) from failure

    def plan(
        self,
        *,
        partitions: Collection[int] | None = None,
        start: Points | None = None,
        until: Points | None = None,
    ) -> ScanPlan:
        """Return which files hold the records of a range, and what of it is in no file yet."""
        plan: ScanPlan = self._connection.call(
            "plan",
            topic=self.name,
            id=self._id,
            partitions=as_list(partitions),
            start=_points(start),
            until=_points(until),
        )
        return plan

    def get(self, key: bytes | str, default: Any = None) -> Any:
        """Return the current value of a key: bytes of a raw topic, a dictionary of a typed one."""
        record = self.record(key)
        value = None if record is None else record["value"]
        return default if value is None else value

    def record(self, key: bytes | str) -> dict[str, Any] | None:
        """Return the latest record of a key with all its columns, also if it is a tombstone."""
        table, _ = self._connection.get(
            {"call": "record", "topic": self.name, "id": self._id, "key": check_key(key)}
        )
        return python_rows(table)[0] if table.num_rows else None

    def latest(self, columns: Sequence[str] | None = None) -> pa.Table:
        """Return the current record of each key, in the order of partitions and offsets."""
        ticket = {"call": "latest", "topic": self.name, "id": self._id, "columns": as_list(columns)}
        return self._connection.get(ticket)[0]

    def as_of(
        self,
        offset: Points | None = None,
        time: datetime | int | None = None,
        columns: Sequence[str] | None = None,
        where: pc.Expression | None = None,
    ) -> pa.Table:
        """Return the records that the table had at an earlier point."""
        ticket = {
            "call": "as_of",
            "topic": self.name,
            "id": self._id,
            "offset": _points(offset),
            "time": None if time is None else check_time(time),
            "columns": as_list(columns),
            "where": _pack(where),
        }
        return self._connection.get(ticket)[0]

    def iceberg(self) -> Any:
        """Return the topic's table as pyiceberg knows it, as of its last sync.

        It is read from where the table is kept, so this process must be able to get at it.
        """
        from pyiceberg.table import StaticTable

        self._connection.call("lake_sync", topic=self.name)
        info = self._connection.call("lake_describe", topic=self.name)
        return StaticTable.from_metadata(info.metadata)


def _points(points: Points | None) -> Any:
    return dict(points) if isinstance(points, Mapping) else points


def _pack(where: pc.Expression | None) -> Any:
    """Return a predicate as the tree that a server takes."""
    if where is None:
        return None
    check_where(where)
    try:
        return pack_predicate(where)
    except pa.ArrowException as error:
        raise InvalidArgumentError(
            "the predicate does not fit the table: use the fields of its schema",
            where=where,
            reason=str(by_position(where) or error).partition("\n")[0],
        ) from error
