"""Writes a segment: whole under its final name, or not there at all.

Order, and what each step makes survive a power cut:

1. write row groups under the unfinished name, each synced separately, so that no heap of unwritten
   pages builds up behind which the WAL's next sync would wait
2. write the tail, sync the file: from here on a file of the final name can only be whole
3. rename it to its final name
4. the caller syncs the folder (`LakeFolder.sync`), once for many segments: the names survive
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from pathlib import Path
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
from crc32c import crc32c

from lakebed import limits
from lakebed.errors import CorruptionError, InvalidArgumentError, from_os_error
from lakebed.host import Disk, File, failpoints, write_all
from lakebed.host.atomic import AtomicSteps, write_atomically
from lakebed.lake.columns import ascending, column_numbers
from lakebed.lake.folder import UNFINISHED
from lakebed.lake.key_filter import filter_of
from lakebed.lake.row_groups import row_groups
from lakebed.lake.schema import encodings, file_schema
from lakebed.lake.segment_index import KEY, MAGIC, ColumnChunk, RowGroup, SegmentIndex
from lakebed.lake.sink import SegmentSink
from lakebed.state.values import Segment

COMPRESSIONS: Final = ("none", "zstd", "snappy", "lz4", "gzip")

_DICTIONARY_BYTES: Final = 64 * limits.KIB
"""A dictionary that gets larger is given up: its column has too many different values for one."""

_STEPS: Final = AtomicSteps(
    written=failpoints.define("lake.segment.written"),
    synced=failpoints.define("lake.segment.synced"),
    renamed=failpoints.define("lake.segment.renamed"),
)


def write_segment(
    disk: Disk,
    path: Path,
    batches: Iterable[pa.RecordBatch | pa.Table],
    *,
    segment_id: int,
    base: int,
    end: int,
    compression: str,
    schema: pa.Schema,
) -> Segment:
    """Write batches, ascending by offset, as the segment `path`; durable once its folder is synced.

    If it raises, the segment does not exist: nothing has the final name, or (if the very last step
    fails) a file that no log refers to.
    """
    if compression not in COMPRESSIONS:
        raise InvalidArgumentError(
            "compression must be one of " + ", ".join(COMPRESSIONS), compression=compression
        )
    written = file_schema(schema)
    try:
        with write_atomically(disk, path, "a segment", _STEPS, sync_folder=False) as file:
            return _Draft(file, segment_id, base, end, written, compression).write(batches)
    except BaseException:
        with contextlib.suppress(OSError):
            disk.remove(path.with_name(path.name + UNFINISHED))
        raise


class _Facts(NamedTuple):
    """What the index says of a row group, before its place in the file is known."""

    first: int
    last: int
    rows: int
    time_min_us: int
    time_max_us: int


class _Draft:
    """A segment being written."""

    def __init__(
        self,
        file: File,
        segment_id: int,
        base: int,
        end: int,
        schema: pa.Schema,
        compression: str,
    ) -> None:
        self._file = file
        self._segment_id = segment_id
        self._base = base
        self._end = end
        self._schema = schema
        self._sink = SegmentSink(file)
        chosen = encodings(schema)
        self._leaves = len(chosen.dictionary) + len(chosen.others)
        self._facts: list[_Facts] = []
        self._filters: list[bytes] = []
        """Of the keys of each row group."""
        self._writer = pq.ParquetWriter(
            self._sink,
            schema,
            version="2.6",
            compression=compression,
            use_dictionary=chosen.dictionary,
            column_encoding=chosen.others,
            dictionary_pagesize_limit=_DICTIONARY_BYTES,
            write_statistics=chosen.statistics,
            write_page_index=True,
            write_page_checksum=True,
        )

    def write(self, batches: Iterable[pa.RecordBatch | pa.Table]) -> Segment:
        """Write every byte of the file, without syncing the last of them."""
        try:
            for table in row_groups(batches, self._schema):
                self._facts.append(self._describe(table))
                self._filters.append(filter_of(table.column("key")))
                self._write_row_group(table)
            tail_start, tail = self._close()
        except BaseException:
            self._sink.abandon()
            with contextlib.suppress(Exception):
                self._writer.close()
            raise
        try:
            index = self._index(tail_start, tail)
            tail = _complete(tail, self._room(tail_start), index.encode())
            write_all(self._file, [tail], tail_start, len(tail))
        except OSError as error:
            raise from_os_error(error, "writing a segment", self._file.path) from error
        return self._segment(tail_start, tail)

    def _write_row_group(self, table: pa.Table) -> None:
        try:
            self._writer.write_table(table, row_group_size=table.num_rows)
        except MemoryError:
            raise
        except pa.ArrowException as error:
            raise InvalidArgumentError(
                "a Parquet file cannot hold these records", path=self._file.path, reason=error
            ) from error
        self._sink.sync()

    def _describe(self, table: pa.Table) -> _Facts:
        """Check a row group's records, and say what it holds."""
        for name in ("partition", "offset", "timestamp"):
            if table.column(name).null_count:
                raise InvalidArgumentError("a record lacks its " + name, path=self._file.path)
        offsets, times = column_numbers(table, "offset"), column_numbers(table, "timestamp")
        first, last = int(offsets[0]), int(offsets[-1])
        after = self._facts[-1].last + 1 if self._facts else self._base
        if first < after or last >= self._end or not ascending(offsets):
            raise InvalidArgumentError(
                "offsets do not ascend within the segment's bounds",
                path=self._file.path,
                first=first,
                last=last,
                expected_from=after,
                end=self._end,
            )
        return _Facts(first, last, len(offsets), int(times.min()), int(times.max()))

    def _close(self) -> tuple[int, bytes]:
        """Write the tail into memory by the library, with room for the index in it.

        Before that come the filters, which the library need not know of.
        """
        self._sink.hold()
        start = self._sink.tell()
        for key_filter in self._filters:
            self._sink.write(key_filter)
        self._writer.add_key_value_metadata({KEY: self._room(start)})
        self._writer.close()
        return start, self._sink.take_held()

    def _room(self, tail_start: int) -> bytes:
        """Return a document as long as the index can get: every number has its most digits."""
        longest = ColumnChunk(tail_start, tail_start, 0xFFFFFFFF)
        groups = tuple(
            RowGroup(*facts, (longest,) * self._leaves, filter_place)
            for facts, filter_place in zip(
                self._facts, self._filter_places(tail_start), strict=True
            )
        )
        return SegmentIndex(self._segment_id, self._base, self._end, groups).encode()

    def _filter_places(self, tail_start: int) -> list[tuple[int, int]]:
        """Return first byte and length of each row group's filter."""
        places = []
        for key_filter in self._filters:
            places.append((tail_start, len(key_filter)) if key_filter else (0, 0))
            tail_start += len(key_filter)
        return places

    def _index(self, tail_start: int, tail: bytes) -> SegmentIndex:
        metadata = pq.read_metadata(pa.BufferReader(tail))
        mapping = self._file.map()
        data = mapping.view(0, tail_start)
        if bytes(data[: len(MAGIC)]) != MAGIC:
            raise _bytes_error(self._file.path, 0)
        groups = []
        position = len(MAGIC)
        filters = self._filter_places(tail_start)
        for row_group, facts in enumerate(self._facts):
            chunks = []
            for start, length in _places(metadata.row_group(row_group)):
                if start != position:
                    raise _bytes_error(self._file.path, position)
                position += length
                chunks.append(ColumnChunk(start, length, crc32c(data[start:position])))
            groups.append(RowGroup(*facts, tuple(chunks), filters[row_group]))
        if position != tail_start:
            raise _bytes_error(self._file.path, position)
        return SegmentIndex(self._segment_id, self._base, self._end, tuple(groups))

    def _segment(self, tail_start: int, tail: bytes) -> Segment:
        facts = self._facts
        return Segment(
            id=self._segment_id,
            base=self._base,
            end=self._end,
            records=sum(group.rows for group in facts),
            file_bytes=tail_start + len(tail),
            tail_bytes=len(tail),
            tail_checksum=crc32c(tail),
            time_min_us=min((group.time_min_us for group in facts), default=0),
            time_max_us=max((group.time_max_us for group in facts), default=0),
        )


def _places(group: pq.RowGroupMetaData) -> Iterable[tuple[int, int]]:
    """Return where each column chunk starts, and its length."""
    for index in range(group.num_columns):
        column = group.column(index)
        dictionary = column.dictionary_page_offset
        start = column.data_page_offset if dictionary is None else dictionary
        yield start, column.total_compressed_size


def _complete(tail: bytes, room: bytes, document: bytes) -> bytes:
    """Put the index into the room that was reserved for it."""
    if tail.count(room) != 1 or len(document) > len(room):
        raise AssertionError("the Parquet library did not keep the room for the index")
    return tail.replace(room, document.ljust(len(room)))


def _bytes_error(path: Path, position: int) -> CorruptionError:
    return CorruptionError(
        "a segment just written does not hold what its footer says", path=path, byte=position
    )
