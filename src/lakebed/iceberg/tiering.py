"""Moves segments into the object store, and off the local disk.

1. upload: the file's every byte is checked, sent, and its length compared in the store
2. append `PlaceSegments`: from here on tables may show it, and it may be read from the store
3. when the topic's settings say so, append `PlaceSegments` again: readers read it from the store
4. sync the log, in every sync mode, and remove the local file

If the process is killed before 2, the object is written again, with the same bytes and under the
same name; before 4, the local file is not needed and is removed when the log is opened. Without the
sync a power cut could take the entries and leave a log that asks for the removed file.
"""

from __future__ import annotations

import logging
from typing import Final

from lakebed.config import stored_config
from lakebed.errors import CorruptionError, LakebedError, MissingFileError, translate_os_errors
from lakebed.host import failpoints
from lakebed.host.store import ObjectStore
from lakebed.iceberg.parts import LakeParts, PartitionKey
from lakebed.lake.open_segment import map_segment
from lakebed.state.commands import PlaceSegments
from lakebed.state.values import BOTH, LOCAL, STORE, Segment, Topic
from lakebed.topic.retention import plan_local

_log = logging.getLogger("lakebed.lake")

_BATCH_SEGMENTS: Final = 16
"""Segments that one entry places in the store: at most so many are uploaded again by a failure."""

_UPLOADED = failpoints.define("engine.tier.uploaded")
_PLACED = failpoints.define("engine.tier.placed")
_MOVED = failpoints.define("engine.tier.moved")
_REMOVED = failpoints.define("engine.tier.removed")


class Tiering:
    """Moves segments. One thread at a time."""

    def __init__(self, parts: LakeParts, store: ObjectStore) -> None:
        self._log = parts.log
        self._wal = parts.wal
        self._commands = parts.commands
        self._store = store
        self._locations = parts.locations
        self._segments = parts.segments
        self._reader = parts.reader
        self._checked: set[int] = set()
        """Topics of which an object was found in the store since the log was opened."""
        self.sent: set[str] = set()
        """The names of the objects that were uploaded, or begun to be."""
        self.moved_segments = 0
        self.moved_bytes = 0

    def upload(self, topic: Topic) -> int:
        """Upload every segment of a topic that is not in the store; return how many.

        A damaged one does not stop the others: the error is raised after them.
        """
        self._check_store(topic)
        count = 0
        damaged: list[CorruptionError] = []
        with translate_os_errors("uploading segments", self._store.location):
            for key, segments in self._local(topic):
                for first in range(0, len(segments), _BATCH_SEGMENTS):
                    count += self._upload(key, segments[first : first + _BATCH_SEGMENTS], damaged)
        for error in damaged[1:]:
            _log.error("a damaged segment is not uploaded: %s", error)
        if damaged:
            raise damaged[0]
        return count

    def _check_store(self, topic: Topic) -> None:
        """Refuse a store that lacks a segment the log has put there: it is another store."""
        if topic.id in self._checked:
            return
        for partition_id in range(topic.partitions):
            partition = self._log.partition((topic.id, partition_id))
            for segment in reversed(partition.segments if partition is not None else ()):
                if segment.place != LOCAL:
                    self._check_object(self._locations.object_name(topic.id, partition_id, segment))
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

    def _place(self, key: PartitionKey, segments: list[Segment], where: int) -> None:
        if segments:
            self._commands.submit(
                PlaceSegments(tuple((*key, segment.id, where) for segment in segments))
            )

    def _send(self, key: PartitionKey, segment: Segment) -> bool:
        """Upload a segment, unless it is no longer part of the log."""
        path = self._segments.path(*key, segment.id)
        try:
            self._reader.verify(*key, segment)
            data = map_segment(self._segments.disk, path, segment).view(0, segment.file_bytes)
        except MissingFileError:
            if not self._is_there(key, segment):
                return False  # merged or removed a moment ago
            raise
        name = self._locations.object_name(*key, segment)
        self.sent.add(name)
        self._store.put(name, data)
        return True

    def _is_there(self, key: PartitionKey, segment: Segment) -> bool:
        partition = self._log.partition(key)
        return partition is not None and segment.id in [
            present.id for present in partition.segments
        ]

    def move(self, topic: Topic) -> int:
        """Remove local files of segments beyond the topic's limits; return how many."""
        config = stored_config(topic.config)
        now_us = self._log.clock.time_us()
        count = 0
        with translate_os_errors("moving segments to the store", self._store.location):
            for partition_id in range(topic.partitions):
                key = (topic.id, partition_id)
                partition = self._log.partition(key)
                old = plan_local(partition.segments, config, now_us=now_us) if partition else []
                if not old:
                    continue
                self._place(key, old, STORE)
                self._wal.flush()  # the entry must survive before the files go
                _MOVED.hit()
                for segment in old:
                    self._remove(key, segment)
                count += len(old)
        if count:
            self._segments.sync(topic.id)
        return count

    def _remove(self, key: PartitionKey, segment: Segment) -> None:
        self._reader.unmap(segment.id)
        try:
            self._segments.remove(*key, segment.id)
        except LakebedError as error:
            _log.warning("a segment that is in the store could not be removed yet: %s", error)
            return
        _REMOVED.hit()
        self.moved_segments += 1
        self.moved_bytes += segment.file_bytes

    def _local(self, topic: Topic) -> list[tuple[PartitionKey, list[Segment]]]:
        """Return the segments that are not in the store, by partition."""
        local = []
        for partition_id in range(topic.partitions):
            partition = self._log.partition((topic.id, partition_id))
            there = partition.segments if partition is not None else ()
            segments = [segment for segment in there if segment.place == LOCAL]
            if segments:
                local.append(((topic.id, partition_id), segments))
        return local
