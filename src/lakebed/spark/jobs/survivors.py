"""Which records survive a compaction, found by Spark: one bit for each offset, in blocks.

1. A task reads keys and offsets of some files of a partition, with Arrow, and returns the last
   record of each key among them, and every record without a key. So most keys are gone before they
   become rows in Java. What a task holds is bounded: it returns what it has, and continues. Values
   are read only where there may be a tombstone that is old enough to be removed.
2. Spark groups the keys and keeps the last record of each.
3. A task turns the offsets that are left into bits, in blocks. The driver holds nothing but bits.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lakebed import limits
from lakebed.reports.maintenance import PartitionCompaction
from lakebed.reports.topics import SealedFile, TopicInfo
from lakebed.spark.fetch import Fetch
from lakebed.spark.options import Target
from lakebed.spark.planning import ScanPiece
from lakebed.spark.sealed import UNREADABLE, SealedSegment
from lakebed.spark.types import spark_schema
from lakebed.topic.compaction import LastOfKeys, with_tombstones

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

_log = logging.getLogger("lakebed.spark")

Bits = npt.NDArray[np.uint8]

BLOCK: Final = 20
"""A block is 2 to this power offsets."""
_BLOCK_BYTES: Final = (1 << BLOCK) // 8
_HELD_BLOCKS: Final = 256
"""A task returns its blocks when it holds this many: 32 MiB."""
_GATHERED_ROWS: Final = 1_000_000
"""Offsets are sorted into blocks when there are this many."""
_TASK_RECORDS: Final = 4_000_000
"""The most records that a task reads, about."""
_HELD_BYTES: Final = 128 * limits.MIB
"""A task returns its keys when they take this much; three times that while they are joined."""
_GIVEN_ROWS: Final = 65_536
_GIVEN_BYTES: Final = 16 * limits.MIB
"""The largest batches in which keys are returned."""
_LAST: Final = "partition int, key binary, alone long, mark long"
"""`alone` is the offset of a record without a key, which is never grouped, else -1."""
_BLOCKS: Final = "partition int, block long, bits binary"


def survivors(
    spark: SparkSession,
    target: Target,
    info: TopicInfo,
    parts: Iterable[PartitionCompaction],
    tombstone_before_us: int,
) -> dict[int, Bits]:
    """Return the records to keep, by partition: bit `i` stands for the offset `base + i`.

    Bases are those of the plan, rounded down to blocks.
    """
    from pyspark.sql import functions as f

    chosen = list(parts)
    look = _LastRecords(target, _columns(info), tombstone_before_us, tuple(_pieces(info, chosen)))
    last = (
        spark.range(0, len(look.pieces), 1, len(look.pieces))
        .mapInArrow(look.run, _LAST)
        .groupBy("partition", "key", "alone")
        .agg(f.max("mark").alias("mark"))
    )
    kept = last.where("mark % 2 = 0").selectExpr("partition", "shiftright(mark, 1) AS offset")
    blocks = kept.mapInArrow(_blocks, _BLOCKS).toArrow()
    bits = {part.partition: _empty(part) for part in chosen}
    first = {part.partition: first_block(part) for part in chosen}
    for row in blocks.to_batches(max_chunksize=64):
        for partition, block, packed in zip(*row.to_pydict().values(), strict=True):
            start = (block - first[partition]) * _BLOCK_BYTES
            bits[partition][start : start + _BLOCK_BYTES] |= _unpack(packed)
    return bits


def first_block(part: PartitionCompaction) -> int:
    """Return the number of the block of a partition's first offset."""
    return part.base >> BLOCK


def _empty(part: PartitionCompaction) -> Bits:
    blocks = ((part.end - 1) >> BLOCK) - first_block(part) + 1
    return np.zeros(blocks * _BLOCK_BYTES, dtype=np.uint8)


def _pieces(info: TopicInfo, parts: Iterable[PartitionCompaction]) -> Iterator[ScanPiece]:
    """Group consecutive files of a partition into pieces for one task each."""
    for part in parts:
        taken: list[SealedFile] = []
        for file in part.files:
            if taken and sum(earlier.records for earlier in taken) + file.records > _TASK_RECORDS:
                yield _piece(info, part, taken)
                taken = []
            taken.append(file)
        yield _piece(info, part, taken)


def _piece(info: TopicInfo, part: PartitionCompaction, files: Sequence[SealedFile]) -> ScanPiece:
    return ScanPiece(
        topic=info.name,
        topic_id=info.id,
        partition=part.partition,
        start=files[0].start,
        until=files[-1].until,
        files=tuple(files),
    )


def _columns(info: TopicInfo) -> StructType:
    """Return the columns that decide on records, as they come from the log's owner."""
    from pyspark.sql.types import BinaryType, LongType, StructField, StructType, TimestampType

    fields = [
        StructField("offset", LongType()),
        StructField("timestamp", TimestampType()),
        StructField("key", BinaryType()),
    ]
    if info.schema is None:
        return StructType([*fields, StructField("value", BinaryType())])
    value = pa.schema([pa.field("value", pa.struct(list(info.schema)))])
    return StructType([*fields, *spark_schema(value, topic=False, headers=False).fields])


# The last record of each key


class _LastRecords:
    """Finds the last records of keys in tasks. Plain data, which Spark pickles."""

    def __init__(
        self, target: Target, columns: StructType, before_us: int, pieces: tuple[ScanPiece, ...]
    ) -> None:
        self.target = target
        self.columns = columns
        self.before_us = before_us
        self.pieces = pieces

    def run(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the last records of keys in the pieces whose indexes come in."""
        for batch in batches:
            for index in batch.column(0).to_pylist():
                yield from self._last(self.pieces[index])

    def _last(self, piece: ScanPiece) -> Iterator[pa.RecordBatch]:
        held = LastOfKeys(self.before_us)
        for file in piece.files:
            for batch in self._file(piece, file):
                held.add(batch)
                if held.size_bytes > _HELD_BYTES:
                    yield from _drain(piece.partition, held)
        yield from _drain(piece.partition, held)

    def _file(self, piece: ScanPiece, file: SealedFile) -> Iterator[pa.RecordBatch]:
        """Yield what decides on the records of a file, from the owner if the file is unreachable.

        Records that come twice do no harm: the last of a key stays the last.
        """
        try:
            with SealedSegment(file.location) as segment:
                for group in range(len(segment.index.row_groups)):
                    yield from _deciding_columns(segment, group, self.before_us)
            return
        except UNREADABLE as error:
            _log.info("a file is read through the log's owner: file=%s %s", file.location, error)
        owner = Fetch(self.target, self.columns, fail_on_data_loss=True)
        rest = replace(piece, start=file.start, until=file.until, files=())
        for batch in owner.batches(rest):
            yield with_tombstones(batch)


def _deciding_columns(file: SealedSegment, group: int, before_us: int) -> Iterator[pa.RecordBatch]:
    """Yield the columns that decide on the records of a row group, and no others."""
    old = file.index.row_groups[group].time_min_us < before_us
    if old and file.has_nulls(group, "value"):
        for batch in file.batches(group, ["offset", "timestamp", "key", "value"]):
            yield with_tombstones(batch)
    else:
        yield from file.batches(group, ["offset", "key"])


def _drain(partition: int, held: LastOfKeys) -> Iterator[pa.RecordBatch]:
    """Yield what is held in batches of bounded size, and hold nothing afterwards."""
    last, keyless = held.take()
    rows = max(1, min(_GIVEN_ROWS, _GIVEN_BYTES * max(1, last.num_rows) // max(1, last.nbytes)))
    for batch in last.combine_chunks().to_batches(max_chunksize=rows):
        alone = np.full(batch.num_rows, -1)
        yield _rows(partition, batch["key"].cast(pa.binary()), alone, batch["mark"])
    for start in range(0, len(keyless), _GIVEN_ROWS):
        alone = keyless[start : start + _GIVEN_ROWS]
        yield _rows(partition, pa.nulls(len(alone), pa.binary()), alone, pa.array(alone * 2))


def _rows(partition: int, keys: Any, alone: npt.NDArray[np.int64], marks: Any) -> pa.RecordBatch:
    numbers = pa.array(np.full(len(alone), partition, np.int32))
    return pa.RecordBatch.from_arrays(
        [numbers, keys, pa.array(alone, pa.int64()), marks], ["partition", "key", "alone", "mark"]
    )


# Bits


def _blocks(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Turn a task's offsets into blocks of bits."""
    held = _Held()
    gathered: list[pa.RecordBatch] = []
    rows = 0
    for batch in batches:
        gathered.append(batch)
        rows += batch.num_rows
        if rows >= _GATHERED_ROWS:
            held.add(pa.Table.from_batches(gathered))
            gathered, rows = [], 0
            if len(held.blocks) > _HELD_BLOCKS:
                yield from held.drain()
    if rows:
        held.add(pa.Table.from_batches(gathered))
    yield from held.drain()


class _Held:
    """The blocks of bits that a task holds."""

    def __init__(self) -> None:
        self.blocks: dict[tuple[int, int], Bits] = {}

    def add(self, rows: pa.Table) -> None:
        """Set the bits of offsets."""
        partitions = rows.column(0).to_numpy()
        offsets = rows.column(1).to_numpy()
        for partition in np.unique(partitions):
            self._add(int(partition), np.sort(offsets[partitions == partition]))

    def _add(self, partition: int, offsets: npt.NDArray[np.int64]) -> None:
        """Set the bits of ascending offsets of one partition, all of a byte at a time."""
        places = offsets >> 3
        starts = np.flatnonzero(np.diff(places, prepend=places[0] - 1))
        flags = np.left_shift(np.uint8(1), (offsets & 7).astype(np.uint8), dtype=np.uint8)
        values = np.bitwise_or.reduceat(flags, starts)
        bytes_ = places[starts]
        numbers = bytes_ >> (BLOCK - 3)
        edges = np.flatnonzero(np.diff(numbers, prepend=numbers[0] - 1))
        for start, until in zip(edges, [*edges[1:], len(numbers)], strict=True):
            block_number = int(numbers[start])
            block = self.blocks.get((partition, block_number))
            if block is None:
                block = np.zeros(_BLOCK_BYTES, dtype=np.uint8)
                self.blocks[partition, block_number] = block
            block[bytes_[start:until] & (_BLOCK_BYTES - 1)] |= values[start:until]

    def drain(self) -> Iterator[pa.RecordBatch]:
        """Yield the blocks, and hold none afterwards."""
        for (partition, block), bits in self.blocks.items():
            columns = [
                pa.array([partition], pa.int32()),
                pa.array([block], pa.int64()),
                pa.array([pa.compress(bits.tobytes(), codec="zstd", asbytes=True)], pa.binary()),
            ]
            yield pa.RecordBatch.from_arrays(columns, ["partition", "block", "bits"])
        self.blocks.clear()


def _unpack(packed: bytes) -> Bits:
    bits = pa.decompress(packed, decompressed_size=_BLOCK_BYTES, codec="zstd", asbytes=True)
    return np.frombuffer(bits, dtype=np.uint8)
