"""Shipping: entries of the WAL go into the chain, before or after they are acknowledged.

| `acks` | a group is acknowledged | shipped |
|---|---|---|
| `store` | once its slot is in the store and the lease is valid | by the committing thread |
| `local` | once it is on this disk and the lease is valid | by a thread, every `ship_ms` or 8 MiB |

While the store does not answer, callers whose group is in flight wait, for as long as it takes:
their outcome is not known. New callers wait for `write_timeout_ms` and receive
`StoreUnavailableError`: their write did not happen. An owner that was taken over refuses with
`NotOwnerError`.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple

from crc32c import crc32c

from lakebed import limits
from lakebed.chain.checkpoint import write_checkpoint
from lakebed.chain.driver import Driver
from lakebed.chain.owner import ChainOwner
from lakebed.chain.slot import Encoded, SlotEntry
from lakebed.config import AckMode, LogConfig
from lakebed.engine.core import Core
from lakebed.engine.hand_over import is_asked
from lakebed.engine.lease_keeper import LeaseKeeper
from lakebed.errors import (
    ClosedError,
    CorruptionError,
    LakebedError,
    NotOwnerError,
    StoreUnavailableError,
)
from lakebed.host import failpoints
from lakebed.iceberg.pointers import TableOwner
from lakebed.reports.shipping import ShippingStats
from lakebed.types import EntryKind
from lakebed.wal import Wal
from lakebed.wal.frame import ENTRY, FLAG_CONFIGURATION
from lakebed.wal.request import Request

_log = logging.getLogger("lakebed.engine")

SLOT_BYTES_MAX: Final = 8 * limits.MIB
_SLOT_ENTRIES_MAX: Final = 8192
_CLOSING_SECONDS: Final = 5.0
"""How long closing waits for a store that does not answer."""
_CHECKPOINT_SECONDS: Final = 60.0
_SAMPLES_MAX: Final = 4096

_ENCODED = failpoints.define("ship.encoded")
_SHIPPED = failpoints.define("ship.shipped")
_BARRIER = failpoints.define("ship.barrier_passed")


class _Sample(NamedTuple):
    """What the log had written when an entry was applied."""

    entry: int
    records: int
    wal_bytes: int
    at: float


class Shipping:
    """The owner's side of the chain. Any thread; slots are written by one at a time."""

    def __init__(
        self,
        *,
        driver: Driver,
        owner: ChainOwner,
        lease: LeaseKeeper,
        wal: Wal,
        core: Core,
        config: LogConfig,
        diverged_entries: int,
    ) -> None:
        self._driver = driver
        self._owner = owner
        self.lease = lease
        self._wal = wal
        self._core = core
        self._in_store = config.wal.acks is AckMode.STORE
        self._ship_seconds = max(config.wal.ship_ms, 1) / 1000
        self._linger_seconds = config.wal.store_linger_ms / 1000
        self._timeout_seconds = config.write_timeout_ms / 1000
        self._diverged_entries = diverged_entries
        self._slots = self._slot_bytes = 0
        self._slot_began = float("-inf")
        self._pending: Encoded | None = None
        """The slot that is in flight: it is repeated with the same bytes until it is settled."""
        self._closing = threading.Event()
        self._wake = threading.Event()
        self._wanted = 0
        self._changed = lease.changed
        self._samples: deque[_Sample] = deque(maxlen=_SAMPLES_MAX)
        self._base = _Sample(owner.next_index - 1, 0, 0, core.clock.monotonic())
        self._threads: list[threading.Thread] = []
        self._process = os.getpid()

    @property
    def lost(self) -> NotOwnerError | None:
        """Why this process does not own the log any more; None while it may."""
        return self.lease.lost

    @property
    def shipped_index(self) -> int:
        """The last entry that is in the chain."""
        return self._owner.next_index - 1

    def table_owner(self) -> TableOwner:
        """Return what the tables of the log know about its owner."""
        return TableOwner(
            log_id=str(self._wal.log_id),
            term=self._owner.term,
            confirm=self.confirm,
            new_driver=self._driver.copy,
        )

    def start(self) -> None:
        """Serve: acknowledge by the chain from now on, and state it in the lease.

        With `store`, what only this folder has is shipped first: the next slot follows it.
        """
        if self._in_store:
            self._ship_available(patience_seconds=_CHECKPOINT_SECONDS)
        self._wal.replicate_with(
            self._replicate if self._in_store else self._check_lease, slow=self._in_store
        )
        self.lease.serve(self._owner.term)
        if not self._in_store:
            thread = threading.Thread(target=self._ship_all, name="lakebed-shipping", daemon=True)
            self._threads.append(thread)
            thread.start()

    # Acknowledging, in the committing thread

    def _replicate(self, group: list[Request]) -> None:
        """Write a group's slot; return once it may be acknowledged."""
        requests = [request for request in group if request.kind == ENTRY]
        if requests[0].index < self._owner.next_index:
            return  # an attempt that was cut short by a signal had done it
        if requests[0].index != self._owner.next_index:
            raise CorruptionError(
                "an entry does not follow the chain",
                index=requests[0].index,
                chain_index=self._owner.next_index - 1,
            )
        self._linger()
        self._write(
            self._owner.encode([(_slot_entry(request), request.parts[:-1]) for request in requests])
        )
        self.lease.ensure()

    def _check_lease(self, _group: list[Request]) -> None:
        """Return once a group that is on this disk may be acknowledged."""
        self.lease.ensure()

    def _linger(self) -> None:
        """Leave the time between two slots that the settings ask for, unless the log is closing."""
        now = self._core.clock.monotonic()
        wait = self._slot_began + self._linger_seconds - now
        if wait > 0:
            self._closing.wait(wait)
        self._slot_began = self._core.clock.monotonic()

    def _write(self, encoded: Encoded, patience_seconds: float | None = None) -> None:
        while True:
            try:
                _hit(_ENCODED)
                if self._owner.next_slot == encoded.slot.number:
                    self._driver.run(self._owner.write(encoded), patience_seconds=patience_seconds)
                _hit(_SHIPPED)
                break
            except NotOwnerError as error:
                raise self.lease.lose(error) from None
            except StoreUnavailableError as error:
                if patience_seconds is not None:
                    raise
                _log.warning("a slot is written again: %s", error)
        self._slots += 1
        self._slot_bytes += encoded.slot.body_bytes
        with self._changed:
            self._changed.notify_all()

    # Shipping in the background

    def _ship_all(self) -> None:
        while not self._closing.is_set() and self.lost is None:
            self._wake.wait(self._ship_seconds)
            self._wake.clear()
            try:
                self._ship_available()
            except ClosedError:
                return
            except LakebedError as error:
                _log.warning("entries could not be shipped; they are tried again: %s", error)

    def _ship_available(self, patience_seconds: float | None = None) -> None:
        """Ship everything that is acknowledged, a slot at a time."""
        while self.lost is None and self.shipped_index < self._wal.last_index:
            encoded = self._pending
            if encoded is None:
                encoded = self._pending = self._encode_next()
            self._write(encoded, patience_seconds)
            self._pending = None

    def _encode_next(self) -> Encoded:
        entries = self._wal.read(
            self._owner.next_index, max_entries=_SLOT_ENTRIES_MAX, max_bytes=SLOT_BYTES_MAX
        )
        return self._owner.encode(
            [
                (
                    SlotEntry(entry.term, entry.kind, len(entry.payload), crc32c(entry.payload)),
                    [entry.payload],
                )
                for entry in entries
            ]
        )

    def after_apply(self) -> None:
        """Note what was applied; called by the committing thread after each group."""
        used, clock = self._core.used, self._core.clock
        index = self._core.state.numbers["applied"]
        sample = _Sample(index, used["records"], used["wal_bytes"], clock.monotonic())
        self._samples.append(sample)
        if self._count_unshipped_bytes(sample) >= SLOT_BYTES_MAX:
            self._wake.set()

    # The barrier

    def flush(self, index: int | None = None, *, timeout: float = _CHECKPOINT_SECONDS) -> None:
        """Return once everything up to `index`, or so far, is in the store.

        Precedes everything that removes what the chain may still name.
        """
        target = self._wal.last_index if index is None else index
        deadline = self._core.clock.monotonic() + timeout
        while self.shipped_index < target:
            if self.lost is not None:
                raise self.lost
            if self._closing.is_set():
                raise ClosedError("the log is closing", uri=self._driver.location)
            if self._core.clock.monotonic() > deadline:
                raise self._unavailable()
            self._wake.set()
            with self._changed:
                if self.shipped_index < target:
                    self._changed.wait(0.05)
        _hit(_BARRIER)

    def confirm(self) -> None:
        """Return if this process owns the log and all it decided is in the store; else raise.

        Precedes the removal of an object: an owner that was taken over may not know what the next
        one needs.
        """
        self.flush()
        self.lease.ensure()

    def checkpoint(self, index: int, data: bytes) -> None:
        """Make a snapshot of everything up to `index` the base of the chain."""
        self.flush(index)
        term = self._wal.term_at(index) if index else 0
        self._driver.run(
            write_checkpoint(self._owner, data, index=index, term=term),
            patience_seconds=_CHECKPOINT_SECONDS,
        )

    # Roles

    def check_serving(self) -> None:
        """Raise `NotOwnerError` unless this process owns the log for certain, also for readers.

        An owner that was paused may have been taken over: what it reads may be old.
        """
        if self.lost is not None:
            raise NotOwnerError(self.lost.message, **self.lost.facts)
        if not self.lease.is_valid():
            raise NotOwnerError("the lease of this server has run out", owner=self.lease.owner)

    def is_asked_to_hand_over(self) -> bool:
        """Return True if an operator asks for it: see `engine/owner_status.py`."""
        return is_asked(self._driver, self._owner.term)

    # Admission

    def admit(self) -> None:
        """Raise if this process does not own the log, or the store has not answered for long."""
        if self.lost is not None:
            raise NotOwnerError(self.lost.message, **self.lost.facts)
        now = self._core.clock.monotonic()
        since = self._driver.failing_since
        if since is not None and now - since > self._timeout_seconds:
            raise self._unavailable()
        if not self._in_store and not self.lease.is_valid():
            self._await_lease(now + self._timeout_seconds)

    def _await_lease(self, deadline: float) -> None:
        while not self.lease.is_valid():
            if self.lost is not None:
                raise NotOwnerError(self.lost.message, **self.lost.facts)
            if self._core.clock.monotonic() > deadline or self._closing.is_set():
                raise self._unavailable()
            with self._changed:
                self._changed.wait(0.02)

    def _unavailable(self) -> StoreUnavailableError:
        return StoreUnavailableError(
            "the object store of the log does not answer",
            uri=self._driver.location,
            reason=self._driver.failure,
        )

    # The end

    def prepare_close(self) -> None:
        """Ship what is acknowledged; from here on closing does not wait long for the store."""
        if self._process != os.getpid():
            return  # the log is that of the process that forked this one
        if not self._in_store:
            with contextlib.suppress(LakebedError):
                self.flush(timeout=_CLOSING_SECONDS)
        self._closing.set()
        self.lease.end()
        self._wake.set()
        timer = threading.Timer(_CLOSING_SECONDS, self._driver.stop)
        timer.daemon = True
        timer.start()
        self._threads.append(timer)

    def finish_close(self, last_index: int) -> None:
        """Release the lease, if everything is in the store, so that another takes over at once."""
        if self._process != os.getpid():
            return
        whole = self.shipped_index >= last_index
        try:
            if self.lost is None and whole and self._driver.failing_since is None:
                self.lease.release(_CLOSING_SECONDS)
        except LakebedError as error:
            _log.warning("the lease was not released; it expires: %s", error)
        finally:
            self._driver.stop()
        self.lease.join()
        for thread in self._threads:
            if isinstance(thread, threading.Timer):
                thread.cancel()
            if thread is not threading.current_thread():
                thread.join()

    # What is shown

    def stats(self) -> ShippingStats:
        """Return how far the store is behind."""
        clock, driver = self._core.clock, self._driver
        shipped, used, now = self.shipped_index, self._core.used, clock.monotonic()
        while self._samples and self._samples[0].entry <= shipped:
            with contextlib.suppress(IndexError):
                self._base = self._samples.popleft()
        behind = shipped < self._wal.last_index
        oldest = self._samples[0].at if self._samples else now
        since = driver.failing_since
        failure = driver.failure
        return ShippingStats(
            acks=AckMode.STORE.value if self._in_store else AckMode.LOCAL.value,
            store=driver.location,
            term=self._owner.term,
            shipped_index=shipped,
            unshipped_records=used["records"] - self._base.records if behind else 0,
            unshipped_bytes=used["wal_bytes"] - self._base.wal_bytes if behind else 0,
            unshipped_ms=max(0, int((now - oldest) * 1000)) if behind else 0,
            slots=self._slots,
            slot_bytes=self._slot_bytes,
            puts=driver.puts,
            failing_ms=0 if since is None else max(0, int((now - since) * 1000)),
            last_failure=None if failure is None else str(failure),
            lease_valid=self.lease.is_valid(),
            diverged_entries=self._diverged_entries,
        )

    def _count_unshipped_bytes(self, sample: _Sample) -> int:
        shipped = self.shipped_index
        while self._samples and self._samples[0].entry <= shipped:
            self._base = self._samples.popleft()
        return sample.wal_bytes - self._base.wal_bytes


def _slot_entry(request: Request) -> SlotEntry:
    configuration = request.flags & FLAG_CONFIGURATION
    kind = EntryKind.CONFIGURATION if configuration else EntryKind.NORMAL
    return SlotEntry(request.term, kind, request.length, request.checksum)


def _hit(point: failpoints.Failpoint) -> None:
    """Hit a failpoint; its error is one of the store, after which the outcome is looked up."""
    try:
        point.hit()
    except OSError as error:
        raise StoreUnavailableError(f"{error}", point=point.name) from error


Barrier = Callable[[], None]
"""Returns once everything so far is in the store."""
