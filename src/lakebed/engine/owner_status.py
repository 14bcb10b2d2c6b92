"""What the store says about the owner of a log, and what an operator may ask of it.

Declaring an owner gone releases its lease: its next renewal is refused, and a standby takes over at
once. Fences keep the log safe even if that owner is alive.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Final, TypeVar

from lakebed.chain.calls import Get, Procedure
from lakebed.chain.lease import Watch, read
from lakebed.chain.records import LEASE, Base, Lease, LeaseState, encode_lease, new_nonce
from lakebed.chain.settle import create, replace
from lakebed.chain.slot import SlotKind, decode_slot, slot_name
from lakebed.chain.walk import read_base
from lakebed.config import LogConfig
from lakebed.engine.hand_over import ask
from lakebed.engine.ownership import open_chain
from lakebed.errors import CorruptionError, NotALogError, ServerUnavailableError
from lakebed.host.conditional import Versioned

OPERATOR: Final = "operator"
_PATIENCE_SECONDS: Final = 30.0
_POLL_SECONDS: Final = 0.05

T = TypeVar("T")


@dataclass(frozen=True)
class OwnerStatus:
    """Who owns a log in a store, as far as the store says."""

    store: str
    log_id: str
    owner: str | None
    """Machine and folder of the owner; None if the log never had one, or the lease is damaged."""
    address: str
    state: str
    """`claiming`, `serving`, `released`, or `unknown`."""
    term: int
    alive: bool
    """Whether the lease was seen to change while it was watched."""
    base_slot: int
    base_index: int
    last_slot: int
    fences_missing: tuple[int, ...]
    """Terms whose fence is not in the store: something other than Lakebed has removed it."""


class OwnerControl:
    """Looks at the owner of a log in a store from outside. One thread."""

    def __init__(self, config: LogConfig) -> None:
        """Open the store; raise `NotALogError` if it holds no log."""
        chain = open_chain(config)
        if chain.log_id is None:
            raise NotALogError("the store holds no log", store=chain.store.location)
        self._log_id = chain.log_id
        self._lease_seconds = config.wal.lease_ms / 1000
        self._driver = chain.driver(chain.log_id)

    def status(self, *, watch_seconds: float | None = None) -> OwnerStatus:
        """Return the status; watch the lease for half of its time to see whether it is renewed."""
        seconds = self._lease_seconds / 2 if watch_seconds is None else watch_seconds
        lease, alive = self._watch(seconds)
        base, last, missing = self._run(self._examine(0 if lease is None else lease.term))
        return OwnerStatus(
            store=self._driver.location,
            log_id=str(self._log_id),
            owner=None if lease is None else lease.owner,
            address="" if lease is None else lease.address,
            state="unknown" if lease is None else lease.state.value,
            term=0 if lease is None else lease.term,
            alive=alive,
            base_slot=base.slot,
            base_index=base.index,
            last_slot=last,
            fences_missing=missing,
        )

    def hand_over(self, *, timeout_seconds: float) -> OwnerStatus:
        """Ask the owner to hand the log over; return once another server owns it."""
        lease = self._lease()
        if lease is not None and lease.state is LeaseState.SERVING:
            self._run(ask(lease.term))
        return self._await_other(0 if lease is None else lease.term, timeout_seconds)

    def take(self, *, timeout_seconds: float) -> OwnerStatus:
        """Declare the owner gone; return once a standby owns the log."""
        lease = self._lease()
        self._run(_release(lease))
        return self._await_other(0 if lease is None else lease.term, timeout_seconds)

    def _await_other(self, term: int, timeout_seconds: float) -> OwnerStatus:
        deadline = time.monotonic() + timeout_seconds
        while time.monotonic() < deadline:
            lease = self._lease()
            if lease is not None and lease.state is LeaseState.SERVING and lease.term > term:
                return self.status(watch_seconds=0)
            time.sleep(_POLL_SECONDS)
        raise ServerUnavailableError(
            "no other server has taken over", store=self._driver.location, term=term
        )

    def _lease(self) -> Lease | None:
        return self._watch(0)[0]

    def _watch(self, seconds: float) -> tuple[Lease | None, bool]:
        """Return the lease, and whether it changed within a time."""
        watch = Watch(self._lease_seconds)
        deadline, first = time.monotonic() + seconds, None
        while True:
            stored = self._run(read())
            watch.note(stored, time.monotonic())
            version = None if stored is None else stored.version
            first = version if first is None else first
            if version != first or time.monotonic() >= deadline:
                return watch.lease, version != first
            time.sleep(_POLL_SECONDS)

    def _examine(self, term: int) -> Procedure[tuple[Base, int, tuple[int, ...]]]:
        """Return the base, the last slot, and the terms without a fence; `term` is the lease's."""
        base = yield from read_base()
        terms = {fence for fence in (term, *(first for first, _ in base.terms)) if fence}
        slot_number, last = base.slot, base.slot
        while True:
            stored: Versioned | None = yield Get(slot_name(slot_number + 1))
            if stored is None:
                break
            slot_number = last = slot_number + 1
            terms.add(decode_slot(stored.data, self._log_id, slot_number).term)
        missing = []
        for fence in sorted(terms):
            if not (yield from self._is_fence(fence)):
                missing.append(fence)
        return base, last, tuple(missing)

    def _is_fence(self, term: int) -> Procedure[bool]:
        stored: Versioned | None = yield Get(slot_name(term))
        if stored is None:
            return False
        try:
            return decode_slot(stored.data, self._log_id, term).kind is SlotKind.FENCE
        except CorruptionError:
            return False

    def _run(self, procedure: Procedure[T]) -> T:
        return self._driver.run(procedure, patience_seconds=_PATIENCE_SECONDS)


def _release(lease: Lease | None) -> Procedure[None]:
    """Write a lease that is released, whatever is there."""
    counter = 0 if lease is None else lease.counter
    term = 0 if lease is None else lease.term
    released = Lease(OPERATOR, "", term, LeaseState.RELEASED, counter + 1)
    while True:
        data = encode_lease(released, new_nonce())
        stored: Versioned | None = yield Get(LEASE)
        if stored is None:
            if (yield from create(LEASE, data)) is None:
                return
        elif (yield from replace(LEASE, data, stored.version)) is None:
            return
