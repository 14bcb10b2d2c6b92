"""Which records survive a compaction, found by Spark: one bit for each offset, block by block.

Three queries, because each reads as little as it can:

- the last offset of each key: reads offsets and keys, and shuffles one row for each key and task;
- records without a key, which stay: row groups without one are left out by their statistics;
- tombstones old enough to go: only row groups with a timestamp that old are looked into, so values
  are read where there may be something to drop, and of a typed value one field only.

A task makes bits of the offsets that it is left with, and gives them away in blocks. The driver
holds nothing but bits.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lakebed.engine.compaction import PartitionCompaction
from lakebed.engine.plan import ScanPlan
from lakebed.engine.topics import TopicInfo
from lakebed.spark.frames import planned_frame
from lakebed.spark.options import Target

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import DataType, StructType

Bits = npt.NDArray[np.uint8]

BLOCK: Final = 20
"""A block is 2 to this power offsets."""
_BLOCK_BYTES: Final = (1 << BLOCK) // 8
_HELD_BLOCKS: Final = 256
"""A task gives its blocks away when it holds so many: 32 MiB."""
_GATHERED_ROWS: Final = 1_000_000
"""Offsets are sorted into blocks when there are so many."""
_KEPT: Final = 0
_GONE: Final = 1
_BLOCKS: Final = "kind int, partition int, block long, bits binary"


def survivors(
    spark: SparkSession,
    target: Target,
    info: TopicInfo,
    parts: Iterable[PartitionCompaction],
    tombstone_before_us: int,
) -> dict[int, Bits]:
    """Give the survivors of partitions, by partition: bit `i` is for the offset `base + i`.

    Bases are those of the plan, rounded down to whole blocks.
    """
    chosen = list(parts)
    files = tuple(replace(each, whole=True) for part in chosen for each in part.files)
    plan = ScanPlan(info.name, files, ())
    frame = _marked(spark, target, plan, info, tombstone_before_us)
    found = frame.mapInArrow(_blocks, _BLOCKS).toArrow()
    kept = {each.partition: _empty(each) for each in chosen}
    gone = {each.partition: _empty(each) for each in chosen}
    first = {each.partition: first_block(each) for each in chosen}
    for row in found.to_batches(max_chunksize=64):
        for kind, partition, block, bits in zip(*row.to_pydict().values(), strict=True):
            at = (block - first[partition]) * _BLOCK_BYTES
            held = (kept if kind == _KEPT else gone)[partition]
            held[at : at + _BLOCK_BYTES] |= _unpacked(bits)
    return {number: bits & ~gone[number] for number, bits in kept.items()}


def first_block(part: PartitionCompaction) -> int:
    """Give the number of the block that a partition's first offset is in."""
    return part.base >> BLOCK


def _empty(part: PartitionCompaction) -> Bits:
    blocks = ((part.end - 1) >> BLOCK) - first_block(part) + 1
    return np.zeros(blocks * _BLOCK_BYTES, dtype=np.uint8)


# Queries


def _marked(
    spark: SparkSession,
    target: Target,
    plan: ScanPlan,
    info: TopicInfo,
    tombstone_before_us: int,
) -> DataFrame:
    """Give partition and offset of records that stay unless they go, and of those that go."""
    from pyspark.sql import functions as f
    from pyspark.sql.types import (
        BinaryType,
        IntegerType,
        LongType,
        StructField,
        StructType,
        TimestampType,
    )

    place = [StructField("partition", IntegerType()), StructField("offset", LongType())]
    key = StructField("key", BinaryType())
    time = StructField("timestamp", TimestampType())
    value = StructField("value", _narrow(info))
    keyed = planned_frame(spark, target, plan, StructType([*place, key]))
    last = keyed.where("key IS NOT NULL").groupBy("partition", "key").agg(f.max("offset"))
    aged = planned_frame(spark, target, plan, StructType([*place, key, time, value]))
    old = aged.where(f.col("timestamp") < f.timestamp_micros(f.lit(tombstone_before_us)))
    return (
        last.select(f.lit(_KEPT).alias("kind"), "partition", f.col("max(offset)").alias("offset"))
        .unionAll(keyed.where("key IS NULL").select(f.lit(_KEPT), "partition", "offset"))
        .unionAll(
            old.where("value IS NULL AND key IS NOT NULL").select(
                f.lit(_GONE), "partition", "offset"
            )
        )
    )


def _narrow(info: TopicInfo) -> DataType:
    """Give the type to read values by of which only one thing is asked: whether there is one.

    A field that came with a later version of the schema is not in all files, and a struct without
    any of its fields would be taken for none.
    """
    from pyspark.sql.types import BinaryType, StructType

    from lakebed.spark.types import spark_schema

    if info.schema is None:
        return BinaryType()
    whole: StructType = spark_schema(info.schema, topic=False, headers=True)
    fields = whole.fields if info.schema_version == 1 else whole.fields[:1]
    return StructType([min(fields, key=lambda each: _width(each.dataType))])


def _width(kind: DataType) -> int:
    from pyspark.sql.types import BooleanType, NumericType, StringType

    order: tuple[Any, ...] = (BooleanType, NumericType, StringType)
    return next((place for place, each in enumerate(order) if isinstance(kind, each)), len(order))


# Bits


def _blocks(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Make bits of a task's offsets."""
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
                yield from held.given()
    if rows:
        held.add(pa.Table.from_batches(gathered))
    yield from held.given()


class _Held:
    """Blocks that have bits, as long as a task holds them."""

    def __init__(self) -> None:
        self.blocks: dict[tuple[int, int, int], Bits] = {}

    def add(self, rows: pa.Table) -> None:
        """Set the bits of offsets."""
        kinds = rows.column(0).to_numpy()
        partitions = rows.column(1).to_numpy()
        offsets = rows.column(2).to_numpy()
        lanes = (kinds.astype(np.int64) << 32) | partitions
        for lane in np.unique(lanes):
            kind, partition = int(lane) >> 32, int(lane) & 0xFFFFFFFF
            self._add(kind, partition, np.sort(offsets[lanes == lane]))

    def _add(self, kind: int, partition: int, offsets: npt.NDArray[np.int64]) -> None:
        """Set the bits of ascending offsets of one partition, all of a byte at a time."""
        places = offsets >> 3
        starts = np.flatnonzero(np.diff(places, prepend=places[0] - 1))
        flags = np.left_shift(np.uint8(1), (offsets & 7).astype(np.uint8), dtype=np.uint8)
        values = np.bitwise_or.reduceat(flags, starts)
        bytes_ = places[starts]
        numbers = bytes_ >> (BLOCK - 3)
        edges = np.flatnonzero(np.diff(numbers, prepend=numbers[0] - 1))
        for start, until in zip(edges, [*edges[1:], len(numbers)], strict=True):
            number = int(numbers[start])
            block = self.blocks.get((kind, partition, number))
            if block is None:
                block = np.zeros(_BLOCK_BYTES, dtype=np.uint8)
                self.blocks[kind, partition, number] = block
            block[bytes_[start:until] & (_BLOCK_BYTES - 1)] |= values[start:until]

    def given(self) -> Iterator[pa.RecordBatch]:
        """Give the blocks away."""
        for (kind, partition, number), bits in self.blocks.items():
            columns = [
                pa.array([kind], pa.int32()),
                pa.array([partition], pa.int32()),
                pa.array([number], pa.int64()),
                pa.array([pa.compress(bits.tobytes(), codec="zstd", asbytes=True)], pa.binary()),
            ]
            yield pa.RecordBatch.from_arrays(columns, ["kind", "partition", "block", "bits"])
        self.blocks.clear()


def _unpacked(packed: bytes) -> Bits:
    bits = pa.decompress(packed, decompressed_size=_BLOCK_BYTES, codec="zstd", asbytes=True)
    return np.frombuffer(bits, dtype=np.uint8)
