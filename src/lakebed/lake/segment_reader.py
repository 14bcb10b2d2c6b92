"""Reads segments: by offset, time or key, whole for scans and merging, or to verify every byte."""

from __future__ import annotations

import bisect
import contextlib
import functools
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Concatenate, Final, ParamSpec, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakebed import limits
from lakebed.errors import ClosedError, CorruptionError, InvalidArgumentError, MissingFileError
from lakebed.lake.columns import column_numbers
from lakebed.lake.folder import LakeFolder
from lakebed.lake.key_filter import Probe
from lakebed.lake.open_segment import OpenSegment, open_file, open_segment
from lakebed.lake.prefetch import Decoders
from lakebed.lake.remote_segments import RemoteSegments
from lakebed.lake.row_group_cache import CacheStats, RowGroupCache
from lakebed.lake.schema import choose_columns
from lakebed.lake.segment_keys import KeysCache, SegmentKeys
from lakebed.lake.verification import verify_segment
from lakebed.state.values import STORE, Segment

OPEN_SEGMENTS_MAX: Final = 128
"""How many segments stay mapped."""

KEY_FILTER_BYTES_MAX: Final = 64 * limits.MIB
"""Key filters held in memory: those of about 32 million different keys."""


_LOOKUP_ROWS: Final = 8_192
"""Rows that a lookup decodes at a time until it finds the one."""

_P = ParamSpec("_P")
_T = TypeVar("_T")
_Use = Callable[Concatenate["SegmentReader", int, int, Segment, _P], _T]


def _recovering(use: _Use[_P, _T]) -> _Use[_P, _T]:
    """Repeat a method, once, if the damaged copy of its segment can be fetched again."""

    @functools.wraps(use)
    def use_or_repeat(
        self: SegmentReader,
        topic: int,
        partition: int,
        segment: Segment,
        /,
        *args: _P.args,
        **options: _P.kwargs,
    ) -> _T:
        try:
            return use(self, topic, partition, segment, *args, **options)
        except CorruptionError:
            if not self.recover(topic, partition, segment):
                raise
        return use(self, topic, partition, segment, *args, **options)

    return use_or_repeat


class SegmentReader:
    """Reads segments through a bounded cache of decoded row groups. Any thread.

    Batches are slices of cached row groups, without a copy: while a caller holds one, it holds the
    memory of its row group, whether or not that is still in the cache.
    """

    def __init__(
        self, folder: LakeFolder, cache_bytes: int, remote: RemoteSegments | None = None
    ) -> None:
        self._folder = folder
        self._remote = remote
        """Provides the files of segments that are not on the local disk."""
        self._cache = RowGroupCache(cache_bytes)
        self._guard = threading.Lock()
        self._open: OrderedDict[int, OpenSegment] = OrderedDict()
        self._keys = KeysCache(KEY_FILTER_BYTES_MAX)
        self.decoders: Final = Decoders()
        """Decode for scans."""
        self._closed = False

    @property
    def stats(self) -> CacheStats:
        """Return how often the cache served, and how much it holds."""
        return self._cache.stats

    @_recovering
    def read(
        self,
        topic: int,
        partition: int,
        segment: Segment,
        *,
        offset: int,
        max_records: int,
        max_bytes: int,
        columns: Sequence[str] | None = None,
    ) -> list[pa.RecordBatch]:
        """Return records from `offset` on, at least one if there is one, about so many at most.

        `max_records` is exact; `max_bytes` goes by the average size of a row group's records.
        """
        if max_records < 1 or max_bytes < 1:
            raise InvalidArgumentError(
                "max_records and max_bytes must be 1 or more",
                max_records=max_records,
                max_bytes=max_bytes,
            )
        names = choose_columns(columns)
        if offset >= segment.end or not segment.records:
            return []
        opened = self._open_segment(topic, partition, segment)
        batches: list[pa.RecordBatch] = []
        for row_group in range(_row_group_at(opened, offset), len(opened.index.row_groups)):
            batch = self._records_from(segment, opened, row_group, names, offset)
            size_bytes = batch.nbytes
            count = _fitting(batch.num_rows, size_bytes, max_records, max_bytes)
            if count or not batches:
                batches.append(batch.slice(0, max(1, count)))
            max_records -= count
            max_bytes -= size_bytes
            if count < batch.num_rows or max_records < 1 or max_bytes < 1:
                break
        return batches

    @_recovering
    def offset_for_time(
        self, topic: int, partition: int, segment: Segment, time_us: int
    ) -> int | None:
        """Return the first offset whose timestamp is `time_us` or later, or None."""
        if not segment.records or time_us > segment.time_max_us:
            return None
        opened = self._open_segment(topic, partition, segment)
        for row_group, group in enumerate(opened.index.row_groups):
            if group.time_max_us >= time_us:
                batch = self._row_group(segment, opened, row_group, ("offset", "timestamp"))
                late = column_numbers(batch, "timestamp") >= time_us
                return int(column_numbers(batch, "offset")[int(np.argmax(late))])
        return None

    def scan(
        self, topic: int, partition: int, segment: Segment, columns: Sequence[str] | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Return every record, row group by row group; the cache is neither used nor filled."""
        names = choose_columns(columns)
        opened = self._open_segment(topic, partition, segment)
        for row_group in range(len(opened.index.row_groups)):
            yield opened.batch(opened.columns(row_group, names))

    @_recovering
    def open(self, topic: int, partition: int, segment: Segment) -> OpenSegment:
        """Open a segment for a scan, which reads it once: the map lasts as long as the scan."""
        return self._open_segment(topic, partition, segment, keep=False)

    def reopen(self, topic: int, partition: int, segment: Segment) -> OpenSegment | None:
        """Open a segment that a scan found damaged from another copy; None if there is none."""
        if not self.recover(topic, partition, segment):
            return None
        return self._open_segment(topic, partition, segment, keep=False)

    @_recovering
    def find(
        self,
        topic: int,
        partition: int,
        segment: Segment,
        wanted: Probe,
        *,
        low: int,
        columns: Sequence[str] | None = None,
    ) -> pa.RecordBatch | None:
        """Return the last record of a key at `low` or behind it, as a batch of one, or None.

        Row groups that cannot hold the key are not touched. Of one that may, the keys are decoded
        and cached; if the key is there, the other columns up to its record, which are not.
        """
        names = choose_columns(columns)
        for row_group in self._segment_keys(topic, partition, segment).candidates(wanted):
            opened = self._open_segment(topic, partition, segment)
            if opened.index.row_groups[row_group].last < low:
                return None
            keys = self._row_group(segment, opened, row_group, ("key",)).column("key")
            rows = np.flatnonzero(pc.equal(keys, wanted.key).fill_null(fill_value=False))
            if len(rows):
                row = int(rows[-1])
                if self._offset(segment, opened, row_group, row) < low:
                    return None
                return _row(opened, row_group, names, row)
        return None

    def _offset(self, segment: Segment, opened: OpenSegment, row_group: int, row: int) -> int:
        """Return the offset of a row of a row group."""
        group = opened.index.row_groups[row_group]
        if group.dense:
            return group.first + row
        offsets = self._row_group(segment, opened, row_group, ("offset",)).column("offset")
        return int(offsets[row].as_py())

    @_recovering
    def verify(self, topic: int, partition: int, segment: Segment) -> None:
        """Read every byte from the disk and check everything that is known about the segment."""
        with self._file(topic, partition, segment) as path:
            verify_segment(self._folder.disk, path, partition, segment)

    @_recovering
    def metadata(self, topic: int, partition: int, segment: Segment) -> Any:
        """Return what the Parquet library knows of a segment's file."""
        return self._open_segment(topic, partition, segment, keep=False).metadata

    def recover(self, topic: int, partition: int, segment: Segment) -> bool:
        """Fetch a damaged segment again, if it was fetched; return whether reading may go on."""
        if self._remote is None or self._is_local(topic, partition, segment):
            return False
        self.forget(segment.id)
        self._remote.discard(topic, partition, segment)
        return True

    def unmap(self, segment_id: int) -> None:
        """Drop a segment's map; its row groups and key filters still tell what is in it."""
        with self._guard:
            self._open.pop(segment_id, None)

    def forget(self, segment_id: int) -> None:
        """Drop everything that is held of a segment; batches that callers hold stay valid."""
        self.unmap(segment_id)
        self._keys.forget(segment_id)
        self._cache.forget(segment_id)

    def close(self) -> None:
        """Drop every map and row group and end every scan; batches that callers hold stay valid."""
        with self._guard:
            self._closed = True
            self._open.clear()
        self.decoders.close()
        self._keys.clear()
        self._cache.clear()

    def _segment_keys(self, topic: int, partition: int, segment: Segment) -> SegmentKeys:
        keys = self._keys.get(segment.id)
        if keys is None:
            keys = self._open_segment(topic, partition, segment).keys()
            self._keys.put(segment.id, keys)
        return keys

    def _open_segment(
        self, topic: int, partition: int, segment: Segment, *, keep: bool = True
    ) -> OpenSegment:
        with self._guard:
            if self._closed:
                raise ClosedError("the reader was closed")
            opened = self._open.get(segment.id)
            if opened is not None:
                self._open.move_to_end(segment.id)
                return opened
        # Opened outside the guard: a slow disk does not hold up those who read other segments.
        with self._file(topic, partition, segment) as path:
            opened = open_segment(self._folder.disk, path, segment)
        if not keep:
            return opened
        with self._guard:
            if not self._closed:
                opened = self._open.setdefault(segment.id, opened)
            while len(self._open) > OPEN_SEGMENTS_MAX:
                self._open.popitem(last=False)
        return opened

    @contextlib.contextmanager
    def _file(self, topic: int, partition: int, segment: Segment) -> Iterator[Path]:
        """Return the local file of a segment, from wherever it is, which stays within the block."""
        if self._remote is None or self._is_local(topic, partition, segment):
            yield self._folder.path(topic, partition, segment.id)
            return
        with self._remote.pin(topic, partition, segment) as path:
            yield path

    def _is_local(self, topic: int, partition: int, segment: Segment) -> bool:
        """Return whether a segment is read from the local disk.

        One that was here alone when the caller looked may have been moved since.
        """
        if segment.place == STORE:
            return False
        try:
            path = self._folder.path(topic, partition, segment.id)
            open_file(self._folder.disk, path).close()
        except MissingFileError:
            return False
        return True

    def _row_group(
        self, segment: Segment, opened: OpenSegment, row_group: int, names: Sequence[str]
    ) -> pa.RecordBatch:
        def decode(missing: Sequence[str]) -> dict[str, pa.Array]:
            columns = opened.columns(row_group, missing)
            opened.release(row_group)  # the cache has it now
            return columns

        return opened.batch(self._cache.get((segment.id, row_group), names, decode))

    def _records_from(
        self,
        segment: Segment,
        opened: OpenSegment,
        row_group: int,
        names: Sequence[str],
        offset: int,
    ) -> pa.RecordBatch:
        """Return the records of a row group from `offset` on."""
        group = opened.index.row_groups[row_group]
        batch = self._row_group(segment, opened, row_group, names)
        if offset <= group.first:
            return batch
        if group.dense:
            return batch.slice(offset - group.first)
        offsets = column_numbers(self._row_group(segment, opened, row_group, ("offset",)), "offset")
        return batch.slice(int(np.searchsorted(offsets, offset)))


def _row(opened: OpenSegment, row_group: int, names: Sequence[str], row: int) -> pa.RecordBatch:
    """Return one row of a row group, decoding what is before it and little behind it."""
    for batch in opened.slices(row_group, names, _LOOKUP_ROWS):
        if row < batch.num_rows:
            return batch.slice(row, 1)
        row -= batch.num_rows
    raise AssertionError("a row group has fewer rows than its key column")


def _row_group_at(opened: OpenSegment, offset: int) -> int:
    """Return the number of the first row group that has a record at `offset` or behind it."""
    return bisect.bisect_left(opened.index.row_groups, offset, key=lambda group: group.last)


def _fitting(rows: int, size_bytes: int, max_records: int, max_bytes: int) -> int:
    """Return how many of so many rows may be taken; 0 if not even one fits."""
    if size_bytes <= max_bytes:
        return min(rows, max_records)
    return min(rows, max_records, max_bytes * rows // size_bytes)
