"""The lake as its users see it, `log.lake`: Iceberg tables, the object store, removal of files.

Everything here comes after the fact: records are safe in the log before, and go on being written
and read whatever becomes of a catalog or a store. A thread works when a checkpoint or a removal has
changed something, and looks at least once in `sync_interval_ms`. A failure is logged, counted,
shown by `stats()` and tried again.
"""

from __future__ import annotations

import contextlib
import json
import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from lakebed.config import LakeConfig, resolved
from lakebed.engine.core import Core
from lakebed.engine.derived import Derived
from lakebed.engine.removal import Removal
from lakebed.engine.tables import TopicTables
from lakebed.engine.tiering import Tiering
from lakebed.engine.unneeded import Unneeded
from lakebed.errors import (
    CatalogUnavailableError,
    ClosedError,
    InvalidArgumentError,
    LakebedError,
    StoreDeniedError,
    StoreNotFoundError,
    StoreUnavailableError,
    TopicNotFoundError,
)
from lakebed.host import Disk
from lakebed.host.store import ObjectStore
from lakebed.lake.catalog import Catalog
from lakebed.lake.folder import LakeFolder
from lakebed.lake.iceberg import Tables
from lakebed.lake.places import TABLES_NAME, Places
from lakebed.lake.reader import SegmentReader
from lakebed.lake.remote import RemoteSegments
from lakebed.lake.table_facts import LOG, OFFSETS, POSITION, TOPIC, is_ours, number_of
from lakebed.reports.lake import LakeStats, RemovalReport, SnapshotInfo, SyncReport, TableInfo
from lakebed.state.commands import Command
from lakebed.state.machine import Dropped
from lakebed.state.values import LOCAL, Segment, Topic
from lakebed.types import Progress

_log = logging.getLogger("lakebed.lake")

_STORE_ERRORS: Final = (StoreDeniedError, StoreNotFoundError, StoreUnavailableError)

_TOLD_MAX: Final = 100

_STOP_SECONDS: Final = 10.0
"""How long, three times over, closing waits for a catalog and a store."""

_SWEEP_SECONDS_MIN: Final = 60.0
"""How often, at most, everything in the lake is listed automatically."""


class Lake:
    """Tables, store and removal of one log. Any thread."""

    def __init__(
        self,
        core: Core,
        config: LakeConfig,
        disk: Disk,
        folder: Path,
        log_id: str,
        lake: LakeFolder,
        reader: SegmentReader,
        submit: Callable[[Command], Any],
        flush: Callable[[], None],
        store: ObjectStore | None,
        remote: RemoteSegments | None,
        derived: Derived,
    ) -> None:
        self._core = core
        self._derived = derived
        self._config = config
        self._disk = disk
        self._tables_folder = folder / TABLES_NAME
        self._places = Places(folder, config.store, log_id)
        self._log_id = log_id
        self._store = store
        self._fetched = None if remote is None else remote.fetched
        tables = Tables(
            Catalog(config, disk, self._tables_folder),
            self._places.tables,
            log_id,
            config.snapshots_kept,
            self._places.is_segment,
            self._check_store,
        )
        self._topics = TopicTables(
            core, tables, self._places, reader, flush, stored=store is not None
        )
        self._tiering = (
            None
            if store is None
            else Tiering(core, store, self._places, lake, reader, submit, flush)
        )
        self._removal = Removal(
            core,
            lake,
            self._places,
            reader,
            self._table_of,
            store or ObjectStore(self._places.base, {}),
            self._earlier(),
            Unneeded(disk, self._tables_folder),
            () if self._tiering is None else self._tiering.sent,
            shown=self._is_shown,
            check_stopped=self._check_stopped,
        )
        self._working = threading.Lock()
        self._wake = threading.Event()
        self._pending = False
        self._stopping = False
        self._abandoned = False
        """The thread did not end in time, and must not touch a file any more."""
        self._worker: int | None = None
        """The thread that is at work."""
        self._thread: threading.Thread | None = None
        self._swept_at = core.clock.monotonic()
        self._counts: dict[str, int] = dict.fromkeys(("syncs", "changed", "failures", "removed"), 0)
        self._last_failure: str | None = None
        self._problems: dict[int, str] = {}
        """Why the table of a topic was not synced last time."""
        self._told: deque[str] = deque(maxlen=_TOLD_MAX)
        """Failures since the last pass without one; each is logged as an error once."""

    # On call

    def sync(
        self,
        topic: str | None = None,
        *,
        take_over: bool = False,
        progress: Progress | None = None,
    ) -> SyncReport:
        """Bring tables, and the store, up to date now; of one topic, or of all.

        A table that somebody else has changed is refused, unless you `take_over`: then it shows
        exactly the log's records again. `progress` is told how many topics are done.
        """
        self._check_enabled()
        if take_over and topic is None:
            raise InvalidArgumentError("taking a table over needs the topic's name")
        topics = [self._topic(topic)] if topic is not None else None
        with self._at_work():
            return self._sync(topics, take_over=take_over, keep_on=False, progress=progress)

    def gc(self, *, now: bool = False) -> RemovalReport:
        """Remove files that nothing refers to and whose grace period is over.

        With `now`, older snapshots are expired first and no file is granted a grace period: readers
        that have begun may fail.
        """
        self._check_enabled()
        with self._at_work():
            return self._gc(now=now, sweep=True)

    def tables(self) -> list[TableInfo]:
        """Describe the table of every topic."""
        self._check_enabled()
        with self._at_work():
            topics = sorted(self._core.state.topics.values(), key=lambda each: each.name)
            return [self._info(each) for each in topics]

    def describe(self, topic: str) -> TableInfo:
        """Describe the table of a topic."""
        self._check_enabled()
        with self._at_work():
            return self._info(self._topic(topic))

    def history(self, topic: str) -> list[SnapshotInfo]:
        """Return the snapshots of a topic's table, the oldest first."""
        self._check_enabled()
        with self._at_work():
            table = self._topics.tables.table(self._topic(topic).name)
        if table is None:
            return []
        return [self._snapshot(each) for each in table.metadata.snapshots]

    def table(self, topic: str) -> Any:
        """Return the pyiceberg table of a topic, showing everything that is in segments now."""
        self.sync(topic)
        with self._at_work():
            return self._topics.tables.table(self._topic(topic).name)

    def locate(self, topic: int, partition: int, segment: Segment) -> str:
        """Return where the file of a segment is, for whoever reads it without the log."""
        if segment.place == LOCAL:
            return self._places.local(topic, partition, segment.id)
        return self._places.segment(topic, partition, segment)

    def stats(self) -> LakeStats:
        """Return counters, and how far the tables are behind."""
        topics = list(self._core.state.topics.values()) if self._config.iceberg else []
        lags = [self._topics.lag(each) for each in topics]
        tables = self._topics.tables
        numbers: dict[str, int] = {}
        if self._store is not None:
            store = self._store.stats
            numbers = {
                f"store_{name}": getattr(store, name)
                for name in (
                    "uploads",
                    "uploaded_bytes",
                    "downloads",
                    "downloaded_bytes",
                    "retries",
                    "failures",
                )
            }
        if self._fetched is not None:
            fetched = self._fetched.stats
            numbers |= {
                "cache_hits": fetched.hits,
                "cache_misses": fetched.misses,
                "cache_bytes": fetched.cached_bytes,
                "cache_evictions": fetched.evictions,
            }
        return LakeStats(
            iceberg=self._config.iceberg,
            store=self._config.store,
            lag_records=sum(each.records for each in lags),
            lag_seconds=max((each.seconds for each in lags), default=0.0),
            tables_behind=sum(each.records > 0 for each in lags),
            syncs=self._counts["syncs"],
            tables_changed=self._counts["changed"],
            conflicts=tables.conflicts,
            foreign_changes=tables.foreign_changes,
            failures=self._counts["failures"],
            last_failure=self._last_failure,
            files_waiting=self._removal.waiting,
            files_removed=self._counts["removed"],
            segments_moved=0 if self._tiering is None else self._tiering.moved_segments,
            bytes_moved=0 if self._tiering is None else self._tiering.moved_bytes,
            **numbers,
        )

    # By itself

    def start(self) -> None:
        """Begin to work in a thread."""
        if self._is_enabled():
            self._thread = threading.Thread(target=self._run, name="lakebed-lake", daemon=True)
            self._thread.start()

    def nudge(self) -> None:
        """Have a look soon: segments came or went."""
        self._pending = True
        self._wake.set()

    def bury(self, dropped: Iterable[Dropped]) -> int:
        """Take segments that the log has dropped; return how many files went at once."""
        return self._removal.bury(dropped)

    def stop(self) -> None:
        """Finish what is being done and what was asked for, and end."""
        self._stopping = True
        self._wake.set()
        self._join(_STOP_SECONDS)
        if self._store is not None:
            self._store.close()  # ends every pause before another attempt
        self._join(_STOP_SECONDS)
        if not self._working.acquire(timeout=_STOP_SECONDS):
            self._abandoned = True
            _log.error("the catalog or the store does not answer: the log is closed without it")
            return
        try:
            self._topics.tables.close()
        finally:
            self._working.release()

    def _check_stopped(self) -> None:
        """Refuse to remove anything more after the log was closed."""
        if self._abandoned:
            raise ClosedError("the log is closed")

    def _join(self, seconds: float) -> None:
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(seconds)

    def _run(self) -> None:
        pause = interval = self._config.sync_interval_ms / 1000
        failures = 0
        while True:
            self._wake.wait(pause)
            self._wake.clear()
            if self._stopping and not self._pending:
                return
            self._pending = False
            failures = 0 if self._pass() else failures + 1
            if self._stopping:
                return
            pause = min(interval, 2.0 ** min(failures - 1, 16)) if failures else interval

    def _pass(self) -> bool:
        """Do what is due; False asks for another attempt soon."""
        with self._at_work(last=True):
            # Each for itself: a catalog that fails does not keep the local disk full.
            parts = (self._upload_behind, self._sync_behind, self._move_all, self._tidy)
            done = [self._attempted(each) for each in parts]
        return all(done)

    def _attempted(self, work: Callable[[], None]) -> bool:
        """Do a part of a pass; return whether it could be done."""
        try:
            work()
        except ClosedError:
            return True
        except LakebedError as error:
            self._failed(error)
            return False
        except Exception as error:
            _log.exception("the lake could not be synced")
            self._failed(LakebedError(f"the lake failed: {type(error).__name__}: {error}"))
            return False
        return True

    def _upload_behind(self) -> None:
        if self._tiering is not None:
            for topic in self._topics.behind():
                self._tiering.upload(topic)

    def _sync_behind(self) -> None:
        report = self._sync(self._topics.behind(), take_over=False, keep_on=True)
        if not report.errors:
            self._told.clear()
        # A table that is refused will be refused a second later as well: no error, but a problem.

    def _tidy(self) -> None:
        self._gc(now=False, sweep=self._sweep_due())

    def _failed(self, error: LakebedError) -> None:
        self._counts["failures"] += 1
        self._last_failure = str(error)
        level = logging.DEBUG if self._last_failure in self._told else logging.ERROR
        self._told.append(self._last_failure)
        _log.log(level, "the lake could not be synced, and is tried again: %s", error)

    def _sweep_due(self) -> bool:
        now = self._core.clock.monotonic()
        if now - self._swept_at < max(_SWEEP_SECONDS_MIN, self._config.grace_ms / 2000):
            return False
        self._swept_at = now
        return True

    # The work

    def _sync(
        self,
        topics: list[Topic] | None,
        *,
        take_over: bool,
        keep_on: bool,
        progress: Progress | None = None,
    ) -> SyncReport:
        report = SyncReport()
        chosen = list(self._core.state.topics.values()) if topics is None else topics
        self._counts["syncs"] += 1
        if self._config.iceberg and (topics is None or (keep_on and self._has_tables())):
            report.tables_dropped = len(self._topics.drop_others())
        catalog_failed = False
        for done, topic in enumerate(chosen):
            if progress is not None:
                progress("syncing tables", done, len(chosen))
            try:
                self._sync_topic(topic, report, take_over=take_over)
                self._problems.pop(topic.id, None)
            except (ClosedError, *_STORE_ERRORS):
                raise  # it would be the same for every other one
            except LakebedError as error:
                self._problems[topic.id] = str(error)
                if topics is not None and not keep_on:
                    raise  # whoever names a topic is told at once
                if isinstance(error, CatalogUnavailableError):
                    if catalog_failed or len(chosen) == 1:
                        raise  # it is the catalog, and not one table
                    catalog_failed = True
                self._failed(error)
                report.errors[topic.name] = error
        return report

    def _sync_topic(self, topic: Topic, report: SyncReport, *, take_over: bool) -> None:
        if self._core.topic(topic.id) is None:
            return  # deleted since
        if self._tiering is not None:
            report.segments_uploaded += self._tiering.upload(topic)
        if self._config.iceberg:
            synced = self._topics.sync(self._core.topic(topic.id) or topic, take_over=take_over)
            report.tables_changed += synced.changed
            report.files_added += synced.added
            report.files_removed += synced.removed
            self._counts["changed"] += synced.changed
        if self._tiering is not None:
            report.segments_moved += self._tiering.move(topic)

    def _move_all(self) -> None:
        """Let segments leave the local disk that have become old enough since the last look."""
        if self._tiering is not None:
            for topic in list(self._core.state.topics.values()):
                self._tiering.move(topic)

    def _gc(self, *, now: bool, sweep: bool) -> RemovalReport:
        report = RemovalReport()
        grace = 0.0 if now else self._config.grace_ms / 1000
        age_us = 0 if now else self._config.snapshot_age_ms * 1000
        before_us = self._core.clock.time_us() + 1000 - age_us
        for topic in self._removal.topics_waiting():
            self._topics.tables.expire(topic.name, before_us)
        self._removal.remove_segments(report, grace)
        if sweep and self._has_tables():
            self._removal.sweep(
                report, grace, lambda name: self._topics.tables.expire(name, before_us)
            )
        self._removal.remember()
        report.waiting = self._removal.waiting
        if sweep and self._config.iceberg:
            self._derived.sweep(report, grace, before_us)
        self._counts["removed"] += report.segments_removed + report.files_removed
        return report

    # Inside

    @contextlib.contextmanager
    def _at_work(self, *, last: bool = False) -> Iterator[None]:
        """Let nobody else work meanwhile. Once the log is being closed, only the last pass may."""
        if not last:
            self._core.check_may_wait()
        if self._worker == threading.get_ident():
            raise InvalidArgumentError("the lake is at work: a callback of its work cannot use it")
        with self._working:
            if self._stopping and not last:
                raise ClosedError("the log is closed")
            self._worker = threading.get_ident()
            try:
                yield
            finally:
                self._worker = None
                self._topics.tables.rest()

    def _is_enabled(self) -> bool:
        return self._config.iceberg or self._store is not None

    def _check_enabled(self) -> None:
        if self._stopping:
            raise ClosedError("the log is closed")
        if not self._is_enabled():
            raise InvalidArgumentError(
                "the log has neither tables nor a store: see the settings of its lake",
                iceberg=self._config.iceberg,
            )

    def _topic(self, name: str) -> Topic:
        topic = self._core.state.topic(name) if isinstance(name, str) else None
        if topic is None:
            raise TopicNotFoundError("there is no such topic", topic=name)
        return topic

    def _table_of(self, name: str) -> Any:
        return self._topics.tables.table(name) if self._config.iceberg else None

    def _check_store(self) -> None:
        """Raise if there is a store, and it does not answer or has lost its bucket."""
        if self._store is not None:
            self._store.size("lakebed")

    def _earlier(self) -> ObjectStore | None:
        """Return where tables were before there was a store, if they were."""
        if self._store is None or not self._disk.names(self._tables_folder):
            return None
        return ObjectStore(f"file://{self._tables_folder.resolve()}", {})

    def _has_tables(self) -> bool:
        return self._store is not None or bool(self._disk.names(self._tables_folder))

    def _is_shown(self, topic: int) -> bool:
        """Return whether local segments of a topic are, or were, part of a table, or may become it.

        A sync that has begun shows the segments that there were when it began.
        """
        if self._store is not None or not self._config.iceberg:
            return False
        return self._working.locked() or str(topic) in self._disk.names(self._tables_folder)

    def _info(self, topic: Topic) -> TableInfo:
        table, problem = None, ""
        exists: bool | None = None
        try:
            table = self._table_of(topic.name)
            exists = table is not None
        except LakebedError as error:
            problem = str(error)
        properties = {} if table is None else table.properties
        problem = problem or self._problem(topic, table)
        if properties.get(LOG) == self._log_id and properties.get(TOPIC) == str(topic.id):
            self._topics.learn(topic, _offsets(properties))
        lag = self._topics.lag(topic)
        newest = None if table is None else table.current_snapshot()
        summary = {} if newest is None else newest.summary.additional_properties
        return TableInfo(
            topic=topic.name,
            exists=exists,
            location=self._topics.tables.location(topic.id),
            metadata="" if table is None else table.metadata_location,
            snapshot=None if newest is None else newest.snapshot_id,
            snapshots=0 if table is None else len(table.metadata.snapshots),
            files=int(summary.get("total-data-files", 0)),
            records=int(summary.get("total-records", 0)),
            bytes=int(summary.get("total-files-size", 0)),
            position=max(0, number_of(properties, POSITION)),
            offsets=json.dumps(_offsets(properties)),
            lag_records=lag.records,
            lag_seconds=lag.seconds,
            problem=problem,
        )

    def _problem(self, topic: Topic, table: Any) -> str:
        """Return what is wrong with a topic's table, as far as can be seen without a sync."""
        try:
            self._places.check()
        except InvalidArgumentError as error:
            return str(error)
        if topic.id in self._problems:
            return self._problems[topic.id]
        if table is None:
            return ""
        if table.properties.get(LOG) != self._log_id:
            return "the table belongs to another log, or to nobody"
        newest = table.current_snapshot()
        if newest is not None and not is_ours(newest, table.properties, self._log_id):
            return "somebody else has changed the table: the next sync restores or refuses it"
        return ""

    def _snapshot(self, snapshot: Any) -> SnapshotInfo:
        summary = snapshot.summary.additional_properties if snapshot.summary else {}
        return SnapshotInfo(
            snapshot=snapshot.snapshot_id,
            parent=snapshot.parent_snapshot_id,
            time=datetime.fromtimestamp(snapshot.timestamp_ms / 1000, UTC),
            operation=snapshot.summary.operation.value if snapshot.summary else "",
            ours=summary.get(LOG) == self._log_id,
            position=max(0, number_of(summary, POSITION)),
            files_added=int(summary.get("added-data-files", 0)),
            files_removed=int(summary.get("deleted-data-files", 0)),
            records=int(summary.get("total-records", 0)),
        )


def _offsets(properties: Mapping[str, str]) -> dict[int, int]:
    """Return how far a table says it has come; nothing, if somebody has changed what it says."""
    try:
        found = json.loads(properties.get(OFFSETS, "{}"))
        return {int(number): int(end) for number, end in found.items()}
    except (ValueError, TypeError, AttributeError):
        return {}


def opened_store(config: LakeConfig) -> ObjectStore | None:
    """Return the store of a log, if it has one."""
    return ObjectStore(config.store, resolved(config.store_options)) if config.store else None
