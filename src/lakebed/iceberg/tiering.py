"""Segments on their way into the object store, and out of the local disk.

1. upload: the file's every byte is checked, sent, and its length compared in the store
2. append `PlaceSegments`: from here on tables may show it, and it may be read from there
3. when the topic's settings say so, append `PlaceSegments` again: readers read it from the store
4. sync the log, whatever its sync mode, and remove the local file

Whatever dies in between: before 2 the object is written again, with the same bytes, under the same
name; before 4 the local file is not needed and is removed when the log is opened. Without the sync
a power cut could take the entries and leave a log that asks for the removed file.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Final

from lakebed.config import stored_config
from lakebed.errors import CorruptionError, LakebedError, MissingFileError, translated
from lakebed.host import failpoints
from lakebed.host.store import ObjectStore
from lakebed.iceberg.parts import LogView, PartitionKey
from lakebed.lake.folder import LakeFolder
from lakebed.lake.opened import map_segment
from lakebed.lake.places import Places
from lakebed.lake.reader import SegmentReader
from lakebed.state.commands import Command, PlaceSegments
from lakebed.state.values import BOTH, LOCAL, STORE, Segment, Topic
from lakebed.topic.retention import plan_local

_log = logging.getLogger("lakebed.lake")

_TOGETHER: Final = 16
"""Segments that one entry says to be in the store: what a failure has uploaded again, at most."""

_UPLOADED = failpoints.define("engine.tier.uploaded")
_PLACED = failpoints.define("engine.tier.placed")
_MOVED = failpoints.define("engine.tier.moved")
_REMOVED = failpoints.define("engine.tier.removed")


class Tiering:
    """Moves segments. One thread at a time."""

    def __init__(
        self,
        core: LogView,
        store: ObjectStore,
        places: Places,
        lake: LakeFolder,
        reader: SegmentReader,
        submit: Callable[[Command], Any],
        flush: Callable[[], None],
    ) -> None:
        self._core = core
        self._store = store
        self._places = places
        self._lake = lake
        self._reader = reader
        self._submit = submit
        self._flush = flush
        """Makes every entry of the log survive a power cut."""
        self._checked: set[int] = set()
        """Topics of which an object was found in the store since the log was opened."""
        self.sent: set[str] = set()
        """The names of the objects that were uploaded, or begun to be."""
        self.moved_segments = 0
        self.moved_bytes = 0

    def upload(self, topic: Topic) -> int:
        """Bring every segment of a topic into the store; return how many were not there.

        One that is damaged does not keep the others here: the error is raised after them.
        """
        self._check_store(topic)
        count = 0
        damaged: list[CorruptionError] = []
        with translated("uploading segments", self._store.location):
            for key, segments in self._local(topic):
                for first in range(0, len(segments), _TOGETHER):
                    count += self._upload(key, segments[first : first + _TOGETHER], damaged)
        for error in damaged[1:]:
            _log.error("a damaged segment is not uploaded: %s", error)
        if damaged:
            raise damaged[0]
        return count

    def _check_store(self, topic: Topic) -> None:
        """Refuse a store that does not have what the log says it has: it is another one."""
        if topic.id in self._checked:
            return
        for number in range(topic.partitions):
            partition = self._core.partition((topic.id, number))
            for segment in reversed(partition.segments if partition is not None else ()):
                if segment.place != LOCAL:
                    self._check_object(self._places.object_name(topic.id, number, segment))
                    self._checked.add(topic.id)
                    return

    def _check_object(self, name: str) -> None:
        if self._store.size(name) is None:
            raise MissingFileError(
                "the object store lacks a segment that was put there; is it another store?",
                uri=self._store.uri(name),
            )

    def _upload(
        self, key: PartitionKey, segments: list[Segment], damaged: list[CorruptionError]
    ) -> int:
        sent: list[Segment] = []
        try:
            for segment in segments:
                try:
                    if self._send(key, segment):
                        sent.append(segment)
                except CorruptionError as error:
                    damaged.append(error)
            _UPLOADED.hit()
        except LakebedError:
            self._place(key, sent, BOTH)  # what was sent need not be sent again
            raise
        self._place(key, sent, BOTH)
        if sent:
            _PLACED.hit()
        return len(sent)

    def _place(self, key: PartitionKey, segments: list[Segment], place: int) -> None:
        if segments:
            self._submit(PlaceSegments(tuple((*key, each.id, place) for each in segments)))

    def _send(self, key: PartitionKey, segment: Segment) -> bool:
        """Upload a segment, unless it is no longer part of the log."""
        path = self._lake.path(*key, segment.id)
        try:
            self._reader.verify(*key, segment)
            data = map_segment(self._lake.disk, path, segment).view(0, segment.file_bytes)
        except MissingFileError:
            if not self._is_there(key, segment):
                return False  # merged or removed a moment ago
            raise
        name = self._places.object_name(*key, segment)
        self.sent.add(name)
        self._store.put(name, data)
        return True

    def _is_there(self, key: PartitionKey, segment: Segment) -> bool:
        partition = self._core.partition(key)
        return partition is not None and segment.id in [each.id for each in partition.segments]

    def move(self, topic: Topic) -> int:
        """Remove local files of segments beyond the topic's limits; return how many."""
        config = stored_config(topic.config)
        now_us = self._core.clock.time_us()
        count = 0
        with translated("moving segments to the store", self._store.location):
            for number in range(topic.partitions):
                key = (topic.id, number)
                partition = self._core.partition(key)
                old = plan_local(partition.segments, config, now_us=now_us) if partition else []
                if not old:
                    continue
                self._place(key, old, STORE)
                self._flush()  # the entry must survive before the files go
                _MOVED.hit()
                for segment in old:
                    self._remove(key, segment)
                count += len(old)
        if count:
            self._lake.sync(topic.id)
        return count

    def _remove(self, key: PartitionKey, segment: Segment) -> None:
        self._reader.unmap(segment.id)
        try:
            self._lake.remove(*key, segment.id)
        except LakebedError as error:
            _log.warning("a segment that is in the store could not be removed yet: %s", error)
            return
        _REMOVED.hit()
        self.moved_segments += 1
        self.moved_bytes += segment.file_bytes

    def _local(self, topic: Topic) -> list[tuple[PartitionKey, list[Segment]]]:
        """Return the segments that are not in the store, by partition."""
        found = []
        for number in range(topic.partitions):
            partition = self._core.partition((topic.id, number))
            all_of_it = partition.segments if partition is not None else ()
            segments = [each for each in all_of_it if each.place == LOCAL]
            if segments:
                found.append(((topic.id, number), segments))
        return found
