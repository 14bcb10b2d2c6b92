"""The compare-and-swap by which a table of the catalog changes, completely or not at all.

A commit is a compare-and-swap on the table's newest snapshot, with pyiceberg's own retries turned
off. Manifests and metadata are written, and synced, before it. If another writer was faster, or the
outcome is unknown, the commit is a conflict: the next attempt reads the table before it writes. So
the caller must be able to see from the table whether its change is there.

After a commit a hint beside the metadata names the newest file, for readers without a catalog.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple, TypeVar

import pyarrow as pa

from lakebed.errors import CatalogUnavailableError, ForeignTableError, SchemaMismatchError
from lakebed.host import failpoints
from lakebed.iceberg.catalog import Catalog
from lakebed.iceberg.failures import ConflictError, commit_transaction
from lakebed.iceberg.table_metadata import snapshots_to_expire, terms
from lakebed.lake.locations import HINT_NAME

_ATTEMPTS: Final = 5
"""How often a commit is tried if another writer was faster, or its outcome is unknown."""

PROPERTIES: Final = {
    "commit.retry.num-retries": "0",  # a retry would add files twice
    # Older metadata is deleted by `lake.gc` after the grace period: readers may have been given it.
    "write.metadata.delete-after-commit.enabled": "false",
    "write.metadata.previous-versions-max": "10",
    "gc.enabled": "false",  # engines that heed it do not remove files, which are the log's
    "write.delete.isolation-level": "snapshot",
}
"""The properties that every table needs for its commits to be safe."""

_Result = TypeVar("_Result")


class CommitSteps(NamedTuple):
    """The failpoints of a kind of tables: a process may die between any two of them."""

    created: failpoints.Failpoint
    prepared: failpoints.Failpoint
    swapped: failpoints.Failpoint
    hinted: failpoints.Failpoint

    @classmethod
    def define(cls, kind: str) -> CommitSteps:
        """Define the failpoints of a kind of tables."""
        return cls(*(failpoints.define(f"{kind}.{step}") for step in cls._fields))


def retry_conflicts(error: ConflictError | ForeignTableError) -> None:
    """Allow another attempt after a conflict; raise any other error again."""
    if not isinstance(error, ConflictError):
        raise error


class TableCommits:
    """Commits to the tables of one catalog. One thread at a time."""

    def __init__(self, catalog: Catalog, snapshots_kept: int, steps: CommitSteps) -> None:
        self._catalog = catalog
        self._snapshots_kept = snapshots_kept
        self._steps = steps
        self._hints: dict[str, str] = {}
        """The contents of each table's version hint."""

    def retry(
        self,
        doing: str,
        name: str,
        attempt: Callable[[], _Result],
        recover: Callable[[ConflictError | ForeignTableError], None] = retry_conflicts,
    ) -> _Result:
        """Return the result of `attempt`; repeat it after errors for which `recover` returns."""
        failure: BaseException | None = None
        for _ in range(_ATTEMPTS):
            try:
                with self._catalog.handle_failures(doing, name):
                    return attempt()
            except (ConflictError, ForeignTableError) as error:
                if isinstance(error, ConflictError):
                    self._catalog.close()  # a new connection shows the outcome
                recover(error)
                failure = error
        raise CatalogUnavailableError(
            "the table could not be changed", table=name, reason=failure
        ) from failure

    def create(
        self,
        name: str,
        columns: pa.Schema,
        partitioned_by: str | None,
        location: str,
        properties: Mapping[str, str],
    ) -> Any:
        """Create a table with the field ids of `columns`, partitioned by one of them or none."""
        from pyiceberg.io.pyarrow import pyarrow_to_schema
        from pyiceberg.partitioning import PartitionField, PartitionSpec
        from pyiceberg.transforms import IdentityTransform

        schema = pyarrow_to_schema(columns)
        spec = PartitionSpec()
        if partitioned_by is not None:
            source = schema.find_field(partitioned_by).field_id
            spec = PartitionSpec(PartitionField(source, 1000, IdentityTransform(), partitioned_by))
        table = self._catalog.create(name, schema, spec, location, properties)
        if table.schema().as_struct() != schema.as_struct():
            raise SchemaMismatchError("the catalog gave a table other field ids", table=name)
        self._steps.created.hit()
        return table

    def commit(self, change: Any) -> None:
        """Commit a transaction that has a new snapshot or `is_at_head`; expire old snapshots."""
        old = snapshots_to_expire(change.table_metadata, self._snapshots_kept)
        if old:
            change._stage((_expiry(old),))
        self._steps.prepared.hit()
        self.make_ready(change)
        commit_transaction(change)
        self._steps.swapped.hit()

    def make_ready(self, change: Any) -> None:
        """State the owner's term in a transaction; return when it may be committed.

        All that the table may show is in the log's store then, if the log ships its entries.
        """
        stated = terms(self._catalog.term)
        if stated:
            change.set_properties(stated)
        self._catalog.confirm()

    def expire(self, table: Any, before_us: int) -> int:
        """Expire a table's snapshots before a time, except the newest; return how many."""
        old = snapshots_to_expire(table.metadata, 1, before_us)
        if old:
            change = table.transaction()
            change._stage((_expiry(old),), (is_at_head(table),))
            self.make_ready(change)
            change.commit_transaction()
            self.write_hint(table)
        return len(old)

    def write_hint(self, table: Any) -> None:
        """Write the name of the newest metadata file, for readers without a catalog."""
        name = table.metadata_location.rpartition("/")[2].removesuffix(".metadata.json")
        location = _hint_location(table)
        if self._hints.get(location) == name:
            return
        self._catalog.confirm()  # an owner that was taken over would point to older metadata
        with table.io.new_output(location).create(overwrite=True) as file:
            file.write(name.encode())
        self._hints[location] = name
        self._steps.hinted.hit()

    def remove_hint(self, table: Any) -> None:
        """Remove the hint of a table that was dropped, so that no reader continues with it."""
        location = _hint_location(table)
        self._hints.pop(location, None)
        with contextlib.suppress(FileNotFoundError):
            table.io.delete(location)


def is_at_head(table: Any) -> Any:
    """Return the condition that a table's newest snapshot is the one that was read."""
    from pyiceberg.table.refs import MAIN_BRANCH
    from pyiceberg.table.update import AssertRefSnapshotId

    head = {"ref": MAIN_BRANCH, "snapshot-id": table.metadata.current_snapshot_id}
    return AssertRefSnapshotId.model_validate(head)


def _expiry(snapshots: list[int]) -> Any:
    from pyiceberg.table.update import RemoveSnapshotsUpdate

    return RemoveSnapshotsUpdate.model_validate({"snapshot-ids": snapshots})


def _hint_location(table: Any) -> str:
    return f"{table.location()}/metadata/{HINT_NAME}"
