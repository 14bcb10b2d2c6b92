"""A read replica: the state of a log, built from its chain, beside its owner and without it.

A thread reads the slots that are new every `replica_poll_ms` and applies them, as recovery would;
readers that wait for records are woken. Nothing is written to the store. Segments and data of open
transactions are read from there when they are needed.

The owner removes a segment only once the entry that drops it is in the store. A reader that fails
to read a segment therefore lets the replica catch up, and looks again.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Sequence
from typing import Final

from lakebed.chain.calls import Procedure
from lakebed.chain.checkpoint import read_snapshot
from lakebed.chain.driver import Driver
from lakebed.chain.lease import read, readable
from lakebed.chain.read_ahead import reading_ahead
from lakebed.chain.records import Base, Lease
from lakebed.chain.slot import Slot, payloads
from lakebed.config import LogConfig
from lakebed.engine.core import Core
from lakebed.engine.following import ChainView, ChainWalk, Following
from lakebed.engine.ownership import ChainStore
from lakebed.engine.recovery import ENTRIES_AT_A_TIME, apply_entries
from lakebed.engine.write_runs import WriteRuns
from lakebed.errors import ClosedError, CorruptionError, LakebedError, NotOwnerError
from lakebed.lake.segment_reader import SegmentReader
from lakebed.reports.replica import ReplicaStats
from lakebed.state.image import State, decode_state
from lakebed.types import Entry, EntryKind

_log = logging.getLogger("lakebed.engine")

_PATIENCE_SECONDS: Final = 30.0
_CATCH_UP_SECONDS: Final = 10.0
"""How long a reader waits for the replica to catch up before it reports its failure."""
_LEASE_SECONDS: Final = 1.0
"""How often the lease is read, which says where the owner is."""


class StateFollower:
    """The state of a log as a follower of its chain. One thread."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._runs = WriteRuns(core)
        self._is_loaded = False
        self.loads = 0
        self.slots = 0
        self.entries = 0
        """Slots and entries that were applied."""
        self.term = 0

    @property
    def index(self) -> int:
        """The last entry that is applied."""
        return self._core.state.numbers["applied"]

    def load(self, base: Base) -> Procedure[None]:
        """Become the state of a base, unless that is part of what was applied."""
        if self._is_loaded and base.index <= self.index:
            return
        data = yield from read_snapshot(base)
        state = decode_state(data, base.snapshot) if data else State()
        if state.numbers["applied"] != base.index:
            raise CorruptionError("a snapshot is of another entry", name=base.snapshot)
        self._core.begin_with(state)
        self._runs = WriteRuns(self._core)
        self._is_loaded = True
        self.loads += 1
        self.term = base.term

    def apply(self, slot: Slot, body: memoryview) -> None:
        """Apply the entries of a slot that are new."""
        applied = self.index
        fresh = [
            Entry(index, entry.term, EntryKind(entry.kind), 0, payload)
            for index, entry, payload in payloads(slot, body)
            if index > applied
        ]
        if fresh and fresh[0].index != applied + 1:
            raise CorruptionError(
                "an entry does not follow what is applied",
                index=fresh[0].index,
                applied_index=applied,
            )
        for start in range(0, len(fresh), ENTRIES_AT_A_TIME):
            self._apply(fresh[start : start + ENTRIES_AT_A_TIME])
        self.term = slot.term
        self.slots += 1
        self.entries += len(fresh)

    def _apply(self, entries: Sequence[Entry]) -> None:
        with self._core.gate:
            apply_entries(self._core, self._runs, entries)
            self._runs.finish()


class Replica(Following):
    """Keeps the state of a log up to date with its chain. Any thread."""

    def __init__(
        self, *, chain: ChainStore, log_id: uuid.UUID, core: Core, config: LogConfig
    ) -> None:
        super().__init__(core.clock)
        self._chain = chain
        self._log_id = log_id
        self._core = core
        self._poll_seconds = config.wal.replica_poll_ms / 1000
        self._current_seconds = config.wal.lease_ms / 1000
        self._follower = StateFollower(core)
        self._walk = ChainWalk(log_id, self._follower, self._clock)
        self._reader: SegmentReader | None = None
        self._base_slot = 0
        self._lag = (0, 0)
        self._failure: LakebedError | None = None
        self._lease_at = float("-inf")
        self._wake = threading.Event()
        self._looked = threading.Condition()
        self._begun = self._ended = 0
        """How often the store was begun to be read, and was read to the end."""
        self._thread: threading.Thread | None = None

    def load(self) -> None:
        """Take over the state of the log as it is now."""
        driver = self._use(self._chain.driver(self._log_id))
        with reading_ahead(self._chain.store) as store:
            self._look(driver, Driver(store, str(self._log_id)), _PATIENCE_SECONDS)

    def start(self, reader: SegmentReader) -> None:
        """Follow the log from now on, in a thread; tell a reader which segments are gone."""
        self._reader = reader
        self._thread = threading.Thread(target=self._run, name="lakebed-replica", daemon=True)
        self._thread.start()

    def catch_up(self) -> None:
        """Return once everything is applied that is in the store now, or after some seconds.

        Does nothing in the thread that follows, and in a replica that is being closed.
        """
        if self._thread is None or self._thread is threading.current_thread():
            return
        deadline = time.monotonic() + _CATCH_UP_SECONDS
        with self._looked:
            wanted = self._begun + 1
            self._wake.set()
            while self._ended < wanted and not self._closing.is_set():
                if not self._looked.wait(deadline - time.monotonic()):
                    return

    def refusal(self) -> NotOwnerError:
        """Return the error of everything that only the owner of the log does."""
        return NotOwnerError(
            "this is a read replica of the log", address=self.owner_address(), role="replica"
        )

    def is_current(self) -> bool:
        """Return True if the store was read within the time of a lease."""
        return self._lag_seconds() <= self._current_seconds

    def stats(self) -> ReplicaStats:
        """Return how far the replica is behind."""
        driver, view = self._driver, self.view
        since = None if driver is None else driver.failing_since
        failure = self._failure if driver is None else driver.failure or self._failure
        slots, entries = self._lag
        return ReplicaStats(
            store=self._chain.store.location,
            term=self._follower.term,
            owner=self.owner_address(),
            slot=self._walk.slot,
            applied_index=self._follower.index,
            lag_ms=int(self._lag_seconds() * 1000),
            lag_slots=slots,
            lag_entries=entries,
            poll_ms=int(self._poll_seconds * 1000),
            loads=self._follower.loads,
            failing_ms=0 if since is None else max(0, int((time.monotonic() - since) * 1000)),
            last_failure=None if failure is None else str(failure),
            is_current=view.read_at > 0 and self.is_current(),
        )

    def close(self) -> None:
        """Stop following. A second call does nothing."""
        super().close()
        self._wake.set()
        with self._looked:
            self._looked.notify_all()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    # The thread

    def _run(self) -> None:
        driver = self._driver
        while driver is not None and not self._closing.is_set():
            self._wake.wait(self._poll_seconds)
            self._wake.clear()
            try:
                self._look(driver, driver, None)
                self._failure = None
            except ClosedError:
                return
            except LakebedError as error:
                self._note_failure(error)
            except Exception as error:
                self._note_failure(LakebedError(f"{type(error).__name__}: {error}"))
                _log.exception("the replica cannot follow its log")

    def _look(self, driver: Driver, walking: Driver, patience_seconds: float | None) -> None:
        """Read the store to the end of the chain, and sometimes the lease."""
        with self._looked:
            self._begun += 1
        slots, entries = self._follower.slots, self._follower.entries
        read_at = self._walk.to_end(walking, patience_seconds=patience_seconds)
        self._lag = (self._follower.slots - slots, self._follower.entries - entries)
        lease = self._read_lease(driver, patience_seconds)
        self.view = ChainView(lease, self._follower.index, self._walk.slot, read_at)
        self._let_go()
        with self._looked:
            self._ended = self._begun
            self._looked.notify_all()

    def _read_lease(self, driver: Driver, patience_seconds: float | None) -> Lease | None:
        now = self._clock.monotonic()
        if now - self._lease_at < _LEASE_SECONDS:
            return self.view.lease
        self._lease_at = now
        return readable(driver.run(read(), patience_seconds=patience_seconds))

    def _let_go(self) -> None:
        """Forget segments and staged data that the state does not name any more."""
        for _topic, _partition, segment in self._core.take_dropped():
            if self._reader is not None:
                self._reader.forget(segment)
        base = self._walk.base
        if base is not None and base.slot != self._base_slot:
            self._base_slot = base.slot
            self._core.staging.keep_only(self._core.list_staged_needed())

    def _note_failure(self, error: LakebedError) -> None:
        if self._failure is None or str(self._failure) != str(error):
            _log.error("the replica cannot follow its log, and tries again: %s", error)
        self._failure = error

    def _lag_seconds(self) -> float:
        return max(0.0, self._clock.monotonic() - self.view.read_at)
