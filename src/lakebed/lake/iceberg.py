"""Topics as Iceberg tables: a table shows exactly the segments that the log has, or had last time.

The log's list of segments is the truth, and a table is made to agree with it: what the table has
and the log has not is taken out, what it lacks is put in, in one swap of the catalog. So a swap
whose outcome is unknown needs no special care: the table is read, and compared again. Files are
told apart by their location, which is never used twice; nothing can be in a table twice.

The swap is a compare-and-swap on the table's newest snapshot, with pyiceberg's own repetition
turned off (it would put files in twice). Properties of the table say whose it is:

    lakebed.log        the log's identity
    lakebed.topic      the topic's number
    lakebed.position   the index of the last entry that the table reflects
    lakebed.offsets    {partition: offset}: every record below is in the table, or was removed

Each of our snapshots has the first and the third in its summary as well; a newest snapshot without
them is somebody else's. Then every file of the table is looked at. One that the log never wrote
makes the table foreign, and it is refused; otherwise the log carries on, and what somebody took out
comes back. Columns or partitioning that somebody has changed make a table foreign as well.

Whoever takes a foreign table over gets the log's files and no others. Where that cannot be done by
one more snapshot, the catalog forgets the table and the log makes it anew.

pyiceberg is imported when a table is first needed: it takes a second.
"""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, NamedTuple

import pyarrow as pa

from lakebed.errors import (
    CatalogUnavailableError,
    DeviceError,
    ForeignTableError,
    LakebedError,
    SchemaMismatchError,
    from_os_error,
)
from lakebed.host import failpoints
from lakebed.lake.catalog import Catalog
from lakebed.lake.places import HINT_NAME
from lakebed.state.values import Segment

_log = logging.getLogger("lakebed.lake")

LOG: Final = "lakebed.log"
TOPIC: Final = "lakebed.topic"
POSITION: Final = "lakebed.position"
OFFSETS: Final = "lakebed.offsets"

_ATTEMPTS: Final = 5
"""How often a swap is tried when somebody else was faster, or its outcome is unknown."""

_PROPERTIES: Final = {
    "commit.retry.num-retries": "0",
    # Few manifests, and none so large that merging it with new ones takes long.
    "commit.manifest-merge.enabled": "true",
    "commit.manifest.min-count-to-merge": "20",
    "commit.manifest.target-size-bytes": "131072",
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "10",
    "write.delete.isolation-level": "snapshot",
    "write.metadata.metrics.column.value": "none",  # a raw value has no statistics in its file
}

_CREATED = failpoints.define("lake.table.created")
_PREPARED = failpoints.define("lake.table.prepared")
_SWAPPED = failpoints.define("lake.table.swapped")
_HINTED = failpoints.define("lake.table.hinted")


class Registered(NamedTuple):
    """A segment as a file of a table."""

    partition: int
    segment: Segment
    metadata: Callable[[], Any]
    """Gives the Parquet library's metadata of the file."""


class Wanted(NamedTuple):
    """What the table of a topic is to show."""

    topic: int
    name: str
    columns: pa.Schema
    """With field ids."""
    first_columns: pa.Schema
    """As the topic was made. A catalog gives a new table ids of its own choice; it gives these the
    ids that they have in our files. Fields that came later are added to the table afterwards.
    """
    files: Mapping[str, Registered]
    """By location."""
    position: int
    offsets: Mapping[int, int]


class Synced(NamedTuple):
    """What became of a table."""

    added: int = 0
    removed: int = 0
    snapshot: int | None = None
    created: bool = False
    foreign: bool = False
    """Somebody else had changed it."""

    @property
    def changed(self) -> bool:
        """Tell whether anything was done."""
        return self.created or self.added > 0 or self.removed > 0


class Tables:
    """The tables of one log. One thread at a time."""

    def __init__(
        self,
        catalog: Catalog,
        location: str,
        log: str,
        snapshots_kept: int,
        is_segment: Callable[[str, int], bool],
    ) -> None:
        self._catalog = catalog
        self._is_segment = is_segment
        """Tells whether a location is that of a segment that a topic has or had."""
        self._location = location
        self._log = log
        self._kept = snapshots_kept
        self._known: dict[int, tuple[str, int | None, frozenset[str]]] = {}
        """Table, newest snapshot and files of each topic, as we left them."""
        self._refused: dict[int, str] = {}
        """Why the table of a topic was refused last time."""
        self._hints: dict[str, str] = {}
        """What stands beside each table's metadata."""
        self.conflicts = 0
        """Swaps in which somebody else was faster, or whose outcome was unknown."""
        self.foreign_changes = 0

    def location(self, topic: int) -> str:
        """Give where the table of a topic keeps its metadata."""
        return f"{self._location}/{topic}"

    # Making a table agree with the log

    def sync(self, wanted: Wanted, *, take_over: bool = False) -> Synced:
        """Make a topic's table show what is wanted, whatever it shows now."""
        failure: BaseException | None = None
        for _ in range(_ATTEMPTS):
            try:
                with self._asking("syncing a table", wanted.name):
                    return self._sync(wanted, take_over=take_over)
            except _Conflict as error:
                # Somebody was faster, or nobody knows: the next attempt reads before it writes,
                # and through a new connection. One whose commit failed shows what it would have
                # committed.
                self._known.pop(wanted.topic, None)
                self._catalog.close()
                self.conflicts += 1
                failure = error
            except ForeignTableError as error:
                self._note_foreign(wanted.topic, str(error))
                self._known.pop(wanted.topic, None)
                ruined = isinstance(error, _RuinedError) and self._catalog.is_own
                if not (ruined or take_over):
                    raise
                self._make_anew(wanted, error)
                failure = error
        raise CatalogUnavailableError(
            "the table could not be changed", table=wanted.name, reason=failure
        ) from failure

    def _sync(self, wanted: Wanted, *, take_over: bool) -> Synced:
        table, created = self._open(wanted, take_over=take_over)
        foreign = self._check(table, wanted, take_over=take_over)
        self._restore_properties(table)
        known = self._known_files(table, wanted.topic)
        live = None if known is not None else _live(table)
        have = known if known is not None else frozenset(live or ())
        if foreign or known is None:
            self._check_strangers(table, have, wanted, take_over=take_over)
        added = [place for place in wanted.files if place not in have]
        removed = have.difference(wanted.files)
        schema = self._grown(table, wanted)
        if added or removed or schema is not None or foreign:
            if removed and live is None:
                live = _live(table)
            gone = [(live or {})[place] for place in removed]
            self._swap(table, wanted, added, gone, schema)
        if foreign:
            self._note_foreign(wanted.topic, "")
            _log.warning("table %s was changed by somebody else, and is restored", wanted.name)
        self._refused.pop(wanted.topic, None)
        self._remember(table, wanted)
        self._hint(table)
        return Synced(
            len(added), len(removed), table.metadata.current_snapshot_id, created, foreign
        )

    def _open(self, wanted: Wanted, *, take_over: bool) -> tuple[Any, bool]:
        """Give a topic's table, making it if there is none."""
        table = self._load(wanted, take_over=take_over)
        if table is not None:
            return table, False
        from pyiceberg.io.pyarrow import pyarrow_to_schema
        from pyiceberg.partitioning import PartitionField, PartitionSpec
        from pyiceberg.transforms import IdentityTransform

        schema = pyarrow_to_schema(wanted.first_columns)
        spec = PartitionSpec(PartitionField(1, 1000, IdentityTransform(), "partition"))
        table = self._catalog.create(
            wanted.name,
            schema,
            spec,
            self.location(wanted.topic),
            {
                "format-version": "2",
                **_PROPERTIES,
                LOG: self._log,
                TOPIC: str(wanted.topic),
                POSITION: "0",
            },
        )
        if table.schema().as_struct() != schema.as_struct():
            raise SchemaMismatchError(
                "the catalog gave a table other field ids than its files have", table=wanted.name
            )
        _CREATED.hit()
        return table, True

    def _make_anew(self, wanted: Wanted, error: ForeignTableError) -> None:
        """Drop a table that cannot be used: the log has all that it needs."""
        _log.warning("table %s is made anew: %s", wanted.name, error)
        with self._asking("dropping a table", wanted.name):
            self._catalog.drop(wanted.name)

    def _load(self, wanted: Wanted, *, take_over: bool) -> Any:
        """Load a topic's table; None if there is none, or only one that may be made anew."""
        table = self._catalog.load(wanted.name)
        if table is None:
            if wanted.topic in self._known:
                _log.warning("table %s was dropped by somebody: it is made anew", wanted.name)
                self.foreign_changes += 1
                self._known.pop(wanted.topic)
            return None
        if table.properties.get(LOG) != self._log:
            return table
        moved = table.location() != self.location(_number(table, TOPIC))
        earlier = not moved and _number(table, TOPIC) != wanted.topic
        if earlier and not take_over:
            _check_position(table, wanted.name, wanted.position)
        if earlier or (moved and (self._catalog.is_own or take_over)):
            reason = "of an earlier topic" if earlier else "of a folder that was moved"
            _log.warning("table %s is that %s: it is made anew", wanted.name, reason)
            self._catalog.drop(wanted.name)
            return None
        if moved:
            raise ForeignTableError(
                "the table is that of a folder elsewhere: the log was copied or moved",
                table=wanted.name,
                location=table.location(),
                expected=self.location(wanted.topic),
            )
        return table

    def _check(self, table: Any, wanted: Wanted, *, take_over: bool) -> bool:
        """Refuse a table that is not ours; tell whether somebody else has changed it."""
        properties = table.properties
        if properties.get(LOG) != self._log:
            raise ForeignTableError(
                "the table belongs to another log, or to nobody",
                table=wanted.name,
                log=properties.get(LOG, "none"),
            )
        if not take_over:
            _check_position(table, wanted.name, wanted.position)
        _check_partitioning(table, wanted.name)
        newest = table.current_snapshot()
        if newest is None:
            return False
        summary = newest.summary.additional_properties if newest.summary else {}
        ours = (summary.get(LOG), summary.get(POSITION)) == (self._log, properties.get(POSITION))
        if not ours:
            self._known.pop(wanted.topic, None)
        return not ours

    def _note_foreign(self, topic: int, refusal: str) -> None:
        """Count a change that somebody else has made; one that is refused again only once."""
        if self._refused.get(topic) != refusal:
            self.foreign_changes += 1
            self._refused[topic] = refusal

    def _restore_properties(self, table: Any) -> None:
        """Undo changes to the settings that swaps rely on, before one is made.

        pyiceberg takes the number of its repetitions from the table as it was loaded.
        """
        there = table.properties
        if all(there.get(name) == value for name, value in _PROPERTIES.items()):
            return
        _log.warning("table %s: its settings are restored", ".".join(table.name()))
        change = table.transaction()
        change.set_properties(_PROPERTIES)
        _commit(change)

    def _check_strangers(
        self, table: Any, have: frozenset[str], wanted: Wanted, *, take_over: bool
    ) -> None:
        """Refuse a table with files that the log did not write."""
        strangers = [
            place
            for place in have.difference(wanted.files)
            if not self._is_segment(place, wanted.topic)
        ]
        if strangers and not take_over:
            raise ForeignTableError(
                "somebody else has put files into the table, or has rewritten ours",
                table=wanted.name,
                snapshot=table.metadata.current_snapshot_id,
                files=len(strangers),
                first=min(strangers),
            )
        for place in sorted(strangers):
            _log.warning("table %s: a foreign file is taken out: %s", wanted.name, place)

    def _known_files(self, table: Any, topic: int) -> frozenset[str] | None:
        known = self._known.get(topic)
        head = (str(table.metadata.table_uuid), table.metadata.current_snapshot_id)
        return known[2] if known is not None and known[:2] == head else None

    def _remember(self, table: Any, wanted: Wanted) -> None:
        metadata = table.metadata
        self._known[wanted.topic] = (
            str(metadata.table_uuid),
            metadata.current_snapshot_id,
            frozenset(wanted.files),
        )

    def _grown(self, table: Any, wanted: Wanted) -> Any:
        """Give the schema that the table must get, or None if it has every field."""
        from pyiceberg.io.pyarrow import pyarrow_to_schema

        schema = pyarrow_to_schema(wanted.columns)
        have, names = _fields(table.schema()), _fields(schema)
        strange = [field for number, field in have.items() if names.get(number) != field]
        if strange:
            raise ForeignTableError(
                "somebody else has changed the table's columns",
                table=wanted.name,
                columns=",".join(name for name, *_ in strange),
            )
        return schema if len(names) > len(have) else None

    def _swap(
        self, table: Any, wanted: Wanted, added: list[str], removed: list[Any], schema: Any
    ) -> None:
        """Change the table: one new snapshot, its properties, and old snapshots gone, at once.

        pyiceberg makes the swap depend on the newest snapshot being the one that we have seen.
        """
        from pyiceberg.table.update import (
            AddSchemaUpdate,
            RemoveSnapshotsUpdate,
            SetCurrentSchemaUpdate,
        )

        from lakebed.lake.manifests import replace_files

        metadata = table.metadata
        change = table.transaction()
        if schema is not None:
            schema = schema.model_copy(
                update={"schema_id": max(each.schema_id for each in metadata.schemas) + 1}
            )
            change._stage((AddSchemaUpdate(schema=schema), SetCurrentSchemaUpdate()))
        marks = {LOG: self._log, POSITION: str(wanted.position)}
        files = [_data_file(place, wanted.files[place], metadata, schema) for place in added]
        producer: Any = (
            replace_files(change, marks)
            if removed
            else change.update_snapshot(snapshot_properties=marks).merge_append()
        )
        for each in files:
            producer.append_data_file(each)
        for each in removed:
            producer.delete_data_file(each)
        producer.commit()
        offsets = json.dumps({str(key): value for key, value in wanted.offsets.items()})
        change.set_properties({**marks, TOPIC: str(wanted.topic), OFFSETS: offsets})
        old = _expired(change.table_metadata, self._kept)
        if old:
            change._stage((RemoveSnapshotsUpdate.model_validate({"snapshot-ids": old}),))
        _PREPARED.hit()
        _commit(change)
        _SWAPPED.hit()

    def _hint(self, table: Any) -> None:
        """Say beside the metadata which file is the newest, for readers without a catalog."""
        name = table.metadata_location.rpartition("/")[2].removesuffix(".metadata.json")
        place = f"{table.location()}/metadata/{HINT_NAME}"
        known = self._hints.get(place)
        if known == name:
            return
        with table.io.new_output(place).create(overwrite=True) as file:
            file.write(name.encode())
        self._hints[place] = name
        _HINTED.hit()

    def expire(self, name: str, before_us: int) -> int:
        """Remove a table's snapshots of before a time, but for the newest; give how many.

        One that is not ours, or that is ruined, is left as it is: the next sync says why.
        """
        try:
            with self._asking("expiring snapshots", name):
                table = self._catalog.load(name)
                if table is None or not self._is_ours(table):
                    return 0
                return self._expire(table, _expired(table.metadata, 1, before_us))
        except _RuinedError:
            return 0

    def _expire(self, table: Any, old: list[int]) -> int:
        from pyiceberg.table.refs import MAIN_BRANCH
        from pyiceberg.table.update import AssertRefSnapshotId, RemoveSnapshotsUpdate

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

    # Looking

    def table(self, name: str) -> Any:
        """Give the pyiceberg table of a topic, or None."""
        with self._asking("loading a table", name):
            return self._catalog.load(name)

    def drop_others(self, living: Mapping[str, int], position: int) -> list[str]:
        """Drop the tables of topics that are no more at a position; give their names.

        A table that is ahead of the position, or that of another folder, is not for us to drop: it
        is that of a log whose older copy this is.
        """
        with self._asking("listing tables", ""):
            others = [name for name in self._catalog.names() if name not in living]
        return [name for name in others if self._drop_other(name, position)]

    def _drop_other(self, name: str, position: int) -> bool:
        try:
            with self._asking("dropping a table", name):
                table = self._catalog.load(name)
                if table is None or not self._is_ours(table):
                    return False
                if _number(table, POSITION) > position:
                    return False
        except _RuinedError as error:
            if not self._catalog.is_own:
                return False  # whose it was cannot be known
            _log.warning("table %s is dropped: %s", name, error)
        with self._asking("dropping a table", name):
            self._catalog.drop(name)
        return True

    def _is_ours(self, table: Any) -> bool:
        """Tell whether a table is one of this log, in this folder."""
        if table.properties.get(LOG) != self._log:
            return False
        return str(table.location()) == self.location(_number(table, TOPIC))

    @contextlib.contextmanager
    def _asking(self, doing: str, name: str) -> Iterator[None]:
        """Translate failures, and use a new connection after one of the catalog."""
        try:
            with _translated(doing, name):
                yield
        except CatalogUnavailableError:
            self._catalog.close()
            raise

    def rest(self) -> None:
        """Say that the catalog is not needed for a while.

        Our own is let go of: its file may be moved or removed by then, and a connection would go on
        with one that nobody else sees.
        """
        if self._catalog.is_own:
            self._catalog.close()

    def close(self) -> None:
        """Let go of the catalog."""
        self._catalog.close()


class _Conflict(Exception):  # noqa: N818  # nobody outside sees it
    """The table is not as it was, or nobody knows how it is."""


class _RuinedError(ForeignTableError):
    """A file that the catalog or the table refers to is not there, or is damaged."""


def _commit(change: Any) -> None:
    try:
        change.commit_transaction()
    except MemoryError:
        raise
    except Exception as error:  # it failed, or it happened and the answer was lost
        raise _Conflict(_reason(error)) from error


def _number(table: Any, name: str) -> int:
    """Give a property of a table that is a number; -1 if somebody has made it something else."""
    text = table.properties.get(name, "")
    return int(text) if text.isascii() and text.isdigit() else -1


def _check_position(table: Any, name: str, position: int) -> None:
    """Refuse a table that shows what the log does not know of."""
    there = _number(table, POSITION)
    if there > position:
        raise ForeignTableError(
            "the table is ahead of the log: this is an older copy of it",
            table=name,
            position=there,
            log_position=position,
        )


def _check_partitioning(table: Any, name: str) -> None:
    """Refuse a table whose files are told apart by something else than their partition."""
    fields = [(each.source_id, str(each.transform)) for each in table.spec().fields]
    if fields != [(1, "identity")]:
        raise ForeignTableError(
            "somebody else has changed the table's partitioning", table=name, now=table.spec()
        )


def _fields(schema: Any) -> dict[int, tuple[str, str, bool]]:
    """Give name, type and necessity of every field by its id; only leaves have a type here."""
    found = {}
    for number in schema.field_ids:
        field = schema.find_field(number)
        kind = str(field.field_type) if field.field_type.is_primitive else ""
        found[number] = (schema.find_column_name(number), kind, field.required)
    return found


def live_files(table: Any) -> dict[str, Any]:
    """Give every data file of a table's newest snapshot by its location."""
    with _translated("reading a table", ".".join(table.name())):
        return _live(table)


def _live(table: Any) -> dict[str, Any]:
    from pyiceberg.manifest import ManifestContent

    snapshot = table.current_snapshot()
    files: dict[str, Any] = {}
    with _reading_manifests(table):
        for manifest in snapshot.manifests(table.io) if snapshot is not None else ():
            if manifest.content == ManifestContent.DELETES:
                raise ForeignTableError(
                    "somebody else has deleted records from the table",
                    table=".".join(table.name()),
                    snapshot=snapshot.snapshot_id,
                )
            for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=True):
                files[entry.data_file.file_path] = entry.data_file
    return files


@contextlib.contextmanager
def _reading_manifests(table: Any) -> Iterator[None]:
    """Tell a damaged file from a catalog that fails: its reader raises whatever comes to it."""
    try:
        yield
    except (LakebedError, OSError, MemoryError):
        raise
    except Exception as error:
        name = ".".join(table.name())
        raise _RuinedError("a manifest is damaged", table=name, reason=_reason(error)) from error


def needed_files(table: Any) -> set[str]:
    """Give the location of every file that the table or one of its snapshots refers to."""
    needed = {table.metadata_location}
    needed.update(each.metadata_file for each in table.metadata.metadata_log)
    needed.update(each.statistics_path for each in table.metadata.statistics)
    needed.update(each.statistics_path for each in table.metadata.partition_statistics)
    seen: set[str] = set()
    with _translated("reading a table", ".".join(table.name())), _reading_manifests(table):
        for snapshot in table.metadata.snapshots:
            needed.add(snapshot.manifest_list)
            for manifest in snapshot.manifests(table.io):
                if manifest.manifest_path in seen:
                    continue
                seen.add(manifest.manifest_path)
                for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=True):
                    needed.add(entry.data_file.file_path)
    return needed | seen


def _data_file(place: str, file: Registered, metadata: Any, schema: Any) -> Any:
    """Describe a segment to a table, with the statistics that its readers prune by."""
    from pyiceberg.io.pyarrow import (
        compute_statistics_plan,
        data_file_statistics_from_parquet_metadata,
        parquet_path_to_id_mapping,
    )
    from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
    from pyiceberg.typedef import Record

    schema = schema or metadata.schema()
    found = file.metadata()
    _check_ids(found, place)
    statistics = data_file_statistics_from_parquet_metadata(
        parquet_metadata=found,
        stats_columns=compute_statistics_plan(schema, metadata.properties),
        parquet_column_mapping=parquet_path_to_id_mapping(schema),
    )
    return DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=place,
        file_format=FileFormat.PARQUET,
        partition=Record(file.partition),
        file_size_in_bytes=file.segment.file_bytes,
        sort_order_id=None,
        spec_id=metadata.default_spec_id,
        equality_ids=None,
        key_metadata=None,
        **statistics.to_serialized_dict(),
    )


def _check_ids(metadata: Any, place: str) -> None:
    """Refuse a segment whose columns a table would take for others."""
    value = metadata.schema.to_arrow_schema().field("value")
    if (value.metadata or {}).get(b"PARQUET:field_id") != b"6":
        raise SchemaMismatchError(
            "a segment was written by a version that numbered columns differently", file=place
        )


def _expired(metadata: Any, kept: int, before_us: int | None = None) -> list[int]:
    """Give the snapshots beyond the newest ones, but for those that somebody has named.

    With a time, only those of before it.
    """
    named = {ref.snapshot_id for ref in metadata.refs.values()}
    by_age = sorted(metadata.snapshots, key=lambda each: each.sequence_number or 0, reverse=True)
    return [
        each.snapshot_id
        for each in by_age[kept:]
        if each.snapshot_id not in named
        and (before_us is None or each.timestamp_ms * 1000 < before_us)
    ]


@contextlib.contextmanager
def _translated(doing: str, name: str) -> Iterator[None]:
    """Raise whatever pyiceberg, a database or a network raises as one of ours."""
    try:
        yield
    except (LakebedError, _Conflict, MemoryError):
        raise
    except FileNotFoundError as error:
        raise _RuinedError("a file of the table is gone", table=name, reason=error) from error
    except OSError as error:
        known = from_os_error(error, doing, name)
        if not isinstance(known, DeviceError):
            raise known from error
        raise _unavailable(error, doing, name) from error
    except Exception as error:  # of any catalog there is: SQLAlchemy, HTTP, AWS, ...
        raise _failure(error, doing, name) from error


def _failure(error: Exception, doing: str, name: str) -> LakebedError:
    from pyiceberg.exceptions import ValidationError

    if isinstance(error, ValidationError):
        return _RuinedError("the table's metadata is damaged", table=name, reason=_reason(error))
    return _unavailable(error, doing, name)


def _unavailable(error: Exception, doing: str, name: str) -> CatalogUnavailableError:
    return CatalogUnavailableError(
        f"the catalog failed while {doing}", table=name, reason=_reason(error)
    )


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
