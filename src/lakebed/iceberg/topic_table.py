"""Topics as Iceberg tables: a table shows exactly the segments that the log has, or had last time.

The log's list of segments is the truth, and a table is made to agree with it: what the table has
and the log has not is taken out, what it lacks is put in, in one swap of the catalog. So a swap
whose outcome is unknown needs no special care: the table is read, and compared again. Files are
told apart by their location, which is never used twice; nothing can be in a table twice.

`swaps.py` says what a swap is. Properties of the table say whose it is:

    lakebed.log        the log's identity
    lakebed.topic      the topic's number
    lakebed.position   the index of the last entry that the table reflects
    lakebed.offsets    {partition: offset}: every record below is in the table, or was removed

Each of our snapshots has the first and the third in its summary as well; a newest snapshot without
them is somebody else's. Then every file of the table is looked at. One that the log never wrote
makes the table foreign, and it is refused; otherwise the log carries on, and what somebody took out
comes back. Columns or partitioning that somebody has changed make a table foreign as well.

Whoever takes a foreign table over gets the log's files and no others. Where that cannot be done by
one more snapshot, the catalog forgets the table and the log makes it again.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

import pyarrow as pa

from lakebed.errors import ForeignTableError
from lakebed.iceberg.catalog import Catalog
from lakebed.iceberg.commit import PROPERTIES, Steps, Swaps
from lakebed.iceberg.failures import ConflictError, RuinedError, committed
from lakebed.iceberg.table_metadata import (
    LOG,
    OFFSETS,
    POSITION,
    TOPIC,
    Registered,
    check_partitioning,
    check_position,
    data_file,
    fields_of,
    is_ours,
    live_files,
    number_of,
)

_log = logging.getLogger("lakebed.lake")

_PROPERTIES: Final = {
    **PROPERTIES,
    # Few manifests, and none so large that merging it with new ones takes long.
    "commit.manifest-merge.enabled": "true",
    "commit.manifest.min-count-to-merge": "20",
    "commit.manifest.target-size-bytes": "131072",
    "write.metadata.metrics.column.value": "none",  # a raw value has no statistics in its file
}

_STEPS: Final = Steps.define("lake.table")


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
        """Return whether anything was done."""
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
        check_store: Callable[[], object],
    ) -> None:
        self._catalog = catalog
        self._is_segment = is_segment
        """Tells whether a location is that of a segment that a topic has or had."""
        self._swaps = Swaps(catalog, snapshots_kept, _STEPS, check_store)
        self._location = location
        self._log = log
        self._known: dict[int, tuple[str, int | None, frozenset[str]]] = {}
        """Table, newest snapshot and files of each topic, as we left them."""
        self._refused: dict[int, str] = {}
        """Why the table of a topic was refused last time."""
        self.conflicts = 0
        """Swaps in which somebody else was faster, or whose outcome was unknown."""
        self.foreign_changes = 0

    def location(self, topic: int) -> str:
        """Return where the table of a topic keeps its metadata."""
        return f"{self._location}/{topic}"

    # Making a table agree with the log

    def sync(self, wanted: Wanted, *, take_over: bool = False) -> Synced:
        """Make a topic's table show what is wanted, whatever it shows now."""
        return self._swaps.repeated(
            "syncing a table",
            wanted.name,
            lambda: self._sync(wanted, take_over=take_over),
            lambda error: self._recover(wanted, error, take_over=take_over),
        )

    def _recover(
        self, wanted: Wanted, error: ConflictError | ForeignTableError, *, take_over: bool
    ) -> None:
        """Prepare another attempt, or raise the error again."""
        # A table whose commit failed shows what it would have committed.
        self._known.pop(wanted.topic, None)
        if isinstance(error, ConflictError):
            self.conflicts += 1
            return
        self._note_foreign(wanted.topic, str(error))
        ruined = isinstance(error, RuinedError) and self._catalog.is_own
        if not (ruined or take_over):
            raise error
        self._make_anew(wanted, error)

    def _sync(self, wanted: Wanted, *, take_over: bool) -> Synced:
        table, created = self._open(wanted, take_over=take_over)
        foreign = self._check(table, wanted, take_over=take_over)
        self._restore_properties(table)
        known = self._known_files(table, wanted.topic)
        live = None if known is not None else live_files(table)
        have = known if known is not None else frozenset(live or ())
        if foreign or known is None:
            self._check_strangers(table, have, wanted, take_over=take_over)
        added = [place for place in wanted.files if place not in have]
        removed = have.difference(wanted.files)
        schema = self._grown(table, wanted)
        if added or removed or schema is not None or foreign:
            if removed and live is None:
                live = live_files(table)
            gone = [(live or {})[place] for place in removed]
            self._swap(table, wanted, added, gone, schema)
        if foreign:
            self._note_foreign(wanted.topic, "")
            _log.warning("table %s was changed by somebody else, and is restored", wanted.name)
        self._refused.pop(wanted.topic, None)
        self._remember(table, wanted)
        self._swaps.hint(table)
        return Synced(
            len(added), len(removed), table.metadata.current_snapshot_id, created, foreign
        )

    def _open(self, wanted: Wanted, *, take_over: bool) -> tuple[Any, bool]:
        """Return a topic's table, making it if there is none."""
        table = self._load(wanted, take_over=take_over)
        if table is not None:
            return table, False
        marks = {LOG: self._log, TOPIC: str(wanted.topic), POSITION: "0"}
        table = self._swaps.create(
            wanted.name,
            wanted.first_columns,
            "partition",
            self.location(wanted.topic),
            {"format-version": "2", **_PROPERTIES, **marks},
        )
        return table, True

    def _make_anew(self, wanted: Wanted, error: ForeignTableError) -> None:
        """Drop a table that cannot be used: the log has all that it needs."""
        _log.warning("table %s is made anew: %s", wanted.name, error)
        with self._swaps.asking("dropping a table", wanted.name):
            self._catalog.drop(wanted.name)

    def _load(self, wanted: Wanted, *, take_over: bool) -> Any:
        """Load a topic's table; None if there is none, or only one that may be made again."""
        table = self._catalog.load(wanted.name)
        if table is None:
            if wanted.topic in self._known:
                _log.warning("table %s was dropped by somebody: it is made anew", wanted.name)
                self.foreign_changes += 1
                self._known.pop(wanted.topic)
            return None
        if table.properties.get(LOG) != self._log:
            return table
        moved = table.location() != self.location(number_of(table.properties, TOPIC))
        earlier = not moved and number_of(table.properties, TOPIC) != wanted.topic
        if earlier and not take_over:
            check_position(table, wanted.name, wanted.position)
        if earlier or (moved and (self._catalog.is_own or take_over)):
            reason = "of an earlier topic" if earlier else "of a folder that was moved"
            _log.warning("table %s is that %s: it is made anew", wanted.name, reason)
            self._catalog.drop(wanted.name)
            if earlier:
                self._swaps.unhint(table)
            return None
        if moved:
            raise ForeignTableError(
                "the table is at another place than this log's: its folder or its store was moved",
                table=wanted.name,
                location=table.location(),
                expected=self.location(wanted.topic),
            )
        return table

    def _check(self, table: Any, wanted: Wanted, *, take_over: bool) -> bool:
        """Refuse a table that is not ours; return whether somebody else has changed it."""
        properties = table.properties
        if properties.get(LOG) != self._log:
            raise ForeignTableError(
                "the table belongs to another log, or to nobody",
                table=wanted.name,
                log=properties.get(LOG, "none"),
            )
        if not take_over:
            check_position(table, wanted.name, wanted.position)
        check_partitioning(table, wanted.name)
        newest = table.current_snapshot()
        if newest is None:
            return False
        ours = is_ours(newest, properties, self._log)
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
        committed(change)

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
        """Return the schema that the table must get, or None if it has every field."""
        from pyiceberg.io.pyarrow import pyarrow_to_schema

        schema = pyarrow_to_schema(wanted.columns)
        have, names = fields_of(table.schema()), fields_of(schema)
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
        from pyiceberg.table.update import AddSchemaUpdate, SetCurrentSchemaUpdate

        from lakebed.iceberg.manifests import replace_files

        metadata = table.metadata
        change = table.transaction()
        if schema is not None:
            schema = schema.model_copy(
                update={"schema_id": max(each.schema_id for each in metadata.schemas) + 1}
            )
            change._stage((AddSchemaUpdate(schema=schema), SetCurrentSchemaUpdate()))
        marks = {LOG: self._log, POSITION: str(wanted.position)}
        files = [data_file(place, wanted.files[place], metadata, schema) for place in added]
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
        self._swaps.swap(change)

    def expire(self, name: str, before_us: int) -> int:
        """Remove a table's snapshots of before a time, but for the newest; return how many.

        One that is not ours, or that is ruined, is left as it is: the next sync says why.
        """
        try:
            with self._swaps.asking("expiring snapshots", name):
                table = self._catalog.load(name)
                if table is None or not self._is_ours(table):
                    return 0
                return self._swaps.expire(table, before_us)
        except RuinedError:
            return 0

    # Looking

    def table(self, name: str) -> Any:
        """Return the pyiceberg table of a topic, or None."""
        with self._swaps.asking("loading a table", name):
            return self._catalog.load(name)

    def drop_others(self, living: Mapping[str, int], position: int) -> list[str]:
        """Drop the tables of topics that are no more at a position; return their names.

        A table that is ahead of the position, or that of another folder, is not for us to drop: it
        is that of a log whose older copy this is.
        """
        with self._swaps.asking("listing tables", "all"):
            others = [name for name in self._catalog.names() if name not in living]
        return [name for name in others if self._drop_other(name, position)]

    def _drop_other(self, name: str, position: int) -> bool:
        try:
            with self._swaps.asking("dropping a table", name):
                table = self._catalog.load(name)
                if table is None or not self._is_ours(table):
                    return False
                if number_of(table.properties, POSITION) > position:
                    return False
        except RuinedError as error:
            if not self._catalog.is_own:
                return False  # whose it was cannot be known
            _log.warning("table %s is dropped: %s", name, error)
            table = None
        with self._swaps.asking("dropping a table", name):
            self._catalog.drop(name)
            if table is not None:
                self._swaps.unhint(table)
        return True

    def _is_ours(self, table: Any) -> bool:
        """Return whether a table is one of this log, in this folder."""
        if table.properties.get(LOG) != self._log:
            return False
        return str(table.location()) == self.location(number_of(table.properties, TOPIC))

    def rest(self) -> None:
        """Report that the catalog is not needed for a while."""
        self._swaps.rest()

    def close(self) -> None:
        """Let go of the catalog."""
        self._catalog.close()
