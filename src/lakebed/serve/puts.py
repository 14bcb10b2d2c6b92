"""Put streams: batches come in, acknowledgements go out, each as soon as it is due.

A message of a put stream is a batch of one topic, metadata (msgpack), or both:

    [number, "write", partition or null]             a batch; the server routes its rows
    [number, "producer", id, epoch, topic's id, schema, runs]     a batch whose rows stand
                                                     partition by partition; a run is [partition,
                                                     records, sequence of its first record]
    [number, "transaction", id, epoch, topic's id, schema, runs]  likewise, without sequences
    [number, "record", value, key, headers, partition, timestamp]   no batch; one record
    nothing                                          a batch, like "write", numbered from 1

The answers are lists of [number, runs], a run being [topic, partition, base offset, records, first
row], or [number, error]. Rows of a batch that the server routes count in the order in which they
stand partition by partition. They come in any order, several in a message if several are due. The
reader of a stream submits and reads on, so that many batches share a sync; a stream has a bounded
number of them under way, and is not read beyond it.

Acknowledgements are written by threads of a pool. Writing one waits if its client does not read;
then another thread takes the next stream, so that a client harms nobody but itself.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import AbstractContextManager, ExitStack
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow as pa

from lakebed.errors import (
    ClosedError,
    LakebedError,
    ProtocolError,
    RejectedError,
    SchemaMismatchError,
    ServerUnavailableError,
    TopicNotFoundError,
)
from lakebed.serve.calls import check_owner, to_rows
from lakebed.state.commands import ProducerWrite, TransactionWrite
from lakebed.state.decision import Written
from lakebed.state.values import NonNegative
from lakebed.topic.records import normalize
from lakebed.topic.routing import Routed
from lakebed.wire.protocol import STREAM_REQUESTS_MAX, convert, pack, unpack_request
from lakebed.wire.received import Received, batch_bytes

if TYPE_CHECKING:
    from lakebed.api.acks import Ack
    from lakebed.api.encoding import EncodedPart, WriteTarget
    from lakebed.engine.log import EmbeddedLog
    from lakebed.serve.guard import Principal

_log = logging.getLogger("lakebed.serve")

_ANSWERS_MAX: Final = 4096
"""Answers that wait until a client reads; beyond them its stream is not read either."""
_STUCK_SECONDS: Final = 0.2
"""A thread that has been writing one acknowledgement for longer is not counted on any more."""

Admit = Callable[[int], AbstractContextManager[None]]
"""Makes room for so many bytes, waiting for it if need be."""


class _RoutedBatch(NamedTuple):
    """What is sent with a batch of a producer or a transaction."""

    producer: NonNegative
    epoch: NonNegative
    topic: NonNegative
    schema: NonNegative
    runs: tuple[tuple[NonNegative, ...], ...]
    """(partition, records), and of a producer the sequence number of the first record."""


class AckPool:
    """Threads that write acknowledgements; as many as there are clients that do not read."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._due = threading.Condition(self._guard)
        self._streams: deque[PutStream] = deque()
        self._idle = 0
        self._writing: dict[int, float] = {}
        """Threads that are writing, and since when."""
        self._threads = 0
        self._closed = False

    def offer(self, stream: PutStream) -> None:
        """Have the acknowledgements of a stream written that are due."""
        with self._guard:
            self._streams.append(stream)
            if self._idle:
                self._due.notify()
            elif self._needs_thread():
                self._threads += 1
                threading.Thread(target=self._run, name="lakebed-acks", daemon=True).start()

    def _needs_thread(self) -> bool:
        """Return whether every thread there is waits for a client that does not read."""
        now = time.monotonic()
        stuck = sum(now - since > _STUCK_SECONDS for since in self._writing.values())
        return self._threads - stuck < 1

    def _run(self) -> None:
        me = threading.get_ident()
        while True:
            with self._guard:
                self._writing.pop(me, None)
                while not self._streams:
                    if self._closed or self._idle:
                        self._threads -= 1
                        return
                    self._idle += 1
                    self._due.wait()
                    self._idle -= 1
                stream = self._streams.popleft()
                self._writing[me] = time.monotonic()
            stream.write_acks()

    def watch(self) -> None:
        """Start another thread if those there are got stuck since the last offer."""
        with self._guard:
            if self._streams and not self._idle and self._needs_thread():
                self._threads += 1
                threading.Thread(target=self._run, name="lakebed-acks", daemon=True).start()

    def close(self) -> None:
        """Let the threads end once nothing is due."""
        with self._guard:
            self._closed = True
            self._due.notify_all()


class PutStream:
    """One client's stream of batches into one topic."""

    def __init__(
        self,
        *,
        log: EmbeddedLog,
        principal: Principal,
        topic: str,
        pool: AckPool,
        write: Callable[[pa.Buffer], None],
        admit: Admit,
    ) -> None:
        self._log = log
        self._principal = principal
        self._topic = topic
        self._pool = pool
        self._write = write
        self._admit = admit
        self._received = Received()
        self._guard = threading.Lock()
        self._changed = threading.Condition(self._guard)
        self._under_way = 0
        self._offered = False
        self._acks: list[Any] = []
        self._unnumbered = 0
        self.gone: Exception | None = None
        """Why the client does not get acknowledgements any more."""

    # The reader's thread

    def take(self, batch: pa.RecordBatch | None, metadata: Any) -> None:
        """Submit a message; wait first if too many are under way."""
        message_id, kind, rest = self._message(metadata)
        with self._guard:
            while self._is_full() and self.gone is None:
                self._changed.wait(1.0)
                self._pool.watch()
            self._under_way += 1
        size = batch_bytes(batch) + (0 if metadata is None else len(metadata))
        stack = ExitStack()
        try:
            stack.enter_context(self._admit(size))
            answered = self._submit(kind, batch, rest)
        except LakebedError as error:
            stack.close()
            self._settle(message_id, _bare(error))
            return
        except BaseException:
            stack.close()
            self._settle(
                message_id, RejectedError("the server failed")
            )  # or it would be waited for
            raise
        answered.add_done_callback(lambda future: self._answer(message_id, future, stack))

    def _is_full(self) -> bool:
        """Return whether too much is under way, or too many answers wait for the client to read."""
        return self._under_way >= STREAM_REQUESTS_MAX or len(self._acks) >= _ANSWERS_MAX

    def _message(self, metadata: Any) -> tuple[int, str, Any]:
        if metadata is None or not len(metadata):
            self._unnumbered += 1
            return self._unnumbered, "write", (None,)
        message = unpack_request(metadata)
        if not isinstance(message, tuple) or len(message) < 2 or type(message[0]) is not int:
            raise ProtocolError("a message begins with its number and its kind")
        return message[0], message[1], message[2:]

    def _submit(self, kind: Any, batch: pa.RecordBatch | None, rest: Any) -> Future[Any]:
        if kind == "record":
            return self._record(rest)
        if batch is None:
            raise ProtocolError("a message of this kind needs a batch", kind=kind)
        batch = self._received.check(batch)
        if kind == "write":
            if len(rest) != 1:
                raise ProtocolError("a write must be [number, kind, partition]")
            return self._log.append_batch_async(self._topic, batch, partition=rest[0])
        if kind == "producer":
            return self._producer(batch, rest)
        if kind == "transaction":
            return self._transaction(batch, rest)
        raise ProtocolError("unknown kind of message", kind=str(kind)[:40])

    def _record(self, rest: Any) -> Future[Ack]:
        if len(rest) != 5:
            raise ProtocolError("a record must be [value, key, headers, partition, timestamp]")
        value, key, headers, partition, timestamp = rest
        return self._log.append_async(
            self._topic, value, key, headers=headers, partition=partition, timestamp=timestamp
        )

    def _producer(self, batch: pa.RecordBatch, rest: Any) -> Future[Any]:
        sent, target = self._route(batch, rest, 3)
        encoded = self._encode(target, batch, sent)
        self._log.parts.admission.admit()
        command = ProducerWrite(
            self._log.parts.core.clock.time_us(),
            sent.producer,
            sent.epoch,
            tuple(run[2] for run in sent.runs),
            encoded.part,
        )
        return self._log.parts.writing.submit_async(command, (encoded.body,), _same)

    def _transaction(self, batch: pa.RecordBatch, rest: Any) -> Future[Any]:
        sent, target = self._route(batch, rest, 2)
        encoded = self._encode(target, batch, sent)
        self._log.parts.admission.admit()
        time_us = self._log.parts.core.clock.time_us()
        command = TransactionWrite(sent.producer, sent.epoch, time_us, (encoded.part,))
        return self._log.parts.writing.submit_async(command, (encoded.body,), _same)

    def _route(
        self, batch: pa.RecordBatch, rest: Any, width: int
    ) -> tuple[_RoutedBatch, WriteTarget]:
        """Check who writes, and that the runs of a batch are its rows."""
        fault = "a routed batch must be [number, kind, id, epoch, topic, schema, runs]"
        sent: _RoutedBatch = convert(rest, _RoutedBatch, fault)
        if any(len(run) != width for run in sent.runs):
            raise ProtocolError("a run has a wrong number of integers", expected=width)
        check_owner(self._log, sent.producer, self._principal.name)
        target = self._log.parts.writing.target(self._topic)
        if target.topic.id != sent.topic:
            raise TopicNotFoundError("the topic was deleted and created again", topic=self._topic)
        counts = [run[1] for run in sent.runs]
        partitions = {run[0] for run in sent.runs}
        if sum(counts) != batch.num_rows or not all(counts) or len(partitions) != len(counts):
            raise ProtocolError("the runs of a batch must be all of its rows")
        return sent, target

    def _encode(
        self, target: WriteTarget, batch: pa.RecordBatch, sent: _RoutedBatch
    ) -> EncodedPart:
        schema = sent.schema
        writing, core = self._log.parts.writing, self._log.parts.core
        if schema != len(target.topic.schemas):
            if not 0 < schema < len(target.topic.schemas):
                raise SchemaMismatchError(
                    "the topic does not have this schema version", topic=self._topic, schema=schema
                )
            older = core.schema(target.topic, schema)
            target = target._replace(schema=older, value_type=older.field("value").type)
        checked = normalize(
            batch,
            target.value_type,
            now_us=core.clock.time_us(),
            record_bytes_max=target.config.record_bytes_max,
            batch_bytes_max=writing.batch_bytes_max,
        )
        parts = [(run[0], run[1]) for run in sent.runs]
        encoded = writing.encode_routed(target, Routed(checked, parts, None))
        return encoded._replace(part=encoded.part._replace(schema=schema))

    def say(self, error: LakebedError) -> None:
        """Tell the client something about the stream itself, as the answer to number 0."""
        with self._guard:
            self._under_way += 1
        self._settle(0, error)

    def finish(self) -> None:
        """Wait until everything that was taken is answered, or nobody is there to hear it."""
        with self._guard:
            while self._under_way or (self._acks and self.gone is None) or self._offered:
                self._changed.wait(1.0)
                self._pool.watch()

    # Answers

    def _answer(self, message_id: int, future: Future[Any], stack: ExitStack) -> None:
        """Send the outcome of a request; called by the committing thread."""
        stack.close()
        error = future.exception()
        if error is None:
            self._settle(message_id, _runs(future.result()))
        elif isinstance(error, LakebedError):
            self._settle(message_id, error)
        else:
            _log.error("a put failed in an unforeseen way", exc_info=error)
            self._settle(message_id, RejectedError("the server failed", reason=str(error)))

    def _settle(self, message_id: int, answer: Any) -> None:
        if isinstance(answer, ClosedError):  # which a client would take for its own log
            answer = ServerUnavailableError("the server is stopping")
        with self._guard:
            self._under_way -= 1
            self._acks.append((message_id, answer))
            offer = not self._offered
            self._offered = True
            self._changed.notify_all()
        if offer:
            self._pool.offer(self)

    def write_acks(self) -> None:
        """Write what is due; called by a thread of the pool."""
        while True:
            with self._guard:
                acks, self._acks = self._acks, []
                self._changed.notify_all()
                if not acks or self.gone is not None:
                    self._offered = False
                    self._changed.notify_all()
                    return
            try:
                self._write(pa.py_buffer(pack(acks)))
            except (pa.ArrowException, OSError) as error:
                with self._guard:
                    self.gone = error


def _bare(error: LakebedError) -> LakebedError:
    """Return an error without what it came from, which would keep its batch in memory."""
    error.__traceback__ = error.__cause__ = error.__context__ = None
    return error


def _same(result: Any) -> Any:
    return result


def _runs(result: Any) -> Any:
    """Return a result as it travels."""
    if isinstance(result, Written):
        return to_rows(result)[0]
    if result is None or isinstance(result, int):
        return []
    if hasattr(result, "offset"):
        return [(0, result.partition, result.offset, 1, 0)]
    return [(run.topic, run.partition, run.base, run.records, run.start) for run in result._runs]
