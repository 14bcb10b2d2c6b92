"""The lake as users see it, `log.lake`: Iceberg tables of topics, and the object store.

Everything here follows the log: records are safe in it before, and writing and reading continue
whatever happens to a catalog or a store. A failure is logged, counted, shown by `stats()` and tried
again.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, Final

from lakebed.errors import InvalidArgumentError, LakebedError, TopicNotFoundError
from lakebed.iceberg.catalog import Catalog
from lakebed.iceberg.derived_gc import DerivedGarbage
from lakebed.iceberg.derived_table import Derived
from lakebed.iceberg.gc import TopicGarbage
from lakebed.iceberg.parts import LakeParts
from lakebed.iceberg.sync import TopicSync
from lakebed.iceberg.table_metadata import LOG, OFFSETS, POSITION, TOPIC, is_ours, number_of
from lakebed.iceberg.tiering import Tiering
from lakebed.iceberg.topic_table import TopicTables
from lakebed.iceberg.worker import Worker
from lakebed.reports.lake import LakeStats, RemovalReport, SnapshotInfo, SyncReport, TableInfo
from lakebed.state.decision import Dropped
from lakebed.state.values import LOCAL, Segment, Topic
from lakebed.types import Progress

_SWEEP_SECONDS_MIN: Final = 60.0
"""How often, at most, everything in the lake is listed without being asked."""

_STORE_COUNTERS: Final = (
    "uploads",
    "uploaded_bytes",
    "downloads",
    "downloaded_bytes",
    "retries",
    "failures",
)


class Lake:
    """Tables, store and deletion of files of one log. Any thread."""

    def __init__(self, parts: LakeParts, derived: Derived) -> None:
        self._parts = parts
        self._log = parts.log
        self._config = parts.config
        catalog = Catalog(
            config=parts.config,
            disk=parts.disk,
            folder=parts.tables_folder,
            store=parts.store,
            owner=parts.owner,
        )
        self._worker = Worker(parts, catalog)
        self._tables = TopicTables(parts, catalog)
        self._tiering = None if parts.store is None else Tiering(parts, parts.store)
        self._sync = TopicSync(
            parts=parts, tables=self._tables, tiering=self._tiering, worker=self._worker
        )
        self._garbage = TopicGarbage(
            parts=parts, tables=self._tables, tiering=self._tiering, worker=self._worker
        )
        self._derived_garbage = DerivedGarbage(parts, derived)
        self._jobs = (
            self._sync.upload_behind,
            self._sync.sync_behind,
            self._sync.move_all,
            self._collect_garbage,
        )
        self._swept_at = parts.log.clock.monotonic()
        self._files_removed = 0

    # Calls of users

    def sync(
        self,
        topic: str | None = None,
        *,
        take_over: bool = False,
        progress: Progress | None = None,
    ) -> SyncReport:
        """Update the tables, and the object store, now.

        Args:
            topic: one topic; default: all.
            take_over: restore the log's records in a table that another program has changed.
            progress: called with the number of topics done.
        """
        self._check_enabled()
        self._parts.wal.check_writable()
        if topic is None:
            if take_over:
                raise InvalidArgumentError("take_over needs the name of a topic")
            with self._worker.exclusive():
                return self._sync.sync_all(progress)
        target = self._topic(topic)
        with self._worker.exclusive():
            return self._sync.sync_topic(target, take_over=take_over, progress=progress)

    def gc(self, *, now: bool = False) -> RemovalReport:
        """Remove files that nothing refers to and whose grace period is over.

        Args:
            now: expire older snapshots first, and ignore the grace period; active readers may fail.
        """
        self._check_enabled()
        self._parts.wal.check_writable()
        with self._worker.exclusive():
            return self._collect(now=now, sweep=True)

    def tables(self) -> list[TableInfo]:
        """Describe the table of every topic."""
        self._check_enabled()
        with self._worker.exclusive():
            topics = sorted(self._log.state.topics.values(), key=lambda topic: topic.name)
            return [self._info(topic) for topic in topics]

    def describe(self, topic: str) -> TableInfo:
        """Describe the table of a topic."""
        self._check_enabled()
        with self._worker.exclusive():
            return self._info(self._topic(topic))

    def history(self, topic: str) -> list[SnapshotInfo]:
        """Return the snapshots of a topic's table, oldest first."""
        self._check_enabled()
        with self._worker.exclusive():
            table = self._tables.table(self._topic(topic).name)
        if table is None:
            return []
        return [self._snapshot(snapshot) for snapshot in table.metadata.snapshots]

    def table(self, topic: str) -> Any:
        """Return the pyiceberg table of a topic, with everything that is in segments now.

        That of a replica is the one in a shared catalog, as its owner has left it.
        """
        if self._parts.wal.refusal is None:
            self.sync(topic)
        with self._worker.exclusive():
            table = self._tables.table(self._topic(topic).name)
        if table is None:
            self._parts.wal.check_writable()
        return table

    def locate(self, topic: int, partition: int, segment: Segment) -> str:
        """Return the location of a segment's file, for readers without the log."""
        if segment.place == LOCAL:
            return self._parts.locations.local(topic, partition, segment.id)
        return self._parts.locations.segment(topic, partition, segment)

    def stats(self) -> LakeStats:
        """Return counters, and the lag of the tables."""
        topics = list(self._log.state.topics.values()) if self._config.iceberg else []
        lags = [self._tables.progress.lag(topic) for topic in topics]
        return LakeStats(
            iceberg=self._config.iceberg,
            store=self._config.store,
            lag_records=sum(lag.records for lag in lags),
            lag_seconds=max((lag.seconds for lag in lags), default=0.0),
            tables_behind=sum(lag.records > 0 for lag in lags),
            syncs=self._sync.syncs,
            tables_changed=self._sync.tables_changed,
            conflicts=self._tables.conflicts,
            foreign_changes=self._tables.foreign_changes,
            failures=self._worker.failures,
            last_failure=self._worker.last_failure,
            files_waiting=self._garbage.waiting,
            files_removed=self._files_removed,
            segments_moved=0 if self._tiering is None else self._tiering.moved_segments,
            bytes_moved=0 if self._tiering is None else self._tiering.moved_bytes,
            **self._store_stats(),
        )

    def _store_stats(self) -> dict[str, int]:
        counters: dict[str, int] = {}
        if self._parts.store is not None:
            store = self._parts.store.stats
            counters = {f"store_{name}": getattr(store, name) for name in _STORE_COUNTERS}
        if self._parts.remote_cache is not None:
            cache = self._parts.remote_cache.stats
            counters |= {
                "cache_hits": cache.hits,
                "cache_misses": cache.misses,
                "cache_bytes": cache.cached_bytes,
                "cache_evictions": cache.evictions,
            }
        return counters

    # Calls of the log

    def start(self) -> None:
        """Begin to bring everything up to date in a thread."""
        if self._is_enabled():
            self._worker.start(self._jobs)

    def nudge(self) -> None:
        """Have the thread look soon: segments were added or removed."""
        self._worker.nudge()

    def delete_segments(self, dropped: Iterable[Dropped]) -> int:
        """Delete segments that the log has dropped, now or once no table shows them.

        Return how many files were deleted.
        """
        return self._garbage.delete_segments(dropped)

    def stop(self) -> None:
        """Finish what is being done and what was asked for, and end."""
        self._worker.stop()

    # Garbage collection

    def _collect_garbage(self) -> None:
        self._collect(now=False, sweep=self._is_sweep_due())

    def _is_sweep_due(self) -> bool:
        now = self._log.clock.monotonic()
        if now - self._swept_at < max(_SWEEP_SECONDS_MIN, self._config.grace_ms / 2000):
            return False
        self._swept_at = now
        return True

    def _collect(self, *, now: bool, sweep: bool) -> RemovalReport:
        report = RemovalReport()
        grace = 0.0 if now else self._config.grace_ms / 1000
        age_us = 0 if now else self._config.snapshot_age_ms * 1000
        before_us = self._log.clock.time_us() + 1000 - age_us
        self._garbage.collect(report, grace_seconds=grace, before_us=before_us, sweep=sweep)
        if sweep and self._config.iceberg:
            self._derived_garbage.sweep(report, grace, before_us)
        self._files_removed += report.segments_removed + report.files_removed
        return report

    # Descriptions

    def _is_enabled(self) -> bool:
        return self._config.iceberg or self._parts.store is not None

    def _check_enabled(self) -> None:
        self._worker.check_open()
        if not self._is_enabled():
            raise InvalidArgumentError(
                "the log has neither tables nor a store: see the settings of its lake",
                iceberg=self._config.iceberg,
            )

    def _topic(self, name: str) -> Topic:
        topic = self._log.state.topic(name) if isinstance(name, str) else None
        if topic is None:
            raise TopicNotFoundError(f"topic {name!r} does not exist", topic=name)
        return topic

    def _info(self, topic: Topic) -> TableInfo:
        table, problem = None, ""
        exists: bool | None = None
        try:
            table = self._tables.table(topic.name) if self._config.iceberg else None
            exists = table is not None
        except LakebedError as error:
            problem = str(error)
        properties = {} if table is None else table.properties
        problem = problem or self._problem(topic, table)
        if properties.get(LOG) == self._parts.log_id and properties.get(TOPIC) == str(topic.id):
            self._tables.progress.learn(topic, _offsets(properties))
        lag = self._tables.progress.lag(topic)
        newest = None if table is None else table.current_snapshot()
        summary = {} if newest is None else newest.summary.additional_properties
        return TableInfo(
            topic=topic.name,
            exists=exists,
            location=self._tables.location(topic.id),
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
        """Return what is wrong with a topic's table, as far as can be known without a sync."""
        try:
            self._parts.locations.check()
        except InvalidArgumentError as error:
            return str(error)
        if topic.id in self._sync.problems:
            return self._sync.problems[topic.id]
        if table is None:
            return ""
        if table.properties.get(LOG) != self._parts.log_id:
            return "the table belongs to another log, or to none"
        newest = table.current_snapshot()
        if newest is not None and not is_ours(newest, table.properties, self._parts.log_id):
            return "another writer has changed the table: the next sync restores or refuses it"
        return ""

    def _snapshot(self, snapshot: Any) -> SnapshotInfo:
        summary = snapshot.summary.additional_properties if snapshot.summary else {}
        return SnapshotInfo(
            snapshot=snapshot.snapshot_id,
            parent=snapshot.parent_snapshot_id,
            time=datetime.fromtimestamp(snapshot.timestamp_ms / 1000, UTC),
            operation=snapshot.summary.operation.value if snapshot.summary else "",
            ours=summary.get(LOG) == self._parts.log_id,
            position=max(0, number_of(summary, POSITION)),
            files_added=int(summary.get("added-data-files", 0)),
            files_removed=int(summary.get("deleted-data-files", 0)),
            records=int(summary.get("total-records", 0)),
        )


def _offsets(properties: Mapping[str, str]) -> dict[int, int]:
    """Return the offsets that a table states; none if another writer has changed them."""
    try:
        ends = json.loads(properties.get(OFFSETS, "{}"))
        return {int(partition): int(end) for partition, end in ends.items()}
    except (ValueError, TypeError, AttributeError):
        return {}
