"""What a task does: it reads a piece, from files where it can, otherwise from the log's owner.

Files are read directly, so that their values cost the owner nothing. A file that cannot be reached
from here, or was removed in the meantime, is not a failure: the owner still has its records,
wherever they are now. If the connection to the owner is lost, reading continues after the last
record that arrived.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from lakebed.errors import DataLossError, ServerUnavailableError, TopicNotFoundError
from lakebed.lake.columns import column_numbers
from lakebed.reports.topics import SealedFile
from lakebed.spark.connection import connect
from lakebed.spark.options import Target
from lakebed.spark.planning import ScanPiece
from lakebed.spark.sealed import UNREADABLE, SealedSegment
from lakebed.spark.types import Fitter, arrow_schema, read_columns

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

_log = logging.getLogger("lakebed.spark")

_OFFSET: Final = "offset"
_LOST_MAX: Final = 5
"""How often in succession the owner may be lost before it sends anything."""


class Fetch:
    """Reads pieces into the schema that Spark expects. One task, one thread."""

    def __init__(self, target: Target, schema: StructType, *, fail_on_data_loss: bool) -> None:
        self._target = target
        columns = read_columns(schema)
        self._columns = columns if _OFFSET in columns else [*columns, _OFFSET]
        """The columns to read: always including offsets, which say how far reading has come."""
        self._schema = arrow_schema(schema)
        self._fail_on_data_loss = fail_on_data_loss

    def batches(self, piece: ScanPiece) -> Iterator[pa.RecordBatch]:
        """Yield the records of a piece, in the order of their offsets."""
        fitter = Fitter(self._schema, piece.topic)
        for batch in self._records(piece):
            if batch.num_rows:
                yield fitter.fit(batch)

    def _records(self, piece: ScanPiece) -> Iterator[pa.RecordBatch]:
        offset = piece.start
        for file in piece.files:
            if file.start > offset:
                yield from self._from_owner(piece, offset, file.start)
            yield from self._from_file(piece, file)
            offset = file.until
        if offset < piece.until:
            yield from self._from_owner(piece, offset, piece.until)

    def _from_file(self, piece: ScanPiece, file: SealedFile) -> Iterator[pa.RecordBatch]:
        """Yield the records of a file; those that cannot be read here come from the owner."""
        offset = file.start
        try:
            with SealedSegment(file.location) as segment:
                for batch in _select(segment, file, self._columns):
                    yield batch
                    offset = _after(batch, offset)
            return
        except UNREADABLE as error:
            _log.info("a file is read through the log's owner: file=%s %s", file.location, error)
        yield from self._from_owner(piece, offset, file.until)

    # Through the owner

    def _from_owner(self, piece: ScanPiece, start: int, until: int) -> Iterator[pa.RecordBatch]:
        offset, lost = start, 0
        while True:
            try:
                for batch in self._scan(piece, offset, until):
                    yield batch
                    offset, lost = _after(batch, offset), 0
                return
            except ServerUnavailableError as error:
                lost += 1
                if lost > _LOST_MAX or not self._target.client.retry_ms:
                    raise
                _log.warning("the log's owner is lost, and is asked again: %s", error)

    def _scan(self, piece: ScanPiece, start: int, until: int) -> Iterator[pa.RecordBatch]:
        try:
            log = connect(self._target, patient=True)
            table = log.table(piece.topic)
            if table._id != piece.topic_id:
                raise TopicNotFoundError(
                    "the topic was deleted and created again", topic=piece.topic
                )
            partition, seen = piece.partition, 0
            for batch in table.scan(
                self._columns,
                partitions=[partition],
                start={partition: start},
                until={partition: until},
            ):
                seen += batch.num_rows
                yield batch
            low = log.offsets(piece.topic)[partition][0]
        except TopicNotFoundError as error:
            lost = data_loss(
                piece.topic, piece.partition, start=start, until=until, reason=str(error)
            )
            if self._fail_on_data_loss:
                raise lost from error
            _log.warning("records are left out: %s", lost)
            return
        if low > start and seen < until - start:
            lost = data_loss(
                piece.topic, piece.partition, start=start, until=min(low, until), low=low
            )
            if self._fail_on_data_loss:
                raise lost
            _log.warning("records are left out: %s", lost)


def _after(batch: pa.RecordBatch, offset: int) -> int:
    """Return the offset after the last one of a batch."""
    return batch.column(_OFFSET)[-1].as_py() + 1 if batch.num_rows else offset


def data_loss(
    topic: str, partition: int, *, start: int, until: int, **facts: object
) -> DataLossError:
    """Return the error for the offsets from `start` to `until`, which are gone."""
    return DataLossError(
        "records were removed before they were read",
        topic=topic,
        partition=partition,
        from_offset=start,
        to_offset=until,
        **facts,
    )


def _select(
    file: SealedSegment, wanted: SealedFile, columns: list[str]
) -> Iterator[pa.RecordBatch]:
    """Yield the records of a file whose offsets are wanted."""
    for group in file.within(wanted.start, wanted.until):
        for batch in file.batches(group, columns):
            if wanted.whole:
                yield batch
                continue
            offsets = column_numbers(batch, _OFFSET)
            first, last = np.searchsorted(offsets, (wanted.start, wanted.until))
            yield batch.slice(first, last - first)
