"""Cuts a stream of batches, however small or large each is, into row groups."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

import pyarrow as pa

from lakebed import limits
from lakebed.errors import SchemaMismatchError

ROW_GROUP_BYTES: Final = 64 * limits.MIB
"""A row group of large records ends here: it is decoded as a whole to serve one of them."""

_GATHER_BATCHES: Final = 1024
"""So many small batches are joined at a time."""

_SMALL_RECORDS: Final = 512
"""A batch of fewer records is worth joining before anything is asked of it."""


def row_groups(
    batches: Iterable[pa.RecordBatch | pa.Table], schema: pa.Schema
) -> Iterator[pa.Table]:
    """Return tables of `ROW_GROUP_RECORDS` rows, the last of fewer, in the order of the batches.

    Those of large records have fewer rows, about `ROW_GROUP_BYTES`. No more than one such table and
    one batch is held at a time.
    """
    pieces: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in _join(batches, schema):
        row_bytes = _row_bytes(batch)
        position = 0
        while position < batch.num_rows:
            room = _room(batch, position, row_bytes, rows, size)
            if room < 1 and pieces:
                yield _table(pieces, schema)
                pieces, rows, size = [], 0, 0
                continue
            piece = batch.slice(position, max(1, room))
            pieces.append(piece)
            rows += piece.num_rows
            size += piece.num_rows * row_bytes
            position += piece.num_rows
    if pieces:
        yield _table(pieces, schema)


def _row_bytes(batch: pa.RecordBatch) -> int:
    """Estimate a record's size, exactly only where it matters.

    The size of whole buffers is cheap to ask for, and never too small.
    """
    at_most = batch.get_total_buffer_size() // batch.num_rows
    if at_most * limits.ROW_GROUP_RECORDS > ROW_GROUP_BYTES:
        at_most = batch.nbytes // batch.num_rows
    return max(1, int(at_most))


def _room(batch: pa.RecordBatch, position: int, row_bytes: int, rows: int, size: int) -> int:
    """Return how many rows of the batch still fit a row group of so many rows and bytes."""
    room: int = min(
        limits.ROW_GROUP_RECORDS - rows,
        (ROW_GROUP_BYTES - size) // row_bytes,
        batch.num_rows - position,
    )
    # The average hides a few huge records among many small ones.
    while room > 1 and row_bytes * batch.num_rows > ROW_GROUP_BYTES:
        if batch.slice(position, room).nbytes <= 2 * ROW_GROUP_BYTES:
            break
        room //= 2
    return room


def _table(pieces: list[pa.RecordBatch], schema: pa.Schema) -> pa.Table:
    return pa.Table.from_batches(pieces, schema)


def _join(
    batches: Iterable[pa.RecordBatch | pa.Table], schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """Return batches that have records; many small ones in a row become one."""
    small: list[pa.RecordBatch] = []
    size = 0
    for batch in _check_schemas(batches, schema):
        is_small = batch.num_rows < _SMALL_RECORDS
        if small and (not is_small or len(small) == _GATHER_BATCHES or size > ROW_GROUP_BYTES):
            yield from _table(small, schema).combine_chunks().to_batches()
            small, size = [], 0
        if is_small:
            small.append(batch)
            size += batch.num_rows * _row_bytes(batch)
        else:
            yield batch
    if small:
        yield from _table(small, schema).combine_chunks().to_batches()


def _check_schemas(
    batches: Iterable[pa.RecordBatch | pa.Table], schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    checked: pa.Schema | None = None
    for batch in batches:
        if checked is None or not batch.schema.equals(checked):
            if batch.schema.names != schema.names or batch.schema.types != schema.types:
                raise SchemaMismatchError(
                    "a batch does not have the columns of its segment",
                    expected=repr(str(schema.remove_metadata())),
                    found=repr(str(batch.schema.remove_metadata())),
                )
            checked = batch.schema
        for part in batch.to_batches() if isinstance(batch, pa.Table) else (batch,):
            if part.num_rows:
                yield part
