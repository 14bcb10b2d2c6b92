"""Garbage collection of derived tables.

A file that no kept snapshot refers to is deleted after the grace period: one that a commit has
replaced, one of a commit that never happened, every file of a table that was dropped.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from lakebed.errors import ForeignTableError
from lakebed.host import failpoints
from lakebed.host.store import Stored
from lakebed.iceberg.derived_folder import HINT, roots_with_hint
from lakebed.iceberg.derived_table import Derived
from lakebed.iceberg.parts import LakeParts
from lakebed.iceberg.pending_deletes import PendingDeletes, Sweep
from lakebed.iceberg.table_metadata import files_in_use
from lakebed.reports.lake import RemovalReport

_log = logging.getLogger("lakebed.lake")

_FILE_DELETED = failpoints.define("engine.derived.file_removed")


class DerivedGarbage:
    """Deletes files of derived tables. Any thread."""

    def __init__(self, parts: LakeParts, derived: Derived) -> None:
        self._clock = parts.log.clock
        self._derived = derived
        self._folder = derived.folder
        self._pending = PendingDeletes(parts.disk, derived.folder.path)

    def sweep(self, report: RemovalReport, grace_seconds: float, before_us: int) -> None:
        """Delete files that no kept snapshot refers to and whose grace period is over.

        Snapshots before a time are expired first.
        """
        if not self._folder.has_files():
            return
        with self._derived.exclusive():
            tables = self._folder.files_by_table()
            if tables:
                self._sweep(report, grace_seconds, before_us, tables)

    def _sweep(
        self,
        report: RemovalReport,
        grace_seconds: float,
        before_us: int,
        tables: dict[str, list[Stored]],
    ) -> None:
        sweep = Sweep(
            pending=self._pending,
            report=report,
            deleted=_FILE_DELETED,
            check_open=self._derived.check_open,
            now_us=self._clock.time_us(),
            grace_seconds=grace_seconds,
        )
        names = self._derived.list_names()
        for name, files in tables.items():
            needed = self._files_to_keep(name, names, before_us, files)
            if needed is None:
                continue
            last_writes = _last_writes(files)
            for file in files:
                if self._folder.store.uri(file.name) not in needed:
                    sweep.offer(self._folder.store, file, last_writes.get(_parent(file.name), 0))
        sweep.finish()
        self._pending.save()
        report.waiting += len(self._pending.locations())

    def _files_to_keep(
        self, name: str, names: Sequence[str], before_us: int, files: list[Stored]
    ) -> set[str] | None:
        """Return the files of a table that must stay; None if that cannot be known."""
        try:
            if name not in names:
                return self._find_lost_files(files, "")
            self._derived.expire(name, before_us)
            table = self._derived.load(name)
            needed = files_in_use(table) | {table.location() + HINT}
            return needed | self._find_lost_files(files, table.location())
        except ForeignTableError as error:
            _log.warning("no file of table %s is removed: %s", name, error)
            return None

    def _find_lost_files(self, files: list[Stored], own: str) -> set[str]:
        """Return the files of tables that the catalog has lost: the log did not drop them."""
        store = self._folder.store
        roots = {root for root in roots_with_hint(files) if store.uri(root) != own}
        for root in sorted(roots):
            _log.warning("the catalog does not know a derived table any more: %s", root)
        prefixes = tuple(f"{root}/" for root in roots)
        return {store.uri(file.name) for file in files if file.name.startswith(prefixes)}


def _parent(name: str) -> str:
    return name.rpartition("/")[0]


def _last_writes(files: list[Stored]) -> dict[str, int]:
    """Return when each attempt wrote last, by its folder: one that continues keeps its files.

    Metadata belongs to no attempt: it is written under the lock that a sweep holds, and may be old
    in a folder that every commit writes to.
    """
    last_writes: dict[str, int] = {}
    for file in files:
        folder = _parent(file.name)
        if _parent(folder).endswith("/data"):
            last_writes[folder] = max(last_writes.get(folder, 0), file.modified_us)
    return last_writes
