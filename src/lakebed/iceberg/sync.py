"""Brings the tables of topics, and the object store, up to date.

For each topic: upload its segments, make its table agree with them, then remove local files that
its settings do not keep. So a table never shows an object that is not in the store.
"""

from __future__ import annotations

from typing import Final

from lakebed.errors import (
    CatalogUnavailableError,
    ClosedError,
    LakebedError,
    StoreDeniedError,
    StoreNotFoundError,
    StoreUnavailableError,
)
from lakebed.iceberg.parts import LakeParts
from lakebed.iceberg.tiering import Tiering
from lakebed.iceberg.topic_table import TopicTables
from lakebed.iceberg.worker import Worker
from lakebed.reports.lake import SyncReport
from lakebed.state.values import Topic
from lakebed.types import Progress

_STORE_ERRORS: Final = (StoreDeniedError, StoreNotFoundError, StoreUnavailableError)


class TopicSync:
    """Syncs topics. One thread at a time, with the worker's lock."""

    def __init__(
        self, *, parts: LakeParts, tables: TopicTables, tiering: Tiering | None, worker: Worker
    ) -> None:
        self._parts = parts
        self._log = parts.log
        self._tables = tables
        self._tiering = tiering
        self._worker = worker
        self.syncs = 0
        self.tables_changed = 0
        self.problems: dict[int, str] = {}
        """Why the table of a topic could not be synced last time."""

    # Jobs of the worker

    def upload_behind(self) -> None:
        """Upload the segments of topics whose tables are behind."""
        if self._tiering is not None:
            for topic in self._tables.progress.behind():
                self._tiering.upload(topic)

    def sync_behind(self) -> None:
        """Sync the topics whose tables are behind, as many as possible."""
        report = SyncReport()
        topics = self._tables.progress.behind()  # first: from now on they are known to wait
        self.syncs += 1
        if self._parts.config.iceberg and self._parts.has_table_files():
            report.tables_dropped = self._tables.drop_others()
        self._sync_each(topics, report)
        if not report.errors:
            self._worker.forget_logged()
        # A table that is refused would be refused a second later as well: no reason to hurry.

    def move_all(self) -> None:
        """Remove local files of segments that have become old enough since the last run."""
        if self._tiering is not None:
            for topic in list(self._log.state.topics.values()):
                self._tiering.move(topic)

    # Calls

    def sync_topic(self, topic: Topic, *, take_over: bool, progress: Progress | None) -> SyncReport:
        """Sync one topic; raise the reason if that fails."""
        report = SyncReport()
        self.syncs += 1
        _report_progress(progress, 0, 1)
        self._sync(topic, report, take_over=take_over)
        return report

    def sync_all(self, progress: Progress | None) -> SyncReport:
        """Sync every topic, as many as possible; the report has the reasons of the others."""
        report = SyncReport()
        self.syncs += 1
        if self._parts.config.iceberg:
            report.tables_dropped = self._tables.drop_others()
        self._sync_each(list(self._log.state.topics.values()), report, progress)
        return report

    def _sync_each(
        self, topics: list[Topic], report: SyncReport, progress: Progress | None = None
    ) -> None:
        catalog_failed = False
        for done, topic in enumerate(topics):
            _report_progress(progress, done, len(topics))
            try:
                self._sync(topic, report, take_over=False)
            except (ClosedError, *_STORE_ERRORS):
                raise  # it would be the same for every other topic
            except LakebedError as error:
                if isinstance(error, CatalogUnavailableError):
                    if catalog_failed or len(topics) == 1:
                        raise  # the catalog failed, and not one table
                    catalog_failed = True
                self._worker.record_failure(error)
                report.errors[topic.name] = error

    def _sync(self, topic: Topic, report: SyncReport, *, take_over: bool) -> None:
        try:
            self._bring_up_to_date(topic, report, take_over=take_over)
        except (ClosedError, *_STORE_ERRORS):
            raise  # no problem of this table
        except LakebedError as error:
            self.problems[topic.id] = str(error)
            raise
        self.problems.pop(topic.id, None)

    def _bring_up_to_date(self, topic: Topic, report: SyncReport, *, take_over: bool) -> None:
        if self._log.topic(topic.id) is None:
            return  # deleted since
        if self._tiering is not None:
            report.segments_uploaded += self._tiering.upload(topic)
        if self._parts.config.iceberg:
            synced = self._tables.sync(self._log.topic(topic.id) or topic, take_over=take_over)
            report.tables_changed += synced.changed
            report.files_added += synced.added
            report.files_removed += synced.removed
            self.tables_changed += synced.changed
        if self._tiering is not None:
            report.segments_moved += self._tiering.move(topic)


def _report_progress(progress: Progress | None, done: int, total: int) -> None:
    if progress is not None:
        progress("syncing tables", done, total)
