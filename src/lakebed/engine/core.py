"""The heart of the embedded log: what the WAL has committed becomes state and memtables.

Commands reach the WAL from any thread. Once they are on disk the committing thread applies them, in
the order of the log, before their writers are told. Nothing else changes the state, and readers
look at it without a lock: each value in it is replaced as a whole.

Applying has two steps, as in `state/machine.py`: the changes are worked out, remembered, and then
carried out. Whatever strikes the thread in between, the next one to apply carries them out again.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import pyarrow as pa

from lakebed.api.lookup import no_topic
from lakebed.engine.ledger import Ledger
from lakebed.engine.staging import Staging
from lakebed.errors import LakebedError, PoisonedError, RejectedError
from lakebed.host import Clock
from lakebed.lake.schema import schema_with_ids
from lakebed.state import commands
from lakebed.state.commands import Command
from lakebed.state.decision import GONE, Change, Decision, Dropped, Written
from lakebed.state.image import State
from lakebed.state.machine import carry_out, decide
from lakebed.state.values import Part, Partition, Pending, Topic
from lakebed.topic.memtable import Body, Chunk, Memtable
from lakebed.topic.storage_schemas import StorageSchemas
from lakebed.wal.request import Request

_log = logging.getLogger("lakebed.engine")

Key = tuple[int, int]
"""A partition: the topic's id and the partition's number."""


class Prepared(NamedTuple):
    """A command with the bodies of its parts, not yet in the log."""

    command: Command
    bodies: Sequence[Body] = ()


class Frozen(NamedTuple):
    """A log at one point: its state, what its memtables hold, and its open transactions' bodies."""

    state: State
    chunks: dict[Key, list[Chunk]]
    bodies: dict[tuple[int, int], Body]
    wal_bytes: int


class _Redo(NamedTuple):
    """Changes that are decided and have to be carried out."""

    changes: list[Change]
    touched: tuple[Key, ...]
    dropped: tuple[Dropped, ...]
    request: Request | None
    """Who is told the result; None for an entry of a log that is being recovered."""
    result: Any


@dataclass(frozen=True)
class Hooks:
    """What the core calls back: parts of the log that are constructed after it."""

    check_may_wait: Callable[[], None]
    """Raises in a callback of the committing thread, which waiting would hold up."""
    after_apply: Callable[[], None] | None
    """Called by the committing thread after each group."""
    catch_up: Callable[[], None] | None = None
    """Applies what the owner of the log has written, if this is a replica of it."""


class Core:
    """State and memtables. `apply` belongs to the committing thread, the rest to anyone."""

    def __init__(self, state: State, staging: Staging, clock: Clock) -> None:
        self.state = state
        self.staging = staging
        self.clock = clock
        self.memtables: dict[Key, Memtable] = {}
        self.bodies: dict[tuple[int, int], Body] = {}
        """Of open transactions, by entry and part."""
        self.used: dict[str, int] = {"memory_bytes": 0, "records": 0, "wal_bytes": 0}
        """Bytes held in memory until they are flushed.

        Records written, and bytes of entries, since the log was opened.
        """
        self.dropped: list[Dropped] = []
        """Segments whose files can be removed."""
        self.broken: LakebedError | None = None
        self._gate = threading.Lock()
        self._redo: _Redo | None = None
        self._schemas = StorageSchemas()
        self._columns: dict[tuple[int, int], pa.Schema] = {}
        self._watching = threading.Lock()
        self._watchers: dict[Key, list[Callable[[], None]]] = {}
        self.hooks: Hooks | None = None
        """None while the log is being recovered: nothing is committed then."""

    # Applying

    def apply_group(self, group: list[Request]) -> None:
        """Apply a group that is on disk. A group that was applied before changes nothing."""
        try:
            with self._gate:
                self._carry_out()
                for request in group:
                    prepared = request.command
                    if isinstance(prepared, Prepared) and request.error is None:
                        self._apply_request(request, prepared)
        except Exception as error:
            self._break(error, group)
        hooks = self.hooks
        if hooks is not None and hooks.after_apply is not None:
            hooks.after_apply()

    def check_may_wait(self) -> None:
        """Raise in a callback of the committing thread, which waiting would hold up."""
        if self.hooks is not None:
            self.hooks.check_may_wait()

    def catch_up(self) -> None:
        """Apply what the owner has written so far, if this is a replica.

        A segment that cannot be read may be one that the owner has removed since.
        """
        if self.hooks is not None and self.hooks.catch_up is not None:
            self.hooks.catch_up()

    def _apply_request(self, request: Request, prepared: Prepared) -> None:
        if self.broken is not None:
            request.error = self.broken
        elif request.index > self.state.numbers["applied"]:
            self._decide(request.index, prepared, request)
            self._carry_out()

    def freeze(self) -> Frozen:
        """Take everything as it is at one point of the log, while nothing is applied."""
        with self._gate:
            self._carry_out()
            chunks = {key: memtable.chunks() for key, memtable in self.memtables.items()}
            return Frozen(self.state.copy(), chunks, dict(self.bodies), self.used["wal_bytes"])

    @property
    def gate(self) -> threading.Lock:
        """Held while entries are applied that no group commit brought."""
        return self._gate

    def apply(self, index: int, prepared: Prepared) -> None:
        """Apply one entry of a log that is being recovered, or of a replica; see `gate`."""
        self._decide(index, prepared, None)
        self._carry_out()

    def change(self, changes: list[Change], touched: tuple[Key, ...]) -> None:
        """Carry out changes that were worked out elsewhere; see `gate`."""
        self._redo = _Redo(changes, touched, (), None, None)
        self._carry_out()

    def begin_with(self, state: State) -> None:
        """Continue with another state, which includes everything that was applied.

        Its records are in segments, and the bodies of its open transactions in staged files.
        Readers that look at a memtable of the state before find it empty, and look again.
        """
        with self._gate:
            self._carry_out()
            self.memtables = {}
            self.state = state
            self.bodies = load_staged_bodies(self)
            self.used["memory_bytes"] = 0
            self.dropped.clear()
        self.wake_all()

    def _decide(self, index: int, prepared: Prepared, request: Request | None) -> None:
        """Work out what an entry changes and what its writer is told."""
        state = self.state
        touched: tuple[Key, ...] = ()
        try:
            decision = decide(state, index, prepared.command)
            result, changes, dropped = decision
            touched = self._data(index, prepared, decision, changes)
        except RejectedError as error:
            result, changes, dropped = error, [], ()
        changes.append((state.numbers, "applied", index))
        if request is not None:
            changes.append((self.used, "wal_bytes", self.used["wal_bytes"] + request.span))
        self._redo = _Redo(changes, touched, dropped, request, result)

    def _carry_out(self) -> None:
        redo = self._redo
        if redo is None:
            return
        carry_out(redo.changes)
        if redo.dropped:
            self.dropped += redo.dropped
        if redo.request is not None:
            redo.request.result = redo.result
        if self._watchers:
            self._tell(redo.touched)
        # Last: whatever strikes before, all of it is done again.
        self._redo = None

    def _data(
        self, index: int, prepared: Prepared, decision: Decision, changes: list[Change]
    ) -> tuple[Key, ...]:
        """Apply a command to memtables and bodies; return the partitions with new records."""
        ledger = Ledger(self)
        command = prepared.command
        ledger.trim(changes)
        touched: tuple[Key, ...] = ()
        if isinstance(decision.result, Written):
            if not decision.result.duplicate:
                touched = ledger.place(index, prepared, decision.result)
        elif isinstance(command, commands.TransactionWrite):
            ledger.hold(index, prepared.bodies)
        if isinstance(command, commands.CommitTransaction):
            ledger.release(command.producer, committed=True)
        elif isinstance(command, commands.CommitTogether):
            for producer in _transactions_ended(changes, self.state):
                ledger.release(producer, committed=not decision.result.duplicate)
        elif isinstance(command, commands.AbortTransaction):
            if changes:  # one of an epoch that was taken over aborts nothing
                ledger.release(command.producer, committed=False)
        elif isinstance(command, commands.BeginTransaction):
            ledger.release(decision.result[0], committed=False)
        elif isinstance(command, commands.DeleteTopic):
            touched = ledger.forget_topic(command.topic)
        elif isinstance(command, commands.Flush):
            ledger.stage(changes)
        changes += ledger.finish()
        return touched

    def _break(self, error: Exception, group: list[Request]) -> None:
        """Stop, because a committed command could not be applied: a defect."""
        _log.critical("a committed entry could not be applied; the log stops", exc_info=error)
        self.broken = PoisonedError(
            "an entry on disk could not be applied", cause=f"{type(error).__name__}: {error}"
        )
        for request in group:
            if request.index > self.state.numbers["applied"] and request.error is None:
                request.error = self.broken
        self.wake_all()

    # Looking

    def topic_named(self, name: str) -> Topic:
        """Find a topic, or raise `TopicNotFoundError`."""
        topic = self.state.topic(name) if isinstance(name, str) else None
        if topic is None:
            raise no_topic(name)
        return topic

    def topic(self, topic_id: int) -> Topic | None:
        """Find a topic by id."""
        return self.state.topics.get(topic_id)

    def partition(self, key: Key) -> Partition | None:
        """Find a partition, in a state where no command is half carried out.

        A commit over several partitions changes one after another. Who has seen one of them changed
        must see the others changed too: so whatever is found while changes are under way is looked
        up again after them.
        """
        while True:
            partition = self.state.partitions.get(key)
            if self._redo is None:
                return partition
            with self._gate:
                self._carry_out()

    def schema(self, topic: Topic, version: int) -> pa.Schema:
        """Return the storage schema of a topic's schema version; 0 for a raw topic."""
        return self._schemas.find(topic, version)

    def take_dropped(self) -> list[Dropped]:
        """Return the segments that were dropped since the last call."""
        with self._gate:
            dropped, self.dropped = self.dropped, []
            return dropped

    def columns(self, topic: Topic) -> pa.Schema:
        """Return the columns of a topic's segments, with the field ids of its Iceberg table."""
        key = (topic.id, len(topic.schemas))
        columns = self._columns.get(key)
        if columns is None:
            versions = range(1, key[1] + 1) or (0,)
            values = [self.schema(topic, version).field("value").type for version in versions]
            columns = self._columns[key] = schema_with_ids(values)
        return columns

    def load_staged(self, pending: Pending, schema: pa.Schema) -> Body:
        """Make the body of a staged part: it is read from its file when it is needed."""
        staging, length = self.staging, pending.part.body_bytes
        file_id, position, checksum = pending.staged, pending.position, pending.checksum
        return Body(
            lambda: staging.load(file_id, position, length, checksum),
            schema,
            length,
            staged=file_id,
            holders=len(pending.part.runs),
        )

    def list_staged_needed(self) -> set[int]:
        """Return the staged files that open transactions or memtables refer to."""
        with self._gate:
            bodies = list(self.bodies.values())
            for memtable in self.memtables.values():
                bodies += [chunk.body for chunk in memtable.chunks()]
        return {body.staged for body in bodies if body.staged}

    def body_of(self, part: Part, raw: Any) -> Body:
        """Make the body of a part from its bytes."""
        return Body(lambda: raw, self.schema_of(part), part.body_bytes, holders=len(part.runs))

    def schema_of(self, part: Part) -> pa.Schema:
        """Return the storage schema of a part; empty if its topic is gone: nothing reads it."""
        topic = self.state.topics.get(part.topic)
        return pa.schema([]) if topic is None else self.schema(topic, part.schema)

    # Waiting

    def watch(self, keys: Sequence[Key], callback: Callable[[], None]) -> Callable[[], None]:
        """Have `callback` called, by the committing thread, when a partition has changed.

        Give the function that ends it.
        """
        with self._watching:
            for key in keys:
                # A new list each time: the committing thread reads them without the lock.
                self._watchers[key] = [*self._watchers.get(key, ()), callback]

        def stop() -> None:
            with self._watching:
                for key in keys:
                    rest = [
                        watcher
                        for watcher in self._watchers.get(key, ())
                        if watcher is not callback
                    ]
                    if rest:
                        self._watchers[key] = rest
                    else:
                        self._watchers.pop(key, None)

        return stop

    def wake_all(self) -> None:
        """Call every watcher: the log is being closed, or has stopped."""
        with self._watching:
            keys = tuple(self._watchers)
        self._tell(keys)

    def _tell(self, keys: Sequence[Key]) -> None:
        for key in keys:
            for callback in self._watchers.get(key, ()):
                callback()


def load_staged_bodies(core: Core) -> dict[tuple[int, int], Body]:
    """Return the bodies of the open transactions of a state that was loaded."""
    return {
        (pending.index, pending.number): core.load_staged(pending, core.schema_of(pending.part))
        for transaction in core.state.transactions.values()
        for pending in transaction.pending
    }


def _transactions_ended(changes: list[Change], state: State) -> list[int]:
    return [key for target, key, value in changes if target is state.transactions and value is GONE]
