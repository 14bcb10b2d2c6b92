"""Put streams of a client: what was sent and not yet acknowledged, and sending it again.

A lane is one stream into one topic, under one producer. Its batches are numbered by the producer's
sequence, so the server recognises what it has already: when the connection breaks, everything that
was not acknowledged is sent again, in order, on the next one. The server remembers the last
`SEQUENCES_KEPT` batches of each partition, so no more than that are under way.

A batch that the server refuses leaves a gap, for which it refuses the ones sent behind it. These
are not lost: once all are answered, they are numbered again and sent again.

A server that does not own the log refuses its batches, and one that was fenced cannot say whether
it wrote them. Both end the stream like a broken connection: the batches are sent to another server
under the same numbers.

A batch that was under way when its stream broke is *doubtful*: it may have been written. It is sent
again under the same numbers, and only its acknowledgement settles that; whatever else ends the
waiting for it is an unknown outcome. Numbers that a doubtful batch had are never used for another
one: the lane then takes a new producer.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Final

import pyarrow as pa
import pyarrow.flight as fl

from lakebed import limits
from lakebed.client.connection import PAUSE_SECONDS, PAUSE_SECONDS_MAX, Connection, is_unsent
from lakebed.client.put_items import (
    Item,
    NoRecords,
    RecordSource,
    mark_settling_thread,
    unknown_outcome,
)
from lakebed.client.sequences import PutSequences
from lakebed.errors import (
    ClosedError,
    FencedError,
    LakebedError,
    NotOwnerError,
    ProtocolError,
    QuotaExceededError,
    RejectedError,
    SequenceGapError,
    ServerUnavailableError,
    StopError,
    UnknownOutcomeError,
)
from lakebed.host.forks import keep_forever, watch_forks
from lakebed.host.retry import Backoff
from lakebed.wire.protocol import STREAM_REQUESTS_MAX, pack, unpack

_UNANSWERED_SECONDS: Final = 2.0
"""After so long without an answer it is asked whether another server owns the log."""
_SILENT_SECONDS: Final = 1.0
"""How long beyond its deadline a batch waits for a server that is there and says nothing."""
_QUEUED_MAX: Final = 64
"""Batches that wait for their turn; whoever comes with more waits too."""


class ProducerStream:
    """A put stream of one producer (or transaction) into one topic. Any thread."""

    def __init__(
        self,
        *,
        connection: Connection,
        topic: str,
        topic_id: int,
        version: int,
        schema: pa.Schema,
        register: Callable[[], tuple[int, int]],
        kind: str,
        numbered: bool,
        gathered: RecordSource | None = None,
    ) -> None:
        self._connection = connection
        self._topic = self.topic = topic
        self._head = (topic_id, version)
        self._schema = schema
        self._register = register
        self._known: tuple[int, int] | None = None
        self._kind = kind
        self._numbered = numbered
        """Whether the lane gives sequence numbers itself."""
        self._gathered: RecordSource = NoRecords() if gathered is None else gathered
        self._window = limits.SEQUENCES_KEPT if kind == "producer" else STREAM_REQUESTS_MAX // 2
        self._guard = threading.Lock()
        self._changed = threading.Condition(self._guard)
        self._sending = threading.Lock()
        self._queue: deque[Item] = deque()
        self._flying: dict[int, Item] = {}
        self._again: list[Item] = []
        self._gap = False
        """A batch was refused: those behind it come back, and are then numbered again."""
        self._renew = False
        """The producer cannot be used any more: not known, or its numbers are in doubt."""
        self._generation = 0
        """Counts the threads: one that was given up ends when it notices."""
        self._ended = False
        """Its thread is gone, and there will be no other."""
        self._sequences = PutSequences()
        self._number = 0
        self._over_quota: QuotaExceededError | None = None
        """Why the server refuses the stream for now; None once it has answered something."""
        self._writer: Any = None
        self._closed = False
        self._thread: threading.Thread | None = None
        watch_forks(self)

    def after_fork(self) -> None:
        """Send nothing more: the stream, and what is in flight on it, belong to the parent."""
        keep_forever(self._writer)
        self._guard = threading.Lock()
        self._changed = threading.Condition(self._guard)
        self._sending = threading.Lock()
        self._queue, self._flying, self._again = deque(), {}, []
        self._writer = self._thread = None
        self._closed = self._ended = True

    # Sending

    def submit(self, item: Item) -> None:
        """Have a batch sent; it is told what came of it."""
        self._connection.check_process()
        item.deadline = time.monotonic() + self._connection.config.retry_ms / 1000
        with self._guard:
            self._wait_while(lambda: len(self._queue) >= _QUEUED_MAX)
            self._queue.append(item)
        self.pump()

    def wait_while(self, crowded: Callable[[], bool]) -> None:
        """Hold up whoever sends faster than the server takes it."""
        with self._guard:
            self._wait_while(crowded)

    def _wait_while(self, crowded: Callable[[], bool]) -> None:
        while crowded() and not self._closed:
            if threading.current_thread() is self._thread:
                break  # it is the one that makes room
            self._changed.wait()
        if self._closed:
            raise ClosedError("the log is closed")

    @property
    def full(self) -> bool:
        """Whether the next batch would have to wait."""
        return len(self._queue) >= _QUEUED_MAX

    def pump(self) -> None:
        """Send what may be sent now."""
        self._connection.check_process()
        if self._thread is None:
            self._start()
        while (sending := self._sending).acquire(blocking=False):
            try:
                while (flight := self._take()) is not None:
                    self._send(*flight)
            finally:
                sending.release()
            if not self._has_more():  # came while nobody could send
                return

    def _start(self) -> None:
        with self._guard:
            if self._thread is None:
                self._start_thread()
            self._changed.notify_all()

    def _start_thread(self) -> None:
        self._generation += 1
        self._thread = threading.Thread(
            target=self._run,
            args=(self._generation,),
            name=f"lakebed-puts-{self._topic}",
            daemon=True,
        )
        self._thread.start()

    def _may_send(self) -> bool:
        return self._writer is not None and not self._gap and len(self._flying) < self._window

    def _has_more(self) -> bool:
        with self._guard:
            if self._writer is None:
                self._changed.notify_all()
                return False
            return (bool(self._queue) or self._gathered.waiting()) and self._may_send()

    def _take(self) -> tuple[Any, int, Item] | None:
        """Return the next batch that may be sent, with its number."""
        with self._guard:
            if not self._may_send():
                return None
            item = self._queue.popleft() if self._queue else self._gathered.take()
            if item is None:
                return None
            if not item.deadline:
                item.deadline = time.monotonic() + self._connection.config.retry_ms / 1000
            if item.sequences is None and self._numbered:
                self._sequences.assign(item)
            self._number += 1
            self._flying[self._number] = item
            return self._writer, self._number, item

    def _send(self, writer: Any, message_id: int, item: Item) -> None:
        item.sent = True
        item.sent_at = time.monotonic()
        if item.sequences is None:
            runs: list[Any] = list(item.runs)
        else:
            runs = [
                (*run, sequence) for run, sequence in zip(item.runs, item.sequences, strict=True)
            ]
        try:
            message = pack([message_id, self._kind, *self._identity(), *self._head, runs])
            writer.write_with_metadata(item.batch, message)
        except LakebedError as error:  # no identity could be had
            item.sent = False
            with self._guard:
                self._flying.pop(message_id, None)
                self._gap = self._numbered  # its numbers are free again
            item.give_up(error, self._connection.url)
        except (pa.ArrowException, OSError):
            self._lose(writer)  # the reading thread sees to it

    def _lose(self, writer: Any) -> None:
        with self._guard:
            if self._writer is writer:
                self._writer = None

    # The lane's thread

    def _run(self, generation: int) -> None:
        mark_settling_thread()
        backoff = Backoff(PAUSE_SECONDS, PAUSE_SECONDS_MAX)
        while self._wait_for_work():
            if generation != self._generation:
                return  # another thread does this now
            answered = self._number
            address = self._connection.route.current
            try:
                writer, reader = self._begin()
                self.pump()
                self._read(reader, generation)
                if generation != self._generation:
                    return  # it was given up; whoever waited has been told
                self._close(writer)
            except (LakebedError, pa.ArrowException, OSError) as failure:
                if generation == self._generation:
                    error = self._connection.error_of(failure)
                    self._broken(error, unsent=is_unsent(failure))
                    self._connection.leave(address, error)
            finally:
                if generation == self._generation:
                    self._end()
            if self._number > answered + len(self._flying):
                backoff.reset()
            self.expire()
            self._pause(backoff.next())
        with self._guard:
            self._ended = True
        self._gathered.refuse(ClosedError("the log is closed"))

    def _wait_for_work(self) -> bool:
        """Wait until there is something to send; False when there never will be."""
        with self._guard:
            while not self._closed and not self._pending():
                self._changed.wait()
            return bool(self._pending())

    def _pending(self) -> bool:
        return bool(self._queue or self._flying or self._gathered.waiting())

    def _identity(self) -> tuple[int, int]:
        """Return the producer's id and epoch; a lane of its own numbering gets one of its own."""
        if self._known is None:
            self._known = self._register()
        return self._known

    def _begin_anew(self) -> None:
        """Take another producer: what the last one's numbers stand for is not known."""
        self._known = None
        self._sequences.forget()

    def _begin(self) -> tuple[Any, Any]:
        """Open a stream and send again what was not acknowledged on the last one."""
        descriptor = fl.FlightDescriptor.for_path(self._topic)
        with self._sending:
            self._identity()
            writer, reader = self._connection.client.do_put(
                descriptor, self._schema, self._connection.options
            )
            with self._guard:
                self._writer = writer
                again = list(self._flying.items())
            for message_id, item in again:
                self._send(writer, message_id, item)
        return writer, reader

    def _read(self, reader: Any, generation: int) -> None:
        """Take acknowledgements until the stream ends."""
        while True:
            buffer = reader.read()
            if buffer is None or generation != self._generation:
                return
            acks = unpack(memoryview(buffer))
            self._over_quota = None
            try:
                for message_id, answer in acks:
                    self._answer(message_id, answer)
            except (TypeError, ValueError) as error:
                raise ProtocolError("an acknowledgement must be [number, runs]") from error
            self._number_anew()
            self.pump()
            with self._guard:
                self._changed.notify_all()  # there may be room now
                done = self._closed and not self._pending()
            if done:
                self._hang_up()

    def _close(self, writer: Any) -> None:
        """End a stream that the server has ended, and raise why it did."""
        with self._sending:
            self._lose(writer)
            writer.close()
        raise ServerUnavailableError("the server ended the stream")

    def _answer(self, message_id: int, answer: Any) -> None:
        if message_id == 0:  # about the stream: the server is stopping
            self._hang_up()
            return
        if isinstance(answer, LakebedError) and self._may_pass(answer):
            raise answer  # what is under way stays so, and is sent to another server
        with self._guard:
            item = self._flying.pop(message_id, None)
            if item is None:
                return
            item.sent = False
            failed = isinstance(answer, LakebedError)
            if failed and self._numbered and self._comes_again(item, answer):
                self._again.append(item)
                return
            if not failed:
                self._sequences.acknowledge(item)
        if failed:
            item.give_up(answer, self._connection.url)
        else:
            item.settle(answer, None)

    def _may_pass(self, error: LakebedError) -> bool:
        """Return True if another server may take what this one has refused."""
        numbered = self._kind == "producer"  # what is sent again under its numbers lands once
        return isinstance(error, NotOwnerError | UnknownOutcomeError | StopError) and (
            self._connection.may_pass(error, safe=numbered)
        )

    def _comes_again(self, item: Item, error: LakebedError) -> bool:
        """Decide on a batch that was refused: whether it is sent again, and under whom."""
        if self._gap and not self._renew and isinstance(error, SequenceGapError):
            return True  # because of one before it
        self._gap = True
        if isinstance(error, FencedError | SequenceGapError):
            # The log does not know the producer, or not its numbers: those before were lost.
            self._renew = True
            moved, item.moved = item.moved, True
            return not moved and not item.doubtful
        if not isinstance(error, RejectedError):
            self._renew = True  # it may be written, and its numbers used
            return False
        if item.doubtful:
            if error.retriable and item.deadline > time.monotonic():
                return True
            self._renew = True
        return False

    def _number_anew(self) -> None:
        """Send again what came back because of a gap, once everything has come back."""
        with self._guard:
            if not self._gap or self._flying:
                return
            self._gap = False
            again, self._again = self._again, []
            lost: list[Item] = []
            if self._renew:
                # Under another producer a doubtful one would be written twice.
                lost = [item for item in again if item.doubtful]
                again = [item for item in again if not item.doubtful]
                self._begin_anew()
                self._renew = False
            self._sequences.rewind()
            self._queue.extendleft(reversed(again))
            for item in self._queue if self._numbered else ():
                if item.doubtful and item.sequences is not None:
                    self._sequences.keep(item)
                else:
                    item.sequences = None
            waits = any(item.doubtful for item in again)
        for item in lost:
            item.settle(None, unknown_outcome(self._connection.url))
        if waits:
            time.sleep(PAUSE_SECONDS_MAX / 10)  # it was refused for now

    def _hang_up(self) -> None:
        """Send no more on this stream; what was sent before is still answered."""
        with self._sending:  # no batch may be halfway out
            with self._guard:
                writer, self._writer = self._writer, None
            if writer is not None:
                with contextlib.suppress(pa.ArrowException, OSError):
                    writer.done_writing()

    def _end(self) -> None:
        with self._guard:
            writer, self._writer = self._writer, None
        if writer is not None:
            with contextlib.suppress(pa.ArrowException, OSError):
                writer.close()

    def _broken(self, error: LakebedError, *, unsent: bool) -> None:
        """Keep what can be sent again on another stream, tell the others.

        With `unsent` the server has certainly written nothing that it did not acknowledge.
        """
        lost: list[Item] = []
        passing = isinstance(error, ServerUnavailableError | QuotaExceededError) or self._may_pass(
            error
        )
        self._over_quota = error if isinstance(error, QuotaExceededError) else None
        with self._guard:
            self._settle_doubts(unsent=unsent)
            ended = not passing or self._connection.closed
            if ended:
                lost = self._clear()
            elif self._kind != "producer" and unsent:
                self._queue.extendleft(reversed(self._flying.values()))
                self._flying.clear()
            elif self._kind != "producer":
                # Nothing of an open transaction counts before its commit, which cannot come now.
                lost, self._flying = list(self._flying.values()), {}
        for item in lost:
            item.give_up(error, self._connection.url)
        if ended:
            self._gathered.refuse(error)

    def _settle_doubts(self, *, unsent: bool) -> None:
        """Note, of a stream that is over, what may have been written by it."""
        for item in self._flying.values():
            # Of a transaction nothing counts before its commit.
            item.doubtful |= item.sent and not unsent and self._kind == "producer"
            item.sent = False

    def _clear(self) -> list[Item]:
        """Take away everything that waits for an answer or for its turn."""
        items = [*self._flying.values(), *self._again, *self._queue]
        if self._numbered and (self._renew or any(item.doubtful for item in items)):
            self._begin_anew()
        self._sequences.rewind()
        self._flying, self._again = {}, []
        self._queue.clear()
        self._gap = self._renew = False
        self._changed.notify_all()
        return items

    def look_after(self) -> None:
        """Give up a stream on which nothing comes, so that no caller waits forever."""
        elsewhere = self._is_unanswered() and self._connection.look_elsewhere()
        with self._guard:
            late = time.monotonic() - _SILENT_SECONDS
            if not elsewhere and not any(item.deadline < late for item in self._flying.values()):
                return
            self._settle_doubts(unsent=False)
            self._writer = None  # its thread ends when the server speaks again, or is gone
            self._sending = threading.Lock()  # the other one may be held by who cannot send
            if not self._closed:
                self._start_thread()
        self.expire()

    def _is_unanswered(self) -> bool:
        """Return True if the server is silent: another one may have taken over."""
        if not self._connection.route.has_several:
            return False
        with self._guard:
            since = time.monotonic() - _UNANSWERED_SECONDS
            return any(item.sent and item.sent_at < since for item in self._flying.values())

    def expire(self) -> None:
        """Report those that have waited for too long."""
        now, url = time.monotonic(), self._connection.url
        patience = self._connection.config.retry_ms / 1000
        with self._guard:
            under_way = (*self._flying.values(), *self._queue)
            late = any(item.deadline < now for item in under_way)
            if not late and self._gathered.since() + patience >= now:
                return
            # Once one of them is given up, those numbered behind it are too.
            lost = self._clear()
        gone = self._over_quota or ServerUnavailableError("the server does not answer", url=url)
        for item in lost:
            item.give_up(gone, url)
        self._gathered.refuse(gone)

    def _pause(self, seconds: float) -> None:
        with self._guard:
            if self._pending():
                self._changed.wait(seconds)

    def drain(self) -> None:
        """Wait until everything that was submitted is settled."""
        with self._guard:
            while self._pending() and not self._ended:
                self._changed.wait(PAUSE_SECONDS_MAX)

    def refuse_late(self) -> None:
        """Refuse records that were gathered after the lane had ended."""
        with self._guard:
            ended = self._ended
        if ended:
            self._gathered.refuse(ClosedError("the log is closed"))

    @property
    def identity(self) -> tuple[int, int] | None:
        """The producer that the lane writes under, if it has written."""
        return self._known

    def close(self, timeout: float = 5.0) -> None:
        """Send what is left, then end the stream."""
        with self._guard:
            if self._closed:
                return
            self._closed = True
            thread = self._thread
            self._changed.notify_all()
            idle = not self._pending()
        if idle:
            self._hang_up()
        if thread is not None and thread is not threading.current_thread():
            thread.join(timeout)
