"""Derived tables: Iceberg tables that jobs and pipelines make, each commit exactly once.

Executors write the files; here they become part of a table, with what is known of its writers, in
one swap of the catalog. Properties of the table, which outlive its snapshots, say

    lakebed.log         the log's identity
    lakebed.kind        current, history or append
    lakebed.key         the names of its key columns, a JSON list
    lakebed.buckets     parts that the key divides it into
    lakebed.version     how many commits there were
    lakebed.commit      the last commit's own name: tells ours from another's if it ends in doubt
    lakebed.snapshot    the snapshot that the last commit with files left behind
    lakebed.writers     {writer: number of its last commit}
    lakebed.positions   {topic: {partition: next offset}}

A commit names its writer, a number that grows, and the version that it is based on. One whose
number the writer has reached before is a duplicate, and nothing is done. One that is based on
another version is refused: what it replaces may not be there any more. A newest snapshot that is
not `lakebed.snapshot` is somebody else's: then the table is foreign, and refused.

Metadata is in `{location}/metadata`, with a version hint; data in `{location}/data/{attempt}`. The
hint goes when the log drops the table: a folder with a hint whose table the catalog does not know
is one that somebody else dropped, or that a lost catalog knew.
"""

from __future__ import annotations

import contextlib
import json
import logging
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import pyarrow as pa

from lakebed.errors import (
    CatalogUnavailableError,
    ForeignTableError,
    InvalidArgumentError,
    SchemaMismatchError,
    TableChangedError,
    TableExistsError,
    TableNotFoundError,
)
from lakebed.host import failpoints
from lakebed.lake.catalog import Catalog
from lakebed.lake.derived_files import described, shown
from lakebed.lake.derived_schema import added_columns, plain_field, table_schema
from lakebed.lake.derived_values import (
    BUCKET,
    DATA,
    DELETES,
    Committed,
    DerivedFile,
    DerivedFiles,
    DerivedTable,
    Positions,
)
from lakebed.lake.places import HINT_NAME
from lakebed.lake.table_facts import LOG, expired, number_of
from lakebed.lake.table_failures import ConflictError, committed, reading_manifests, translated

_log = logging.getLogger("lakebed.lake")

KIND: Final = "lakebed.kind"
KEY: Final = "lakebed.key"
BUCKETS: Final = "lakebed.buckets"
VERSION: Final = "lakebed.version"
COMMIT: Final = "lakebed.commit"
SNAPSHOT: Final = "lakebed.snapshot"
WRITERS: Final = "lakebed.writers"
POSITIONS: Final = "lakebed.positions"

_ATTEMPTS: Final = 5
_NUMBER_MAX: Final = 2**63 - 1
_WRITER_CHARACTERS_MAX: Final = 256
_PROPERTIES: Final = {
    "format-version": "2",
    "commit.retry.num-retries": "0",  # it would put files in twice
    "write.metadata.delete-after-commit.enabled": "false",
    "write.metadata.previous-versions-max": "10",
    "gc.enabled": "false",
    "write.delete.isolation-level": "snapshot",
    "write.delete.mode": "merge-on-read",
    "write.update.mode": "merge-on-read",
    "write.merge.mode": "merge-on-read",
}

_CREATED = failpoints.define("lake.derived.created")
_PREPARED = failpoints.define("lake.derived.prepared")
_SWAPPED = failpoints.define("lake.derived.swapped")
_HINTED = failpoints.define("lake.derived.hinted")


class Change(NamedTuple):
    """What a commit is to do."""

    writer: str
    number: int
    added: tuple[DerivedFile, ...]
    removed: frozenset[str]
    positions: Positions | None
    expected: int


class DerivedTables:
    """The derived tables of one log, in its catalog. One thread at a time."""

    def __init__(
        self,
        catalog: Catalog,
        location: str,
        log: str,
        snapshots_kept: int,
        newest_metadata: Callable[[str], str | None],
    ) -> None:
        self._catalog = catalog
        self._newest_metadata = newest_metadata
        """Gives the newest metadata of a table that the log has not dropped, by its name."""
        self._location = location
        self._log = log
        self._kept = snapshots_kept
        self._live: dict[str, tuple[int | None, dict[str, Any]]] = {}
        """Newest snapshot and live files of each table, by the table's identity."""

    # Making and dropping

    def create(
        self, name: str, given: pa.Schema, kind: str, key: Sequence[str], buckets: int
    ) -> DerivedTable:
        """Make a table, or give the one there is if it is the same."""
        schema = table_schema(given, kind, key, buckets)
        with self._asking("making a table", name):
            if self._catalog.load(name) is None:
                self._check_not_lost(name)
                table = self._make(name, schema, kind, tuple(key), buckets)
            else:
                table = self._open(name)
            found = self._described(name, table)
        self._check_same(found, schema, kind, tuple(key), buckets)
        return found

    def _check_not_lost(self, name: str) -> None:
        if self._newest_metadata(name) is not None:
            raise ForeignTableError(
                "somebody else has dropped the table, or the catalog has lost it: `restore` brings"
                " it back as it was, `drop` forgets it",
                table=name,
            )

    def restore(self, name: str) -> DerivedTable:
        """Let the catalog know a table again that the log has not dropped."""
        with self._asking("restoring a table", name):
            if self._catalog.load(name) is None:
                metadata = self._newest_metadata(name)
                if metadata is None:
                    raise TableNotFoundError("there is no such table", table=name)
                self._catalog.register(name, metadata)
            return self._described(name, self._open(name))

    def _make(
        self, name: str, schema: pa.Schema, kind: str, key: tuple[str, ...], buckets: int
    ) -> Any:
        from pyiceberg.io.pyarrow import pyarrow_to_schema
        from pyiceberg.partitioning import PartitionField, PartitionSpec
        from pyiceberg.transforms import IdentityTransform

        iceberg = pyarrow_to_schema(schema)
        spec = PartitionSpec()
        if kind != "append":
            source = iceberg.find_field(BUCKET).field_id
            spec = PartitionSpec(PartitionField(source, 1000, IdentityTransform(), BUCKET))
        table = self._catalog.create(
            name,
            iceberg,
            spec,
            f"{self._location}/{name}/{uuid.uuid4().hex}",
            {
                **_PROPERTIES,
                LOG: self._log,
                KIND: kind,
                KEY: json.dumps(key),
                BUCKETS: str(buckets),
                VERSION: "0",
                WRITERS: "{}",
                POSITIONS: "{}",
            },
        )
        if table.schema().as_struct() != iceberg.as_struct():
            raise SchemaMismatchError("the catalog gave a table other field ids", table=name)
        _CREATED.hit()
        self._hint(table)
        return table

    def _check_same(
        self, found: DerivedTable, schema: pa.Schema, kind: str, key: tuple[str, ...], buckets: int
    ) -> None:
        have = {field.name: field.type for field in found.schema}
        missing = [field.name for field in schema if field.name not in have]
        other = [field.name for field in schema if have.get(field.name) not in (None, field.type)]
        shape = (kind, key, buckets)
        if missing or other or (found.kind, found.key, found.buckets) != shape:
            raise TableExistsError(
                "there is a table of this name that is made differently",
                table=found.name,
                kind=found.kind,
                key=",".join(found.key),
                buckets=found.buckets,
                columns=",".join(missing + other) or "the same",
            )

    def evolve(self, name: str, given: pa.Schema) -> DerivedTable:
        """Add the columns of a schema that a table lacks; its rows have nulls there."""
        with self._asking("changing a table's columns", name):
            table = self._open(name)
            have = self._described(name, table).schema
            if added_columns(given, have):
                self._grow(table, given, have)
            return self._described(name, table)

    def _grow(self, table: Any, given: pa.Schema, have: pa.Schema) -> None:
        from pyiceberg.io.pyarrow import _pyarrow_to_schema_without_ids

        fields = added_columns(given, have)
        change = table.transaction()
        with change.update_schema() as update:
            for field in _pyarrow_to_schema_without_ids(pa.schema(fields)).fields:
                update.add_column(field.name, field.field_type)
        change.commit_transaction()
        self._hint(table)

    def drop(self, name: str) -> bool:
        """Let the catalog forget a table, and readers without one; give whether it was there.

        Its files go with the next removals, after the grace period.
        """
        with self._asking("dropping a table", name):
            table = self._catalog.load(name)
            if table is None:
                return False
            self._check_owner(name, table)
            self._catalog.drop(name)
            self._live.pop(str(table.metadata.table_uuid), None)
            with contextlib.suppress(FileNotFoundError):
                table.io.delete(f"{table.location()}/metadata/{HINT_NAME}")
        return True

    # Looking

    def describe(self, name: str) -> DerivedTable:
        """Describe a table."""
        with self._asking("loading a table", name):
            return self._described(name, self._open(name))

    def names(self) -> list[str]:
        """Give the names of the log's derived tables."""
        with self._asking("listing tables", ""):
            return [name for name in self._catalog.names() if self._is_ours(name)]

    def _is_ours(self, name: str) -> bool:
        table = self._catalog.load(name)
        return table is not None and table.properties.get(LOG) == self._log

    def table(self, name: str) -> Any:
        """Give the pyiceberg table."""
        with self._asking("loading a table", name):
            return self._open(name)

    def files(self, name: str, buckets: Sequence[int] | None) -> DerivedFiles:
        """Give a table and its files, or those of some buckets, at one version."""
        with self._asking("listing a table's files", name):
            table = self._open(name)
            found = [shown(each) for each in self._files(table).values()]
        if buckets is not None:
            wanted = set(buckets)
            found = [each for each in found if each.bucket in wanted]
        found.sort(key=lambda each: (each.bucket, each.content, each.location))
        return DerivedFiles(self._described(name, table), tuple(found))

    def _open(self, name: str) -> Any:
        """Give a table that is as the log left it."""
        table = self._catalog.load(name)
        if table is None:
            raise TableNotFoundError("there is no such table", table=name)
        self._check_owner(name, table)
        snapshot = table.metadata.current_snapshot_id
        if str(snapshot or "") != table.properties.get(SNAPSHOT, ""):
            raise ForeignTableError(
                "somebody else has changed the table: undo it by a rollback to the snapshot that"
                " the log left, or drop the table and let its job make it anew",
                table=name,
                snapshot=snapshot,
                left=table.properties.get(SNAPSHOT, "none"),
            )
        return table

    def _check_owner(self, name: str, table: Any) -> None:
        owner = table.properties.get(LOG, "none")
        below = table.location().startswith(f"{self._location}/{name}/")
        if owner != self._log or not below or KIND not in table.properties:
            raise ForeignTableError(
                "the table belongs to another log, to another folder, or to nobody",
                table=name,
                log=owner,
                location=table.location(),
            )

    def _described(self, name: str, table: Any) -> DerivedTable:
        from pyiceberg.io.pyarrow import schema_to_pyarrow

        properties = table.properties
        newest = table.current_snapshot()
        summary = {} if newest is None else newest.summary.additional_properties
        rows = int(summary.get("total-records", 0))
        return DerivedTable(
            name=name,
            kind=properties[KIND],
            key=tuple(json.loads(properties[KEY])),
            buckets=int(properties[BUCKETS]),
            schema=pa.schema(
                plain_field(field)
                for field in schema_to_pyarrow(table.schema(), include_field_ids=True)
            ),
            version=number_of(properties, VERSION),
            location=table.location(),
            metadata=table.metadata_location,
            snapshot=None if newest is None else newest.snapshot_id,
            records=rows - int(summary.get("total-position-deletes", 0)),
            files=int(summary.get("total-data-files", 0)),
            bytes=int(summary.get("total-files-size", 0)),
            writers=json.loads(properties[WRITERS]),
            positions=_numbered(json.loads(properties[POSITIONS])),
        )

    def _files(self, table: Any) -> dict[str, Any]:
        """Give every file of a table's newest snapshot by its location."""
        identity, head = str(table.metadata.table_uuid), table.metadata.current_snapshot_id
        known = self._live.get(identity)
        if known is not None and known[0] == head:
            return known[1]
        snapshot = table.current_snapshot()
        files: dict[str, Any] = {}
        with reading_manifests(table):
            for manifest in snapshot.manifests(table.io) if snapshot is not None else ():
                for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=True):
                    files[entry.data_file.file_path] = entry.data_file
        self._live[identity] = (head, files)
        return files

    # Committing

    def commit(self, name: str, change: Change) -> Committed:
        """Change a table, once: see the head of this file."""
        own = uuid.uuid4().hex
        failure: BaseException | None = None
        for _ in range(_ATTEMPTS):
            try:
                with self._asking("committing to a table", name):
                    return self._commit(name, change, own)
            except ConflictError as error:
                # Somebody was faster, or nobody knows: the next attempt reads before it writes,
                # and through a new connection.
                self._catalog.close()
                failure = error
        raise CatalogUnavailableError(
            "the table could not be changed", table=name, reason=failure
        ) from failure

    def _commit(self, name: str, change: Change, own: str) -> Committed:
        table = self._open(name)
        now = self._described(name, table)
        if table.properties.get(COMMIT) == own:
            return Committed(duplicate=False, version=now.version)  # an answer was lost
        if change.number <= now.writers.get(change.writer, -1):
            return Committed(duplicate=True, version=now.version)
        if now.version != change.expected:
            raise TableChangedError(
                "the table has changed since the commit was prepared",
                table=name,
                expected=change.expected,
                version=now.version,
            )
        _check_files(change.added, now)
        live = self._files(table)
        gone = sorted(change.removed.difference(live))
        if gone:
            raise TableChangedError(
                "a file that the commit replaces is not part of the table", table=name, file=gone[0]
            )
        added = described(list(change.added), table, now.schema)
        self._swap(table, change, added, [live[place] for place in sorted(change.removed)], own)
        return Committed(duplicate=False, version=now.version + 1)

    def _swap(
        self, table: Any, change: Change, added: list[Any], removed: list[Any], own: str
    ) -> None:
        from pyiceberg.table.refs import MAIN_BRANCH
        from pyiceberg.table.update import AssertRefSnapshotId, RemoveSnapshotsUpdate

        from lakebed.lake.derived_manifests import change_files

        now = table.properties
        version = number_of(now, VERSION) + 1
        update = table.transaction()
        snapshot = now.get(SNAPSHOT, "")
        if added or removed:
            marks = {LOG: self._log, VERSION: str(version)}
            producer = change_files(update, added, removed, marks)
            snapshot = str(producer.snapshot_id)
            producer.commit()
        else:
            head = {"ref": MAIN_BRANCH, "snapshot-id": table.metadata.current_snapshot_id}
            update._stage((), (AssertRefSnapshotId.model_validate(head),))
        writers = {**json.loads(now[WRITERS]), change.writer: change.number}
        positions = json.loads(now[POSITIONS])
        for topic, ends in (change.positions or {}).items():
            positions[topic] = {str(number): end for number, end in sorted(ends.items())}
        update.set_properties(
            {
                **_PROPERTIES,
                VERSION: str(version),
                COMMIT: own,
                SNAPSHOT: snapshot,
                WRITERS: json.dumps(writers, sort_keys=True),
                POSITIONS: json.dumps(positions, sort_keys=True),
            }
        )
        old = expired(update.table_metadata, self._kept)
        if old:
            update._stage((RemoveSnapshotsUpdate.model_validate({"snapshot-ids": old}),))
        _PREPARED.hit()
        committed(update)
        _SWAPPED.hit()
        self._hint(table)

    def expire(self, name: str, before_us: int) -> int:
        """Remove a table's snapshots of before a time, but for the newest; give how many."""
        from pyiceberg.table.refs import MAIN_BRANCH
        from pyiceberg.table.update import AssertRefSnapshotId, RemoveSnapshotsUpdate

        with self._asking("expiring snapshots", name):
            table = self._open(name)
            old = expired(table.metadata, 1, before_us)
            if old:
                head = {"ref": MAIN_BRANCH, "snapshot-id": table.metadata.current_snapshot_id}
                change = table.transaction()
                change._stage(
                    (RemoveSnapshotsUpdate.model_validate({"snapshot-ids": old}),),
                    (AssertRefSnapshotId.model_validate(head),),
                )
                change.commit_transaction()
                self._hint(table)
            return len(old)

    def _hint(self, table: Any) -> None:
        """Say beside the metadata which file is the newest, for readers without a catalog."""
        name = table.metadata_location.rpartition("/")[2].removesuffix(".metadata.json")
        place = f"{table.location()}/metadata/{HINT_NAME}"
        with table.io.new_output(place).create(overwrite=True) as file:
            file.write(name.encode())
        _HINTED.hit()

    @contextlib.contextmanager
    def _asking(self, doing: str, name: str) -> Iterator[None]:
        """Translate failures, and use a new connection after one of the catalog."""
        try:
            with translated(doing, name):
                yield
        except CatalogUnavailableError:
            self._catalog.close()
            raise

    def rest(self) -> None:
        """Say that the catalog is not needed for a while."""
        if self._catalog.is_own:
            self._catalog.close()

    def close(self) -> None:
        """Let go of the catalog."""
        self._catalog.close()


def checked_change(
    writer: object,
    number: object,
    added: Sequence[DerivedFile],
    removed: Sequence[str],
    positions: Positions | None,
    expected: object,
) -> Change:
    """Give a commit whose parts are of the right kind, or refuse it."""
    if not isinstance(writer, str) or not 0 < len(writer) <= _WRITER_CHARACTERS_MAX:
        raise InvalidArgumentError(
            f"a writer is a text of 1 to {_WRITER_CHARACTERS_MAX} characters", got=repr(writer)[:99]
        )
    for name, value in (("number", number), ("expected", expected)):
        whole = isinstance(value, int) and not isinstance(value, bool)
        if not whole or not 0 <= value <= _NUMBER_MAX:  # type: ignore[operator]
            raise InvalidArgumentError(f"{name} must be a whole number from 0", got=repr(value))
    _check_positions(positions)
    return Change(
        writer,
        number,  # type: ignore[arg-type]
        tuple(added),
        frozenset(removed),
        positions,
        expected,  # type: ignore[arg-type]
    )


def _check_positions(positions: object) -> None:
    if positions is None:
        return
    try:
        pairs = [pair for ends in positions.values() for pair in ends.items()]  # type: ignore[attr-defined]
    except AttributeError:
        pairs = [("", "")]
    if not all(type(number) is int and type(end) is int for number, end in pairs):
        raise InvalidArgumentError(
            "positions are {topic: {partition: offset}}", got=repr(positions)
        )


def _check_files(added: Sequence[DerivedFile], table: DerivedTable) -> None:
    """Refuse files that were not written for this table."""
    folder = f"{table.location}/data/"
    for file in added:
        parts = file.location.removeprefix(folder).split("/")
        if not file.location.startswith(folder) or any(part in ("", ".", "..") for part in parts):
            raise InvalidArgumentError(
                "a file is not where the table's files are: write it below `place`",
                file=file.location,
                expected=folder,
            )
        if file.content not in (DATA, DELETES) or (file.content == DELETES and not table.key):
            raise InvalidArgumentError("a file holds data or deletes", got=repr(file.content))
        if not 0 <= file.bucket < max(1, table.buckets):
            raise InvalidArgumentError(
                "a file is of a bucket that the table has not", bucket=file.bucket
            )
    if len({file.location for file in added}) != len(added):
        raise InvalidArgumentError("a commit names a file twice", table=table.name)


def _numbered(positions: Mapping[str, Mapping[str, int]]) -> dict[str, dict[int, int]]:
    return {
        topic: {int(number): end for number, end in ends.items()}
        for topic, ends in positions.items()
    }
