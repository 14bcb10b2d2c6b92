"""Producers: records sent one by one become batches, each written once however often it is tried.

`send` puts a record into the open batch of its topic and returns at once. A thread of the producer
closes batches (when they are large enough, or old enough, or on `flush`), numbers their records and
writes them, several at a time. A batch carries the producer's id, epoch and sequence numbers, so
the log recognises a repeat; a producer that is opened later under the same name fences this one.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Mapping
from time import time_ns
from types import TracebackType
from typing import Any, Final

import numpy as np
import pyarrow as pa

from lakebed.api.acks import Acks
from lakebed.api.backend import Backend
from lakebed.api.encoding import RECORD_BYTES, EncodedPart, WriteTarget
from lakebed.api.producer_batch import ProducerBatch, Sent, _Extra, microseconds_of
from lakebed.api.writing import Identity
from lakebed.errors import ClosedError, InvalidArgumentError, LakebedError
from lakebed.state.commands import ForgetProducer, ProducerWrite
from lakebed.state.decision import Written
from lakebed.topic.records import from_columns, normalize
from lakebed.topic.routing import Routed, partitions_of, split
from lakebed.types import Closing

_log = logging.getLogger("lakebed.engine")

_LARGE_BYTES: Final = 256 * 1024
"""A record above this gets a separate batch, so that a batch always fits into an entry.

In a log of small entries the limit is lower: what `Writing` gathers into an entry.
"""


class Producer(Closing):
    """Sends records in batches; a later producer of the same name fences it. Any thread."""

    def __init__(
        self,
        backend: Backend,
        identity: Identity,
        name: str,
        *,
        linger_ms: float,
        batch_bytes: int,
        memory_bytes: int,
    ) -> None:
        self.name = name
        self.id, self.epoch = identity
        self._backend = backend
        self._writing = writing = backend.writing
        self._linger = linger_ms / 1000
        self._batch_bytes = min(batch_bytes, writing.gathered_bytes_max)
        self._large_bytes = min(_LARGE_BYTES, writing.gathered_bytes_max)
        self._memory_bytes = memory_bytes
        self._guard = threading.Lock()
        self._changed = threading.Condition(self._guard)
        self._open: dict[str, ProducerBatch] = {}
        self._ready: deque[ProducerBatch] = deque()
        self._unsettled: dict[int, ProducerBatch] = {}
        self._held_bytes = 0
        self._sequences: dict[tuple[int, int], int] = {}
        self._turn = 0
        self._flushing = 0
        self._error: LakebedError | None = None
        self._closed = False
        self._thread: threading.Thread | None = None
        backend.adopt(self)

    def after_fork(self) -> None:
        """Refuse records from now on; those that were sent before are the parent's."""
        self._guard = threading.Lock()
        self._changed = threading.Condition(self._guard)
        self._error = error = self._backend.fork_error()
        for batch in self._unsettled.values():
            batch.abandon(error)
        self._open, self._unsettled = {}, {}
        self._ready.clear()
        self._thread = None

    def send(
        self,
        topic: str,
        value: Any,
        key: Any = None,
        *,
        headers: Mapping[str, Any] | None = None,
        partition: int | None = None,
        timestamp: Any = None,
    ) -> Sent:
        """Queue a record; it is durable when `result()` of the result, or `flush`, returns.

        The arguments are those of `Log.append`.

        Raises:
            FencedError: a producer of the same name was opened later.
        """
        batch = self._open.get(topic) if type(topic) is str else None
        if (
            batch is not None
            and type(value) is bytes
            and (key is None or type(key) is bytes)
            and headers is None
            and partition is None
            and timestamp is None
        ):
            size = len(value) if key is None else len(value) + len(key)
            if size <= batch.record_bytes_max:
                sent = Sent()
                sent._batch = batch
                sent._ticket = ticket = batch.ticket()
                batch.extend((value, key, time_ns(), ticket))
                batch.size = total = batch.size + size + RECORD_BYTES
                if not batch.closing and total < self._batch_bytes:
                    return sent
                if self._settle_in(batch, ticket):
                    return sent
        return self._send_checked(topic, value, key, headers, partition, timestamp)

    def _settle_in(self, batch: ProducerBatch, ticket: int) -> bool:
        """Close a batch that is full; return whether a record is in it, if it was closed before."""
        with self._guard:
            if not batch.closing:
                self._close_batch(batch)
                return True
            return ticket in batch.tickets

    def _send_checked(
        self,
        topic: str,
        value: Any,
        key: Any,
        headers: Mapping[str, Any] | None,
        partition: int | None,
        timestamp: Any,
    ) -> Sent:
        """Check a record that is not the plain case, and make room for it."""
        record = self._writing.record(topic, value, key, headers, partition, timestamp)
        sent = Sent()
        with self._guard:
            self._check_usable()
            self._wait_for_memory()
            batch = self._open_batch(topic, record.target)
            if batch.size and record.size > self._large_bytes:
                self._close_batch(batch)
                batch = self._open_batch(topic, record.target)
            sent._batch = batch
            sent._ticket = ticket = batch.ticket()
            if record.headers or partition is not None:
                batch.extras[ticket] = _Extra(record.headers, partition)
            item = record.value if record.batch is None else record.batch
            batch.extend((item, record.key, record.time_us * 1000, ticket))
            batch.size += record.size + RECORD_BYTES
            if batch.size >= self._batch_bytes:
                self._close_batch(batch)
        return sent

    def _open_batch(self, topic: str, target: WriteTarget) -> ProducerBatch:
        batch = self._open.get(topic)
        if batch is not None and batch.target is not target:
            self._close_batch(batch)  # the topic was changed or created again
            batch = None
        if batch is None:
            batch = self._open[topic] = ProducerBatch(target, time.monotonic(), self._large_bytes)
            self._unsettled[id(batch)] = batch
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name=f"lakebed-producer-{self.name}", daemon=True
                )
                self._thread.start()
            self._changed.notify_all()
        return batch

    def _close_batch(self, batch: ProducerBatch) -> None:
        batch.close()
        self._open.pop(batch.target.topic.name, None)
        self._ready.append(batch)
        self._held_bytes += batch.size
        self._changed.notify_all()

    def _wait_for_memory(self) -> None:
        if not self._writing.in_callback:  # there, waiting would hold up what makes room
            while self._held_bytes > self._memory_bytes and self._error is None:
                self._changed.wait()
        self._check_usable()

    # The producer's thread

    def _run(self) -> None:
        while (batch := self._next()) is not None:
            try:
                self._write(batch)
            except LakebedError as error:
                self._fail(batch, error)
            except Exception as error:  # a defect must not leave anyone waiting
                self._fail(batch, InvalidArgumentError("a batch could not be written", cause=error))

    def _next(self) -> ProducerBatch | None:
        """Wait for a batch that is full, old enough or asked for; None when closed."""
        with self._guard:
            while not self._ready:
                now = time.monotonic()
                wait: float | None = None
                for batch in list(self._open.values()):
                    due = batch.opened_at + self._linger
                    if self._flushing or self._closed or due <= now:
                        self._close_batch(batch)
                    else:
                        wait = due - now if wait is None else min(wait, due - now)
                if self._ready:
                    break
                if self._closed:
                    return None
                self._changed.wait(wait)
            return self._ready.popleft()

    def _write(self, batch: ProducerBatch) -> None:
        if self._error is not None:
            raise self._error
        encoded = self._encode(batch)
        self._backend.admit()
        topic = batch.target.topic
        keys = [(topic.id, run.partition) for run in encoded.part.runs]
        first = tuple(self._sequences.get(key, 0) for key in keys)
        command = ProducerWrite(
            self._backend.clock.time_us(), self.id, self.epoch, first, encoded.part
        )
        future = self._writing.submit_async(command, (encoded.body,), lambda result: result)
        for key, run in zip(keys, encoded.part.runs, strict=True):
            self._sequences[key] = self._sequences.get(key, 0) + run.records

        def on_settled(_: object) -> None:
            error = future.exception()
            if isinstance(error, LakebedError):
                self._fail(batch, error)
                return
            written: Written = future.result()
            runs = written.parts[0]
            if isinstance(runs, LakebedError):
                self._fail(batch, runs)
                return
            self._settle(batch, Acks(topic.name, runs, encoded.order), None)

        future.add_done_callback(on_settled)

    def _encode(self, batch: ProducerBatch) -> EncodedPart:
        target, count = batch.target, batch.target.topic.partitions
        values, keys, times = batch.columns()
        extras = [batch.extras.get(ticket) for ticket in batch.tickets] if batch.extras else []
        if target.raw:
            data = from_columns(
                values,
                None if keys.count(None) == len(keys) else keys,
                [extra and extra.headers for extra in extras] if extras else None,
                microseconds_of(times),
                target.value_type,
                target.config.record_bytes_max,
            )
        else:
            data = normalize(
                pa.Table.from_batches(values),
                target.value_type,
                now_us=self._backend.clock.time_us(),
                record_bytes_max=target.config.record_bytes_max,
            )
        if not any(extra is not None and extra.partition is not None for extra in extras):
            return self._writing.encode_batch(target, data, None)
        partitions = partitions_of(data.column("key"), count)
        keyless = np.flatnonzero(partitions < 0)
        partitions[keyless] = (np.arange(len(keyless)) + self._turn) % count
        self._turn += len(keyless)
        for row, extra in enumerate(extras):
            if extra is not None and extra.partition is not None:
                partitions[row] = extra.partition
        return self._writing.encode_routed(target, Routed(*split(data, partitions)))

    def _fail(self, batch: ProducerBatch, error: LakebedError) -> None:
        """Stop at the first batch that is refused: what follows it would leave a gap."""
        with self._guard:
            if self._error is None:
                self._error = error
        self._settle(batch, None, error)

    def _settle(self, batch: ProducerBatch, acks: Acks | None, error: LakebedError | None) -> None:
        batch.settle(acks, error)
        with self._guard:
            self._unsettled.pop(id(batch), None)
            self._held_bytes -= batch.size
            self._changed.notify_all()

    # Life

    def flush(self, timeout: float | None = None) -> None:
        """Wait until everything sent before is durable; raise the error if some of it is not.

        Args:
            timeout: seconds; default: no limit.
        """
        self._backend.check_may_wait()
        with self._guard:
            waiting = list(self._unsettled.values())
            self._flushing += 1
            self._changed.notify_all()
        try:
            for batch in waiting:
                batch.wait(timeout)
        finally:
            with self._guard:
                self._flushing -= 1
        if self._error is not None:
            raise self._error

    def close(self) -> None:
        """Write what was sent, and close; raise the error if some of it was not written.

        In a forked process it does nothing: the records belong to the parent.
        """
        if self._backend.forked:
            return
        try:
            self._finish()
        finally:
            self._writing.release((self.id, self.epoch))

    def _finish(self) -> None:
        self._backend.check_may_wait()
        with self._guard:
            if self._closed:
                return
            self._closed = True
            waiting = list(self._unsettled.values())
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join()
        for batch in waiting:
            batch.wait(None)
        if self._error is not None:
            raise self._error
        if not self.name:
            self._writing.submit(ForgetProducer(self.id, self.epoch))

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Write what was sent, and end; an error of the block itself is the one that is raised."""
        try:
            self.close()
        except LakebedError as failure:
            if error is None:
                raise
            error.add_note(f"closing the producer failed too: {failure}")

    def _check_usable(self) -> None:
        if self._closed:
            raise ClosedError("the producer is closed", name=self.name)
        if self._error is not None:
            raise self._error

    def __repr__(self) -> str:
        return f"<Producer {self.name!r}: id {self.id}, epoch {self.epoch}>"
