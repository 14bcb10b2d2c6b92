"""Segments that are in the object store, opened through the local cache of files."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from lakebed.lake.fetched import FetchedSegments
from lakebed.lake.places import Places
from lakebed.state.values import Segment


class RemoteSegments:
    """Gives files of segments that are in the store. Any thread."""

    def __init__(self, fetched: FetchedSegments, places: Places) -> None:
        self.fetched = fetched
        self._places = places

    @contextlib.contextmanager
    def held(self, topic: int, partition: int, segment: Segment) -> Iterator[Path]:
        """Return a local file with the segment's bytes, which stays within the block."""
        with self.fetched.held(
            self._places.object_name(topic, partition, segment), segment
        ) as path:
            yield path

    def discard(self, topic: int, partition: int, segment: Segment) -> None:
        """Remove a file that was found damaged, so that it is fetched again."""
        self.fetched.discard(self._places.object_name(topic, partition, segment))
