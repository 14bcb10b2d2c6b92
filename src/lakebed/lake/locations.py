"""Where the files of segments and tables are, as other programs name them.

    local    file://DIR/lake/{topic}/{partition}-{segment:020d}.parquet
             file://DIR/iceberg/{topic}/metadata/...
    store    STORE/{log}/segments/{topic}/{partition}-{segment:020d}-{tail checksum:08x}.parquet
             STORE/{log}/tables/{topic}/metadata/...

The checksum is in an object's name so that no object is ever written over by another: an older copy
of a log that goes its own way gives the same numbers to other segments.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from lakebed.errors import InvalidArgumentError
from lakebed.state.image import State
from lakebed.state.values import Partition, Segment

TABLES_NAME: Final = "iceberg"
"""The folder of the tables' metadata, and of the log's own catalog."""

HINT_NAME: Final = "version-hint.text"

_LOCAL: Final = re.compile(r"(0|[1-9]\d{0,18})-(\d{20})\.parquet", re.ASCII)
_STORED: Final = re.compile(r"(0|[1-9]\d{0,18})-(\d{20})-[0-9a-f]{8}\.parquet", re.ASCII)


class Locations:
    """Locations, as URLs. Any thread."""

    def __init__(self, folder: Path, store: str, log: str) -> None:
        root = folder.resolve()
        self._root = root
        self._log = log
        self.has_store: Final = bool(store)
        self._local = f"file://{root}/lake"
        self.base = store.rstrip("/") if store else f"file://{root}/{TABLES_NAME}"
        """Below this are tables, and segments that are in the store."""
        self.tables = f"{self.base}/{log}/tables" if store else self.base
        """The parent of every table's folder."""
        self._segments = f"{self.base}/{log}/segments" if store else self._local
        self.prefixes = (f"{log}/segments/", f"{log}/tables/") if store else ("",)
        """What the names of all our files below `base` begin with."""

    def check(self) -> None:
        """Refuse a folder whose name cannot be part of a URL."""
        for sign in self.base:
            if sign in "#?" or not sign.isprintable():
                raise InvalidArgumentError(
                    "Iceberg tables cannot be in a folder with this character in its path",
                    sign=repr(sign),
                    path=self._root,
                )

    def segment(self, topic: int, partition: int, segment: Segment) -> str:
        """Return the location of a segment as its table knows it."""
        if self.has_store:
            return f"{self.base}/{self.object_name(topic, partition, segment)}"
        return self.local(topic, partition, segment.id)

    def local(self, topic: int, partition: int, segment: int) -> str:
        """Return the location of a segment on the local disk."""
        return f"{self._local}/{topic}/{partition}-{segment:020d}.parquet"

    def object_name(self, topic: int, partition: int, segment: Segment) -> str:
        """Return the name of a segment in the store."""
        checksum = f"{segment.tail_checksum:08x}"
        return f"{self._log}/segments/{topic}/{partition}-{segment.id:020d}-{checksum}.parquet"

    def objects(self, state: State, topic: int) -> set[str]:
        """Return the location in the store of every segment that a topic has."""
        topic_state = state.topics.get(topic)
        if topic_state is None or not self.has_store:
            return set()
        return {
            self.segment(topic, partition, segment)
            for partition in range(topic_state.partitions)
            for segment in state.partitions.get((topic, partition), Partition()).segments
        }

    def is_segment(self, location: str, topic: int) -> bool:
        """Return whether a location is one that a segment of the topic could have."""
        folder, _, name = location.rpartition("/")
        pattern = _STORED if self.has_store else _LOCAL
        return folder == f"{self._segments}/{topic}" and pattern.fullmatch(name) is not None

    def segment_of(self, name: str) -> int | None:
        """Return the number of the segment that an object is; None if it is none."""
        match = _STORED.fullmatch(name.rpartition("/")[2])
        return int(match[2]) if match else None

    def topic_of(self, name: str, prefix: str) -> int | None:
        """Return the topic that a file below `base` belongs to; None if it is not a topic's."""
        first, _, rest = name.removeprefix(prefix).partition("/")
        return int(first) if rest and first.isascii() and first.isdigit() else None
