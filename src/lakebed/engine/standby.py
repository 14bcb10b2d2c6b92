"""A standby: keeps a folder as the chain is, and watches the lease, until it may take over.

The folder's WAL gets every entry as it appears in the chain, so that taking over reads what is on
this machine and little of the store. When the base moves, its snapshot is installed and the WAL
before it is released: a standby needs no more disk than the owner.

A standby that was paused, or cut off from the store, does not know whether the owner could reach
the store meanwhile: of the time between two looks at the lease it counts a third of the lease at
most, so that an owner that returns with the store has the time to renew. It counts that much
however slow it is: a standby on a busy machine takes over later, but it does.
"""

from __future__ import annotations

import contextlib
import logging
from pathlib import Path
from typing import Final

from lakebed.chain.checkpoint import read_snapshot
from lakebed.chain.driver import Driver
from lakebed.chain.lease import Watch, read
from lakebed.config import LogConfig
from lakebed.engine.following import ChainView, ChainWalk, Following
from lakebed.engine.ownership import ChainStore, join, name_log, open_chain
from lakebed.engine.reconcile import DivergedError, LocalLog
from lakebed.errors import ClosedError, MissingFileError
from lakebed.host import Clock, OsDisk
from lakebed.state.snapshot_files import SnapshotFolder
from lakebed.wal import Wal
from lakebed.wal.folder import TOPICS

_log = logging.getLogger("lakebed.engine")

_POLL_SECONDS_MIN: Final = 0.05
_POLL_SECONDS_MAX: Final = 0.5
_POLLS_PER_LEASE: Final = 20


class Standby(Following):
    """Follows a log in a store until it may be taken over."""

    def __init__(
        self,
        folder: Path,
        config: LogConfig,
        *,
        clock: Clock | None = None,
        yield_seconds: float = 0.0,
    ) -> None:
        """Follow the log of a store; let others take it over first for `yield_seconds`."""
        super().__init__(clock)
        self._yield_seconds = yield_seconds
        self._folder = folder
        self._config = config
        self._disk = OsDisk()
        self._ttl_seconds = config.wal.lease_ms / 1000

    @property
    def poll_seconds(self) -> float:
        """How often the store is asked for new slots and for the lease."""
        wanted = self._ttl_seconds / _POLLS_PER_LEASE
        return min(max(wanted, _POLL_SECONDS_MIN), _POLL_SECONDS_MAX)

    def follow(self) -> Watch | None:
        """Follow the log until it may be taken over; return what was seen of its lease.

        Returns None once the standby is closed. A store that holds no log gets one, so that
        servers that start together agree on it. The folder is free again when this returns.
        """
        chain = name_log(open_chain(self._config))
        with Wal.open(
            self._folder, self._config.wal, kind=TOPICS, log_id=chain.log_id, disk=self._disk
        ) as wal:
            join(chain, wal, self._disk, self._folder)
            return self._watch(chain, wal)

    def _watch(self, chain: ChainStore, wal: Wal) -> Watch | None:
        driver = self._use(chain.driver(wal.log_id))
        follower = _Follower(wal, self._folder, driver, self._clock)
        watch, read_at = Watch(self._ttl_seconds), self._clock.monotonic()
        yields_until = read_at + self._yield_seconds
        try:
            while not self._closing.is_set():
                with contextlib.suppress(MissingFileError):  # its first owner is creating it
                    follower.advance()
                stored = driver.run(read())
                now = self._clock.monotonic()
                watch.discount(max(0.0, now - read_at - self._ttl_seconds / 3))
                read_at = now
                watch.note(stored, now)
                self.view = ChainView(watch.lease, wal.last_index, follower.slot, now)
                if watch.may_take_over(now) and now >= yields_until:
                    return watch
                self._closing.wait(self.poll_seconds)
        except ClosedError:
            if not self._closing.is_set():
                raise
        finally:
            driver.stop()
        return None


class _Follower:
    """A folder's WAL, brought to the end of the chain again and again. One thread."""

    def __init__(self, wal: Wal, folder: Path, driver: Driver, clock: Clock) -> None:
        self._wal = wal
        self._driver = driver
        self._snapshots = SnapshotFolder(OsDisk(), folder)
        self._local = LocalLog(wal, OsDisk(), folder, self._snapshots)
        self._walk = ChainWalk(wal.log_id, self._local, clock)

    @property
    def slot(self) -> int:
        """The last slot that was read."""
        return self._walk.slot

    def advance(self) -> None:
        """Add every entry that the chain has and the folder does not."""
        while True:
            try:
                self._walk.to_end(self._driver)
                break
            except DivergedError as error:
                self._local.set_aside(error.index)
                self._walk.restart()
        self._install_base()

    def _install_base(self) -> None:
        """Replace the WAL before the base by the base's snapshot, if the base has moved."""
        base = self._walk.base
        if base is None or not base.snapshot or base.index <= self._wal.mark.index:
            return
        if base.index > self._wal.last_index:
            return
        try:
            data = self._driver.run(read_snapshot(base))
        except MissingFileError:
            return  # a newer base has replaced it
        self._snapshots.write(base.index, data)
        self._snapshots.remove_all_but(base.index)
        self._wal.release(base.index)
