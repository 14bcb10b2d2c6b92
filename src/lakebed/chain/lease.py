"""The lease: who serves the log, and when it may be taken over. A hint; safety does not rest on it.

No two clocks are compared. A watcher takes the owner for gone when the lease's version has not
changed for `ttl` on the watcher's monotonic clock since it saw it change. The owner trusts its
lease for two thirds of `ttl` since it *began* its last renewal: it stops before a watcher acts.
"""

from __future__ import annotations

from dataclasses import replace as change

from lakebed.chain.calls import Get, Procedure
from lakebed.chain.records import LEASE, Lease, LeaseState, decode_lease, encode_lease, new_nonce
from lakebed.chain.settle import create, replace
from lakebed.errors import CorruptionError, NotOwnerError
from lakebed.host.conditional import Versioned


class Watch:
    """When the lease was last seen to change, on this process's clock."""

    def __init__(self, ttl_seconds: float) -> None:
        self._ttl_seconds = ttl_seconds
        self._version: str | None = None
        self._changed_at = 0.0
        self.lease: Lease | None = None
        """The lease that was last seen; None if there is none, or it is not readable."""

    def note(self, stored: Versioned | None, now: float) -> None:
        """Take in what `read` returned; `now` is monotonic seconds after it was read."""
        version = None if stored is None else stored.version
        if version != self._version or self._changed_at == 0.0:
            self._version, self._changed_at = version, now
        self.lease = readable(stored)

    def discount(self, seconds: float) -> None:
        """Leave time out of account in which the lease was not looked at."""
        if self._changed_at > 0:
            self._changed_at += seconds

    def may_take_over(self, now: float) -> bool:
        """Return True if the owner released the lease, or has not renewed it for its time."""
        if self._version is None and self._changed_at:
            return True
        if self.lease is not None and self.lease.state is LeaseState.RELEASED:
            return True
        return self._changed_at > 0 and now - self._changed_at >= self._ttl_seconds


class Hold:
    """The lease of this process, once it has claimed it. One thread at a time renews it."""

    def __init__(self, owner: str, address: str, ttl_seconds: float) -> None:
        self.lease = Lease(owner, address)
        self._ttl_seconds = ttl_seconds
        self._version: str | None = None
        self._renewed_at: float | None = None

    def claim(self) -> Procedure[bool]:
        """State that this process takes over; return False if another one changed the lease."""
        stored: Versioned | None = yield Get(LEASE)
        seen = readable(stored)
        counter = 0 if seen is None else seen.counter
        self.lease = change(self.lease, state=LeaseState.CLAIMING, counter=counter + 1)
        if stored is None:
            data = encode_lease(self.lease, new_nonce())
            done = (yield from create(LEASE, data)) is None
        else:
            data = encode_lease(self.lease, new_nonce())
            done = (yield from replace(LEASE, data, stored.version)) is None
        if done:
            yield from self._look(data)
        return done

    def serve(self, term: int, began: float) -> Procedure[None]:
        """State that this process is the owner since `term`; `began` is monotonic seconds now."""
        self.lease = change(self.lease, term=term, state=LeaseState.SERVING)
        yield from self.renew(began)

    def renew(self, began: float) -> Procedure[None]:
        """Renew the lease; raise `NotOwnerError` if another process has changed it."""
        yield from self._write(change(self.lease, counter=self.lease.counter + 1))
        self._renewed_at = began

    def release(self) -> Procedure[None]:
        """Release the lease, so that a standby takes over at once."""
        self._renewed_at = None
        yield from self._write(
            change(self.lease, counter=self.lease.counter + 1, state=LeaseState.RELEASED)
        )

    def valid(self, now: float) -> bool:
        """Return True while no watcher can have waited for the whole time of the lease."""
        return self._renewed_at is not None and now - self._renewed_at < self._ttl_seconds * 2 / 3

    def _write(self, lease: Lease) -> Procedure[None]:
        if self._version is None:
            raise NotOwnerError("the lease is not held by this process", owner=self.lease.owner)
        data = encode_lease(lease, new_nonce())
        other = yield from replace(LEASE, data, self._version)
        while other is not None:
            if readable(other) is not None:
                self._renewed_at = None
                raise ownership_error(other)
            # Removed or edited by hand: it says nothing, and the fences decide who owns the log.
            other = yield from self._write_again(data)
        self.lease = lease
        yield from self._look(data)

    def _write_again(self, data: bytes) -> Procedure[Versioned | None]:
        """Write over whatever is there; return what is there instead, if that has changed."""
        there: Versioned | None = yield Get(LEASE)
        if there is None:
            taken = yield from create(LEASE, data)
            return None if taken is None else Versioned(taken, "")
        if readable(there) is not None:
            return there
        return (yield from replace(LEASE, data, there.version))

    def _look(self, data: bytes) -> Procedure[None]:
        """Learn the version of what was written."""
        stored: Versioned | None = yield Get(LEASE)
        if stored is None or stored.data != data:
            raise ownership_error(stored)
        self._version = stored.version


def read() -> Procedure[Versioned | None]:
    """Return the lease's object, for `Watch.note`."""
    stored: Versioned | None = yield Get(LEASE)
    return stored


def ownership_error(stored: Versioned | None) -> NotOwnerError:
    """Build the error of an owner whose lease another process has changed."""
    lease = readable(stored)
    if lease is None:
        return NotOwnerError("the lease of the log was removed or changed by hand")
    return NotOwnerError(
        "another process has taken over the log",
        owner=lease.owner,
        address=lease.address,
        term=lease.term,
    )


def readable(stored: Versioned | None) -> Lease | None:
    """Return the lease in an object; None if it is absent or was edited: it says nothing."""
    if stored is None:
        return None
    try:
        return decode_lease(stored.data)
    except CorruptionError:
        return None
