"""An open segment: its map, its index, and column chunks that are checked before they are decoded.

Bytes are trusted in this order: the tail, by the checksum in the log's state; the index, because it
is in the tail; each column chunk, by its checksum in the index. Nothing is handed to the Parquet
library before its bytes were checked.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
from crc32c import crc32c

from lakebed import limits
from lakebed.errors import CorruptionError, MissingFileError, from_os_error
from lakebed.host import Disk, File, Mapping, Mode
from lakebed.lake.key_filter import blocks_of
from lakebed.lake.schema import COLUMNS, without_ids
from lakebed.lake.segment_index import KEY, MAGIC, SegmentIndex, decode
from lakebed.lake.segment_keys import RowGroupKeys, SegmentKeys
from lakebed.state.values import Segment


class OpenSegment:
    """A mapped segment whose tail is right. Any thread; valid after its file was removed."""

    def __init__(self, path: Path, segment: Segment, mapping: Mapping) -> None:
        self.path = path
        self._mapping = mapping
        self._data = data = mapping.view(0, segment.file_bytes)
        self._buffer: Final = pa.py_buffer(data)
        tail = check_frame(path, segment, data)
        self.metadata: Final = _metadata(path, self._buffer)
        """What the Parquet library made of the footer."""
        self.index = _index(path, segment, self.metadata)
        self.leaves: Final = [
            self.metadata.schema.column(column).path.partition(".")[0]
            for column in range(self.metadata.num_columns)
        ]
        """The column that each chunk of a row group belongs to."""
        check_layout(path, self.index, tail, len(self.leaves))
        schema = self.metadata.schema.to_arrow_schema()
        self._fields = {name: without_ids(schema.field(name)) for name in COLUMNS}
        self._schemas: dict[tuple[str, ...], pa.Schema] = {}
        self._checked: set[tuple[int, int]] = set()
        self._tail = (tail, segment.file_bytes)
        # The library has made its own of what it needs of the tail.
        mapping.release(*self._tail)

    @property
    def value_type(self) -> pa.DataType:
        """Return the type that the values had when the segment was written."""
        return self._fields["value"].type

    def keys(self) -> SegmentKeys:
        """Return what is known of the keys of each row group without decoding them."""
        leaf = self.leaves.index("key")
        groups = range(len(self.index.row_groups))
        keys = SegmentKeys(self._row_group_keys(row_group, leaf) for row_group in groups)
        self._mapping.release(*self._tail)
        return keys

    def chunk(self, row_group: int, leaf: int) -> Any:
        """Return what the footer says of a column chunk: its statistics, its size."""
        return self.metadata.row_group(row_group).column(leaf)

    def count_decoded_bytes(self, row_group: int, names: Sequence[str]) -> int:
        """Estimate the size of a row group's columns once they are decoded."""
        return sum(
            self.chunk(row_group, leaf).total_uncompressed_size
            for leaf, name in enumerate(self.leaves)
            if name in names
        )

    def release(self, row_group: int) -> None:
        """Release the memory behind a row group, which will not be decoded again soon."""
        chunks = self.index.row_groups[row_group].chunks
        self._mapping.release(chunks[0].start, chunks[-1].start + chunks[-1].length)

    def columns(
        self, row_group: int, names: Sequence[str], *, threads: bool = True
    ) -> dict[str, pa.Array]:
        """Check and decode columns of a row group, each in a thread of the library if wanted."""
        self._check(row_group, names)
        try:
            table = self._source().read_row_group(
                row_group, columns=list(names), use_threads=threads
            )
        except MemoryError:
            raise
        except (pa.ArrowException, OSError) as error:
            raise self._undecodable(row_group) from error
        if table.num_rows != self.index.row_groups[row_group].rows:
            raise self._undecodable(row_group)
        return {name: _whole(table.column(name)) for name in names}

    def slices(self, row_group: int, names: Sequence[str], rows: int) -> Iterator[pa.RecordBatch]:
        """Check columns of a row group, and decode them so many rows at a time."""
        self._check(row_group, names, sparing=True)
        left = self.index.row_groups[row_group].rows
        pieces: list[pa.RecordBatch] = []  # the library may give fewer rows than asked for
        try:
            for batch in self._source().iter_batches(
                batch_size=rows, row_groups=[row_group], columns=list(names), use_threads=False
            ):
                self.release(row_group)
                pieces.append(self.batch({name: batch.column(name) for name in names}))
                if sum(piece.num_rows for piece in pieces) < min(rows, left):
                    continue
                whole = pieces[0] if len(pieces) == 1 else pa.concat_batches(pieces)
                left -= whole.num_rows
                pieces.clear()
                yield whole
        except MemoryError:
            raise
        except (pa.ArrowException, OSError) as error:
            raise self._undecodable(row_group) from error
        if left:
            raise self._undecodable(row_group)

    def _source(self) -> pq.ParquetFile:
        """Return a reader of the library, for one call: each is for one thread at a time."""
        return pq.ParquetFile(
            pa.BufferReader(self._buffer), metadata=self.metadata, pre_buffer=False
        )

    def batch(self, columns: dict[str, pa.Array]) -> pa.RecordBatch:
        """Make a batch of columns that were decoded, without copying."""
        names = tuple(columns)
        schema = self._schemas.get(names)
        if schema is None:
            schema = pa.schema([self._fields[name] for name in names])
            self._schemas[names] = schema
        return pa.RecordBatch.from_arrays(list(columns.values()), schema=schema)

    def _check(self, row_group: int, names: Sequence[str], *, sparing: bool = False) -> None:
        """Check column chunks; `sparing` keeps little of the map in memory."""
        chunks = self.index.row_groups[row_group].chunks
        for leaf, name in enumerate(self.leaves):
            if name not in names or (row_group, leaf) in self._checked:
                continue
            start, length, checksum = chunks[leaf]
            step = limits.READ_CHUNK_BYTES if sparing else max(1, length)
            actual = 0
            for position in range(start, start + length, step):
                stop = min(position + step, start + length)
                actual = crc32c(self._data[position:stop], actual)
                if sparing:
                    self._mapping.release(position, stop)
            if actual != checksum:
                raise chunk_damage_error(self.path, start, length, name, row_group)
            self._checked.add((row_group, leaf))

    def _row_group_keys(self, row_group: int, leaf: int) -> RowGroupKeys:
        chunk = self.chunk(row_group, leaf)
        key_filter, least, greatest, some = None, None, None, True
        statistics = chunk.statistics
        if statistics is not None:
            if statistics.has_min_max:
                least, greatest = statistics.min_raw, statistics.max_raw
            rows = self.index.row_groups[row_group].rows
            some = not (statistics.has_null_count and statistics.null_count == rows)
        start, length = self.index.row_groups[row_group].key_filter
        if some and length:
            key_filter = blocks_of(bytes(self._data[start : start + length]))
        return RowGroupKeys(key_filter, least, greatest, some)

    def _undecodable(self, row_group: int) -> CorruptionError:
        start = self.index.row_groups[row_group].chunks[0].start
        return CorruptionError(
            "a row group cannot be decoded", path=self.path, byte=start, row_group=row_group
        )


def open_file(disk: Disk, path: Path) -> File:
    """Open a segment's file for reading."""
    try:
        return disk.open(path, Mode.READ)
    except FileNotFoundError as error:
        raise MissingFileError("a segment is missing", path=path) from error
    except OSError as error:
        raise from_os_error(error, "opening a segment", path) from error


def open_segment(disk: Disk, path: Path, segment: Segment) -> OpenSegment:
    """Map a segment and check its tail."""
    return OpenSegment(path, segment, map_segment(disk, path, segment))


def map_segment(disk: Disk, path: Path, segment: Segment) -> Mapping:
    """Map the file of a segment, whose length is checked and nothing else."""
    file = open_file(disk, path)
    try:
        check_size(path, segment, file.size())
        return file.map()
    except OSError as error:
        raise from_os_error(error, "mapping a segment", path) from error
    finally:
        file.close()


def check_size(path: Path, segment: Segment, size: int) -> None:
    """Refuse a file that is shorter or longer than it was written."""
    if size != segment.file_bytes:
        raise CorruptionError(
            "a segment does not have its length",
            path=path,
            byte=min(size, segment.file_bytes),
            size=size,
            expected=segment.file_bytes,
        )


def check_frame(path: Path, segment: Segment, data: memoryview) -> int:
    """Check the leading magic and the tail; return where the tail starts."""
    tail = segment.file_bytes - segment.tail_bytes
    if len(data) != segment.file_bytes or tail < len(MAGIC):
        check_size(path, segment, len(data))
        raise CorruptionError("a segment's tail is longer than the segment", path=path, byte=0)
    if bytes(data[: len(MAGIC)]) != MAGIC:
        raise CorruptionError("a segment's first bytes are damaged", path=path, byte=0)
    if crc32c(data[tail:]) != segment.tail_checksum:
        raise CorruptionError(
            "a segment's tail is damaged", path=path, byte=tail, length=segment.tail_bytes
        )
    return tail


def check_layout(path: Path, index: SegmentIndex, tail: int, leaves: int) -> None:
    """Check that the chunks of the index cover every byte from the magic to the tail."""
    position = len(MAGIC)
    for group in index.row_groups:
        if len(group.chunks) != leaves:
            raise _disagrees(path, position)
        for start, length, _ in group.chunks:
            if start != position or length < 0:
                raise _disagrees(path, position)
            position += length
    if position != tail:
        raise _disagrees(path, position)


def chunk_damage_error(
    path: Path, start: int, length: int, name: str, row_group: int
) -> CorruptionError:
    """Build the error for a column chunk that does not have its checksum."""
    return CorruptionError(
        "a column chunk is damaged",
        path=path,
        byte=start,
        length=length,
        column=name,
        row_group=row_group,
    )


def _metadata(path: Path, buffer: pa.Buffer) -> Any:
    try:
        return pq.read_metadata(pa.BufferReader(buffer))
    except (pa.ArrowInvalid, OSError) as error:
        raise CorruptionError("a segment's footer cannot be read", path=path) from error


def _index(path: Path, segment: Segment, metadata: Any) -> SegmentIndex:
    index = decode((metadata.metadata or {}).get(KEY.encode(), b""), path)
    rows = [metadata.row_group(row_group).num_rows for row_group in range(metadata.num_row_groups)]
    stated = (index.segment, index.base, index.end, [group.rows for group in index.row_groups])
    if stated != (segment.id, segment.base, segment.end, rows) or sum(rows) != segment.records:
        raise _disagrees(path, segment.file_bytes - segment.tail_bytes)
    return index


def _disagrees(path: Path, position: int) -> CorruptionError:
    return CorruptionError(
        "a segment's index disagrees with the file or the log", path=path, byte=position
    )


def _whole(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
