"""A sealed file that a task reads in place with Arrow, verified before it is decoded.

A local file is memory-mapped, and its column chunks are verified by the checksums of its index,
which takes a fraction of the time that the Parquet library needs for checksums of pages. In an
object store the checksums of pages are verified as they arrive.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, Self
from urllib.parse import urlsplit

import pyarrow as pa
import pyarrow.parquet as pq
from crc32c import crc32c

from lakebed.errors import CorruptionError, FormatTooNewError
from lakebed.lake.open_segment import chunk_damage_error
from lakebed.lake.segment_index import KEY, decode
from lakebed.spark.stores import in_store

_BATCH_ROWS: Final = 65_536
"""Rows of a batch for Spark: enough to cost little each, few enough to fit in memory."""
UNREADABLE: Final = (OSError, pa.ArrowException, CorruptionError, FormatTooNewError)
"""Errors of a file that cannot be reached or read from here."""


class SealedSegment:
    """An open file, for one thread. Raises one of `UNREADABLE` if it cannot be read."""

    def __init__(self, location: str) -> None:
        self._path = Path(location.removeprefix("file://"))
        self._bytes: memoryview | None = None
        if urlsplit(location).scheme in ("", "file"):
            mapped = pa.memory_map(os.fspath(self._path)).read_buffer()
            self._bytes = memoryview(mapped)
            source: Any = pa.BufferReader(mapped)
        else:
            source = in_store(location)
        self._file = pq.ParquetFile(
            source, page_checksum_verification=self._bytes is None, pre_buffer=False
        )
        metadata = self._file.metadata
        self.index: Final = decode((metadata.metadata or {}).get(KEY.encode(), b""), self._path)
        self._leaves = [
            metadata.schema.column(leaf).path.partition(".")[0]
            for leaf in range(metadata.num_columns)
        ]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def within(self, start: int, until: int) -> list[int]:
        """Return the indexes of the row groups that may hold offsets of a range."""
        groups = enumerate(self.index.row_groups)
        return [index for index, group in groups if group.first < until and group.last >= start]

    def batches(self, group: int, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yield columns of a row group in batches."""
        self._check(group, columns)
        yield from self._file.iter_batches(
            _BATCH_ROWS, row_groups=[group], columns=list(columns), use_threads=False
        )

    def has_nulls(self, group: int, name: str) -> bool:
        """Return whether a column of a row group may have nulls, by its statistics."""
        row_group = self._file.metadata.row_group(group)
        for leaf, column in enumerate(self._leaves):
            statistics = row_group.column(leaf).statistics if column == name else None
            if statistics is not None and statistics.has_null_count and not statistics.null_count:
                return False  # what is missing is missing in each of its fields
        return True

    def _check(self, group: int, columns: Sequence[str]) -> None:
        if self._bytes is None:
            return
        for leaf, (start, length, checksum) in enumerate(self.index.row_groups[group].chunks):
            if self._leaves[leaf] not in columns:
                continue
            if crc32c(self._bytes[start : start + length]) != checksum:
                raise chunk_damage_error(self._path, start, length, self._leaves[leaf], group)
