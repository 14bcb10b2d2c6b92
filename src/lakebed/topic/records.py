"""Records on their way in and out: what a caller gives becomes one batch in the storage schema.

A *storage batch* has the columns `timestamp` (microseconds, UTC, never null), `key` (binary),
`headers` (map of text to bytes) and `value` (binary, or a struct with the topic's schema). Readers
get `partition` and `offset` in front of them. In the log a batch is one Arrow IPC message without
its schema, which the topic knows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lakebed import limits
from lakebed.errors import (
    CorruptionError,
    EntryTooLargeError,
    InvalidArgumentError,
    RecordTooLargeError,
    SchemaMismatchError,
)
from lakebed.topic import columns, rows, sizes, times
from lakebed.topic.expansion import ExpansionBudget
from lakebed.topic.offsets import own_offsets
from lakebed.topic.schema import HEADERS, TIMESTAMP, reader_schema, storage_schema

if TYPE_CHECKING:
    from typing_extensions import Buffer

_BINARY: Final = pa.binary()
_STORED: Final = ("timestamp", "key", "headers", "value")
_DROPPED: Final = ("partition", "offset")


def normalize(
    data: Any,
    value_type: pa.DataType,
    *,
    now_us: int,
    record_bytes_max: int,
    batch_bytes_max: int = limits.ENTRY_BYTES_MAX,
) -> pa.RecordBatch:
    """Return what a caller wants to write as one storage batch, checked in every respect.

    `data` is an Arrow table or record batch, or a list or tuple of rows. A row is a dictionary with
    `value` and, if wanted, `key`, `headers` and `timestamp`; for a raw topic also plain bytes or
    text. The columns `partition` and `offset`, which a reader gets, are dropped, so that what was
    read can be written elsewhere; any other column is refused. Without a timestamp it is `now_us`.
    Columns whose conversion would take more than `batch_bytes_max` are refused before it.
    """
    if isinstance(data, pa.Table | pa.RecordBatch):
        _check_count(data.num_rows)
        room = ExpansionBudget(record_bytes_max, batch_bytes_max)
        return _from_arrow(data, value_type, now_us, record_bytes_max, room)
    if isinstance(data, list | tuple):
        _check_count(len(data))
        lists = rows.lists_of(data, now_us, raw=value_type == _BINARY)
        return from_columns(*lists, value_type, record_bytes_max)
    raise InvalidArgumentError(
        "records must be a pyarrow Table, a RecordBatch or a list of rows",
        got=type(data).__name__,
    )


def from_columns(
    values: Sequence[Any],
    keys: Sequence[Any] | None,
    headers: Sequence[Any] | None,
    timestamps: Sequence[int] | npt.NDArray[np.int64] | int,
    value_type: pa.DataType,
    record_bytes_max: int,
    *,
    allow_empty: bool = False,
) -> pa.RecordBatch:
    """Return records that were collected in lists or Arrow arrays as one storage batch.

    `keys` or `headers` None means that no record has any; a single timestamp is that of all.
    `allow_empty` accepts records that have neither a key nor a value.
    """
    count = len(values)
    _check_count(count)
    return _assemble(
        _timestamps(timestamps, count),
        keys if keys is None or isinstance(keys, pa.Array) else rows.array(keys, _BINARY, "key"),
        None if headers is None else rows.headers_array(headers),
        values if isinstance(values, pa.Array) else rows.value_array(values, value_type),
        record_bytes_max,
        allow_empty=allow_empty,
    )


def _assemble(
    timestamp: pa.Array,
    key: pa.Array | None,
    headers: pa.Array | None,
    value: pa.Array,
    record_bytes_max: int,
    *,
    allow_empty: bool = False,
) -> pa.RecordBatch:
    """Return the columns as a batch, after refusing what no storage batch may hold."""
    arrays = [
        timestamp,
        _nulls(_BINARY, len(value)) if key is None else key,
        _nulls(HEADERS, len(value)) if headers is None else headers,
        value,
    ]
    lengths = {len(array) for array in arrays}
    if len(lengths) > 1:
        raise InvalidArgumentError("the columns differ in length", lengths=sorted(lengths))
    if value.null_count and not allow_empty:
        _check_tombstones(arrays[1], value)
    if headers is not None:
        _check_headers(headers)
    if value.type != _BINARY:
        columns.check_required(value, value.type)
        times.check_values(value)
    _check_sizes([array for array in (key, headers, value) if array is not None], record_bytes_max)
    return pa.RecordBatch.from_arrays(arrays, schema=storage_schema(value.type))


def _timestamps(timestamps: Sequence[int] | npt.NDArray[np.int64] | int, count: int) -> pa.Array:
    if isinstance(timestamps, int):
        times.check_micros([timestamps])
        return columns.constant_timestamps(timestamps, count)
    if isinstance(timestamps, np.ndarray):
        array = pa.array(timestamps).view(TIMESTAMP)
    else:
        array = rows.array(timestamps, TIMESTAMP, "timestamp")
        if array.null_count:
            raise columns.mismatch("timestamp", TIMESTAMP, "null")
    times.check_array(array, "timestamp")
    return array


def _nulls(kind: pa.DataType, count: int) -> pa.Array:
    if count == 1:
        return _ONE_NULL[kind]
    return pa.nulls(count, kind)


_ONE_NULL: Final = {_BINARY: pa.nulls(1, _BINARY), HEADERS: pa.nulls(1, HEADERS)}


def _from_arrow(
    data: pa.Table | pa.RecordBatch,
    value_type: pa.DataType,
    now_us: int,
    record_bytes_max: int,
    room: ExpansionBudget,
) -> pa.RecordBatch:
    arrays = _by_name(data, value_type)
    timestamp, key, headers = arrays.get("timestamp"), arrays.get("key"), arrays.get("headers")
    return _assemble(
        columns.constant_timestamps(now_us, data.num_rows)
        if timestamp is None
        else columns.timestamp_column(timestamp, now_us),
        None if key is None else columns.binary_column(key, "key", room),
        None if headers is None else columns.headers_column(headers, room),
        columns.binary_column(arrays["value"], "value", room)
        if value_type == _BINARY
        else columns.column_of_type(arrays["value"], value_type, room),
        record_bytes_max,
    )


def _by_name(data: pa.Table | pa.RecordBatch, value_type: pa.DataType) -> dict[str, pa.Array]:
    arrays: dict[str, pa.Array] = {}
    for index, name in enumerate(data.schema.names):
        if name in _DROPPED:
            continue
        if name not in _STORED:
            raise columns.mismatch(name, f"one of {', '.join(_STORED)}", "an unknown column")
        if name in arrays:
            raise columns.mismatch(name, "one column of this name", "several")
        arrays[name] = own_offsets(_contiguous(data.column(index)))
    if "value" not in arrays:
        raise columns.mismatch("value", value_type, "no such column")
    return arrays


def _contiguous(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    if not isinstance(column, pa.ChunkedArray):
        return column
    if column.num_chunks == 1:
        return column.chunk(0)
    try:
        return column.combine_chunks()
    except pa.ArrowInvalid as error:
        raise EntryTooLargeError("the batch does not fit into one entry: split it") from error


def _check_count(count: int) -> None:
    if count > limits.BATCH_RECORDS_MAX:
        raise InvalidArgumentError(
            "too many records in one batch: split it",
            records=count,
            records_max=limits.BATCH_RECORDS_MAX,
        )


def _check_tombstones(key: pa.Array, value: pa.Array) -> None:
    row = pc.index(pc.and_(value.is_null(), key.is_null()), True).as_py()
    if row >= 0:
        raise SchemaMismatchError(
            "a record without a value needs a key: it marks the key as deleted",
            column="value",
            expected=value.type,
            got="null",
            row=row,
        )


def _check_headers(headers: pa.Array) -> None:
    if headers.null_count == len(headers):
        return
    counts = sizes.counts(headers)
    row = int(counts.argmax())
    if counts[row] > limits.HEADERS_MAX:
        raise InvalidArgumentError(
            "a record has too many headers",
            row=row,
            headers=int(counts[row]),
            headers_max=limits.HEADERS_MAX,
        )


def _check_sizes(arrays: list[pa.Array], record_bytes_max: int) -> None:
    if sum(map(sizes.bytes_bound, arrays)) <= record_bytes_max or len(arrays[0]) == 0:
        return
    record_bytes = sizes.record_bytes(arrays)
    row = int(record_bytes.argmax())
    if record_bytes[row] > record_bytes_max:
        raise RecordTooLargeError(
            "a record is too large",
            row=row,
            bytes=int(record_bytes[row]),
            bytes_max=record_bytes_max,
        )


def serialize(batch: pa.RecordBatch) -> pa.Buffer:
    """Return the batch as one IPC message; of a slice, only the slice's bytes."""
    return batch.serialize()


def deserialize(
    buffer: Buffer | pa.Buffer, schema: pa.Schema, *, full: bool = False
) -> pa.RecordBatch:
    """Return the batch of a message without copying it; anything else is a `CorruptionError`.

    The structure is always checked. `full` also looks at every value, for messages that no checksum
    of ours has covered.
    """
    try:
        batch = pa.ipc.read_record_batch(pa.py_buffer(buffer), schema)
        batch.validate(full=full)
    except (pa.ArrowException, OSError, EOFError, ValueError, MemoryError) as error:
        raise CorruptionError(f"a batch cannot be read: {error}") from error
    return batch


def with_position(batch: pa.RecordBatch, partition: int, base: int) -> pa.RecordBatch:
    """Return a storage batch as its readers see it, its first record at offset `base`."""
    count = batch.num_rows
    partitions = pa.py_buffer(np.full(count, partition, np.int32))
    offsets = pa.py_buffer(np.arange(base, base + count, dtype=np.int64))
    arrays = [
        pa.Array.from_buffers(pa.int32(), count, [None, partitions], 0),
        pa.Array.from_buffers(pa.int64(), count, [None, offsets], 0),
        *batch.columns,
    ]
    schema = reader_schema(batch.schema.field("value").type)
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def payload_bytes(batch: pa.RecordBatch) -> int:
    """Return about how much memory the batch takes; of a slice, the slice's share."""
    size: int = batch.nbytes
    return size
