"""The scripted life (see `script`) of a replicated log: releases are snapshots.

python -m tests.proof.raft_script FOLDER
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path

from lakebed.host import Disk
from lakebed.raft import LogEntry, Membership, Snapshot, WalLog
from lakebed.wal import Entry, HardState, Mark, WalStats
from tests.proof.ledger import Name, note_of, payload_of
from tests.proof.script import CONFIG, Log, Script, main

_MEMBERSHIP = Membership(voters=(1, 2, 3))


def _data_of(index: int) -> bytes:
    return payload_of(Name(0, 1, index), 3_000)


class RaftAsWal:
    """A replicated log, seen as the WAL that it is kept in."""

    def __init__(self, log: WalLog) -> None:
        self._log = log

    @property
    def first_index(self) -> int:
        """See `Wal`."""
        return self._log.first_index

    @property
    def last_index(self) -> int:
        """See `Wal`."""
        return self._log.last_index

    @property
    def hard_state(self) -> HardState:
        """See `Wal`."""
        return self._log.hard_state

    @property
    def mark(self) -> Mark:
        """Return the snapshot as a mark, having verified it."""
        snapshot = self._log.snapshot()
        if snapshot is None:
            return Mark()
        assert snapshot.data == _data_of(snapshot.index), "the snapshot has other bytes"
        assert snapshot.membership == _MEMBERSHIP, "the snapshot has another membership"
        assert snapshot.index == self._log.snapshot_index, "the snapshot is at another index"
        return Mark(snapshot.index, snapshot.term, note_of(snapshot.index))

    def entries(self) -> Iterator[Entry]:
        """Read the whole log."""
        index = self._log.first_index
        while batch := self._log.entries(index):
            for each in batch:
                yield Entry(each.index, each.term, each.kind, 0, memoryview(each.payload))
            index += len(batch)

    def append(self, payload: bytes) -> int:
        """Propose, at the term of the hard state."""
        return self._log.propose(payload, self._log.hard_state.term)

    def append_many(self, payloads: list[bytes]) -> range:
        """Append behind the last entry, then sync."""
        first, term = self._log.last_index + 1, self._log.hard_state.term
        self._log.append([LogEntry(first + at, term, each) for at, each in enumerate(payloads)])
        self._log.sync()
        return range(first, first + len(payloads))

    def append_async(self, payload: bytes) -> Future[int]:
        """Append; there is no other way of not waiting."""
        future: Future[int] = Future()
        future.set_result(self.append(payload))
        return future

    def set_hard_state(self, state: HardState) -> None:
        """See `Wal`."""
        self._log.set_hard_state(state)

    def release(self, index: int, note: bytes) -> None:
        """Apply a snapshot of everything up to an index."""
        assert note == note_of(index)
        term = self._log.term_at(index)
        assert term is not None
        self._log.apply_snapshot(Snapshot(index, term, _MEMBERSHIP, _data_of(index)))

    def truncate(self, last: int) -> None:
        """Void what is above `last`."""
        self._log.truncate_suffix(last + 1)

    def stats(self) -> WalStats:
        """See `Wal`."""
        return self._log.stats()

    def close(self) -> None:
        """See `Wal`."""
        self._log.close()


class RaftScript(Script):
    """The same life, one layer up."""

    @staticmethod
    def open(folder: Path, *, disk: Disk | None = None, threaded: bool = True) -> Log:
        """Open the replicated log."""
        return RaftAsWal(WalLog.open(folder, CONFIG, disk=disk, threaded=threaded))


if __name__ == "__main__":
    main(RaftScript, *sys.argv[1:])
