"""Transactions: records of many topics, and consumer offsets, seen together or not at all.

Records are collected here and written, unseen, whenever there are enough of them; the commit is one
entry, which carries the last ones, gives all of them their offsets and commits the consumer
offsets. A small transaction is therefore one entry and one sync.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Mapping
from concurrent.futures import Future
from types import TracebackType
from typing import Any, Final

from lakebed.api.acks import Acks
from lakebed.api.backend import Backend
from lakebed.api.consumer import Consumer
from lakebed.api.encoding import RECORD_BYTES, EncodedPart, Record
from lakebed.api.offsets import Offsets
from lakebed.api.writing import Identity
from lakebed.errors import (
    DiskFullError,
    InvalidArgumentError,
    LakebedError,
    OverloadedError,
    RejectedError,
    TransactionClosedError,
)
from lakebed.state.command_codec import encode
from lakebed.state.commands import AbortTransaction, CommitTransaction, TransactionWrite
from lakebed.state.decision import Written
from lakebed.types import Closing, GroupName

_WRITE_BYTES: Final = 4 * 1024 * 1024
"""Collected bytes that are written before the commit, so that they are not held twice."""


class Transaction(Closing):
    """An open transaction. As a context manager it commits, or aborts if the block raises."""

    def __init__(self, backend: Backend, identity: Identity, name: str) -> None:
        self.name = name
        self.id, self.epoch = identity
        self.outcome = "open"
        """`open`, `prepared`, `committed`, `aborted`, or `unknown`: committing was cut short."""
        self._backend = backend
        self._writing = backend.writing
        self._guard = threading.RLock()
        self._records: dict[str, list[Record]] = {}
        self._collected_bytes = 0
        self._spoiled = False
        """An exception struck while a batch was handed over: the outcome is unknown."""
        self._ready: list[EncodedPart] = []
        self._topics: list[str] = []
        self._orders: list[Any] = []
        self._written: list[Future[Any]] = []
        self._offsets: dict[tuple[str, int, int], tuple[str, int]] = {}
        backend.adopt(self)

    def after_fork(self) -> None:
        """Replace a lock that a thread of the parent may have held."""
        self._guard = threading.RLock()

    def append(
        self,
        topic: str,
        value: Any,
        key: Any = None,
        *,
        headers: Mapping[str, Any] | None = None,
        partition: int | None = None,
        timestamp: Any = None,
    ) -> None:
        """Add a record, visible after the commit; the arguments are those of `Log.append`.

        Raises:
            TransactionClosedError: the transaction was committed or aborted.
            TransactionTimedOutError: it was open for longer than its timeout.
            FencedError: a transaction of the same name was begun later.
        """
        record = self._writing.record(topic, value, key, headers, partition, timestamp)
        self._add_record(topic, record)

    def _add_record(self, topic: str, record: Record) -> None:
        with self._guard:
            self._check_open()
            self._write_collected()
            records = self._records.setdefault(topic, [])
            if records and records[0].target.topic is not record.target.topic:
                self._encode_collected(topic)
                records = self._records.setdefault(topic, [])
            records.append(record)
            self._collect(record.size + RECORD_BYTES)

    def _add_at_once(self, topic: str, record: Record) -> bool:
        """Add a record if that takes no time; return whether it was added."""
        if not self._guard.acquire(blocking=False):
            return False
        try:
            room = _WRITE_BYTES - self._collected_bytes
            if record.size + RECORD_BYTES >= room:
                return False
            self._add_record(topic, record)
            return True
        finally:
            self._guard.release()

    def append_batch(self, topic: str, rows: Any, *, partition: int | None = None) -> None:
        """Add records, visible after the commit; the arguments are those of `Log.append_batch`."""
        self._writing.fresh(topic, lambda: self._add_batch(topic, rows, partition))

    def _add_batch(self, topic: str, rows: Any, partition: int | None) -> None:
        target = self._writing.target(topic)
        encoded = self._writing.encode_rows(target, rows, partition)
        with self._guard:
            self._check_open()
            if encoded is not None:
                self._check_fits(encoded)
            self._write_collected()
            self._encode_collected(topic)  # what was added before stands before it
            if encoded is not None:
                self._add(topic, encoded)
                self._collect(encoded.part.body_bytes)

    def commit_offsets(self, group: str | Consumer, offsets: Offsets | None = None) -> None:
        """Commit consumer offsets with the transaction.

        Args:
            group: a consumer, whose partitions must still be assigned to it at the commit, or the
                name of a group, which is not checked.
            offsets: the next offsets to read; default: everything that the consumer has returned.
        """
        member = ""
        if isinstance(group, Consumer):
            if group.group is None:
                raise InvalidArgumentError("the consumer has no group")
            offsets = group.given() if offsets is None else offsets
            member, name = group.member, str(group.group)
        else:
            name = str(GroupName(group))
        if offsets is None:
            raise InvalidArgumentError(
                "offsets are required unless a consumer is passed instead of a group"
            )
        places = self._backend.groups.places(offsets)
        with self._guard:
            self._check_open()
            for topic, partition, offset in places:
                self._offsets[(name, topic, partition)] = (member, offset)

    def commit(self) -> list[Acks]:
        """Make everything visible atomically; return the positions once that is durable.

        Raises:
            UnknownOutcomeError: the transaction may have been committed.
        """
        self._backend.check_may_wait()
        with self._guard:
            self._check_open()
            for topic in list(self._records):
                self._encode_collected(topic)
            try:
                self._check_unspoiled()
                for future in self._written:
                    future.result()
                written = self._commit()
            except RejectedError:
                self._drop("aborted")
                raise
            except BaseException:
                # Ctrl-C, or a failing disk: the entry may be written or not.
                self.outcome = "unknown"
                raise
            self.outcome = "committed"
            places = zip(self._topics, written.parts, self._orders, strict=True)
            return [
                Acks(topic, runs, order)
                for topic, runs, order in places
                if not isinstance(runs, LakebedError)
            ]

    def prepare(self) -> tuple[int, int]:
        """Make everything durable but invisible, for `Log.commit_together`; return (id, epoch).

        This object can do nothing more with the transaction, which is committed by its id, also
        from another process, or times out.
        """
        self._backend.check_may_wait()
        with self._guard:
            self._check_open()
            if self._offsets:
                raise InvalidArgumentError(
                    "pass the offsets of a prepared transaction to commit_together"
                )
            try:
                self._check_unspoiled()
                self._write_all()
                for future in self._written:
                    future.result()
            except RejectedError:
                self._drop("aborted")
                raise
            self._written.clear()
            self.outcome = "prepared"
        self._writing.release((self.id, self.epoch))
        return self.id, self.epoch

    def _check_unspoiled(self) -> None:
        if self._spoiled:
            raise RejectedError(
                "interrupted by Ctrl-C while a part was written; the transaction is aborted"
            )

    def _commit(self) -> Written:
        offsets = tuple(
            (group, member, topic, partition, offset)
            for (group, topic, partition), (member, offset) in sorted(self._offsets.items())
        )
        parts = tuple(prepared.part for prepared in self._ready)
        self._backend.admit()
        time_us = self._backend.clock.time_us()
        command = CommitTransaction(self.id, self.epoch, time_us, parts, offsets)
        written: Written = self._writing.submit(
            command, [prepared.body for prepared in self._ready]
        )
        return written

    def abort(self) -> None:
        """Drop everything."""
        with self._guard:
            self._check_open()
            self._drop("aborted")

    def _drop(self, outcome: str) -> None:
        self.outcome = outcome
        self._records.clear()
        self._ready.clear()
        self._writing.submit(AbortTransaction(self.id, self.epoch, "aborted"))

    def close(self) -> None:
        """Abort, unless it has ended, is prepared, or belongs to the parent process."""
        if self._backend.forked:
            return
        with self._guard:
            if self.outcome == "open":
                self.abort()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Commit if the block came to its end, abort if it raised."""
        if self.outcome != "open":
            return
        if kind is None:
            self.commit()
            return
        try:
            self.abort()
        except LakebedError as failure:
            # The block's own error is what the caller must see; the log drops the rest.
            if error is not None:
                error.add_note(f"aborting the transaction failed too: {failure}")

    # Collecting

    def _encode_collected(self, topic: str) -> None:
        records = self._records.pop(topic, None)
        if records:
            self._add(topic, self._writing.encode_records(records))

    def _add(self, topic: str, encoded: EncodedPart) -> None:
        self._ready.append(encoded)
        self._topics.append(topic)
        self._orders.append(encoded.order)

    def _collect(self, size: int) -> None:
        """Count what was added. If there is no room to write it, the next addition is refused."""
        self._collected_bytes += size
        with contextlib.suppress(DiskFullError, OverloadedError):
            self._write_collected()

    def _write_collected(self) -> None:
        """Write what was collected, once it is enough."""
        if self._collected_bytes >= _WRITE_BYTES:
            self._write_all()

    def _write_all(self) -> None:
        self._backend.admit()
        for topic in list(self._records):
            self._encode_collected(topic)
        time_us = self._backend.clock.time_us()
        self._spoiled = True
        while self._ready:
            command = TransactionWrite(self.id, self.epoch, time_us, (self._ready[0].part,))
            bodies = (self._ready[0].body,)
            try:
                future = self._writing.submit_async(command, bodies, lambda result: result)
            except LakebedError:
                self._spoiled = False  # it was not written, and stays collected
                raise
            self._written.append(future)
            del self._ready[0]
        self._spoiled = False
        self._collected_bytes = 0
        self._check_written()

    def _check_fits(self, encoded: EncodedPart) -> None:
        """Refuse a batch that no entry can hold, before it is in the way of everything else."""
        command = TransactionWrite(self.id, self.epoch, 0, (encoded.part,))
        self._writing.check_fits(encode(command, (encoded.body.raw(),)))

    def _check_written(self) -> None:
        """Raise what a write of this transaction was refused for, as soon as it is known."""
        for future in [future for future in self._written if future.done()]:
            future.result()  # one that was refused stays, so that the commit is refused too
            self._written.remove(future)

    def _check_open(self) -> None:
        if self.outcome != "open":
            said = "is prepared" if self.outcome == "prepared" else "has ended"
            raise TransactionClosedError(f"the transaction {said}", outcome=self.outcome)
        self._backend.check_process()

    def __repr__(self) -> str:
        return f"<Transaction {self.name!r}: {self.outcome}>"
