"""Writing: what callers give becomes one entry of the log, whatever number of partitions it meets.

A batch is checked, routed and encoded by its caller's thread. Single records of many callers are
gathered: the first one opens an entry, whoever comes before that entry's turn adds to it, and the
committing thread makes one batch of all of them.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from lakebed.api.acks import Ack, Acks
from lakebed.api.encoding import (
    GATHERED_RECORDS_MAX,
    RECORD_BYTES,
    EncodedPart,
    Record,
    Rows,
    WriteTarget,
)
from lakebed.api.writing import LogWriter
from lakebed.engine.admission import Admission
from lakebed.engine.commands import Commands, outcome, running_future
from lakebed.engine.core import Core, Prepared
from lakebed.errors import LakebedError, RejectedError
from lakebed.state.command_codec import encode
from lakebed.state.commands import Command, Write
from lakebed.state.decision import Written
from lakebed.state.values import Part, Run
from lakebed.topic.memtable import Body
from lakebed.topic.records import serialize
from lakebed.topic.routing import Routed
from lakebed.wal import Wal
from lakebed.wal.request import Request, Waiter

if TYPE_CHECKING:
    from typing_extensions import Buffer


class Writing(LogWriter):
    """Everything that appends to a WAL. Any thread."""

    def __init__(self, *, core: Core, wal: Wal, commands: Commands, admission: Admission) -> None:
        super().__init__(core, wal.config.entry_bytes_max)
        self._core = core
        self._wal = wal
        self._commands = commands
        self._admission = admission
        self._gathering = threading.Lock()
        self._open: _GatheredEntry | None = None

    @property
    def in_callback(self) -> bool:
        """Return whether this is the committing thread, running a callback."""
        return self._wal.commits.in_callback

    # Batches

    def append_batch(self, topic: str, rows: Rows, partition: int | None) -> Acks:
        """Append a batch atomically; return when it is durable."""
        target = self.target(topic)
        encoded = self.encode_rows(target, rows, partition)
        if encoded is None:
            return Acks(topic, (), None)
        self._admission.admit()
        command = Write(self._core.clock.time_us(), (encoded.part,))
        written: Written = self.submit(command, (encoded.body,))
        return Acks(target.topic.name, _accept(written.parts[0]), encoded.order)

    def append_batch_async(self, topic: str, rows: Rows, partition: int | None) -> Future[Acks]:
        """Append a batch atomically; the future gives where it is, when it is durable."""
        target = self.target(topic)
        encoded = self.encode_rows(target, rows, partition)
        if encoded is None:
            empty = running_future()
            empty.set_result(Acks(topic, (), None))
            return empty
        self._admission.admit()
        order = encoded.order
        return self.submit_async(
            Write(self._core.clock.time_us(), (encoded.part,)),
            (encoded.body,),
            lambda written: Acks(target.topic.name, _accept(written.parts[0]), order),
        )

    def encode_routed(self, target: WriteTarget, routed: Routed) -> EncodedPart:
        """Encode a batch whose rows stand partition by partition."""
        raw = serialize(routed.batch)
        runs = tuple(itertools.starmap(Run, routed.parts))
        part = Part(target.topic.id, len(target.topic.schemas), runs, raw.size)
        body = Body(lambda: raw, target.schema, raw.size, holders=len(runs))
        return EncodedPart(part, body, routed.order)

    # Commands

    def submit(self, command: Command, bodies: Sequence[Body] = ()) -> Any:
        """Write a command; return its result when it is durable and applied."""
        return self._commands.submit(command, bodies)

    def submit_async(
        self, command: Command, bodies: Sequence[Body], answer: Callable[[Any], Any]
    ) -> Future[Any]:
        """Write a command; the future receives what `answer` makes of its result."""
        return self._commands.submit_async(command, bodies, answer)

    # Single records

    def append(self, record: Record) -> Ack:
        """Append one record, together with those of whoever else is appending."""
        self._admission.admit()
        self._wal.commits.check_may_wait()
        rider, own = Waiter(), _GatheredEntry(self)
        rider.make_gate()
        try:
            gathered, row = self._join(record, rider, own)
            if gathered is own:
                self._wal.commits.call(own.request)
            else:
                self._wal.commits.ride(rider)
        except BaseException as error:
            rider.abandon()
            self._give_up(own, error)
            raise
        return gathered.ack(row)

    def append_async(self, record: Record) -> Future[Ack]:
        """Append one record; the future gives its place when it is durable."""
        self._admission.admit()
        future: Future[Ack] = running_future()
        self.post(record, future)
        return future

    def post(self, record: Record, future: Future[Ack]) -> None:
        """Append one record, for which there is room; the future is told its place."""
        own = _GatheredEntry(self)
        try:
            gathered, _ = self._join(record, Waiter(), own, future)
            if gathered is own:
                self._wal.commits.post(own.request)
        except BaseException as error:
            self._give_up(own, error)
            raise

    def _join(
        self, record: Record, rider: Waiter, own: _GatheredEntry, future: Future[Ack] | None = None
    ) -> tuple[_GatheredEntry, int]:
        """Put a record into the open entry, or open `own`; return it and the record's index."""
        with self._gathering:
            gathered = self._open
            if gathered is None or not gathered.takes(record):
                own.request = self._wal.request(own.encode, Prepared(Write(0, ())))
                gathered = self._open = own
            row = gathered.add(record)
            if future is not None:
                rider.future = future
                rider.answer = lambda: gathered.ack(row)
            if gathered is not own or future is not None:
                gathered.riders.append(rider)
        return gathered, row

    def _give_up(self, gathered: _GatheredEntry, error: BaseException) -> None:
        """See to it that nobody waits in vain for an entry that will never be written."""
        if self._open is not gathered and not gathered.records:
            return  # it was never opened
        if self._wal.commits.holds(gathered.request):
            return
        self.close_gathered(gathered)
        told = (
            error
            if isinstance(error, LakebedError)
            else RejectedError("the writer was interrupted")
        )
        for rider in gathered.riders:
            rider.error = told
            rider.done = True
            rider.settle()
            rider.wake()

    def close_gathered(self, gathered: _GatheredEntry) -> None:
        """Take no further records into an entry."""
        with self._gathering:
            if self._open is gathered:
                self._open = None

    def encode_gathered(self, gathered: _GatheredEntry) -> list[Buffer]:
        """Make one entry of the records of many callers; called by the committing thread."""
        self.close_gathered(gathered)
        gathered.orders, gathered.names = [], []  # of an attempt that was cut short
        parts: list[Part] = []
        bodies: list[Body] = []
        for rows in gathered.by_topic():
            records = [gathered.records[row] for row in rows]
            encoded = self.encode_records(records)
            for position, row in enumerate(rows):
                gathered.places[row] = (len(parts), position)
            gathered.orders.append(encoded.order)
            gathered.names.append(records[0].target.topic.name)
            parts.append(encoded.part)
            bodies.append(encoded.body)
        command = Write(self._core.clock.time_us(), tuple(parts))
        payload = encode(command, [body.raw() for body in bodies])
        self.check_fits(payload)
        gathered.request.command = Prepared(command, bodies)
        return payload


class _GatheredEntry:
    """An entry that takes records until its turn comes."""

    request: Request

    def __init__(self, writing: Writing) -> None:
        self._writing = writing
        self._bytes_max = writing.gathered_bytes_max
        self.records: list[Record] = []
        self.places: dict[int, tuple[int, int]] = {}
        """For each record: its part, and its row among those of the part's topic."""
        self.orders: list[Any] = []
        self.names: list[str] = []
        self._acks: dict[int, Acks] = {}
        self._bytes = 0

    @property
    def riders(self) -> list[Waiter]:
        """Those who wait for this entry besides the one who writes it."""
        riders = self.request.riders
        return riders if isinstance(riders, list) else list(riders)

    def takes(self, record: Record) -> bool:
        """Return whether there is room for a record; the first may be as large as it likes."""
        fits = self._bytes + record.size + RECORD_BYTES <= self._bytes_max
        return fits and len(self.records) < GATHERED_RECORDS_MAX

    def add(self, record: Record) -> int:
        """Take a record; return its number."""
        self.records.append(record)
        self._bytes += record.size + RECORD_BYTES
        return len(self.records) - 1

    def by_topic(self) -> list[list[int]]:
        """Return the records of each topic (and version of its schema), in the order they came."""
        if len({id(record.target) for record in self.records}) == 1:
            return [list(range(len(self.records)))]
        rows_of: dict[tuple[int, int], list[int]] = {}
        for row, record in enumerate(self.records):
            topic = record.target.topic
            rows_of.setdefault((topic.id, len(topic.schemas)), []).append(row)
        return list(rows_of.values())

    def encode(self) -> list[Buffer]:
        """Close it and return its payload."""
        return self._writing.encode_gathered(self)

    def ack(self, row: int) -> Ack:
        """Return where a record is, or raise what its topic was refused for."""
        index, position = self.places[row]
        acks = self._acks.get(index)
        if acks is None:
            runs = _accept(outcome(self.request).parts[index])
            acks = self._acks[index] = Acks(self.names[index], runs, self.orders[index])
        return acks[position]


def _accept(part: Any) -> Any:
    if isinstance(part, LakebedError):
        raise part
    return part
