"""Producers: records sent one by one become batches, each written once however often it is tried.

`send` puts a record into the open batch of its topic and returns at once. A thread of the producer
closes batches (when they are large enough, or old enough, or on `flush`), numbers their records and
writes them, several at a time. A batch carries the producer's id, epoch and sequence numbers, so
the log recognises a repeat; whoever opens a producer of the same name later fences this one.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from lakebed.engine.acks import Ack, Acks
from lakebed.engine.core import Core
from lakebed.engine.writing import Encoded, Target, Writing, no_partition
from lakebed.errors import (
    ClosedError,
    InvalidArgumentError,
    LakebedError,
    RecordTooLargeError,
)
from lakebed.state.commands import ProducerWrite
from lakebed.state.machine import Written
from lakebed.topic.records import from_columns, normalize
from lakebed.topic.routing import Routed, partitions_of, split
from lakebed.types import Closing


class Sent:
    """A record that was sent: `result` gives its place once it is on disk."""

    __slots__ = ("_batch", "_row")

    def __init__(self, batch: _Batch, row: int) -> None:
        self._batch = batch
        self._row = row

    def done(self) -> bool:
        """Tell whether the outcome is known."""
        return self._batch.settled

    def result(self, timeout: float | None = None) -> Ack:
        """Wait for the record to be on disk and give its place, or raise why it is not."""
        return self._batch.wait(timeout)[self._row]

    def exception(self, timeout: float | None = None) -> LakebedError | None:
        """Wait for the outcome and give the error, if it is one."""
        try:
            self._batch.wait(timeout)
        except LakebedError as error:
            return error
        return None

    def add_done_callback(self, callback: Callable[[Sent], None]) -> None:
        """Have `callback` called with this once the outcome is known, or at once if it is."""
        self._batch.call_when_settled(lambda: callback(self))


class _Batch:
    """Records of one topic on their way; the columns grow until the batch is closed."""

    __slots__ = (
        "_acks",
        "_callbacks",
        "_error",
        "_guard",
        "_settled",
        "closed_at",
        "headers",
        "keyed",
        "keys",
        "opened_at",
        "partitions",
        "settled",
        "size",
        "target",
        "times",
        "values",
    )

    def __init__(self, target: Target, opened_at: float) -> None:
        self.target = target
        self.opened_at = opened_at
        self.values: list[Any] = []
        self.keys: list[bytes | None] = []
        self.times: list[int] = []
        self.headers: dict[int, Mapping[str, Any]] = {}
        self.partitions: dict[int, int] = {}
        self.keyed = False
        self.size = 0
        self.settled = False
        self._acks: Acks | None = None
        self._error: LakebedError | None = None
        self._guard = threading.Lock()
        self._settled = threading.Condition(self._guard)
        self._callbacks: list[Callable[[], None]] = []

    def settle(self, acks: Acks | None, error: LakebedError | None) -> None:
        """Say what became of it."""
        with self._guard:
            self._acks, self._error = acks, error
            self.settled = True
            callbacks, self._callbacks = self._callbacks, []
            self._settled.notify_all()
        for callback in callbacks:
            callback()

    def wait(self, timeout: float | None) -> Acks:
        """Wait for the outcome."""
        if not self.settled:
            with self._guard:
                if not self._settled.wait_for(lambda: self.settled, timeout):
                    raise TimeoutError("the record is not on disk yet")
        if self._error is not None:
            raise self._error
        if self._acks is None:
            raise AssertionError("a settled batch has acks or an error")
        return self._acks

    def call_when_settled(self, callback: Callable[[], None]) -> None:
        """Call back once the outcome is known."""
        with self._guard:
            if not self.settled:
                self._callbacks.append(callback)
                return
        callback()


class Producer(Closing):
    """Sends records under a name; the latest of a name fences those before it. Any thread."""

    def __init__(
        self,
        core: Core,
        writing: Writing,
        admit: Callable[[], None],
        identity: tuple[int, int],
        name: str,
        *,
        linger_ms: float,
        batch_bytes: int,
        memory_bytes: int,
    ) -> None:
        self.name = name
        self.id, self.epoch = identity
        self._core = core
        self._writing = writing
        self._admit = admit
        self._linger = linger_ms / 1000
        self._batch_bytes = batch_bytes
        self._memory_bytes = memory_bytes
        self._guard = threading.Lock()
        self._changed = threading.Condition(self._guard)
        self._open: dict[str, _Batch] = {}
        self._ready: deque[_Batch] = deque()
        self._unsettled: dict[int, _Batch] = {}
        self._held_bytes = 0
        self._sequences: dict[tuple[int, int], int] = {}
        self._turn = 0
        self._flushing = 0
        self._error: LakebedError | None = None
        self._closed = False
        self._thread: threading.Thread | None = None

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
        """Send a record; it is on disk when the result's `result()` returns, or after `flush`."""
        batch = self._open.get(topic)
        if (
            batch is None
            or type(value) is not bytes
            or (key is not None and type(key) is not bytes)
            or headers is not None
            or partition is not None
            or timestamp is not None
            or self._error is not None
        ):
            return self._send_checked(topic, value, key, headers, partition, timestamp)
        size = len(value) + (0 if key is None else len(key))
        if size > batch.target.config.record_bytes_max or not batch.target.raw:
            return self._send_checked(topic, value, key, headers, partition, timestamp)
        with self._guard:
            if self._open.get(topic) is batch:
                return self._add(batch, value, key, size, time.time_ns() // 1000)
        return self._send_checked(topic, value, key, headers, partition, timestamp)

    def _add(self, batch: _Batch, value: Any, key: bytes | None, size: int, time_us: int) -> Sent:
        """Put a checked record into an open batch; the guard is held."""
        values = batch.values
        sent = Sent(batch, len(values))
        values.append(value)
        batch.keys.append(key)
        batch.times.append(time_us)
        if key is not None:
            batch.keyed = True
        batch.size += size + 32
        if batch.size >= self._batch_bytes:
            self._close_batch(batch)
        return sent

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
        if record.size > record.target.config.record_bytes_max:
            raise RecordTooLargeError("a record is too large", bytes=record.size)
        with self._guard:
            self._check_usable()
            self._wait_for_memory()
            batch = self._open_batch(topic, record.target)
            row = len(batch.values)
            if partition is not None:
                batch.partitions[row] = partition
            if record.batch is not None:
                return self._add(batch, record.batch, None, record.size, 0)
            if record.headers:
                batch.headers[row] = record.headers
            return self._add(batch, record.value, record.key, record.size, record.time_us)

    def _open_batch(self, topic: str, target: Target) -> _Batch:
        batch = self._open.get(topic)
        if batch is not None and batch.target is not target:
            self._close_batch(batch)  # the topic was changed or made anew
            batch = None
        if batch is None:
            batch = self._open[topic] = _Batch(target, time.monotonic())
            self._unsettled[id(batch)] = batch
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name=f"lakebed-producer-{self.name}", daemon=True
                )
                self._thread.start()
            self._changed.notify_all()
        return batch

    def _close_batch(self, batch: _Batch) -> None:
        self._open.pop(batch.target.topic.name, None)
        self._ready.append(batch)
        self._held_bytes += batch.size
        self._changed.notify_all()

    def _wait_for_memory(self) -> None:
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

    def _next(self) -> _Batch | None:
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

    def _write(self, batch: _Batch) -> None:
        if self._error is not None:
            raise self._error
        encoded = self._encode(batch)
        self._admit()
        topic = batch.target.topic
        keys = [(topic.id, run.partition) for run in encoded.part.runs]
        first = tuple(self._sequences.get(key, 0) for key in keys)
        command = ProducerWrite(
            self._core.clock.time_us(), self.id, self.epoch, first, encoded.part
        )
        future = self._writing.submit_async(command, (encoded.body,), lambda result: result)
        for key, run in zip(keys, encoded.part.runs, strict=True):
            self._sequences[key] = self._sequences.get(key, 0) + run.records

        def settled(_: object) -> None:
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

        future.add_done_callback(settled)

    def _encode(self, batch: _Batch) -> Encoded:
        target, count = batch.target, batch.target.topic.partitions
        # Ctrl-C in the middle of a `send` may have left its record in some of the columns only.
        rows = min(len(batch.values), len(batch.keys), len(batch.times))
        del batch.values[rows:], batch.keys[rows:], batch.times[rows:]
        if target.raw:
            headers = [batch.headers.get(row) for row in range(rows)] if batch.headers else None
            data = from_columns(
                batch.values,
                batch.keys if batch.keyed else None,
                headers,
                batch.times,
                target.value_type,
                target.config.record_bytes_max,
            )
        else:
            data = normalize(
                pa.Table.from_batches(batch.values),
                target.value_type,
                now_us=self._core.clock.time_us(),
                record_bytes_max=target.config.record_bytes_max,
            )
        if not batch.partitions:
            return self._writing.encode_batch(target, data, None)
        partitions = partitions_of(data.column("key"), count)
        keyless = np.flatnonzero(partitions < 0)
        partitions[keyless] = (np.arange(len(keyless)) + self._turn) % count
        self._turn += len(keyless)
        for row, partition in batch.partitions.items():
            if not 0 <= partition < count:
                raise no_partition(target.topic, partition)
            partitions[row] = partition
        return self._writing.encode_routed(target, Routed(*split(data, partitions)))

    def _fail(self, batch: _Batch, error: LakebedError) -> None:
        """Stop at the first batch that is refused: what follows it would leave a gap."""
        with self._guard:
            if self._error is None:
                self._error = error
        self._settle(batch, None, error)

    def _settle(self, batch: _Batch, acks: Acks | None, error: LakebedError | None) -> None:
        batch.settle(acks, error)
        with self._guard:
            self._unsettled.pop(id(batch), None)
            self._held_bytes -= batch.size
            self._changed.notify_all()

    # Life

    def flush(self, timeout: float | None = None) -> None:
        """Return when everything sent before is on disk; raise if some of it is not."""
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
        """Write what was sent, and end. Raise if some of it could not be written."""
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

    def _check_usable(self) -> None:
        if self._closed:
            raise ClosedError("the producer is closed", name=self.name)
        if self._error is not None:
            raise self._error

    def __repr__(self) -> str:
        return f"<Producer {self.name!r}: id {self.id}, epoch {self.epoch}>"
