"""The index of a segment: what each row group holds, and the checksum of each of its column chunks.

It is a JSON document in the file's footer, under the key `lakebed.segment`:

    {"format": 2, "segment": 7, "base": 0, "end": 2, "row_groups": [
        {"first": 0, "last": 1, "rows": 2, "time_min_us": 5, "time_max_us": 6,
         "chunks": [[4, 71, 2093467512], ...], "key_filter": [802, 47]}]}

`first` and `last` are offsets; a chunk is its first byte, its length and the CRC32C of its bytes,
in the order of the file's leaf columns. Chunks lie one behind another from byte 4 (behind the
leading magic) to the tail, so that every byte is in exactly one of: the magic, a chunk, the tail.
The filter of a row group's keys (`key_filter.py`) is in the tail: its first byte and its length, 0
for none. Format 1 had no filters.

The document is written before the positions and checksums are known: space for it is reserved in
the footer, and spaces behind it fill what is left over. JSON allows them.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from lakebed.errors import CorruptionError, FormatTooNewError

FORMAT_VERSION: Final = 2
KEY: Final = "lakebed.segment"
MAGIC: Final = b"PAR1"


class ColumnChunk(NamedTuple):
    """A column chunk's place in the file and its checksum."""

    start: int
    length: int
    checksum: int


@dataclass(frozen=True)
class RowGroup:
    """What a row group holds, and where."""

    first: int
    last: int
    rows: int
    time_min_us: int
    time_max_us: int
    chunks: tuple[ColumnChunk, ...]
    key_filter: tuple[int, int] = (0, 0)
    """First byte and length."""

    @property
    def dense(self) -> bool:
        """Return whether every offset from first to last has a record."""
        return self.rows == self.last - self.first + 1


@dataclass(frozen=True)
class SegmentIndex:
    """Everything a reader must know before it touches a column chunk."""

    segment: int
    base: int
    end: int
    row_groups: tuple[RowGroup, ...]

    def encode(self) -> bytes:
        """Return the document."""
        return json.dumps(
            {
                "format": FORMAT_VERSION,
                "segment": self.segment,
                "base": self.base,
                "end": self.end,
                "row_groups": [vars(group) for group in self.row_groups],
            },
            separators=(",", ":"),
        ).encode()


def decode(document: bytes, path: Path) -> SegmentIndex:
    """Read a document back; `path` is for errors."""
    try:
        fields = json.loads(document)
        version = int(fields["format"])
        if version > FORMAT_VERSION:
            raise FormatTooNewError(
                "the segment has a newer format",
                path=path,
                version=version,
                supported=FORMAT_VERSION,
            )
        groups = tuple(_row_group(group) for group in fields["row_groups"])
        return SegmentIndex(fields["segment"], fields["base"], fields["end"], groups)
    except (AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
        raise CorruptionError("a segment's index cannot be read", path=path) from error


def _row_group(fields: dict[str, object]) -> RowGroup:
    chunks = fields.pop("chunks")
    if not isinstance(chunks, list):
        raise TypeError("chunks is not a list")
    start, length = _place(fields.pop("key_filter", [0, 0]))
    numbers = {str(name): int(str(value)) for name, value in fields.items()}
    return RowGroup(
        **numbers, chunks=tuple(ColumnChunk(*chunk) for chunk in chunks), key_filter=(start, length)
    )


def _place(value: object) -> tuple[int, int]:
    if (
        not isinstance(value, list)
        or [type(item) for item in value] != [int, int]
        or min(value) < 0
    ):
        raise TypeError("a filter's place is not two numbers")
    start, length = value
    return start, length
