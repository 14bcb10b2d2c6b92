"""Topics as Iceberg tables: a table shows exactly the segments that the log has.

The log's list of segments is the truth, and a table is made to agree with it: files that the table
has and the log has not are removed, missing ones are added, in one commit (`commit.py`). So a
commit whose outcome is unknown needs no special care: the table is read, and compared again. Files
are told apart by their location, which is never used twice; no file can be in a table twice.

Properties of the table name its owner:

    lakebed.log        the log's identity
    lakebed.topic      the topic's id
    lakebed.position   the index of the last entry that the table reflects
    lakebed.offsets    {partition: offset}: every record below is in the table, or was removed
    lakebed.term       the term of the owner that changed it last, in a log that ships its entries

Each snapshot of the log has the first and the third in its summary as well; a newest snapshot
without them is another writer's. Then every file of the table is checked. A file that the log never
wrote makes the table foreign, and it is refused; otherwise the log continues, and files that were
taken out are added again. Changed columns or partitioning make a table foreign as well.

A foreign table that is taken over gets the log's files and no others. Where one more snapshot
cannot do that, the table is dropped from the catalog and created again.
"""

from __future__ import annotations

import json
import logging
from typing import Any, Final, NamedTuple

from lakebed.errors import ForeignTableError
from lakebed.iceberg.catalog import Catalog
from lakebed.iceberg.commit import PROPERTIES, CommitSteps, TableCommits
from lakebed.iceberg.failures import ConflictError, RuinedError, commit_transaction
from lakebed.iceberg.parts import LakeParts
from lakebed.iceberg.table_metadata import (
    LOG,
    OFFSETS,
    POSITION,
    TERM,
    TOPIC,
    check_partitioning,
    check_position,
    data_file,
    fields_of,
    is_ours,
    live_files,
    number_of,
    terms,
)
from lakebed.iceberg.topic_contents import TableContents, contents_of
from lakebed.iceberg.topic_progress import TopicProgress
from lakebed.state.values import Topic

_log = logging.getLogger("lakebed.lake")

_PROPERTIES: Final = {
    **PROPERTIES,
    # Few manifests, and none so large that merging it with new ones is slow.
    "commit.manifest-merge.enabled": "true",
    "commit.manifest.min-count-to-merge": "20",
    "commit.manifest.target-size-bytes": "131072",
    "write.metadata.metrics.column.value": "none",  # a raw value has no statistics in its file
}

_STEPS: Final = CommitSteps.define("lake.table")


class Synced(NamedTuple):
    """The outcome of a sync."""

    added: int = 0
    removed: int = 0
    snapshot: int | None = None
    created: bool = False
    foreign: bool = False
    """Another writer had changed it."""

    @property
    def changed(self) -> bool:
        """Return whether the table was created or changed."""
        return self.created or self.added > 0 or self.removed > 0


class TopicTables:
    """The tables of a log's topics. One thread at a time, but for `progress`."""

    def __init__(self, parts: LakeParts, catalog: Catalog) -> None:
        self.progress = TopicProgress(parts)
        self._parts = parts
        self._catalog = catalog
        self._commits = TableCommits(catalog, parts.config.snapshots_kept, _STEPS)
        self._log_id = parts.log_id
        self._known: dict[int, tuple[str, int | None, frozenset[str]]] = {}
        """Table, newest snapshot and files of each topic, as the last sync left them."""
        self._refused: dict[int, str] = {}
        """Why the table of a topic was refused by the last sync."""
        self.conflicts = 0
        """Commits in which another writer was faster, or whose outcome was unknown."""
        self.foreign_changes = 0

    def location(self, topic: int) -> str:
        """Return where the table of a topic keeps its metadata."""
        return f"{self._parts.locations.tables}/{topic}"

    # Making a table agree with the log

    def sync(self, topic: Topic, *, take_over: bool = False) -> Synced:
        """Make the table of a topic show its segments, whatever it shows now."""
        self._parts.locations.check()
        shape = self.progress.shape(topic)
        contents = contents_of(self._parts, topic)
        self._parts.wal.flush()  # records that a table shows must survive, in every sync mode
        synced = self._commits.retry(
            "syncing a table",
            contents.name,
            lambda: self._sync(contents, take_over=take_over),
            lambda error: self._recover(contents, error, take_over=take_over),
        )
        self.progress.record(topic, shape, contents.offsets)
        return synced

    def _recover(
        self, contents: TableContents, error: ConflictError | ForeignTableError, *, take_over: bool
    ) -> None:
        """Prepare another attempt, or raise the error again."""
        # A table whose commit failed shows what it would have committed.
        self._known.pop(contents.topic, None)
        if isinstance(error, ConflictError):
            self.conflicts += 1
            return
        self._note_foreign(contents.topic, str(error))
        ruined = isinstance(error, RuinedError) and self._catalog.is_own
        if not (ruined or take_over):
            raise error
        self._drop_unusable(contents, error)

    def _sync(self, contents: TableContents, *, take_over: bool) -> Synced:
        table, created = self._open(contents, take_over=take_over)
        foreign = self._check(table, contents, take_over=take_over)
        self._restore_properties(table)
        known_files = self._files_if_unchanged(table, contents.topic)
        live = None if known_files is not None else live_files(table)
        have = known_files if known_files is not None else frozenset(live or ())
        if foreign or known_files is None:
            self._check_strangers(table, have, contents, take_over=take_over)
        added = [location for location in contents.files if location not in have]
        removed = have.difference(contents.files)
        schema = self._missing_fields(table, contents)
        taken_over = self._catalog.needs_snapshots and self._is_of_earlier_owner(table)
        if added or removed or schema is not None or foreign or taken_over:
            if removed and live is None:
                live = live_files(table)
            gone = [(live or {})[location] for location in removed]
            self._commit(table, contents, added, gone, schema)
        if foreign:
            self._note_foreign(contents.topic, "")
            _log.warning("table %s was changed by another writer, and is restored", contents.name)
        self._refused.pop(contents.topic, None)
        self._remember(table, contents)
        self._commits.write_hint(table)
        return Synced(
            len(added), len(removed), table.metadata.current_snapshot_id, created, foreign
        )

    def _is_of_earlier_owner(self, table: Any) -> bool:
        """Return whether an owner before this one changed the table last, and still could."""
        return number_of(table.properties, TERM) < (self._catalog.term or 0)

    def _open(self, contents: TableContents, *, take_over: bool) -> tuple[Any, bool]:
        """Return a topic's table, and whether it was created just now."""
        table = self._load(contents, take_over=take_over)
        if table is not None:
            return table, False
        marks = {LOG: self._log_id, TOPIC: str(contents.topic), POSITION: "0"}
        table = self._commits.create(
            contents.name,
            contents.first_columns,
            "partition",
            self.location(contents.topic),
            {"format-version": "2", **_PROPERTIES, **marks, **terms(self._catalog.term)},
        )
        return table, True

    def _drop_unusable(self, contents: TableContents, error: ForeignTableError) -> None:
        """Drop a table that cannot be used: the next attempt creates it from the log."""
        _log.warning("table %s is created again: %s", contents.name, error)
        with self._catalog.handle_failures("dropping a table", contents.name):
            self._catalog.drop(contents.name)

    def _load(self, contents: TableContents, *, take_over: bool) -> Any:
        """Load a topic's table; None if it does not exist, or was dropped to be created again."""
        table = self._catalog.load(contents.name)
        if table is None:
            if contents.topic in self._known:
                _log.warning(
                    "table %s was dropped by another writer: it is created again", contents.name
                )
                self.foreign_changes += 1
                self._known.pop(contents.topic)
            return None
        if table.properties.get(LOG) != self._log_id:
            return table
        moved = table.location() != self.location(number_of(table.properties, TOPIC))
        earlier = not moved and number_of(table.properties, TOPIC) != contents.topic
        if earlier and not take_over:
            check_position(table, contents.name, contents.position)
        if earlier or (moved and (self._catalog.is_own or take_over)):
            reason = "of an earlier topic" if earlier else "of a folder that was moved"
            _log.warning("table %s is that %s: it is created again", contents.name, reason)
            self._catalog.drop(contents.name)
            if earlier:
                self._commits.remove_hint(table)
            return None
        if moved:
            raise ForeignTableError(
                "the table is at another place than this log's: its folder or its store was moved",
                table=contents.name,
                location=table.location(),
                expected=self.location(contents.topic),
            )
        return table

    def _check(self, table: Any, contents: TableContents, *, take_over: bool) -> bool:
        """Refuse a table that is not the log's; return whether another writer has changed it."""
        properties = table.properties
        if properties.get(LOG) != self._log_id:
            raise ForeignTableError(
                "the table belongs to another log, or to none",
                table=contents.name,
                log=properties.get(LOG, "none"),
            )
        if not take_over:
            check_position(table, contents.name, contents.position)
        check_partitioning(table, contents.name)
        newest = table.current_snapshot()
        if newest is None:
            return False
        ours = is_ours(newest, properties, self._log_id)
        if not ours:
            self._known.pop(contents.topic, None)
        return not ours

    def _note_foreign(self, topic: int, refusal: str) -> None:
        """Count a change by another writer; one that is refused repeatedly counts once."""
        if self._refused.get(topic) != refusal:
            self.foreign_changes += 1
            self._refused[topic] = refusal

    def _restore_properties(self, table: Any) -> None:
        """Undo changes to the properties that commits rely on, before one is made.

        pyiceberg takes the number of its retries from the table as it was loaded.
        """
        there = table.properties
        if all(there.get(name) == value for name, value in _PROPERTIES.items()):
            return
        _log.warning("table %s: its settings are restored", ".".join(table.name()))
        change = table.transaction()
        change.set_properties(_PROPERTIES)
        self._commits.make_ready(change)
        commit_transaction(change)

    def _check_strangers(
        self, table: Any, have: frozenset[str], contents: TableContents, *, take_over: bool
    ) -> None:
        """Refuse a table with files that the log did not write."""
        strangers = [
            location
            for location in have.difference(contents.files)
            if not self._parts.locations.is_segment(location, contents.topic)
        ]
        if strangers and not take_over:
            raise ForeignTableError(
                "another writer has put files into the table, or has rewritten ours",
                table=contents.name,
                snapshot=table.metadata.current_snapshot_id,
                files=len(strangers),
                first=min(strangers),
            )
        for location in sorted(strangers):
            _log.warning("table %s: a foreign file is taken out: %s", contents.name, location)

    def _files_if_unchanged(self, table: Any, topic: int) -> frozenset[str] | None:
        cached = self._known.get(topic)
        head = (str(table.metadata.table_uuid), table.metadata.current_snapshot_id)
        return cached[2] if cached is not None and cached[:2] == head else None

    def _remember(self, table: Any, contents: TableContents) -> None:
        metadata = table.metadata
        self._known[contents.topic] = (
            str(metadata.table_uuid),
            metadata.current_snapshot_id,
            frozenset(contents.files),
        )

    def _missing_fields(self, table: Any, contents: TableContents) -> Any:
        """Return the schema that the table must get, or None if it has every field."""
        from pyiceberg.io.pyarrow import pyarrow_to_schema

        schema = pyarrow_to_schema(contents.columns)
        have, names = fields_of(table.schema()), fields_of(schema)
        strange = [field for field_id, field in have.items() if names.get(field_id) != field]
        if strange:
            raise ForeignTableError(
                "another writer has changed the table's columns",
                table=contents.name,
                columns=",".join(name for name, *_ in strange),
            )
        return schema if len(names) > len(have) else None

    def _commit(
        self, table: Any, contents: TableContents, added: list[str], removed: list[Any], schema: Any
    ) -> None:
        """Commit a new snapshot, the properties and the expiry of old snapshots, all at once.

        pyiceberg makes the commit depend on the newest snapshot being the one that was read.
        """
        from pyiceberg.table.update import AddSchemaUpdate, SetCurrentSchemaUpdate

        from lakebed.iceberg.manifests import replace_files

        metadata = table.metadata
        change = table.transaction()
        if schema is not None:
            schema = schema.model_copy(
                update={"schema_id": max(existing.schema_id for existing in metadata.schemas) + 1}
            )
            change._stage((AddSchemaUpdate(schema=schema), SetCurrentSchemaUpdate()))
        marks = {LOG: self._log_id, POSITION: str(contents.position)}
        files = [
            data_file(location, contents.files[location], metadata, schema) for location in added
        ]
        producer: Any = (
            replace_files(change, marks)
            if removed
            else change.update_snapshot(snapshot_properties=marks).merge_append()
        )
        for file in files:
            producer.append_data_file(file)
        for file in removed:
            producer.delete_data_file(file)
        producer.commit()
        offsets = json.dumps({str(key): value for key, value in contents.offsets.items()})
        change.set_properties({**marks, TOPIC: str(contents.topic), OFFSETS: offsets})
        self._commits.commit(change)

    def expire(self, name: str, before_us: int) -> int:
        """Expire a table's snapshots before a time, except the newest; return how many.

        A table that is foreign or damaged is left as it is: the next sync reports why.
        """
        try:
            with self._catalog.handle_failures("expiring snapshots", name):
                table = self._catalog.load(name)
                if table is None or not self._is_ours(table):
                    return 0
                return self._commits.expire(table, before_us)
        except RuinedError:
            return 0

    # Looking

    def table(self, name: str) -> Any:
        """Return the pyiceberg table of a topic, or None."""
        with self._catalog.handle_failures("loading a table", name):
            return self._catalog.load(name)

    def drop_others(self) -> int:
        """Drop the tables of topics that were deleted; return how many.

        A table that is ahead of the log, or that of another folder, is left alone: it belongs to a
        log of which this one is an older copy.
        """
        self.progress.forget_deleted()
        state = self._parts.log.state
        # First the position, then the names: a topic that is created in between is not missed.
        position, living = state.numbers["applied"], dict(state.names)
        with self._catalog.handle_failures("listing tables", "all"):
            others = [name for name in self._catalog.names() if name not in living]
        return sum(self._drop_other(name, position) for name in others)

    def _drop_other(self, name: str, position: int) -> bool:
        try:
            with self._catalog.handle_failures("dropping a table", name):
                table = self._catalog.load(name)
                if table is None or not self._is_ours(table):
                    return False
                if number_of(table.properties, POSITION) > position:
                    return False
        except RuinedError as error:
            if not self._catalog.is_own:
                return False  # its owner cannot be known
            _log.warning("table %s is dropped: %s", name, error)
            table = None
        with self._catalog.handle_failures("dropping a table", name):
            self._catalog.drop(name)
            if table is not None:
                self._commits.remove_hint(table)
        return True

    def _is_ours(self, table: Any) -> bool:
        """Return whether a table belongs to this log, in this folder."""
        if table.properties.get(LOG) != self._log_id:
            return False
        return str(table.location()) == self.location(number_of(table.properties, TOPIC))
