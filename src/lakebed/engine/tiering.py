"""Segments on their way into the object store, and out of the local disk.

1. upload: the file's every byte is checked, sent, and its length compared in the store
2. append `PlaceSegments`: from here on tables may show it, and it may be read from there
3. when the topic's settings say so, append `PlaceSegments` again: readers read it from the store
4. remove the local file

Whatever dies in between: before 2 the object is written again, with the same bytes, under the same
name; before 4 the local file is not needed and is removed when the log is opened.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from lakebed.config import stored_config
from lakebed.engine.core import Core, Key
from lakebed.errors import LakebedError, MissingFileError
from lakebed.host import failpoints
from lakebed.host.store import ObjectStore
from lakebed.lake.folder import LakeFolder
from lakebed.lake.opened import map_segment
from lakebed.lake.places import Places
from lakebed.lake.reader import SegmentReader
from lakebed.state.commands import Command, PlaceSegments
from lakebed.state.values import BOTH, LOCAL, STORE, Segment, Topic
from lakebed.topic.retention import plan_local

_log = logging.getLogger("lakebed.lake")

_UPLOADED = failpoints.define("engine.tier.uploaded")
_PLACED = failpoints.define("engine.tier.placed")
_MOVED = failpoints.define("engine.tier.moved")
_REMOVED = failpoints.define("engine.tier.removed")


class Tiering:
    """Moves segments. One thread at a time."""

    def __init__(
        self,
        core: Core,
        store: ObjectStore,
        places: Places,
        lake: LakeFolder,
        reader: SegmentReader,
        submit: Callable[[Command], Any],
    ) -> None:
        self._core = core
        self._store = store
        self._places = places
        self._lake = lake
        self._reader = reader
        self._submit = submit
        self.moved_segments = 0
        self.moved_bytes = 0

    def upload(self, topic: Topic) -> int:
        """Bring every segment of a topic into the store; give how many were not there."""
        count = 0
        for key, segments in self._with_place(topic, LOCAL):
            sent = [segment for segment in segments if self._send(key, segment)]
            _UPLOADED.hit()
            if sent:
                placed = tuple((*key, each.id, BOTH) for each in sent)
                self._submit(PlaceSegments(placed))
                _PLACED.hit()
            count += len(sent)
        return count

    def _send(self, key: Key, segment: Segment) -> bool:
        """Upload a segment, unless it is no longer part of the log."""
        path = self._lake.path(*key, segment.id)
        try:
            self._reader.verify(*key, segment)
            data = map_segment(self._lake.disk, path, segment).view(0, segment.file_bytes)
        except MissingFileError:
            if not self._is_there(key, segment):
                return False  # merged or removed a moment ago
            raise
        self._store.put(self._places.object_name(*key, segment), data)
        return True

    def _is_there(self, key: Key, segment: Segment) -> bool:
        partition = self._core.partition(key)
        return partition is not None and segment.id in [each.id for each in partition.segments]

    def move(self, topic: Topic) -> int:
        """Remove local files of segments beyond the topic's limits; give how many."""
        config = stored_config(topic.config)
        now_us = self._core.clock.time_us()
        count = 0
        for number in range(topic.partitions):
            key = (topic.id, number)
            partition = self._core.partition(key)
            old = plan_local(partition.segments, config, now_us=now_us) if partition else []
            if not old:
                continue
            self._submit(PlaceSegments(tuple((*key, each.id, STORE) for each in old)))
            _MOVED.hit()
            for segment in old:
                self._remove(key, segment)
            count += len(old)
        if count:
            self._lake.sync(topic.id)
        return count

    def _remove(self, key: Key, segment: Segment) -> None:
        self._reader.forget(segment.id)
        try:
            self._lake.remove(*key, segment.id)
        except LakebedError as error:
            _log.warning("a segment that is in the store could not be removed yet: %s", error)
            return
        _REMOVED.hit()
        self.moved_segments += 1
        self.moved_bytes += segment.file_bytes

    def _with_place(self, topic: Topic, place: int) -> list[tuple[Key, list[Segment]]]:
        found = []
        for number in range(topic.partitions):
            partition = self._core.partition((topic.id, number))
            all_of_it = partition.segments if partition is not None else ()
            segments = [each for each in all_of_it if each.place == place]
            if segments:
                found.append(((topic.id, number), segments))
        return found
