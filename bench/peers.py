"""What a log is measured against.

The disk itself, and other stores that a Python program could use. All may be appended to from many
threads. A store's package is imported when the store is opened: not every machine has all of them.
"""

from __future__ import annotations

import itertools
import os
import sqlite3
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Protocol

RECORD_BYTES = 100


class Peer(Protocol):
    """A store that keeps records in the order they came."""

    def append(self, records: list[bytes]) -> None:
        """Append a batch; return when it is durable."""

    def scan(self) -> int:
        """Read every record from the first one on; return how many there were."""

    def close(self) -> None:
        """Let go of everything."""


class Raw:
    """Writes and syncs to one file, growing or filled with zeros before.

    The naive and the real limit.
    """

    def __init__(self, path: Path, size_bytes: int, *, filled: bool) -> None:
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        self._position = 0
        self._one_at_a_time = threading.Lock()
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
        with self._one_at_a_time:
            if self._limit and self._position + len(data) > self._limit:
                self._position = 0
            os.pwrite(self._descriptor, data, self._position)
            os.fdatasync(self._descriptor)
            self._position += len(data)

    def close(self) -> None:
        """Close the file."""
        os.close(self._descriptor)


def open_sqlite(folder: Path) -> sqlite3.Connection:
    """Open a database that syncs every transaction, for any thread."""
    path = folder / "peer.sqlite"
    database = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    database.execute("pragma journal_mode=wal")
    database.execute("pragma synchronous=full")
    return database


def open_rocks(folder: Path) -> tuple[Any, Callable[[Iterable[tuple[bytes, bytes]]], None]]:
    """Open a RocksDB; return it, and what writes keys and values in one synced batch."""
    import rocksdict

    options = rocksdict.Options(raw_mode=True)
    options.create_if_missing(True)
    database = rocksdict.Rdict(str(folder / "peer.rocks"), options)
    synced = rocksdict.WriteOptions()
    synced.sync = True

    def write(pairs: Iterable[tuple[bytes, bytes]]) -> None:
        batch = rocksdict.WriteBatch(raw_mode=True)
        for key, value in pairs:
            batch.put(key, value)
        database.write(batch, synced)

    return database, write


class Sqlite:
    """SQLite in WAL mode with synchronous=FULL: a transaction per batch."""

    def __init__(self, folder: Path) -> None:
        # One connection for all threads: SQLite has one writer, and waiting here costs least.
        self._one_at_a_time = threading.Lock()
        self._db = open_sqlite(folder)
        self._db.execute("create table if not exists log (i integer primary key, v blob)")

    def append(self, records: list[bytes]) -> None:
        """Insert a batch and commit it."""
        rows = [(each,) for each in records]
        with self._one_at_a_time:
            self._db.execute("begin")
            self._db.executemany("insert into log (v) values (?)", rows)
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
        self._db, self._write = open_rocks(folder)
        self._numbers = itertools.count(1)

    def append(self, records: list[bytes]) -> None:
        """Put a batch under ascending keys."""
        self._write((next(self._numbers).to_bytes(8, "big"), record) for record in records)

    def scan(self) -> int:
        """Iterate over keys and values."""
        return sum(1 for _ in self._db.items())

    def close(self) -> None:
        """Close the database."""
        self._db.close()


class Lmdb:
    """LMDB with its default syncing: a transaction per batch."""

    def __init__(self, folder: Path) -> None:
        import lmdb

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
