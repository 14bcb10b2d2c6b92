"""What a task does: reads a piece, from files where it can, else from the log's owner.

Files are read here, because values that do not pass through the owner cost it nothing. One that
cannot be had from here, or is gone because the log was cleaned up meanwhile, is no failure: the
owner has its records still, wherever they are now. If the owner is lost while it gives them out,
reading goes on behind the last one that came.
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
from lakebed.spark.connection import connected
from lakebed.spark.options import Target
from lakebed.spark.planning import Piece
from lakebed.spark.sealed import UNREADABLE, SealedSegment
from lakebed.spark.types import Fitter, arrow_schema, read_columns

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

_log = logging.getLogger("lakebed.spark")

_OFFSET: Final = "offset"
_LOST_MAX: Final = 5
"""How often in a row the owner may be lost before anything comes from it."""


class Fetch:
    """Reads pieces into the schema that Spark expects. One task, one thread."""

    def __init__(self, target: Target, schema: StructType, *, fail_on_data_loss: bool) -> None:
        self._target = target
        columns = read_columns(schema)
        self._columns = columns if _OFFSET in columns else [*columns, _OFFSET]
        """What is read: always the offsets too, which tell how far reading has come."""
        self._schema = arrow_schema(schema)
        self._fail_on_data_loss = fail_on_data_loss

    def batches(self, piece: Piece) -> Iterator[pa.RecordBatch]:
        """Return the records of a piece, in the order of their offsets."""
        fitter = Fitter(self._schema, piece.topic)
        for batch in self._records(piece):
            if batch.num_rows:
                yield fitter.fit(batch)

    def _records(self, piece: Piece) -> Iterator[pa.RecordBatch]:
        at = piece.start
        for file in piece.files:
            if file.start > at:
                yield from self._from_owner(piece, at, file.start)
            yield from self._from_file(piece, file)
            at = file.until
        if at < piece.until:
            yield from self._from_owner(piece, at, piece.until)

    def _from_file(self, piece: Piece, file: SealedFile) -> Iterator[pa.RecordBatch]:
        """Return the records of a file; what of it cannot be had from here comes from the owner."""
        at = file.start
        try:
            with SealedSegment(file.location) as found:
                for batch in _wanted(found, file, self._columns):
                    yield batch
                    at = _after(batch, at)
            return
        except UNREADABLE as error:
            _log.info("a file is read through the log's owner: file=%s %s", file.location, error)
        yield from self._from_owner(piece, at, file.until)

    # Through the owner

    def _from_owner(self, piece: Piece, start: int, until: int) -> Iterator[pa.RecordBatch]:
        at, lost = start, 0
        while True:
            try:
                for batch in self._scan(piece, at, until):
                    yield batch
                    at, lost = _after(batch, at), 0
                return
            except ServerUnavailableError as error:
                lost += 1
                if lost > _LOST_MAX or not self._target.client.retry_ms:
                    raise
                _log.warning("the log's owner is lost, and is asked again: %s", error)

    def _scan(self, piece: Piece, start: int, until: int) -> Iterator[pa.RecordBatch]:
        try:
            log = connected(self._target, patient=True)
            table = log.table(piece.topic)
            if table._id != piece.topic_id:
                raise TopicNotFoundError(
                    "the topic was deleted and created again", topic=piece.topic
                )
            number, seen = piece.partition, 0
            for batch in table.scan(
                self._columns, partitions=[number], start={number: start}, until={number: until}
            ):
                seen += batch.num_rows
                yield batch
            low = log.offsets(piece.topic)[number][0]
        except TopicNotFoundError as error:
            lost = data_loss(piece.topic, piece.partition, start, until, reason=str(error))
            if self._fail_on_data_loss:
                raise lost from error
            _log.warning("records are left out: %s", lost)
            return
        if low > start and seen < until - start:
            lost = data_loss(piece.topic, piece.partition, start, min(low, until), low=low)
            if self._fail_on_data_loss:
                raise lost
            _log.warning("records are left out: %s", lost)


def _after(batch: pa.RecordBatch, at: int) -> int:
    """Return the offset behind a batch's last one."""
    return batch.column(_OFFSET)[-1].as_py() + 1 if batch.num_rows else at


def data_loss(topic: str, partition: int, start: int, until: int, **facts: object) -> DataLossError:
    """Return the error that says which records are gone."""
    return DataLossError(
        "records were removed before they were read",
        topic=topic,
        partition=partition,
        from_offset=start,
        to_offset=until,
        **facts,
    )


def _wanted(
    file: SealedSegment, wanted: SealedFile, columns: list[str]
) -> Iterator[pa.RecordBatch]:
    """Return the records of a file whose offsets are wanted."""
    for group in file.within(wanted.start, wanted.until):
        for batch in file.batches(group, columns):
            if wanted.whole:
                yield batch
                continue
            offsets = column_numbers(batch, _OFFSET)
            first, last = np.searchsorted(offsets, (wanted.start, wanted.until))
            yield batch.slice(first, last - first)
