"""Get streams: what a ticket asks for, as Arrow batches.

A ticket is a map (msgpack) with `call` and the parameters of that stream:

    read    topic, partition, offset, max_records, max_bytes, columns, wait_ms, waiter
            one answer, as `Log.read` gives it; it waits at most `WAIT_MS_MAX`
    range   topic, partition, offset, until, columns: everything in between, batch after batch
    follow  topic, partition, offset, columns: everything from there on, and it waits for more
    fetch   a consumer's next records: places, ids, turn, max_records, max_bytes, columns, wait_ms,
            waiter, group, member
    scan    topic, columns, where, partitions, start, until, id
    record  topic, key: the latest record of a key, or nothing
    latest  topic, columns
    as_of   topic, offset or time, columns, where

Whoever means one topic, and not another that was made later under its name, says its `id` too.

The schema's metadata holds `topic` and, under `lakebed`, what else there is to say (msgpack): of a
`read` where the next record would be, of a `fetch` where the consumer is then. Whoever waits under
a `waiter` of its choice is woken by the call `wake`. A stream is read from the log as fast as its
client takes it, a bounded batch at a time.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from lakebed import limits
from lakebed.api.arguments import wait_seconds
from lakebed.api.cursor import Cursor, Fetched
from lakebed.api.lookup import no_topic
from lakebed.api.reads import COLUMNS, Bounds, check_bounds
from lakebed.engine.fetching import fetch, next_wanted
from lakebed.errors import InvalidArgumentError, ProtocolError, SchemaChangeError
from lakebed.operations.routes import STREAMS
from lakebed.serve.calls import check_same
from lakebed.types import TopicPartition
from lakebed.wire.predicates import unpack_predicate
from lakebed.wire.protocol import convert, pack, unpack_request

if TYPE_CHECKING:
    from lakebed.engine.log import EmbeddedLog
    from lakebed.engine.table import EmbeddedTable as Table

WAIT_MS_MAX: Final = 30_000
"""The longest that an answer waits for a record; a client that waits longer asks again."""
_LOOK_SECONDS: Final = 1.0
"""How often a waiting stream looks whether its client is still there."""
_EARLY_MAX: Final = 256
"""So many names that were woken before they waited are remembered."""
_NAME_MAX: Final = 64
_BATCH: Final = Bounds(65_536, 8 * 1024 * 1024)
"""What a stream reads at a time."""

Gone = Callable[[], bool]
"""Tells whether the client has gone away."""


class Waiters:
    """Streams that wait for records, by the names that their clients gave them."""

    def __init__(self) -> None:
        self._events: dict[str, threading.Event] = {}
        self._early: deque[str] = deque(maxlen=_EARLY_MAX)
        """Names that were woken and do not wait: their request may still be on its way."""
        self._guard = threading.Lock()

    def begin(self, name: str) -> threading.Event:
        """Let a stream be woken under a name; without one, it is alone."""
        if not name:
            return threading.Event()
        with self._guard:
            event = self._events.setdefault(name, threading.Event())
            if name in self._early:
                self._early.remove(name)
                event.set()
            return event

    def end(self, name: str) -> None:
        """End that."""
        with self._guard:
            self._events.pop(name, None)

    def wake(self, name: str) -> None:
        """Wake a stream that waits, or is about to."""
        with self._guard:
            event = self._events.get(name)
            if event is None and len(name) <= _NAME_MAX:
                self._early.append(name)
        if event is not None:
            event.set()

    def wake_all(self) -> None:
        """Wake every stream: the server is stopping."""
        with self._guard:
            events = list(self._events.values())
        for event in events:
            event.set()


class _Place(NamedTuple):
    topic: str
    partition: int
    offset: int


class Ticket:
    """A ticket that was checked: which stream, and its parameters."""

    def __init__(self, data: bytes) -> None:
        request = unpack_request(data)
        if not isinstance(request, dict) or request.get("call") not in STREAMS:
            raise ProtocolError("a ticket must be a map with the call of a stream")
        self.call: Final[str] = request["call"]
        self.given: Final[dict[str, Any]] = request

    def topics(self) -> Sequence[str]:
        """Return the topics that it reads."""
        if self.call == "fetch":
            return sorted({row[0] for row in self.places()})
        return [self.text("topic")]

    def group(self) -> str | None:
        """Return the group in which a fetch speaks for a member."""
        return self.text("group") if self.given.get("member") else None

    def text(self, name: str) -> str:
        """Return a parameter that is text."""
        value = self.given.get(name)
        if not isinstance(value, str):
            raise ProtocolError("a ticket needs text here", call=self.call, parameter=name)
        return value

    def whole(self, name: str, default: int = 0) -> int:
        """Return a parameter that is an integer."""
        value = self.given.get(name, default)
        if type(value) is not int:
            raise ProtocolError("a ticket needs an integer here", call=self.call, parameter=name)
        return value

    def columns(self) -> list[str] | None:
        """Return the columns that are asked for."""
        value = self.given.get("columns")
        if value is None:
            return None
        if not isinstance(value, tuple) or not all(isinstance(item, str) for item in value):
            raise InvalidArgumentError(
                "columns must be a list of " + ", ".join(COLUMNS), got=repr(value)[:200]
            )
        return list(value)

    def where(self) -> pc.Expression | None:
        """Return the predicate."""
        value = self.given.get("where")
        return None if value is None else unpack_predicate(value)

    def bounds(self) -> Bounds:
        """Return how much an answer may hold: what was requested, within the server's limits."""
        asked = check_bounds(self.given.get("max_records"), self.given.get("max_bytes"))
        return Bounds(
            min(asked.records, limits.READ_RECORDS_MAX), min(asked.bytes, limits.READ_BYTES_MAX)
        )

    def places(self) -> list[_Place]:
        """Return the places of a fetch: topic, partition and offset of each."""
        fault = "places must be lists of [topic, partition, offset]"
        places: list[_Place] = convert(self.given.get("places"), list[_Place], fault)
        return places


class Gets:
    """Answers tickets. Any thread."""

    def __init__(self, log: EmbeddedLog) -> None:
        self._log = log
        self.waiters = Waiters()
        self.stopping = False

    def stream(self, ticket: Ticket, gone: Gone) -> tuple[pa.Schema, Iterator[Any]] | pa.Table:
        """Return a ticket's answer: a table, or a schema and the batches that follow."""
        if ticket.call == "read":
            return self._read(ticket, gone)
        if ticket.call == "fetch":
            return self._fetch(ticket, gone)
        if ticket.call == "range":
            return self._range(ticket, gone, follow=False)
        if ticket.call == "follow":
            return self._range(ticket, gone, follow=True)
        if ticket.call == "scan":
            return self._scan(ticket)
        table = self._table(ticket)
        if ticket.call == "record":
            record = table._find(ticket.given.get("key", b""), COLUMNS)
            return table.schema.empty_table() if record is None else pa.Table.from_batches([record])
        if ticket.call == "latest":
            return table.latest(ticket.columns())
        if ticket.call == "as_of":
            return table.as_of(
                ticket.given.get("offset"),
                ticket.given.get("time"),
                ticket.columns(),
                ticket.where(),
            )
        raise ProtocolError("unknown stream", call=ticket.call)

    def _table(self, ticket: Ticket) -> Table:
        """Return the table of a ticket, if its topic is the one that the client means."""
        table = self._log.table(ticket.text("topic"))
        check_same(table, ticket.given.get("id"))
        return table

    # One answer

    def _read(self, ticket: Ticket, gone: Gone) -> pa.Table:
        topic, partition = ticket.text("topic"), ticket.given.get("partition", 0)
        bounds = ticket.bounds()
        columns = ticket.columns()
        seconds = self._wait_seconds(ticket)
        offset = ticket.given.get("offset", "earliest")
        log = self._log
        table, wanted = log._read_now(topic, partition, offset, bounds, columns)
        if not table.num_rows and seconds:
            self._wait(ticket, seconds, gone, wanted)
            following = next(iter(wanted.values()))
            table, wanted = log._read_now(topic, partition, following, bounds, columns)
        return _with(table, {"following": next(iter(wanted.values()))})

    def _wait_seconds(self, ticket: Ticket) -> float:
        seconds = wait_seconds(ticket.given.get("wait_ms", 0))
        most = WAIT_MS_MAX / 1000
        return most if seconds is None else min(seconds, most)

    def _wait(self, ticket: Ticket, seconds: float, gone: Gone, wanted: Any) -> None:
        """Wait until a partition has a record, the waiter is woken, or nobody is there."""
        reading, name = self._log.parts.reading, str(ticket.given.get("waiter", ""))
        woken = self.waiters.begin(name)
        stop = reading.watch(wanted, woken.set)
        try:
            self._sleep(woken, lambda: reading.ready(wanted), seconds, gone)
        finally:
            stop()
            self.waiters.end(name)

    def _sleep(
        self, woken: threading.Event, ready: Callable[[], bool], seconds: float, gone: Gone
    ) -> None:
        deadline = time.monotonic() + seconds
        while not self.stopping and not ready():
            left = deadline - time.monotonic()
            if left <= 0 or woken.wait(min(left, _LOOK_SECONDS)) or gone():
                return

    def _fetch(self, ticket: Ticket, gone: Gone) -> pa.Table:
        """Return a consumer's next records, or at least where it is."""
        cursor, bounds, columns = _cursor(ticket), ticket.bounds(), _columns_to_fetch(ticket)
        reading, member = self._log.parts.reading, ticket.given.get("member")
        allowed = None
        if member:
            held = frozenset(cursor.positions)
            allowed = self._log.parts.groups.heartbeat(str(cursor.group), str(member), held)
            if allowed != held:
                return self._answer_fetch(ticket, cursor, Fetched(None, {}, {}, allowed))
        seconds = self._wait_seconds(ticket)
        fetched = fetch(reading, cursor, bounds, columns)
        if fetched.table is None and seconds:
            self._wait_for_records(ticket, cursor, seconds, gone)
            fetched = fetch(reading, cursor, bounds, columns)
        return self._answer_fetch(ticket, cursor, fetched._replace(allowed=allowed))

    def _wait_for_records(self, ticket: Ticket, cursor: Cursor, seconds: float, gone: Gone) -> None:
        """Wait until there are records, the group changes, or the client wakes or leaves."""
        reading, groups = self._log.parts.reading, self._log.parts.groups
        name, group = str(ticket.given.get("waiter", "")), str(cursor.group)
        member = ticket.given.get("member")
        woken = self.waiters.begin(name)
        if member:
            groups.watch(group, woken.set)
        wanted = next_wanted(reading, cursor)
        stop = reading.watch(wanted, woken.set)
        try:
            self._sleep(woken, lambda: reading.ready(wanted), seconds, gone)
        finally:
            stop()
            if member:
                groups.unwatch(group, woken.set)
            self.waiters.end(name)

    def _answer_fetch(self, ticket: Ticket, cursor: Cursor, fetched: Fetched) -> pa.Table:
        table = fetched.table
        said = {
            "allowed": None if fetched.allowed is None else sorted(fetched.allowed),
            "positions": _offsets(cursor.positions),
            "following": _offsets(fetched.following),
            "given": _offsets(fetched.given),
            "ids": cursor.ids,
            "turn": cursor.turn,
            "skipped": cursor.skipped_records,
            "empty": table is None,
        }
        if table is None:
            reading = self._log.parts.reading
            names = reading.names()
            existing = [topic for topic, _, _ in ticket.places() if topic in names]
            table = (
                reading.empty(reading.topic(existing[0]), _columns_to_fetch(ticket))
                if existing
                else pa.table({"offset": pa.array([], pa.int64())})
            )
        return _with(table, said)

    # Streams

    def _range(
        self, ticket: Ticket, gone: Gone, *, follow: bool
    ) -> tuple[pa.Schema, Iterator[Any]]:
        topic, partition = ticket.text("topic"), ticket.given.get("partition", 0)
        columns = ticket.columns()
        reading = self._log.parts.reading
        topic_state = reading.topic(topic)
        if ticket.given.get("id", topic_state.id) != topic_state.id:
            raise no_topic(topic)
        offset = reading.start(topic_state, partition, ticket.given.get("offset", "earliest"))
        end = reading.bounds(topic_state, partition)[1]
        until = None if follow else min(end, ticket.whole("until", end))
        schema = reading.empty(topic_state, columns).schema
        return schema, self._batches(topic_state, partition, offset, until, columns, schema, gone)

    def _batches(
        self,
        topic: Any,
        partition: int,
        offset: int,
        until: int | None,
        columns: list[str] | None,
        schema: pa.Schema,
        gone: Gone,
    ) -> Iterator[Any]:
        reading = self._log.parts.reading
        key = reading.key(topic, partition)
        # Of a compacted segment only the offsets tell where the range ends.
        inner = None if columns is None else [*columns, "offset"]
        while (until is None or offset < until) and not self.stopping:
            records = _BATCH.records if until is None else min(_BATCH.records, until - offset)
            table, following = reading.read(
                topic, partition, offset, _BATCH._replace(records=records), inner
            )
            if until is not None and following > until:
                table = table.filter(pc.less(table.column("offset"), until))
            table = table.select(schema.names)
            if table.num_rows and not table.schema.equals(schema):
                raise SchemaChangeError(  # the stream's schema was said at its beginning
                    "the topic got a field: begin a new stream", topic=topic.name, offset=offset
                )
            yield from table.to_batches()
            if following == offset:
                if until is not None:
                    return
                if not reading.wait({key: offset}, _LOOK_SECONDS) and gone():
                    return  # while there are records, sending them shows whether it is
            offset = following

    def _scan(self, ticket: Ticket) -> tuple[pa.Schema, Iterator[Any]]:
        reader = self._table(ticket).scan(
            ticket.columns(),
            ticket.where(),
            partitions=ticket.given.get("partitions"),
            start=ticket.given.get("start"),
            until=ticket.given.get("until"),
        )
        return reader.schema, iter(reader)


def _cursor(ticket: Ticket) -> Cursor:
    """Return the cursor of a client's consumer."""
    group, ids = ticket.given.get("group"), ticket.given.get("ids", {})
    if not isinstance(ids, dict):
        raise ProtocolError("ids must be a map of topics")
    cursor = Cursor(None if group is None else str(group))
    cursor.positions = {
        TopicPartition(topic, partition): offset for topic, partition, offset in ticket.places()
    }
    cursor.ids = dict(ids)
    cursor.turn = ticket.whole("turn")
    return cursor


def _columns_to_fetch(ticket: Ticket) -> list[str] | None:
    """Return the columns of a fetch, which always include where each record is."""
    columns = ticket.columns()
    return None if columns is None else sorted({*columns, "partition", "offset"})


def _with(table: pa.Table, said: dict[str, Any]) -> pa.Table:
    metadata = {**(table.schema.metadata or {}), b"lakebed": pack(said)}
    return table.replace_schema_metadata(metadata)


def _offsets(offsets: dict[Any, int]) -> list[tuple[str, int, int]]:
    return [(*partition, offset) for partition, offset in offsets.items()]
