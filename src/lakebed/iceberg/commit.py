"""How a table of the catalog is changed, whichever kind it is: by one swap, or not at all.

A swap is a compare-and-swap on the table's newest snapshot, with pyiceberg's own repetition turned
off. Manifests and metadata are written, and synced, before it. One in which somebody else was
faster, or whose outcome nobody knows, is a conflict: the next attempt reads before it writes. So
whoever changes a table must see from the table whether the change is there.

After a swap a hint beside the metadata says which file is the newest, for readers without a
catalog. pyiceberg is imported when a table is first needed: it takes a second.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, NamedTuple, TypeVar

import pyarrow as pa

from lakebed.errors import CatalogUnavailableError, ForeignTableError, SchemaMismatchError
from lakebed.host import failpoints
from lakebed.iceberg.catalog import Catalog
from lakebed.iceberg.failures import ConflictError, RuinedError, committed, translated
from lakebed.iceberg.table_metadata import expired
from lakebed.lake.places import HINT_NAME

_ATTEMPTS: Final = 5
"""How often a swap is tried when somebody else was faster, or its outcome is unknown."""

PROPERTIES: Final = {
    "commit.retry.num-retries": "0",  # it would put files in twice
    # Older metadata goes by sweeping, after the grace period: somebody may have been given it.
    "write.metadata.delete-after-commit.enabled": "false",
    "write.metadata.previous-versions-max": "10",
    "gc.enabled": "false",  # engines that heed it do not remove files, which are the log's
    "write.delete.isolation-level": "snapshot",
}
"""What every table must say for its swaps to be ours."""

_Result = TypeVar("_Result")


class Steps(NamedTuple):
    """The failpoints of a table: between any two of them a process may die."""

    created: failpoints.Failpoint
    prepared: failpoints.Failpoint
    swapped: failpoints.Failpoint
    hinted: failpoints.Failpoint

    @classmethod
    def define(cls, kind: str) -> Steps:
        """Define those of a kind of tables."""
        return cls(*(failpoints.define(f"{kind}.{step}") for step in cls._fields))


def only_conflicts(error: ConflictError | ForeignTableError) -> None:
    """Let a swap be tried again after a conflict, and after nothing else."""
    if not isinstance(error, ConflictError):
        raise error


def _nothing_to_check() -> None:
    """Take a file that is not there for one that is gone."""


class Swaps:
    """Changes to the tables of one catalog. One thread at a time."""

    def __init__(
        self,
        catalog: Catalog,
        snapshots_kept: int,
        steps: Steps,
        check_store: Callable[[], object] = _nothing_to_check,
    ) -> None:
        self._catalog = catalog
        self._kept = snapshots_kept
        self._steps = steps
        self._check_store = check_store
        """Raises if there is a store that cannot be reached: then nothing is known to be gone."""
        self._hints: dict[str, str] = {}
        """What stands beside each table's metadata."""

    @contextlib.contextmanager
    def asking(self, doing: str, name: str) -> Iterator[None]:
        """Translate failures, and use a new connection after one of the catalog."""
        try:
            with translated(doing, name):
                yield
        except CatalogUnavailableError:
            self._catalog.close()
            raise
        except RuinedError:
            self._check_store()
            raise

    def repeated(
        self,
        doing: str,
        name: str,
        attempt: Callable[[], _Result],
        recover: Callable[[ConflictError | ForeignTableError], None] = only_conflicts,
    ) -> _Result:
        """Change a table by `attempt`, again and again while `recover` does not raise."""
        failure: BaseException | None = None
        for _ in range(_ATTEMPTS):
            try:
                with self.asking(doing, name):
                    return attempt()
            except (ConflictError, ForeignTableError) as error:
                if isinstance(error, ConflictError):
                    self._catalog.close()  # a new connection shows what came of it
                recover(error)
                failure = error
        raise CatalogUnavailableError(
            "the table could not be changed", table=name, reason=failure
        ) from failure

    def create(
        self,
        name: str,
        columns: pa.Schema,
        divided_by: str | None,
        location: str,
        properties: Mapping[str, str],
    ) -> Any:
        """Make a table with the field ids of `columns`, its files divided by one of them."""
        from pyiceberg.io.pyarrow import pyarrow_to_schema
        from pyiceberg.partitioning import PartitionField, PartitionSpec
        from pyiceberg.transforms import IdentityTransform

        schema = pyarrow_to_schema(columns)
        spec = PartitionSpec()
        if divided_by is not None:
            source = schema.find_field(divided_by).field_id
            spec = PartitionSpec(PartitionField(source, 1000, IdentityTransform(), divided_by))
        table = self._catalog.create(name, schema, spec, location, properties)
        if table.schema().as_struct() != schema.as_struct():
            raise SchemaMismatchError("the catalog gave a table other field ids", table=name)
        self._steps.created.hit()
        return table

    def swap(self, change: Any) -> None:
        """Commit a transaction that has a new snapshot or `is_at_head`; old snapshots go too."""
        old = expired(change.table_metadata, self._kept)
        if old:
            change._stage((_removal(old),))
        self._steps.prepared.hit()
        committed(change)
        self._steps.swapped.hit()

    def expire(self, table: Any, before_us: int) -> int:
        """Remove a table's snapshots of before a time, but for the newest; return how many."""
        old = expired(table.metadata, 1, before_us)
        if old:
            change = table.transaction()
            change._stage((_removal(old),), (is_at_head(table),))
            change.commit_transaction()
            self.hint(table)
        return len(old)

    def hint(self, table: Any) -> None:
        """Report beside the metadata which file is the newest, for readers without a catalog."""
        name = table.metadata_location.rpartition("/")[2].removesuffix(".metadata.json")
        place = _hint_of(table)
        if self._hints.get(place) == name:
            return
        with table.io.new_output(place).create(overwrite=True) as file:
            file.write(name.encode())
        self._hints[place] = name
        self._steps.hinted.hit()

    def unhint(self, table: Any) -> None:
        """Let readers without a catalog not go on with a table that is no more."""
        place = _hint_of(table)
        self._hints.pop(place, None)
        with contextlib.suppress(FileNotFoundError):
            table.io.delete(place)

    def rest(self) -> None:
        """Report that the catalog is not needed for a while.

        Our own is let go of: its file may be moved or removed by then, and a connection would go on
        with one that nobody else sees.
        """
        if self._catalog.is_own:
            self._catalog.close()


def is_at_head(table: Any) -> Any:
    """Return the condition that a table's newest snapshot is the one that we have seen."""
    from pyiceberg.table.refs import MAIN_BRANCH
    from pyiceberg.table.update import AssertRefSnapshotId

    head = {"ref": MAIN_BRANCH, "snapshot-id": table.metadata.current_snapshot_id}
    return AssertRefSnapshotId.model_validate(head)


def _removal(snapshots: list[int]) -> Any:
    from pyiceberg.table.update import RemoveSnapshotsUpdate

    return RemoveSnapshotsUpdate.model_validate({"snapshot-ids": snapshots})


def _hint_of(table: Any) -> str:
    return f"{table.location()}/metadata/{HINT_NAME}"
