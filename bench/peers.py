"""What a log is measured against.

The disk itself, and other stores that a Python program could use.
"""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path
from typing import Protocol

import lmdb
import rocksdict

RECORD_BYTES = 100


class Peer(Protocol):
    """A store that keeps records in the order they came."""

    def append(self, records: list[bytes]) -> None:
        """Append a batch; return when it is durable."""

    def scan(self) -> int:
        """Read every record from the first one on; give how many there were."""

    def close(self) -> None:
        """Let go of everything."""


class Raw:
    """Writes and syncs to one file, growing or filled with zeros before.

    The naive and the real limit.
    """

    def __init__(self, path: Path, size_bytes: int, *, filled: bool) -> None:
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        self._position = 0
        self._limit = size_bytes if filled else 0
        if filled:
            zeros = bytes(1 << 20)
            for _ in range(0, size_bytes, len(zeros)):
                os.write(self._descriptor, zeros)
            os.fsync(self._descriptor)

    def append(self, data: bytes) -> None:
        """Write behind the last write and sync.

        A filled file is used from its start again when it ends.
        """
        if self._limit and self._position + len(data) > self._limit:
            self._position = 0
        os.pwrite(self._descriptor, data, self._position)
        os.fdatasync(self._descriptor)
        self._position += len(data)

    def close(self) -> None:
        """Close the file."""
        os.close(self._descriptor)


class Sqlite:
    """SQLite in WAL mode with synchronous=FULL: a transaction per batch."""

    def __init__(self, folder: Path) -> None:
        self._db = sqlite3.connect(folder / "peer.sqlite", isolation_level=None)
        self._db.execute("pragma journal_mode=wal")
        self._db.execute("pragma synchronous=full")
        self._db.execute("create table if not exists log (i integer primary key, v blob)")

    def append(self, records: list[bytes]) -> None:
        """Insert a batch and commit it."""
        self._db.execute("begin")
        self._db.executemany("insert into log (v) values (?)", [(each,) for each in records])
        self._db.execute("commit")

    def scan(self) -> int:
        """Select every record in the order of the primary key."""
        cursor = self._db.execute("select i, v from log order by i")
        count = 0
        while rows := cursor.fetchmany(10_000):
            count += len(rows)
        return count

    def close(self) -> None:
        """Close the database."""
        self._db.close()


class Rocks:
    """RocksDB through rocksdict: a write batch with a synced write-ahead log."""

    def __init__(self, folder: Path) -> None:
        options = rocksdict.Options(raw_mode=True)
        options.create_if_missing(True)
        self._db = rocksdict.Rdict(str(folder / "peer.rocks"), options)
        self._options = rocksdict.WriteOptions()
        self._options.sync = True
        self._next = 0

    def append(self, records: list[bytes]) -> None:
        """Put a batch under consecutive keys."""
        batch = rocksdict.WriteBatch(raw_mode=True)
        for record in records:
            self._next += 1
            batch.put(self._next.to_bytes(8, "big"), record)
        self._db.write(batch, self._options)

    def scan(self) -> int:
        """Iterate over keys and values."""
        return sum(1 for _ in self._db.items())

    def close(self) -> None:
        """Close the database."""
        self._db.close()


class Lmdb:
    """LMDB with its default syncing: a transaction per batch."""

    def __init__(self, folder: Path) -> None:
        self._env = lmdb.open(str(folder / "peer.lmdb"), map_size=8 << 30)
        self._next = 0

    def append(self, records: list[bytes]) -> None:
        """Append a batch under consecutive keys."""
        with self._env.begin(write=True) as transaction:
            for record in records:
                self._next += 1
                transaction.put(self._next.to_bytes(8, "big"), record, append=True)

    def scan(self) -> int:
        """Walk over keys and values with a cursor."""
        with self._env.begin() as transaction:
            return sum(1 for _ in transaction.cursor().iternext(keys=True, values=True))

    def close(self) -> None:
        """Close the environment."""
        self._env.close()
