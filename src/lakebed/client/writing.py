"""Writing to a served log: records are checked, routed and encoded here, as the engine does it.

Producers and transactions use it as they use the engine's `Writing`; what they submit goes to a
server instead of a WAL. Plain appends travel under a producer too, one for each topic, so that a
record whose acknowledgement got lost is sent again and written once.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, Final, TypeVar

import pyarrow as pa

from lakebed.api.acks import Ack, Acks
from lakebed.api.encoding import (
    EncodedPart,
    Record,
    Rows,
    WriteTarget,
)
from lakebed.api.writing import Identity, LogWriter
from lakebed.client.connection import Connection
from lakebed.client.gathering import GatheredRecords, placements
from lakebed.client.put_items import Item, Runs, check_may_wait, future_item, in_callback
from lakebed.client.puts import ProducerStream
from lakebed.client.topics import RemoteTopics
from lakebed.errors import (
    InvalidArgumentError,
    LakebedError,
    PartitionNotFoundError,
    RecordTooLargeError,
    SchemaMismatchError,
    TopicNotFoundError,
    TransactionClosedError,
    TransactionTimedOutError,
    UnknownOutcomeError,
)
from lakebed.host.forks import watch_forks
from lakebed.state.commands import (
    AbortTransaction,
    BeginTransaction,
    Command,
    CommitTransaction,
    ForgetProducer,
    ProducerWrite,
    RegisterProducer,
    TransactionWrite,
)
from lakebed.state.decision import Written
from lakebed.state.values import Part, Run
from lakebed.topic.memtable import Body
from lakebed.topic.routing import Routed

STALE_TOPIC_ERRORS: Final = (
    PartitionNotFoundError,
    RecordTooLargeError,
    SchemaMismatchError,
    TopicNotFoundError,
)
"""Refusals that a change of the topic, made elsewhere, may explain."""
_LOOK_SECONDS: Final = 1.0

Result = TypeVar("Result")

LaneKey = tuple[str, Identity, int, int]
"""Kind, producer, topic and schema version."""


class Carried(Body):
    """The batch of a part that is on its way to a server, not encoded yet."""

    __slots__ = ()

    def __init__(self, batch: pa.RecordBatch) -> None:
        super().__init__(batch.serialize, batch.schema, batch.nbytes)
        self._batch = batch


class RemoteWriting(LogWriter):
    """Everything that appends, over a connection. Any thread."""

    def __init__(self, topics: RemoteTopics, connection: Connection, entry_bytes_max: int) -> None:
        super().__init__(topics, entry_bytes_max)
        self._topics = topics
        self._connection = connection
        self._lanes: dict[LaneKey, ProducerStream] = {}
        self._gathering_lanes: dict[LaneKey, GatheredRecords] = {}
        self._lanes_guard = threading.Lock()
        self._watching: threading.Thread | None = None
        self._ending = threading.Event()
        self._written: dict[Identity, list[tuple[int, Future[Any]]]] = {}
        """Of open transactions: the topic of each part, in the order in which they were written."""
        watch_forks(self)

    def after_fork(self) -> None:
        """Forget the put streams, which belong to the parent process."""
        self._lanes_guard = threading.Lock()
        self._lanes, self._gathering_lanes, self._written = {}, {}, {}

    @property
    def in_callback(self) -> bool:
        """Return whether this is the thread that brings answers, running a callback."""
        return in_callback()

    # Batches

    def append_batch(self, topic: str, rows: Rows, partition: int | None) -> Acks:
        """Append a batch atomically; return when it is durable."""
        check_may_wait()
        return self.fresh(topic, lambda: self._post_batch(topic, rows, partition).result())

    def append_batch_async(self, topic: str, rows: Rows, partition: int | None) -> Future[Acks]:
        """Append a batch atomically; the future gives where it is, when it is durable."""
        return self.fresh(topic, lambda: self._post_batch(topic, rows, partition))

    def _post_batch(self, topic: str, rows: Rows, partition: int | None) -> Future[Acks]:
        target = self.target(topic)
        encoded = self.encode_rows(target, rows, partition)
        if encoded is None:
            empty: Future[Acks] = Future()
            empty.set_result(Acks(topic, (), None))
            return empty
        self.check_size(encoded.body.size_bytes)
        name, order = target.topic.name, encoded.order
        item, future = future_item(
            encoded.body.batch(),
            encoded.part.runs,
            lambda runs: Acks(name, placements(runs), order),
        )
        self._own_lane(target).submit(self._doubting(name, item))
        return future

    def fresh(self, topic: str, attempt: Callable[[], Result]) -> Result:
        """Try again once if the topic was changed elsewhere since it was looked at."""
        try:
            return attempt()
        except STALE_TOPIC_ERRORS:
            if not isinstance(topic, str) or not self._topics.has_changed(topic):
                raise
            return attempt()

    def doubt(self, topic: str | int, error: LakebedError | None) -> None:
        """Look at a topic again before the next record, if a refusal may come from a change."""
        if isinstance(error, STALE_TOPIC_ERRORS):
            topic_state = self._topics.topic(topic) if isinstance(topic, int) else None
            self._topics.forget(str(topic) if topic_state is None else topic_state.name)

    def _doubting(self, topic: str | int, item: Item) -> Item:
        """Have a topic doubted before whoever waits for a batch is told that it was refused."""
        tell = item.settle

        def settle(runs: Runs | None, error: LakebedError | None) -> None:
            self.doubt(topic, error)
            tell(runs, error)

        item.settle = settle
        return item

    def encode_routed(self, target: WriteTarget, routed: Routed) -> EncodedPart:
        """Take a batch whose rows stand partition by partition; the connection encodes it."""
        runs = tuple(Run(*part) for part in routed.parts)
        part = Part(target.topic.id, len(target.topic.schemas), runs, routed.batch.nbytes)
        return EncodedPart(part, Carried(routed.batch), routed.order)

    # Single records

    def write(
        self,
        topic: str,
        value: Any,
        key: Any,
        headers: Mapping[str, Any] | None,
        partition: int | None,
        timestamp: Any,
    ) -> Ack:
        """Check and append one record; return its position when it is durable."""
        return self.fresh(
            topic,
            lambda: self.append(self.record(topic, value, key, headers, partition, timestamp)),
        )

    def record(
        self,
        topic: str,
        value: Any,
        key: Any,
        headers: Mapping[str, Any] | None,
        partition: int | None,
        timestamp: Any,
    ) -> Record:
        """Check one record in its caller's thread."""
        check = super().record
        return self.fresh(topic, lambda: check(topic, value, key, headers, partition, timestamp))

    def record_at_once(self, topic: str, *arguments: Any) -> Record | None:
        """Check a record without a call to the server; None if that is needed, or it is refused."""
        if not isinstance(topic, str) or self._topics.find(topic) is None:
            return None
        with contextlib.suppress(LakebedError):
            return super().record(topic, *arguments)
        return None

    def append(self, record: Record) -> Ack:
        """Append one record, together with those of whoever else is appending."""
        check_may_wait()
        return self.append_async(record).result()

    def append_async(self, record: Record) -> Future[Ack]:
        """Append one record; the future gives its place when it is durable."""
        future: Future[Ack] = Future()
        future.set_running_or_notify_cancel()
        self.post(record, future)
        return future

    def post(self, record: Record, future: Future[Ack]) -> None:
        """Append one record; the future is told its place."""
        lane = self._own_lane(record.target)
        gathered = self._gathering_lanes[self._own_key(record.target)]
        if gathered.is_crowded() and not in_callback():  # there, waiting would make no room
            lane.pump()
            lane.wait_while(gathered.is_crowded)
        gathered.add(record, future)
        lane.pump()
        lane.refuse_late()

    # Commands

    def submit(self, command: Command, bodies: Sequence[Body] = ()) -> Any:
        """Have the server carry out a command."""
        call = self._connection.call
        if isinstance(command, RegisterProducer):
            return tuple(call("register_producer", name=command.name or None))
        if isinstance(command, ForgetProducer):
            return call("forget_producer", producer=command.producer, epoch=command.epoch)
        if isinstance(command, BeginTransaction):
            timeout_ms = max(1, command.timeout_us // 1000)
            return tuple(
                call("begin_transaction", name=command.name or None, timeout_ms=timeout_ms)
            )
        if isinstance(command, AbortTransaction):
            self.release((command.producer, command.epoch))
            return call("abort_transaction", producer=command.producer, epoch=command.epoch)
        if isinstance(command, CommitTransaction):
            return self._commit(command, bodies)
        return self.submit_async(command, bodies, lambda result: result).result()

    def submit_async(
        self, command: Command, bodies: Sequence[Body], answer: Callable[[Any], Any]
    ) -> Future[Any]:
        """Have the server carry out a write; the future tells what `answer` makes of its result."""
        if isinstance(command, ProducerWrite):
            part, identity = command.part, (command.producer, command.epoch)
            item, future = future_item(
                bodies[0].batch(),
                part.runs,
                lambda runs: answer(Written((placements(runs),))),
                command.sequences,
            )
            self._lane("producer", identity, part).submit(self._doubting(part.topic, item))
            return future
        if isinstance(command, TransactionWrite):
            (part,) = command.parts
            item, future = future_item(bodies[0].batch(), part.runs, lambda _: answer(None))
            identity = (command.producer, command.epoch)
            self._written.setdefault(identity, []).append((part.topic, future))
            self._lane("transaction", identity, part).submit(self._doubting(part.topic, item))
            return future
        raise InvalidArgumentError("a client does not write this", command=type(command).__name__)

    def _commit(self, command: CommitTransaction, bodies: Sequence[Body]) -> Written:
        for part, body in zip(command.parts, bodies, strict=True):
            write = TransactionWrite(command.producer, command.epoch, command.time_us, (part,))
            self.submit_async(write, (body,), lambda result: result)
        identity = (command.producer, command.epoch)
        written = self._written.pop(identity, [])
        for _, future in written:
            future.result()
        self.release(identity)
        return _in_order([topic for topic, _ in written], self._commit_call(command))

    def _commit_call(self, command: CommitTransaction) -> Any:
        """Commit; when nobody knows whether it happened, ask."""

        def attempt() -> Any:
            return self._connection.call(
                "commit_transaction",
                producer=command.producer,
                epoch=command.epoch,
                offsets=list(command.offsets),
            )

        try:
            return attempt()
        except UnknownOutcomeError as unknown:
            try:
                return attempt()
            except TransactionTimedOutError:
                raise
            except TransactionClosedError as closed:
                if closed.facts.get("outcome") == "committed":
                    return None  # it had happened; only where the records are is not known
                raise
            except LakebedError:
                # Also of one without a name, which is forgotten at its end: nobody knows.
                raise unknown from None

    # Lanes

    def _own_key(self, target: WriteTarget) -> LaneKey:
        return ("append", (0, 0), target.topic.id, len(target.topic.schemas))

    def _own_lane(self, target: WriteTarget) -> ProducerStream:
        """Return the lane of plain appends to a topic."""
        self._connection.check_process()
        key = self._own_key(target)
        lane = self._lanes.get(key)
        if lane is None:
            with self._lanes_guard:
                lane = self._lanes.get(key)
                if lane is None:
                    self._retire(target.topic.name)
                    self._watch()
                    gathered = self._gathering_lanes[key] = GatheredRecords(self)
                    lane = self._lanes[key] = ProducerStream(
                        connection=self._connection,
                        topic=target.topic.name,
                        topic_id=target.topic.id,
                        version=len(target.topic.schemas),
                        schema=target.schema,
                        register=self._register,
                        kind="producer",
                        numbered=True,
                        gathered=gathered,
                    )
        return lane

    def _retire(self, topic: str) -> None:
        """Close the lanes of a topic that was changed or made again, once they are done."""
        for key in [key for key, lane in self._lanes.items() if lane.topic == topic]:
            if key[0] == "append":
                lane = self._lanes.pop(key)
                threading.Thread(
                    target=self._end_own, args=(lane,), name="lakebed-retire", daemon=True
                ).start()

    def _end_own(self, lane: ProducerStream) -> None:
        """Close a lane of plain appends, and have its producer forgotten."""
        lane.drain()
        lane.close()
        if lane.identity is not None:
            producer, epoch = lane.identity
            with contextlib.suppress(LakebedError):  # it is forgotten after a while anyway
                self._connection.call_once("forget_producer", producer=producer, epoch=epoch)

    def _watch(self) -> None:
        """Look after lanes now and then: a server may be there and say nothing."""
        if self._watching is None:
            self._watching = threading.Thread(
                target=self._look_after, name="lakebed-puts-watch", daemon=True
            )
            self._watching.start()

    def _look_after(self) -> None:
        while not self._ending.wait(_LOOK_SECONDS):
            for lane in list(self._lanes.values()):
                lane.look_after()

    def _register(self) -> Identity:
        producer, epoch = self._connection.call("register_producer", name=None)
        return producer, epoch

    def _lane(self, kind: str, identity: Identity, part: Part) -> ProducerStream:
        """Return the lane of a producer or a transaction into a topic."""
        self._connection.check_process()
        key = (kind, identity, part.topic, part.schema)
        lane = self._lanes.get(key)
        if lane is None:
            # Of one producer, streams of two versions of a schema must not overtake each other.
            for other, older in list(self._lanes.items()):
                if other[:3] == key[:3] and other != key:
                    older.drain()
            with self._lanes_guard:
                lane = self._lanes.get(key)
                if lane is None:
                    self._watch()
                    topic = self._topics.look_up(part.topic)
                    lane = self._lanes[key] = ProducerStream(
                        connection=self._connection,
                        topic=topic.name,
                        topic_id=topic.id,
                        version=part.schema,
                        schema=self._topics.schema(topic, part.schema),
                        register=lambda: identity,
                        kind=kind,
                        numbered=False,
                    )
        return lane

    def release(self, identity: Identity) -> None:
        """Close the lanes of a producer or a transaction that has ended."""
        with self._lanes_guard:
            keys = [key for key in self._lanes if key[0] != "append" and key[1] == identity]
            lanes = [self._lanes.pop(key) for key in keys]
        self._written.pop(identity, None)
        for lane in lanes:
            lane.close()

    def close(self) -> None:
        """Send what is left, and close every lane."""
        with self._lanes_guard:
            lanes, self._lanes = dict(self._lanes), {}
        for lane in lanes.values():
            lane.close()
        self._ending.set()
        for key, lane in lanes.items():
            if key[0] == "append" and lane.identity is not None:
                producer, epoch = lane.identity
                with contextlib.suppress(LakebedError):  # it is forgotten after a while anyway
                    self._connection.call_once("forget_producer", producer=producer, epoch=epoch)


def _in_order(topics: Sequence[int], answered: Any) -> Written:
    """Return the parts of a commit in the order in which they were written.

    Streams of several topics may have overtaken each other, those of one topic have not.
    """
    if answered is None:
        return Written(tuple(() for _ in topics))
    by_topic: dict[int, list[Any]] = {}
    refused: list[Any] = []
    for part in answered:
        if isinstance(part, LakebedError):
            refused.append(part)
        else:
            by_topic.setdefault(part[0][0], []).append(placements(part))
    for left in by_topic.values():
        left.reverse()
    parts = [by_topic[topic].pop() if by_topic.get(topic) else refused.pop() for topic in topics]
    return Written(tuple(parts))
