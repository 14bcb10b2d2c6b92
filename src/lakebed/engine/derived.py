"""Derived tables as their users see them, `log.derived`: tables that jobs and pipelines make.

Spark executors write files below `place`; the owner of the log commits them, exactly once for each
writer and number. The tables are in the log's catalog, in a namespace of their own
(`lakebed_tables`, if the topics' is `lakebed`), their files in a folder of their own:

    local    DIR/derived/{name}/{id}/metadata/..., DIR/derived/{name}/{id}/data/{attempt}/...
    store    STORE/{log}/derived/{name}/{id}/...

A file that no kept snapshot refers to goes after the grace period: one that a commit has dropped,
one of a commit that never came, all of a table that was dropped.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from lakebed.api.derived import DerivedCalls
from lakebed.api.derived_change import Change
from lakebed.config import LakeConfig, resolved
from lakebed.engine.core import Core
from lakebed.engine.unneeded import Unneeded
from lakebed.errors import ClosedError, ForeignTableError, InvalidArgumentError
from lakebed.host import Disk, failpoints
from lakebed.host.store import ObjectStore, Stored
from lakebed.lake.catalog import Catalog
from lakebed.lake.derived import DerivedTables
from lakebed.lake.places import HINT_NAME, TABLES_NAME, Places
from lakebed.lake.table_facts import needed_files
from lakebed.reports.derived import Committed, DerivedFiles, DerivedTable
from lakebed.reports.lake import RemovalReport
from lakebed.types import TableName

_log = logging.getLogger("lakebed.lake")

NAME: Final = "derived"
"""The folder of derived tables."""
_STOP_SECONDS: Final = 10.0
"""How long closing waits for a catalog and a store."""
_HINT: Final = f"/metadata/{HINT_NAME}"

_SWEPT = failpoints.define("engine.derived.file_removed")


class Derived(DerivedCalls):
    """The derived tables of one log. Any thread."""

    def __init__(
        self, core: Core, config: LakeConfig, disk: Disk, folder: Path, log_id: str
    ) -> None:
        self._core = core
        self._config = config
        self._disk = disk
        self._folder = folder.resolve() / NAME
        self._places = Places(folder, config.store, log_id)
        base = config.store.rstrip("/") if config.store else f"file://{folder.resolve()}"
        self._prefix = f"{log_id}/{NAME}" if config.store else NAME
        self._store = ObjectStore(base, resolved(config.store_options) if config.store else {})
        self._tables = DerivedTables(
            Catalog(
                replace(config, namespace=f"{config.namespace}_tables"),
                disk,
                folder / TABLES_NAME,
            ),
            f"{base}/{self._prefix}",
            log_id,
            config.snapshots_kept,
            self._newest_metadata,
        )
        self._unneeded = Unneeded(disk, self._folder)
        self._working = threading.Lock()
        self._closed = False

    @property
    def namespace(self) -> str:
        """Return the catalog's namespace in which the tables are."""
        return f"{self._config.namespace}_tables"

    @property
    def store_options(self) -> dict[str, str]:
        """Return what executors need to reach the files, secrets included."""
        return dict(resolved(self._config.store_options)) if self._config.store else {}

    def create(
        self,
        name: str,
        schema: pa.Schema,
        *,
        kind: str = "current",
        key: Sequence[str] = (),
        buckets: int = 16,
    ) -> DerivedTable:
        """Make a table, or give the one there is if it is made the same way.

        A `current` table has one row for each key, a `history` every version of a key, an `append`
        table rows without a key. Files are divided into `buckets` by the key.
        """
        checked = str(TableName(name))
        self._places.check()
        with self._at_work():
            return self._tables.create(
                checked, schema, kind, key, 0 if kind == "append" else buckets
            )

    def evolve(self, name: str, schema: pa.Schema) -> DerivedTable:
        """Add the columns of `schema` that a table lacks; rows of before have nulls there."""
        checked = str(TableName(name))
        with self._at_work():
            return self._tables.evolve(checked, schema)

    def describe(self, name: str) -> DerivedTable:
        """Describe a table: columns, version, how far its writers have come."""
        checked = str(TableName(name))
        with self._at_work():
            return self._tables.describe(checked)

    def tables(self) -> list[str]:
        """List the names of the derived tables."""
        with self._at_work():
            return self._tables.names()

    def restore(self, name: str) -> DerivedTable:
        """Bring a table back that somebody else has dropped, or that a lost catalog knew."""
        checked = str(TableName(name))
        with self._at_work():
            return self._tables.restore(checked)

    def drop(self, name: str) -> bool:
        """Drop a table; return whether there was one. Its files go after the grace period."""
        checked = str(TableName(name))
        with self._at_work():
            known = self._tables.drop(checked)
            lost = [each.name for each in self._below(checked) if each.name.endswith(_HINT)]
            for each in lost:
                self._store.remove(each)
            return known or bool(lost)

    def files(self, name: str, buckets: Sequence[int] | None = None) -> DerivedFiles:
        """Return a table with its files, or with those of some buckets, all of one version."""
        checked = str(TableName(name))
        with self._at_work():
            return self._tables.files(checked, buckets)

    def _commit(self, name: str, change: Change) -> Committed:
        with self._at_work():
            return self._tables.commit(name, change)

    def iceberg(self, name: str) -> Any:
        """Return the pyiceberg table."""
        checked = str(TableName(name))
        with self._at_work():
            return self._tables.table(checked)

    # Removal

    def sweep(self, report: RemovalReport, grace_seconds: float, before_us: int | None) -> None:
        """Remove files that no kept snapshot refers to and whose grace period is over.

        With a time, snapshots of before it are expired first.
        """
        if not self._has_files():
            return
        with self._at_work():
            files = self._listed()
            if files:
                self._sweep(report, grace_seconds, before_us, files)

    def _sweep(
        self,
        report: RemovalReport,
        grace_seconds: float,
        before_us: int | None,
        files: dict[str, list[Stored]],
    ) -> None:
        now_us = self._core.clock.time_us()
        seen: set[str] = set()
        names = self._tables.names()
        for name, found in files.items():
            needed = self._needed(name, names, before_us, found)
            if needed is None:
                continue
            fresh = _last_writes(found)
            for file in found:
                place = self._store.uri(file.name)
                if place in needed:
                    continue
                seen.add(place)
                written_us = fresh.get(_attempt(file.name), 0)
                since_us = max(self._unneeded.since(place, now_us), written_us)
                if now_us - min(since_us, now_us) >= grace_seconds * 1_000_000:
                    self._check_open()
                    self._store.remove(file.name)
                    self._unneeded.forget(place)
                    report.files_removed += 1
                    report.bytes_removed += file.size_bytes
                    _SWEPT.hit()
        self._unneeded.keep_only(seen)
        self._unneeded.save()
        report.waiting += len(self._unneeded.places())

    def _needed(
        self, name: str, names: Sequence[str], before_us: int | None, found: list[Stored]
    ) -> set[str] | None:
        """Return the files of a name that must stay; None if that cannot be known."""
        try:
            if name in names:
                if before_us is not None:
                    self._tables.expire(name, before_us)
                table = self._tables.table(name)
                needed = needed_files(table) | {table.location() + _HINT}
                return needed | self._hinted(found, table.location())
            return self._hinted(found, "")
        except ForeignTableError as error:
            _log.warning("no file of table %s is removed: %s", name, error)
            return None

    def _hinted(self, found: list[Stored], own: str) -> set[str]:
        """Return the files of tables that the catalog has lost: the log did not drop them."""
        roots = {each.name.removesuffix(_HINT) for each in found if each.name.endswith(_HINT)}
        lost = {root for root in roots if self._store.uri(root) != own}
        for root in sorted(lost):
            _log.warning("the catalog does not know a derived table any more: %s", root)
        return {
            self._store.uri(each.name)
            for each in found
            if any(each.name.startswith(f"{root}/") for root in lost)
        }

    def _listed(self) -> dict[str, list[Stored]]:
        """Return every file there is, by the name of its table."""
        files: dict[str, list[Stored]] = {}
        listing = self._store.listing(self._prefix)
        for found in (*listing, *self._store.unfinished(self._prefix)):
            name, _, rest = found.name.removeprefix(f"{self._prefix}/").partition("/")
            if rest:
                files.setdefault(name, []).append(found)
        return files

    def _below(self, name: str) -> list[Stored]:
        return list(self._store.listing(f"{self._prefix}/{name}")) if self._has_files() else []

    def _newest_metadata(self, name: str) -> str | None:
        """Return the newest metadata of a table that has a hint: a hint may be one swap behind."""
        files = self._below(name)
        roots = [each.name.removesuffix(_HINT) for each in files if each.name.endswith(_HINT)]
        found = [
            each
            for each in files
            for root in roots
            if each.name.startswith(f"{root}/metadata/") and each.name.endswith(".metadata.json")
        ]
        newest = max(found, key=lambda each: (_number(each.name), each.modified_us), default=None)
        return None if newest is None else self._store.uri(newest.name)

    def _has_files(self) -> bool:
        return bool(self._config.store) or bool(self._disk.names(self._folder))

    # Inside

    @contextlib.contextmanager
    def _at_work(self) -> Iterator[None]:
        self._core.check_may_wait()
        with self._working:
            self._check_open()
            try:
                yield
            finally:
                self._tables.rest()

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError("the log is closed")
        if not self._config.iceberg:
            raise InvalidArgumentError("derived tables need the lake's setting `iceberg`")

    def close(self) -> None:
        """Refuse further work, and let go of the catalog."""
        self._closed = True
        self._store.close()
        if not self._working.acquire(timeout=_STOP_SECONDS):
            _log.error(
                "the catalog of derived tables does not answer: the log is closed without it"
            )
            return
        try:
            self._tables.close()
        finally:
            self._working.release()


def _number(name: str) -> int:
    number = name.rpartition("/")[2].partition("-")[0]
    return int(number) if number.isdigit() else -1


def _attempt(name: str) -> str:
    return name.rpartition("/")[0]


def _last_writes(found: list[Stored]) -> dict[str, int]:
    """Return when each attempt last wrote: one that goes on keeps its files.

    Metadata is of no attempt: it is written under the lock that a sweep holds, and may be old in a
    folder that every commit writes to.
    """
    fresh: dict[str, int] = {}
    for each in found:
        folder = _attempt(each.name)
        if not _attempt(folder).endswith("/data"):
            continue
        fresh[folder] = max(fresh.get(folder, 0), each.modified_us)
    return fresh
