"""Keeps the lease of a log: a thread renews it from the claim until the log is closed.

Replaying a log may take longer than the lease lasts. The lease is therefore renewed while the log
is being opened, in the state `claiming`: clients are not sent here yet, and no standby acts.
"""

from __future__ import annotations

import logging
import threading
from dataclasses import replace
from typing import Final

from lakebed.chain.driver import Driver
from lakebed.chain.lease import Hold
from lakebed.errors import ClosedError, LakebedError, NotOwnerError, StoreUnavailableError
from lakebed.host import Clock, failpoints

_log = logging.getLogger("lakebed.engine")

_PATIENCE_SECONDS: Final = 30.0
_RENEWED = failpoints.define("ship.lease_renewed")


class LeaseKeeper:
    """Renews a lease that this process has claimed. Any thread."""

    def __init__(self, driver: Driver, hold: Hold, clock: Clock, lease_seconds: float) -> None:
        self._driver = driver
        self._hold = hold
        self._clock = clock
        self._lease_seconds = lease_seconds
        self.lost: NotOwnerError | None = None
        """Why this process does not own the log any more; None while it may."""
        self.changed = threading.Condition()
        """Told when the lease was renewed or lost."""
        self._renewing = threading.Lock()
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._renew_all, name="lakebed-lease", daemon=True)

    @property
    def owner(self) -> str:
        """Who the lease names: this process."""
        return self._hold.lease.owner

    def start(self) -> None:
        """Begin to renew."""
        self._thread.start()

    def serve(self, term: int) -> None:
        """State that this process serves the log since `term`; raise if another has claimed it."""
        with self._renewing:
            self._check_kept()
            began = self._clock.monotonic()
            try:
                self._driver.run(self._hold.serve(term, began), patience_seconds=_PATIENCE_SECONDS)
            except NotOwnerError as error:
                raise self.lose(error) from None

    def announce(self, address: str) -> None:
        """State in the lease where this process serves the log."""
        with self._renewing:
            self._hold.lease = replace(self._hold.lease, address=address)
        self.renew()

    def is_valid(self) -> bool:
        """Return True while this process owns the log for certain."""
        return self.lost is None and self._hold.valid(self._clock.monotonic())

    def ensure(self) -> None:
        """Return while the lease is valid; else once it was renewed."""
        self._check_kept()
        if not self.is_valid():
            self.renew()

    def renew(self) -> None:
        """Renew the lease; raise `NotOwnerError` if another process has changed it."""
        with self._renewing:
            self._check_kept()
            try:
                self._driver.run(self._hold.renew(self._clock.monotonic()))
            except NotOwnerError as error:
                raise self.lose(error) from None
            try:
                _RENEWED.hit()
            except OSError as error:
                raise StoreUnavailableError(f"{error}", point=_RENEWED.name) from error
        with self.changed:
            self.changed.notify_all()

    def lose(self, error: NotOwnerError) -> NotOwnerError:
        """Note that another process owns the log; return the first such error."""
        if self.lost is None:
            self.lost = error
            _log.error("this process no longer owns the log: %s", error)
        with self.changed:
            self.changed.notify_all()
        return self.lost

    def end(self) -> None:
        """Renew no more."""
        self._ending.set()

    def release(self, patience_seconds: float) -> None:
        """Release the lease, so that another process takes over at once."""
        with self._renewing:
            self._driver.run(self._hold.release(), patience_seconds=patience_seconds)

    def join(self) -> None:
        """Wait until the thread has ended; the driver must be stopped."""
        self.end()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join()

    def _check_kept(self) -> None:
        if self.lost is not None:
            raise self.lost

    def _renew_all(self) -> None:
        while not self._ending.wait(self._lease_seconds / 3) and self.lost is None:
            try:
                self.renew()
            except (NotOwnerError, ClosedError):
                return
            except LakebedError as error:
                _log.warning("the lease could not be renewed, and is tried again: %s", error)
