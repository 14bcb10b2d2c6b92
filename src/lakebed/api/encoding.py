"""Encoding: records are checked, routed to partitions and encoded in the caller's thread.

Both kinds of log check and route records in the process that appends them. They differ in what an
encoded batch is: the engine writes its bytes into an entry of the WAL, a client sends it to a
server.
"""

from __future__ import annotations

import abc
import itertools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

import pyarrow as pa

from lakebed import limits
from lakebed.api.lookup import check_partition
from lakebed.config import TopicConfig, stored_config
from lakebed.errors import EntryTooLargeError, RecordTooLargeError
from lakebed.host.clock import Clock
from lakebed.state.command_codec import encode
from lakebed.state.commands import ProducerWrite
from lakebed.state.values import Part, Topic
from lakebed.topic.memtable import Body
from lakebed.topic.records import from_columns, normalize
from lakebed.topic.routing import Routed, partitions_of, route, split

if TYPE_CHECKING:
    from typing_extensions import Buffer

GATHERED_RECORDS_MAX: Final = 65_536
"""The most records gathered into one entry."""
_GATHERED_BYTES_MAX: Final = 8 * 1024 * 1024
"""The most bytes of them, unless it is one record."""
RECORD_BYTES: Final = 32
"""About what a record takes besides key, headers and value."""

Rows = Any
"""A `pyarrow.Table`, a `pyarrow.RecordBatch`, or a list of rows."""


class TopicLookup(Protocol):
    """Where an encoder finds topics and the time."""

    @property
    def clock(self) -> Clock:
        """The clock that timestamps come from."""
        ...

    def topic_named(self, name: str) -> Topic:
        """Find a topic, or raise `TopicNotFoundError`."""
        ...

    def schema(self, topic: Topic, version: int) -> pa.Schema:
        """Return the storage schema of a topic's schema version; 0 for a raw topic."""
        ...


class WriteTarget(NamedTuple):
    """A topic as a writer needs it."""

    topic: Topic
    config: TopicConfig
    schema: pa.Schema
    value_type: pa.DataType

    @property
    def raw(self) -> bool:
        """Return whether values are bytes."""
        return not self.topic.schemas


class EncodedPart(NamedTuple):
    """A batch that is ready for an entry."""

    part: Part
    body: Body
    order: Any


class Record(NamedTuple):
    """One checked record that waits for its batch."""

    target: WriteTarget
    value: bytes | None
    key: bytes | None
    headers: dict[str, bytes] | None
    time_us: int
    partition: int | None
    batch: pa.RecordBatch | None
    """Of a typed topic: the record as a batch of one row."""
    size: int


class RecordEncoder(abc.ABC):
    """Checks, routes and encodes what callers append. Any thread."""

    def __init__(self, lookup: TopicLookup, entry_bytes_max: int) -> None:
        self._lookup = lookup
        self.batch_bytes_max: Final = entry_bytes_max
        """The most bytes that a batch may have once it is written out: those of an entry."""
        # What gathers must fit into an entry, whatever encoding adds to it.
        self.gathered_bytes_max = min(_GATHERED_BYTES_MAX, entry_bytes_max // 4)
        self._targets: dict[str, WriteTarget] = {}
        self._turns = itertools.count()

    def target(self, name: str) -> WriteTarget:
        """Return a topic as writers need it; `TopicNotFoundError` if it does not exist."""
        topic = self._lookup.topic_named(name)
        target = self._targets.get(name)
        if target is None or target.topic is not topic:
            schema = self._lookup.schema(topic, len(topic.schemas))
            target = WriteTarget(
                topic, stored_config(topic.config), schema, schema.field("value").type
            )
            self._targets[name] = target
        return target

    # Batches

    def encode_rows(
        self, target: WriteTarget, rows: Rows, partition: int | None
    ) -> EncodedPart | None:
        """Check, route and encode rows; None if there are none."""
        batch = normalize(
            rows,
            target.value_type,
            now_us=self._lookup.clock.time_us(),
            record_bytes_max=target.config.record_bytes_max,
            batch_bytes_max=self.batch_bytes_max,
        )
        if batch.num_rows == 0:
            return None
        return self.encode_batch(target, batch, partition)

    def encode_batch(
        self, target: WriteTarget, batch: pa.RecordBatch, partition: int | None
    ) -> EncodedPart:
        """Route and encode a storage batch."""
        if partition is not None:
            check_partition(target.topic, partition)
        count = target.topic.partitions
        return self.encode_routed(
            target, route(batch, count, partition=partition, start=next(self._turns))
        )

    @abc.abstractmethod
    def encode_routed(self, target: WriteTarget, routed: Routed) -> EncodedPart:
        """Encode a batch whose rows are sorted by partition."""

    def check_fits(self, payload: Sequence[Buffer]) -> None:
        """Raise `EntryTooLargeError` if a payload is too large for an entry."""
        self.check_size(sum(memoryview(buffer).nbytes for buffer in payload))

    def check_size(self, size_bytes: int) -> None:
        """Raise `EntryTooLargeError` if so many bytes do not fit into an entry."""
        if size_bytes > self.batch_bytes_max:
            raise EntryTooLargeError(
                "it does not fit into an entry", bytes=size_bytes, bytes_max=self.batch_bytes_max
            )

    # Single records

    def record(
        self,
        topic: str,
        value: Any,
        key: Any,
        headers: Mapping[str, Any] | None,
        partition: int | None,
        timestamp: Any,
    ) -> Record:
        """Check one record in its caller's thread, so that it cannot spoil the others' batch."""
        record = self._check_record(topic, value, key, headers, partition, timestamp)
        if record.size > self.batch_bytes_max // 4:
            self._check_fits_alone(record)
        return record

    def encode_records(self, records: list[Record]) -> EncodedPart:
        """Make a batch of checked records of one topic, each to its partition."""
        target = records[0].target
        if target.raw:
            batch = _columns(target, records)
        else:
            batches = [record.batch for record in records]
            batch = pa.Table.from_batches(batches).combine_chunks().to_batches()[0]
        count, chosen = target.topic.partitions, {record.partition for record in records}
        if len(chosen) == 1:
            start = next(self._turns)
            return self.encode_routed(
                target, route(batch, count, partition=chosen.pop(), start=start)
            )
        partitions = partitions_of(batch.column("key"), count)
        for row, record in enumerate(records):
            if record.partition is not None:
                partitions[row] = record.partition
            elif partitions[row] < 0:
                partitions[row] = next(self._turns) % count
        return self.encode_routed(target, Routed(*split(batch, partitions)))

    def _check_fits_alone(self, record: Record) -> None:
        """Refuse a record that no entry can hold, however it is written."""
        encoded = self.encode_records([record])
        most = limits.OFFSET_MAX
        largest = ProducerWrite(most, most, most, (most,), encoded.part)
        self.check_fits(encode(largest, [encoded.body.raw()]))

    def _check_record(
        self,
        topic: str,
        value: Any,
        key: Any,
        headers: Mapping[str, Any] | None,
        partition: int | None,
        timestamp: Any,
    ) -> Record:
        target = self.target(topic)
        if partition is not None:
            check_partition(target.topic, partition)
        plain = timestamp is None and not headers
        if target.raw and plain and type(value) is bytes and (key is None or type(key) is bytes):
            size = len(value) + (0 if key is None else len(key))
            if size > target.config.record_bytes_max:
                raise RecordTooLargeError(
                    "a record is too large", bytes=size, bytes_max=target.config.record_bytes_max
                )
            time_us = self._lookup.clock.time_us()
            return Record(target, value, key, None, time_us, partition, None, size)
        row = {"value": value, "key": key, "headers": headers, "timestamp": timestamp}
        batch = normalize(
            [row],
            target.value_type,
            now_us=self._lookup.clock.time_us(),
            record_bytes_max=target.config.record_bytes_max,
        )
        if not target.raw:
            return Record(target, None, None, None, 0, partition, batch, batch.nbytes)
        plain_row = batch.to_pylist()[0]
        return Record(
            target,
            plain_row["value"],
            plain_row["key"],
            None if plain_row["headers"] is None else dict(plain_row["headers"]),
            batch.column("timestamp").cast(pa.int64())[0].as_py(),
            partition,
            None,
            batch.nbytes,
        )


def _columns(target: WriteTarget, records: list[Record]) -> pa.RecordBatch:
    keys = [record.key for record in records]
    headers = [record.headers for record in records]
    return from_columns(
        [record.value for record in records],
        None if keys.count(None) == len(keys) else keys,
        None if headers.count(None) == len(headers) else headers,
        records[0].time_us if len(records) == 1 else [record.time_us for record in records],
        target.value_type,
        limits.RECORD_BYTES_MAX,  # each was checked, perhaps while another limit held
    )
