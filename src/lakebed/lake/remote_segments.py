"""Segments that are in the object store, opened through the local cache of files."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from lakebed.lake.locations import Locations
from lakebed.lake.remote_cache import RemoteCache
from lakebed.state.values import Segment


class RemoteSegments:
    """Local files of segments that are in the store. Any thread."""

    def __init__(self, cache: RemoteCache, locations: Locations) -> None:
        self._cache = cache
        self._locations = locations

    @contextlib.contextmanager
    def pin(self, topic: int, partition: int, segment: Segment) -> Iterator[Path]:
        """Return a local file with the segment's bytes, which stays within the block."""
        with self._cache.pin(
            self._locations.object_name(topic, partition, segment), segment
        ) as path:
            yield path

    def discard(self, topic: int, partition: int, segment: Segment) -> None:
        """Remove a file that was found damaged, so that it is fetched again."""
        self._cache.discard(self._locations.object_name(topic, partition, segment))
