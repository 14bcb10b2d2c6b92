"""What a log does with the records and commands of its writers."""

from __future__ import annotations

import abc
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar

from lakebed.api.acks import Ack, Acks
from lakebed.api.encoding import Record, RecordEncoder, Rows
from lakebed.state.commands import Command
from lakebed.topic.memtable import Body

Identity = tuple[int, int]
"""The id of a producer or a transaction, and its epoch."""

Result = TypeVar("Result")


class LogWriter(RecordEncoder):
    """Everything that appends to a log, embedded or served. Any thread."""

    @property
    @abc.abstractmethod
    def in_callback(self) -> bool:
        """Return whether this is the thread that acknowledges writes, running a callback."""

    # Records and batches

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
        return self.append(self.record(topic, value, key, headers, partition, timestamp))

    @abc.abstractmethod
    def append(self, record: Record) -> Ack:
        """Append one record in a batch with those of other callers; return when it is durable."""

    @abc.abstractmethod
    def append_async(self, record: Record) -> Future[Ack]:
        """Append one record; the future receives its position when it is durable."""

    @abc.abstractmethod
    def append_batch(self, topic: str, rows: Rows, partition: int | None) -> Acks:
        """Append a batch atomically; return when it is durable."""

    @abc.abstractmethod
    def append_batch_async(self, topic: str, rows: Rows, partition: int | None) -> Future[Acks]:
        """Append a batch atomically; the future receives its positions when it is durable."""

    # Commands

    @abc.abstractmethod
    def submit(self, command: Command, bodies: Sequence[Body] = ()) -> Any:
        """Carry out a command; return its result when it is durable and applied."""

    @abc.abstractmethod
    def submit_async(
        self, command: Command, bodies: Sequence[Body], answer: Callable[[Any], Any]
    ) -> Future[Any]:
        """Carry out a command; the future receives what `answer` makes of its result."""

    def fresh(self, topic: str, attempt: Callable[[], Result]) -> Result:
        """Make an attempt that depends on the definition of a topic.

        A log that has an outdated copy of the definition repeats the attempt with the current one.
        """
        del topic  # the engine has no copy of it
        return attempt()

    def release(self, identity: Identity) -> None:
        """Free what belongs to a producer or a transaction that has ended."""
