"""A Spark source that makes its batches itself: what a Python source can reach at best."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from bench.peers import RECORD_BYTES

ROWS = 32_768
SCHEMA = "partition int, offset long, timestamp timestamp, key binary, value binary"


class SyntheticSource(DataSource):
    """Rows of the shape of a topic's records, from memory."""

    @classmethod
    def name(cls) -> str:
        """Return what it is called."""
        return "synthetic"

    def schema(self) -> str:
        """Return the columns of a topic."""
        return SCHEMA

    def reader(self, schema: Any) -> DataSourceReader:  # noqa: ARG002
        """Make batches."""
        return _Reader(int(self.options["records"]), int(self.options["tasks"]))


class _Reader(DataSourceReader):
    def __init__(self, records: int, tasks: int) -> None:
        self._records = records
        self._tasks = tasks

    def partitions(self) -> list[InputPartition]:
        """Return each task its share."""
        return [InputPartition(number) for number in range(self._tasks)]

    def read(self, partition: Any) -> Iterator[pa.RecordBatch]:
        """Return the same values again and again, with offsets that go on."""
        share = self._records // self._tasks
        rng = np.random.default_rng(partition.value)
        values = _binary(rng, ROWS, RECORD_BYTES)
        keys = _binary(rng, ROWS, 8)
        times = pa.array(np.full(ROWS, 1_700_000_000_000_000), pa.timestamp("us", "UTC"))
        numbers = pa.array(np.full(ROWS, partition.value, np.int32))
        for first in range(0, share, ROWS):
            count = min(ROWS, share - first)
            offsets = pa.array(np.arange(first, first + ROWS))
            batch = pa.RecordBatch.from_arrays(
                [numbers, offsets, times, keys, values],
                schema=pa.schema(
                    [
                        ("partition", pa.int32()),
                        ("offset", pa.int64()),
                        ("timestamp", pa.timestamp("us", "UTC")),
                        ("key", pa.binary()),
                        ("value", pa.binary()),
                    ]
                ),
            )
            yield batch.slice(0, count)


def _binary(rng: np.random.Generator, rows: int, width: int) -> pa.Array:
    offsets = pa.py_buffer((np.arange(rows + 1) * width).astype(np.int32))
    return pa.Array.from_buffers(
        pa.binary(), rows, [None, offsets, pa.py_buffer(rng.bytes(rows * width))]
    )
