"""Files that the log does not need any more, and when they may go.

A segment that was removed, merged or compacted is still part of the table's older snapshots, and
somebody may be reading one. So its file stays until no snapshot refers to it, and then for the
grace period. A segment that was never part of a table goes at once. With a store, all this is said
of its object: the local file is part of no table, and goes at once.

Tables leave files behind as well: manifests and metadata of expired snapshots, and those of swaps
that did not happen, or were not even written to their end. `sweep` finds them by listing what is
there. A file that nothing refers to goes when it is older than the grace period and was seen to be
unneeded for as long.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Container, Iterable, Iterator
from typing import Any

from lakebed.engine.core import Core
from lakebed.engine.unneeded import Unneeded
from lakebed.errors import ForeignTableError, LakebedError, translated
from lakebed.host import failpoints
from lakebed.host.store import ObjectStore, Stored
from lakebed.lake.folder import LakeFolder
from lakebed.lake.places import HINT_NAME, Places
from lakebed.lake.reader import SegmentReader
from lakebed.lake.table_facts import needed_files
from lakebed.reports.lake import RemovalReport
from lakebed.state.machine import Dropped
from lakebed.state.values import Topic

_log = logging.getLogger("lakebed.lake")

_REMOVED = failpoints.define("engine.removal.segment_removed")
_SWEPT = failpoints.define("engine.removal.file_removed")


class Removal:
    """Removes files. One thread at a time, but for `bury`."""

    def __init__(
        self,
        core: Core,
        lake: LakeFolder,
        places: Places,
        reader: SegmentReader,
        table: Callable[[str], Any],
        store: ObjectStore,
        earlier: ObjectStore | None,
        unneeded: Unneeded,
        sent: Container[str],
        *,
        shown: Callable[[int], bool],
        check_stopped: Callable[[], None],
    ) -> None:
        self._core = core
        self._lake = lake
        self._places = places
        self._reader = reader
        self._table = table
        self._store = store
        """Where tables keep their files; with a store, segments too."""
        self._earlier = earlier
        """Where they kept them before there was a store."""
        self._check_stopped = check_stopped
        """Raises once the log is closed: its folder may be somebody else's by now."""
        self._sent = sent
        """The names of objects that were uploaded since the log was opened."""
        self._shown = shown
        """Tells whether local segments of a topic are, or were, part of a table."""
        self._first_segment = core.state.numbers["segment"]
        self._first_topic = core.state.numbers["topic"]
        """What was not numbered yet when the log was opened."""
        self._topics: set[int] = set()
        """Topics that had a segment since."""
        self._judged: dict[int, tuple[str, frozenset[Dropped], frozenset[Dropped]]] = {}
        """Of each topic: the table's metadata file, the buried segments that it was asked about,
        and those of them that it needs.
        """
        self._buried: set[Dropped] = set()
        """Segments without a place in the log, whose files are here."""
        self._unneeded = unneeded

    @property
    def waiting(self) -> int:
        """Count the files that may not go yet."""
        places = {self._local_place(each) for each in list(self._buried)}
        return len(places.union(self._unneeded.places()))

    def topics_waiting(self) -> list[Topic]:
        """Return the topics with a file that may not go yet."""
        numbers = {each[0] for each in list(self._buried)}
        topics = [self._core.state.topics.get(number) for number in sorted(numbers)]
        return [topic for topic in topics if topic is not None]

    def remember(self) -> None:
        """Write down since when files are unneeded."""
        self._unneeded.save()

    def bury(self, dropped: Iterable[Dropped]) -> int:
        """Take segments that the log dropped; return how many files were deleted. Any thread."""
        count = 0
        shown: dict[int, bool] = {}
        for each in dropped:
            self._reader.forget(each[2])
            self._topics.add(each[0])
            if each[0] not in shown:
                shown[each[0]] = self._shown(each[0])
            if shown[each[0]]:
                self._buried.add(each)
            else:
                count += self._remove(each)
        return count

    def _remove(self, segment: Dropped) -> bool:
        try:
            self._lake.remove(*segment)
        except LakebedError as error:
            _log.warning("a segment could not be removed yet: %s", error)
            return False
        return True

    # Segments on the local disk

    def remove_segments(self, report: RemovalReport, grace_seconds: float) -> None:
        """Remove the buried segments whose time has come."""
        if not self._buried:
            return
        now_us = self._core.clock.time_us()
        by_topic: dict[int, list[Dropped]] = {}
        for segment in sorted(self._buried.copy()):
            by_topic.setdefault(segment[0], []).append(segment)
        for topic, segments in by_topic.items():
            needed = self._needed_of(topic, frozenset(segments))
            touched = False
            if needed is None:
                continue
            for segment in segments:
                self._check_stopped()
                place = self._local_place(segment)
                if segment in needed:
                    self._unneeded.forget(place)
                    continue
                waited_us = now_us - self._unneeded.since(place, now_us)
                if waited_us >= grace_seconds * 1_000_000 and self._remove(segment):
                    self._buried.discard(segment)
                    self._unneeded.forget(place)
                    report.segments_removed += 1
                    touched = True
                    with translated("removing a segment", place):
                        _REMOVED.hit()
            if touched:
                self._lake.sync(topic)

    def _needed_of(self, topic: int, segments: frozenset[Dropped]) -> frozenset[Dropped] | None:
        """Return those of a topic's buried segments that its table refers to; None if unknown.

        A table that has not changed gives the same answer without being read again.
        """
        found = self._core.state.topics.get(topic)
        table = None if found is None else self._table(found.name)
        if table is None:
            return frozenset()
        judged = self._judged.get(topic)
        if judged is not None and judged[0] == table.metadata_location and segments <= judged[1]:
            return judged[2]
        places = self._needed(topic)
        if places is None:
            return None
        needed = frozenset(each for each in segments if self._local_place(each) in places)
        self._judged[topic] = (table.metadata_location, segments, needed)
        return needed

    def _local_place(self, segment: Dropped) -> str:
        topic, partition, number = segment
        return self._places.local(topic, partition, number)

    def _needed(self, topic: int) -> set[str] | None:
        """Return every file that the table of a topic refers to; None if that cannot be known."""
        found = self._core.state.topics.get(topic)
        try:
            table = None if found is None else self._table(found.name)
            if table is None:
                return set()
            # A table of before there was a store has its hint elsewhere.
            return needed_files(table) | {f"{table.location()}/metadata/{HINT_NAME}"}
        except ForeignTableError as error:
            _log.warning("no file of topic %d is removed: %s", topic, error)
            return None

    # Files of tables, and objects of segments

    def sweep(
        self, report: RemovalReport, grace_seconds: float, expire: Callable[[str], int]
    ) -> None:
        """Remove files that nothing refers to, wherever tables and objects are.

        `expire` takes old snapshots out of the table of that name, and gives how many.
        """
        now_us, grace_us = self._core.clock.time_us(), grace_seconds * 1_000_000
        needed: dict[int, set[str] | None] = {}
        seen = {self._local_place(each) for each in list(self._buried)}
        for store, topic, found in self._files():
            if topic not in needed:
                needed[topic] = self._needed_below(topic, expire)
            wanted, place = needed[topic], store.uri(found.name)
            if wanted is None or place in wanted or self._is_unknown(found.name):
                continue
            seen.add(place)
            since_us = max(self._unneeded.since(place, now_us), min(found.modified_us, now_us))
            if now_us - since_us >= grace_us:
                self._check_stopped()
                store.remove(found.name)
                self._unneeded.forget(place)
                report.files_removed += 1
                report.bytes_removed += found.size_bytes
                with translated("removing a file", place):
                    _SWEPT.hit()
        self._unneeded.keep_only(seen)

    def _needed_below(self, topic: int, expire: Callable[[str], int]) -> set[str] | None:
        """Return every file of a topic that must stay; None if that cannot be known."""
        known = topic in self._core.state.topics or topic in self._topics
        if topic >= self._first_topic and not known:
            return None  # a topic of the log of which this is an older copy
        needed = self._needed(topic)
        living = self._core.state.topics.get(topic)
        if needed is None or living is None:
            return needed
        ours = self._places.objects(self._core.state, topic)
        if self._waits(topic, needed - ours) and expire(living.name):
            needed = self._needed(topic)
        return None if needed is None else needed | ours

    def _is_unknown(self, name: str) -> bool:
        """Return whether an object is neither of before the log was opened, nor sent by it since.

        Then the folder is a copy, and the original has gone on: the object may be all it has.
        """
        number = self._places.segment_of(name)
        return number is not None and number >= self._first_segment and name not in self._sent

    def _waits(self, topic: int, places: Iterable[str]) -> bool:
        """Return whether old snapshots alone keep an object; local files are buried instead."""
        return self._places.has_store and any(
            self._places.is_segment(place, topic) for place in places
        )

    def _files(self) -> Iterator[tuple[ObjectStore, int, Stored]]:
        """Return every file there is, and the topic that it belongs to."""
        roots = [(self._store, prefix) for prefix in self._places.prefixes]
        if self._earlier is not None:
            roots.append((self._earlier, ""))
        for store, prefix in roots:
            for found in (*store.listing(prefix), *store.unfinished(prefix)):
                topic = self._places.topic_of(found.name, prefix)
                if topic is not None:
                    yield store, topic, found
