"""Garbage collection: files of topics that the log does not need any more, and when they may go.

A segment that was removed, merged or compacted is still part of the table's older snapshots, which
a reader may be using. So its file stays until no snapshot refers to it, and then for the grace
period. A segment that was never part of a table is deleted at once. With a store, all this holds
for its object: the local file is part of no table, and is deleted at once.

Tables leave files behind as well: manifests and metadata of expired snapshots, and those of commits
that did not happen, or were not written to their end. `sweep` finds them by listing. A file that
nothing refers to is deleted when it is older than the grace period and was seen to be unneeded for
as long.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from typing import Any

from lakebed.errors import ForeignTableError, LakebedError, translate_os_errors
from lakebed.host import failpoints
from lakebed.host.store import ObjectStore, Stored
from lakebed.iceberg.parts import LakeParts
from lakebed.iceberg.pending_deletes import PendingDeletes, Sweep
from lakebed.iceberg.table_metadata import files_in_use
from lakebed.iceberg.tiering import Tiering
from lakebed.iceberg.topic_table import TopicTables
from lakebed.iceberg.worker import Worker
from lakebed.lake.locations import HINT_NAME
from lakebed.reports.lake import RemovalReport
from lakebed.state.decision import Dropped
from lakebed.state.values import Topic

_log = logging.getLogger("lakebed.lake")

_SEGMENT_DELETED = failpoints.define("engine.removal.segment_removed")
_FILE_DELETED = failpoints.define("engine.removal.file_removed")


class TopicGarbage:
    """Deletes files of topics. One thread at a time, but for `delete_segments`."""

    def __init__(
        self, *, parts: LakeParts, tables: TopicTables, tiering: Tiering | None, worker: Worker
    ) -> None:
        self._parts = parts
        self._log = parts.log
        self._locations = parts.locations
        self._tables = tables
        self._worker = worker
        self._store = parts.store or ObjectStore(parts.locations.base, {})
        """Where tables keep their files; with a store, segments too."""
        self._earlier_store = _earlier_store(parts)
        """Where tables kept them before the log had a store."""
        self._uploaded: set[str] = set() if tiering is None else tiering.sent
        """The names of objects that were uploaded since the log was opened."""
        self._dropped_ids: set[int] = set()
        """Segments that a log which ships its entries dropped since; their objects are known too,
        though a checkpoint uploaded them.
        """
        self._first_segment = parts.log.state.numbers["segment"]
        self._first_topic = parts.log.state.numbers["topic"]
        """The first ids that were not assigned yet when the log was opened."""
        self._topics: set[int] = set()
        """Topics that had a segment since."""
        self._judged: dict[int, tuple[str, frozenset[Dropped], frozenset[Dropped]]] = {}
        """Of each topic: the table's metadata file, the dropped segments that were looked up in it,
        and those of them that it needs.
        """
        self._dropped: set[Dropped] = set()
        """Segments that are no longer part of the log, and whose local files still exist."""
        self._pending = PendingDeletes(parts.disk, parts.tables_folder)

    @property
    def waiting(self) -> int:
        """Count the files that may not be deleted yet."""
        local = {self._local(segment) for segment in list(self._dropped)}
        return len(local.union(self._pending.locations()))

    def collect(
        self, report: RemovalReport, *, grace_seconds: float, before_us: int, sweep: bool
    ) -> None:
        """Delete what may be deleted; snapshots before a time that keep files are expired first.

        Only with `sweep` is everything listed that there is.
        """
        for topic in self._topics_waiting():
            self._tables.expire(topic.name, before_us)
        self._delete_dropped(report, grace_seconds)
        if sweep and self._parts.has_table_files():
            self._sweep(report, grace_seconds, before_us)
        self._pending.save()
        report.waiting = self.waiting

    def _topics_waiting(self) -> list[Topic]:
        """Return the topics with a segment that may not be deleted yet."""
        ids = {segment[0] for segment in list(self._dropped)}
        topics = [self._log.topic(topic_id) for topic_id in sorted(ids)]
        return [topic for topic in topics if topic is not None]

    def _table(self, topic_id: int) -> Any:
        topic = self._log.topic(topic_id)
        if topic is None or not self._parts.config.iceberg:
            return None
        return self._tables.table(topic.name)

    # Segments on the local disk

    def delete_segments(self, dropped: Iterable[Dropped]) -> int:
        """Delete segments that the log has dropped, or keep them while a table may show them.

        Return how many files were deleted. Any thread.
        """
        count = 0
        shown: dict[int, bool] = {}
        for segment in dropped:
            topic_id = segment[0]
            self._parts.reader.forget(segment[2])
            if self._parts.owner is not None:
                self._dropped_ids.add(segment[2])
            self._topics.add(topic_id)
            if topic_id not in shown:
                shown[topic_id] = self._may_be_shown(topic_id)
            if shown[topic_id]:
                self._dropped.add(segment)
            else:
                count += self._delete(segment)
        return count

    def _may_be_shown(self, topic_id: int) -> bool:
        """Return whether local segments of a topic are, were, or may become part of a table.

        A sync in progress shows the segments that there were when it began.
        """
        parts = self._parts
        if parts.store is not None or not parts.config.iceberg:
            return False
        return self._worker.is_busy or str(topic_id) in parts.disk.names(parts.tables_folder)

    def _delete(self, segment: Dropped) -> bool:
        try:
            self._parts.segments.remove(*segment)
        except LakebedError as error:
            _log.warning("a segment could not be removed yet: %s", error)
            return False
        return True

    def _delete_dropped(self, report: RemovalReport, grace_seconds: float) -> None:
        """Delete the dropped segments that no table needs and whose grace period is over."""
        now_us = self._log.clock.time_us()
        by_topic: dict[int, list[Dropped]] = {}
        for segment in sorted(self._dropped.copy()):
            by_topic.setdefault(segment[0], []).append(segment)
        for topic_id, segments in by_topic.items():
            needed = self._segments_in_use(topic_id, frozenset(segments))
            touched = False
            if needed is None:
                continue
            for segment in segments:
                self._worker.check_not_abandoned()
                location = self._local(segment)
                if segment in needed:
                    self._pending.forget(location)
                    continue
                waited_us = now_us - self._pending.since(location, now_us)
                if waited_us >= grace_seconds * 1_000_000 and self._delete(segment):
                    self._dropped.discard(segment)
                    self._pending.forget(location)
                    report.segments_removed += 1
                    touched = True
                    with translate_os_errors("removing a segment", location):
                        _SEGMENT_DELETED.hit()
            if touched:
                self._parts.segments.sync(topic_id)

    def _segments_in_use(
        self, topic_id: int, segments: frozenset[Dropped]
    ) -> frozenset[Dropped] | None:
        """Return those of a topic's dropped segments that its table refers to; None if unknown.

        A table that has not changed gives the same answer without being read again.
        """
        table = self._table(topic_id)
        if table is None:
            return frozenset()
        judged = self._judged.get(topic_id)
        if judged is not None and judged[0] == table.metadata_location and segments <= judged[1]:
            return judged[2]
        files = self._files_in_use(topic_id)
        if files is None:
            return None
        needed = frozenset(segment for segment in segments if self._local(segment) in files)
        self._judged[topic_id] = (table.metadata_location, segments, needed)
        return needed

    def _local(self, segment: Dropped) -> str:
        topic_id, partition, segment_id = segment
        return self._locations.local(topic_id, partition, segment_id)

    def _files_in_use(self, topic_id: int) -> set[str] | None:
        """Return every file that the table of a topic refers to; None if that cannot be known."""
        try:
            table = self._table(topic_id)
            if table is None:
                return set()
            # The hint of a table from before the log had a store is elsewhere.
            return files_in_use(table) | {f"{table.location()}/metadata/{HINT_NAME}"}
        except ForeignTableError as error:
            _log.warning("no file of topic %d is removed: %s", topic_id, error)
            return None

    # Files of tables, and objects of segments

    def _sweep(self, report: RemovalReport, grace_seconds: float, before_us: int) -> None:
        """Delete files that nothing refers to, wherever tables and objects are."""
        sweep = Sweep(
            pending=self._pending,
            report=report,
            deleted=_FILE_DELETED,
            check_open=self._worker.check_not_abandoned,
            now_us=self._log.clock.time_us(),
            grace_seconds=grace_seconds,
        )
        sweep.unneeded.update(self._local(segment) for segment in list(self._dropped))
        needed: dict[int, set[str] | None] = {}
        for store, topic_id, file in self._files():
            if topic_id not in needed:
                needed[topic_id] = self._files_to_keep(topic_id, before_us)
            kept = needed[topic_id]
            if kept is None or store.uri(file.name) in kept or self._is_unknown(file.name):
                continue
            sweep.offer(store, file, file.modified_us)
        sweep.finish()

    def _files_to_keep(self, topic_id: int, before_us: int) -> set[str] | None:
        """Return every file of a topic that must stay; None if that cannot be known."""
        topic = self._log.topic(topic_id)
        if topic_id >= self._first_topic and topic is None and topic_id not in self._topics:
            return None  # a topic of a log of which this one is an older copy
        needed = self._files_in_use(topic_id)
        topic = self._log.topic(topic_id)
        if needed is None or topic is None:
            return needed
        objects = self._locations.objects(self._log.state, topic_id)
        only_in_snapshots = self._has_objects(topic_id, needed - objects)
        if only_in_snapshots and self._tables.expire(topic.name, before_us):
            needed = self._files_in_use(topic_id)
        return None if needed is None else needed | objects

    def _is_unknown(self, name: str) -> bool:
        """Return whether an object is neither older than this process, nor uploaded by it.

        Then the folder is a copy, and the original log continues: it may need the object.
        """
        segment_id = self._locations.segment_of(name)
        if segment_id is None or segment_id < self._first_segment:
            return False
        return name not in self._uploaded and segment_id not in self._dropped_ids

    def _has_objects(self, topic_id: int, files: Iterable[str]) -> bool:
        """Return whether some of these are segments in the store; local ones wait elsewhere."""
        return self._parts.store is not None and any(
            self._locations.is_segment(location, topic_id) for location in files
        )

    def _files(self) -> Iterator[tuple[ObjectStore, int, Stored]]:
        """Return every file there is, and the topic that it belongs to."""
        roots = [(self._store, prefix) for prefix in self._locations.prefixes]
        if self._earlier_store is not None:
            roots.append((self._earlier_store, ""))
        for store, prefix in roots:
            for file in (*store.listing(prefix), *store.list_unfinished(prefix)):
                topic_id = self._locations.topic_of(file.name, prefix)
                if topic_id is not None:
                    yield store, topic_id, file


def _earlier_store(parts: LakeParts) -> ObjectStore | None:
    """Return where tables were before the log had a store, if there were any."""
    if parts.store is None or not parts.disk.names(parts.tables_folder):
        return None
    return ObjectStore(f"file://{parts.tables_folder.resolve()}", {})
