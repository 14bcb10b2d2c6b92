"""The logs and stores that a comparison writes to, and Lakebed beside them, in one shape."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

import lakebed
from bench.compare_work import Entry, Scale
from bench.logs import TOPIC, settle
from bench.peers import Lmdb, Raw, Rocks, Sqlite
from bench.rabbit import RabbitQueue
from bench.report import MIB
from bench.served import Served
from bench.servers import JetStream, RedisStream

PARTITIONS = 4
_READ_RECORDS = 65_536
_SERVED = "Lakebed, served"


class OurLog:
    """Lakebed through its client or in this process, as a store of records in their order."""

    def __init__(self, log: Any) -> None:
        self.log = log

    def append(self, records: list[bytes]) -> None:
        """Append a batch, or a record alone; what Arrow needs is made of it first."""
        if len(records) == 1:
            self.log.append(TOPIC, records[0])
        else:
            self.log.append_batch(TOPIC, pa.table({"value": pa.array(records, pa.binary())}))

    def scan(self) -> int:
        """Read every record and make a Python object of it."""
        return self._read(objects=True)

    def scan_arrow(self) -> int:
        """Read every record as Arrow tables, which is how Lakebed gives them."""
        return self._read(objects=False)

    def _read(self, *, objects: bool) -> int:
        count = 0
        for partition, (low, end) in self.log.offsets(TOPIC).items():
            offset = low
            while offset < end:
                rows = self.log.read(TOPIC, partition, offset, max_records=_READ_RECORDS)
                if objects:
                    assert len(rows["value"].to_pylist()) == rows.num_rows
                offset += rows.num_rows
            count += end - low
        return count

    def rest(self) -> None:
        """Checkpoint, so that nothing is left to be done in the background."""
        settle(self.log)

    def close(self) -> None:
        """Close the log."""
        self.log.close()


class OurEmbedded(OurLog):
    """Lakebed in this process, with its defaults."""

    def __init__(self, folder: Path) -> None:
        log = lakebed.open(folder)
        log.get_or_create_topic(TOPIC, partitions=PARTITIONS)
        super().__init__(log)


class OurServed(OurLog):
    """`lakebed serve` with its defaults, and a client."""

    def __init__(self, folder: Path, crowd: str = "record") -> None:
        self._served = Served(folder, PARTITIONS, steady=False)
        self.crowd = (crowd, self._served.http_port if crowd == "socket" else self._served.port)
        self.load = ("lakebed", self._served.url)
        super().__init__(self._served.log)

    def close(self) -> None:
        """Stop the server."""
        self._served.close()


class OurClient(OurLog):
    """One more client of a server."""

    def __init__(self, url: str) -> None:
        super().__init__(lakebed.open(url))


class RawDisk:
    """A file that is written to and synced, as a peer."""

    def __init__(self, folder: Path, *, filled: bool) -> None:
        self._raw = Raw(folder / "raw", 256 * MIB, filled=filled)

    def append(self, records: list[bytes]) -> None:
        """Write a batch behind the last one and sync."""
        self._raw.append(b"".join(records))

    def close(self) -> None:
        """Close the file."""
        self._raw.close()


class _Redis(RedisStream):
    def __init__(self, folder: Path) -> None:
        super().__init__(folder / "data")
        self.crowd = self.load = ("redis", self.port)


class _Nats(JetStream):
    def __init__(self, folder: Path) -> None:
        super().__init__(folder / "data")
        self.crowd = self.load = ("nats", self.port)


class _Rabbit(RabbitQueue):
    def __init__(self, folder: Path, kind: str) -> None:
        super().__init__(folder / "data", kind)
        self.crowd = self.load = (f"rabbit-{kind}", self.port)


def embedded(*, raw: bool = True) -> list[Entry]:
    """Return the entries that live in the process that writes."""
    found = [
        Entry(
            "Lakebed",
            "embedded, its defaults",
            lambda folder, _: OurEmbedded(folder),
            against="",
            optional=False,
        ),
        Entry(
            "SQLite",
            "WAL mode, `synchronous=FULL`",
            lambda folder, _: Sqlite(folder),
        ),
        Entry(
            "RocksDB",
            "by rocksdict, `sync=True`",
            lambda folder, _: Rocks(folder),
            modules=("rocksdict",),
        ),
        Entry(
            "LMDB",
            "its default syncing",
            lambda folder, _: Lmdb(folder),
            modules=("lmdb",),
        ),
    ]
    if raw:
        found += [
            Entry(
                "raw disk, growing file",
                "`write` and `fdatasync` of the bytes alone",
                lambda folder, _: RawDisk(folder, filled=False),
                limit=True,
            ),
            Entry(
                "raw disk, file filled before",
                "the same into blocks that are there already",
                lambda folder, _: RawDisk(folder, filled=True),
                limit=True,
            ),
        ]
    return found


def served(*, crowd: bool = False, kinds: Mapping[str, str] | None = None) -> list[Entry]:
    """Return the entries that are a server on loopback; `kinds` says what some cannot do."""
    entries = [
        Entry(
            _SERVED,
            "its defaults, by WebSocket" if crowd else "`lakebed serve`, its defaults",
            partial(_our_served, crowd="socket" if crowd else "record"),
            against="",
        ),
        Entry(
            "Redis Streams",
            "`appendfsync always`",
            lambda folder, _: _Redis(folder),
            programs=("redis-server",),
            modules=("redis",),
            against=_SERVED,
        ),
        _rabbit("RabbitMQ, quorum queue", "one node", "quorum", synced=True),
        _rabbit("RabbitMQ, stream", "one node, over AMQP", "stream", synced=False),
        Entry(
            "NATS JetStream",
            "in files, `sync_interval: always` where it is known (from 2.10 on)",
            lambda folder, _: _Nats(folder),
            programs=("nats-server",),
            modules=("nats",),
            synced=False,
            against=_SERVED,
        ),
    ]
    if crowd:
        flight = "its defaults, by Arrow Flight"
        opener = partial(_our_served, crowd="record")
        entries.insert(1, Entry("Lakebed, served, Flight", flight, opener, against=""))
    cannot = kinds or {}
    return [
        Entry(each.name, cannot[each.name], against=_SERVED) if each.name in cannot else each
        for each in entries
    ]


def _rabbit(name: str, how: str, kind: str, *, synced: bool) -> Entry:
    return Entry(
        name,
        how,
        lambda folder, _: _Rabbit(folder, kind),
        programs=("rabbitmq-server", "epmd"),
        modules=("pika",),
        synced=synced,
        against=_SERVED,
    )


def _our_served(folder: Path, _scale: Scale, *, crowd: str) -> OurServed:
    return OurServed(folder, crowd)


def forget(folder: Path) -> None:
    """Have the system forget what it keeps of a folder's files in memory."""
    for path in folder.rglob("*"):
        if path.is_file():
            descriptor = os.open(path, os.O_RDONLY)
            try:
                os.fsync(descriptor)  # what is not on disk yet cannot be forgotten
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(descriptor)
