"""A second implementation of the formats on disk, made from docs/formats.md alone.

It imports nothing of Lakebed: what it cannot find out from the page, the page does not say.
`Folder` reads every record that a log holds; `Writer` makes a log that holds some.
"""

from __future__ import annotations

import contextlib
import json
import struct
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgpack
import pyarrow as pa
import pyarrow.parquet as pq
from crc32c import crc32c

FILE_HEADER = struct.Struct("<8sIIII16sQQQ")
FRAME_HEADER = struct.Struct("<IIIIBBHIQQQQQ")
COMMAND_HEAD = struct.Struct("<BBHI")
SNAPSHOT_HEAD = struct.Struct("<8sI")
SNAPSHOT_TAIL = struct.Struct("<QI8s")
WAL_MAGIC = b"LAKEWAL\n"
FRAME_MAGIC = 0x4D41454C
SNAPSHOT_MAGIC = b"LKBSNAP\n"
ENTRY, HARD_STATE, TRUNCATE, RELEASE, IDLE, GAP = 1, 2, 3, 4, 5, 6

Key = tuple[int, int]
Record = tuple[Any, Any, Any, Any]


class RefusedError(Exception):
    """A command that changes nothing."""


def padded(length: int) -> int:
    return (length + 63) & ~63


def json_checksum(record: dict[str, Any]) -> int:
    return crc32c(json.dumps(record, sort_keys=True).encode())


def storage_schema(value: pa.DataType) -> pa.Schema:
    return pa.schema(
        [
            pa.field("timestamp", pa.timestamp("us", "UTC"), nullable=False),
            ("key", pa.binary()),
            ("headers", pa.map_(pa.string(), pa.binary())),
            ("value", value),
        ]
    )


@dataclass
class Topic:
    name: str
    partitions: int
    schemas: list[bytes]

    def value_type(self, schema: int) -> pa.DataType:
        if not schema:
            return pa.binary()
        return pa.struct(list(pa.ipc.read_schema(pa.py_buffer(self.schemas[schema - 1]))))


@dataclass
class Partition:
    low: int = 0
    end: int = 0
    flushed: int = 0
    segments: list[list[int]] = field(default_factory=list)
    records: dict[int, Record] = field(default_factory=dict)
    """What stands in entries, by offset."""


class Folder:
    """Everything that a log's folder holds, read without changing anything."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.entries: dict[int, bytes] = {}
        self.kinds: set[int] = set()
        """The kinds of frames that were met."""
        self.commands: set[int] = set()
        self.released = self.last_index = 0
        self.topics: dict[int, Topic] = {}
        self.partitions: dict[Key, Partition] = {}
        self.producers: dict[tuple[bool, str], list[int]] = {}
        """Id and epoch, by whether it is transactional and by its name."""
        self.epochs: dict[int, int] = {}
        self.named: dict[int, bool] = {}
        """Of producers without transactions: whether they can be taken over by their name."""
        self.sequences: dict[tuple[int, int, int], tuple[int, list[list[int]]]] = {}
        self.open: dict[int, list[tuple[list[Any], pa.RecordBatch | None, int, int]]] = {}
        """Parts of open transactions, with the entry and the number of each."""
        self.deadlines: dict[int, int] = {}
        self.markers: dict[str, int] = {}
        self.offsets: dict[tuple[str, int, int], int] = {}
        self.numbers = {"topic": 1, "producer": 1}
        self.snapshot = 0
        self.log_id = self._identity()
        self._read_wal()
        self._load_snapshot()
        for index in range(self.snapshot + 1, self.last_index + 1):
            self._apply(index, self.entries[index])

    # The write-ahead log

    def _identity(self) -> uuid.UUID:
        record = json.loads((self.root / "lakebed.json").read_bytes())
        assert record.pop("crc32c") == json_checksum(record)
        assert record["format"] == 1
        return uuid.UUID(record["log"])

    def _read_wal(self) -> None:
        paths = sorted((self.root / "wal").glob("*.wal"))
        link: int | None = None
        for path in paths:
            data = path.read_bytes()
            header = FILE_HEADER.unpack_from(data)
            magic, version, checksum, number, capacity, identity, first, parent, _ = header
            assert (magic, version, identity) == (WAL_MAGIC, 1, self.log_id.bytes)
            assert checksum == crc32c(data[16:64], crc32c(data[:12]))
            assert number == int(path.stem)
            assert len(data) >= capacity * 4096
            assert link is None or (link, self.last_index + 1) == (parent, first)
            self.last_index = first - 1
            link = self._read_frames(data, number, parent)

    def _read_frames(self, data: bytes, number: int, link: int) -> int:
        at = 64
        salt = crc32c(self.log_id.bytes)
        while at + 64 <= len(data) and data[at : at + 64] != bytes(64):
            frame = FRAME_HEADER.unpack_from(data, at)
            magic, checksum, length, payload_checksum, kind, flags, _, file, index = frame[:9]
            payload = data[at + 64 : at + 64 + length]
            assert magic == FRAME_MAGIC
            assert checksum == crc32c(data[at + 8 : at + 64], salt)
            assert payload_checksum == crc32c(payload)
            if file < number:
                break  # residue
            assert (file, frame[11]) == (number, link)
            assert frame[10] <= at
            self._frame(kind, flags, index, payload)
            link = checksum << 32 | payload_checksum
            at += 64 + padded(length)
        return link

    def _frame(self, kind: int, flags: int, index: int, payload: bytes) -> None:
        self.kinds.add(kind)
        if kind == ENTRY:
            assert index == self.last_index + 1
            self.last_index = index
            self.entries[index] = payload
        elif kind == TRUNCATE:
            self.last_index = index
        elif kind == RELEASE:
            assert not flags
            self.released = index
        else:
            assert kind == IDLE

    # The snapshot

    def _load_snapshot(self) -> None:
        found = sorted(int(each.stem) for each in (self.root / "snapshots").glob("*.snapshot"))
        if not found:
            assert self.released == 0
            return
        self.snapshot = found[-1]
        assert self.snapshot >= self.released
        data = (self.root / "snapshots" / f"{self.snapshot:020}.snapshot").read_bytes()
        magic, version = SNAPSHOT_HEAD.unpack_from(data)
        length, checksum, end = SNAPSHOT_TAIL.unpack_from(data, len(data) - SNAPSHOT_TAIL.size)
        assert (magic, version, end) == (SNAPSHOT_MAGIC, 4, SNAPSHOT_MAGIC)
        assert (length, checksum) == (len(data) - SNAPSHOT_TAIL.size, crc32c(data[:length]))
        self._take(msgpack.unpackb(data[SNAPSHOT_HEAD.size : length]))

    def _take(self, document: dict[str, Any]) -> None:
        self.numbers = dict(document["numbers"])
        assert self.numbers["applied"] == self.snapshot
        for number, name, partitions, schemas, _, _ in document["topics"]:
            self.topics[number] = Topic(name, partitions, schemas)
        for topic, partition, low, end, flushed, segments, _ in document["partitions"]:
            self.partitions[topic, partition] = Partition(low, end, flushed, segments)
        for number, name, epoch, _, transactional, _ in document["producers"]:
            self.epochs[number] = epoch
            if not transactional:
                self.named[number] = bool(name) and not name.endswith("/")
            if name:
                self.producers[transactional, name] = [number, epoch]
        for producer, topic, partition, epoch, batches in document["sequences"]:
            self.sequences[producer, topic, partition] = (epoch, batches)
        for producer, _, started, timeout, pending, _ in document["transactions"]:
            self.deadlines[producer] = started + timeout
            self.open[producer] = [
                (part, self._staged(part, *place), entry, number)
                for entry, number, part, *place in pending
            ]
        self.markers = {name: number for name, number, *_ in document["markers"]}
        for group, topic, partition, offset, _ in document["offsets"]:
            self.offsets[group, topic, partition] = offset

    def _staged(self, part: list[Any], file: int, position: int, checksum: int) -> pa.RecordBatch:
        data = (self.root / "staging" / f"{file:020}.staged").read_bytes()
        body = data[position : position + part[3]]
        assert crc32c(body) == checksum
        return self._batch(part, body)

    # Commands

    def _apply(self, index: int, payload: bytes) -> None:
        version, kind, _, length = COMMAND_HEAD.unpack_from(payload)
        assert version == 1
        self.commands.add(kind)
        fields = msgpack.unpackb(payload[8 : 8 + length])
        bodies = payload[padded(8 + length) :]
        with contextlib.suppress(RefusedError):
            self._command(index, kind, fields, bodies)

    def _command(self, index: int, kind: int, fields: list[Any], bodies: bytes) -> None:
        if kind == 1:
            self._create(*fields[:3])
        elif kind == 3:
            self._add_partitions(*fields)
        elif kind == 4:
            self.topics.pop(fields[0], None)
        elif kind == 6:
            for part, batch in self._parts(fields[1], bodies):
                self._place_one(part, batch)
        elif kind == 7:
            self._producer_write(*fields, bodies=bodies)
        elif kind in (8, 9):
            self._register(fields, transactional=kind == 9)
        elif kind == 10:
            producer, epoch, time, parts = fields
            self._check_open(producer, epoch, time)
            self._add(producer, index, parts, bodies)
        elif kind == 11:
            producer, epoch, time, parts, offsets = fields
            self._check_open(producer, epoch, time)
            self._add(producer, index, parts, bodies)
            self._commit([producer], offsets)
        elif kind == 12:
            if self.epochs.get(fields[0]) == fields[1]:
                self.open.pop(fields[0], None)
        elif kind == 14:
            group, _, offsets, _ = fields
            for topic, partition, offset in offsets:
                self.offsets[group, topic, partition] = offset
        elif kind == 17:
            self._flush(*fields)
        elif kind == 18:
            self._replace(*fields[:4])
        elif kind in (5, 19):
            self._trim(fields)
        elif kind == 26:
            self._commit_together(*fields)
        elif kind == 28:
            self._write_many(fields[1], fields[2], bodies)

    def _create(self, name: str, partitions: int, schema: bytes) -> None:
        if name in {topic.name for topic in self.topics.values()}:
            raise RefusedError
        number = self.numbers["topic"]
        self.numbers["topic"] += 1
        self.topics[number] = Topic(name, partitions, [schema] if schema else [])
        for each in range(partitions):
            self.partitions[number, each] = Partition()

    def _add_partitions(self, topic: int, partitions: int) -> None:
        if topic not in self.topics or partitions < self.topics[topic].partitions:
            raise RefusedError
        for each in range(self.topics[topic].partitions, partitions):
            self.partitions[topic, each] = Partition()
        self.topics[topic].partitions = partitions

    def _parts(
        self, parts: list[Any], bodies: bytes
    ) -> Iterator[tuple[list[Any], pa.RecordBatch | None]]:
        at = 0
        for part in parts:
            yield part, self._batch(part, bodies[at : at + part[3]])
            at += padded(part[3])

    def _batch(self, part: list[Any], body: bytes) -> pa.RecordBatch | None:
        if part[0] not in self.topics:
            return None
        value = self.topics[part[0]].value_type(part[1])
        return pa.ipc.read_record_batch(pa.py_buffer(body), storage_schema(value))

    def _place_one(self, part: list[Any], batch: pa.RecordBatch | None) -> None:
        with contextlib.suppress(RefusedError):
            self._place(part, batch)

    def _place(self, part: list[Any], batch: pa.RecordBatch | None) -> None:
        topic, _, runs, _ = part
        if batch is None or any((topic, number) not in self.partitions for number, _ in runs):
            raise RefusedError
        rows = iter(records_of(batch))
        for number, records in runs:
            partition = self.partitions[topic, number]
            for _ in range(records):
                partition.records[partition.end] = next(rows)
                partition.end += 1

    def _producer_write(
        self, _time: int, producer: int, epoch: int, firsts: list[int], part: Any, *, bodies: bytes
    ) -> None:
        if self.epochs.get(producer) != epoch:
            raise RefusedError
        known = []
        for (number, records), first in zip(part[2], firsts, strict=True):
            at, batches = self.sequences.get((producer, part[0], number), (epoch, []))
            batches = batches if at == epoch else []
            known.append([first, records] in [each[:2] for each in batches])
            if not known[-1] and first != (sum(batches[-1][:2]) if batches else 0):
                raise RefusedError
        if any(known):
            raise RefusedError
        bases = [self.partitions[part[0], number].end for number, _ in part[2]]
        self._place(part, self._batch(part, bodies[: part[3]]))
        for (number, records), first, base in zip(part[2], firsts, bases, strict=True):
            key = (producer, part[0], number)
            at, batches = self.sequences.get(key, (epoch, []))
            batches = [*(batches if at == epoch else []), [first, records, base]]
            self.sequences[key] = (epoch, batches[-5:])

    def _write_many(self, parts: list[Any], claims: list[Any], bodies: bytes) -> None:
        for (part, batch), claimed in zip(self._parts(parts, bodies), claims, strict=True):
            start = 0
            for (number, records), claim in zip(part[2], claimed, strict=True):
                rows = None if batch is None else batch.slice(start, records)
                start += records
                with contextlib.suppress(RefusedError):
                    self._place_claimed([part[0], part[1], [[number, records]], 0], rows, claim)

    def _place_claimed(self, part: list[Any], batch: Any, claim: list[int]) -> None:
        if not claim:
            self._place(part, batch)
            return
        producer, epoch, first = claim
        ((number, records),) = part[2]
        now = self.epochs.get(producer)
        named = self.named.get(producer)
        raised = now is not None and epoch > now and named is False and first == 0
        if named is None or (epoch != now and not raised):
            raise RefusedError
        key = (producer, part[0], number)
        at, batches = self.sequences.get(key, (epoch, []))
        if at != epoch and first:
            raise RefusedError
        batches = batches if at == epoch else []
        if [first, records] in [each[:2] for each in batches]:
            raise RefusedError
        if batches and first != sum(batches[-1][:2]) % 2**31:
            raise RefusedError
        if (part[0], number) not in self.partitions:
            raise RefusedError
        base = self.partitions[part[0], number].end
        self._place(part, batch)
        self.sequences[key] = (epoch, [*batches, [first, records, base]][-5:])
        self.epochs[producer] = epoch

    def _register(self, fields: list[Any], *, transactional: bool) -> None:
        name = fields[0]
        identity = self.producers.get((transactional, name)) if name else None
        if identity is None:
            identity = [self.numbers["producer"], 0]
            self.numbers["producer"] += 1
        identity = [identity[0], identity[1] + 1]
        if name:
            self.producers[transactional, name] = identity
        self.epochs[identity[0]] = identity[1]
        if not transactional:
            self.named[identity[0]] = bool(name) and not name.endswith("/")
        if transactional:
            self.open[identity[0]] = []
            self.deadlines[identity[0]] = fields[1] + fields[2]

    def _check_open(self, producer: int, epoch: int, time: int) -> None:
        if self.epochs.get(producer) != epoch or producer not in self.open:
            raise RefusedError
        if time > self.deadlines[producer]:
            raise RefusedError

    def _add(self, producer: int, index: int, parts: list[Any], bodies: bytes) -> None:
        for number, (part, batch) in enumerate(self._parts(parts, bodies)):
            self.open[producer].append((part, batch, index, number))

    def _commit(self, producers: list[int], offsets: list[Any]) -> None:
        for producer in producers:
            for part, batch, _, _ in self.open.pop(producer):
                self._place(part, batch)
        for group, _, topic, partition, offset in offsets:
            self.offsets[group, topic, partition] = offset

    def _commit_together(
        self, name: str, number: int, time: int, _keep: int, named: list[list[int]], offsets: Any
    ) -> None:
        if self.markers.get(name, -1) >= number:
            for producer, _ in named:
                self.open.pop(producer, None)
            return
        for producer, epoch in named:
            self._check_open(producer, epoch, time)
        self._commit([producer for producer, _ in named], offsets)
        self.markers[name] = number

    def _flush(self, added: list[Any], staged: list[Any]) -> None:
        for topic, number, segment in added:
            partition = self.partitions.get((topic, number))
            if partition is not None and segment[2] > partition.flushed:
                partition.flushed = segment[2]
                partition.segments.append(segment)
        for file, producer, epoch, bodies in staged:
            places = {(entry, number): place for entry, number, *place in bodies}
            if self.epochs.get(producer) == epoch and producer in self.open:
                self.open[producer] = [
                    (part, self._staged(part, file, *places[entry, number]), entry, number)
                    for part, _, entry, number in self.open[producer]
                ]

    def _replace(self, topic: int, number: int, removed: list[int], added: list[Any]) -> None:
        partition = self.partitions[topic, number]
        ids = [segment[0] for segment in partition.segments]
        if removed and removed[0] in ids:
            at = ids.index(removed[0])
            if ids[at : at + len(removed)] == removed:
                partition.segments[at : at + len(removed)] = added

    def _trim(self, fields: list[Any]) -> None:
        topic = fields[0]
        every = range(self.topics[topic].partitions)
        lows = fields[1] if len(fields) > 1 else [(n, self.partitions[topic, n].end) for n in every]
        for number, offset in lows:
            partition = self.partitions[topic, number]
            partition.low = max(partition.low, min(offset, partition.end))
            partition.flushed = max(partition.flushed, partition.low)
            partition.segments = [each for each in partition.segments if each[2] > partition.low]

    # Records

    def records(self, topic: str, partition: int) -> dict[int, Record]:
        """Return every record of a partition by its offset."""
        number = next(key for key, each in self.topics.items() if each.name == topic)
        found = self.partitions[number, partition]
        sealed: dict[int, Record] = {}
        for segment in found.segments:
            sealed |= self._segment(number, partition, segment)
        rest = {at: each for at, each in found.records.items() if at >= found.flushed}
        return {at: each for at, each in {**sealed, **rest}.items() if at >= found.low}

    def _segment(self, topic: int, partition: int, segment: list[int]) -> dict[int, Record]:
        path = self.root / "lake" / str(topic) / f"{partition}-{segment[0]:020}.parquet"
        data = path.read_bytes()
        tail = segment[4] - segment[5]
        assert (len(data), crc32c(data[tail:])) == (segment[4], segment[6])
        file = pq.ParquetFile(pa.BufferReader(data))
        index = json.loads(file.metadata.metadata[b"lakebed.segment"])
        assert (index["format"], index["segment"]) == (2, segment[0])
        assert [index["base"], index["end"]] == segment[1:3]
        at = 4
        for group in index["row_groups"]:
            for start, length, checksum in group["chunks"]:
                assert (start, crc32c(data[start : start + length])) == (at, checksum)
                at += length
        assert (data[:4], at) == (b"PAR1", tail)
        table = file.read()
        assert table.num_rows == segment[3] == sum(each["rows"] for each in index["row_groups"])
        assert set(table.column("partition").to_pylist()) == {partition}
        return dict(zip(table.column("offset").to_pylist(), records_of(table), strict=True))


def records_of(batch: pa.RecordBatch | pa.Table) -> list[Record]:
    """Return time, key, headers and value of each record."""
    columns = [batch.column(name) for name in ("timestamp", "key", "headers", "value")]
    columns[0] = columns[0].cast(pa.int64())
    return list(zip(*(column.to_pylist() for column in columns), strict=True))


class Writer:
    """Writes a log's first WAL file: a header, entries, an end block."""

    def __init__(self, root: Path, log_id: uuid.UUID, time_us: int) -> None:
        self.root = root
        self.log_id = log_id
        self.time_us = time_us
        self.frames = b""
        self.link = self.index = 0

    def entry(self, kind: int, fields: list[Any], *bodies: bytes) -> None:
        """Add a command."""
        envelope = msgpack.packb(fields)
        payload = COMMAND_HEAD.pack(1, kind, 0, len(envelope)) + envelope
        payload += bytes(padded(len(payload)) - len(payload))
        for body in bodies:
            payload += body + bytes(padded(len(body)) - len(body))
        self.index += 1
        rest = (len(payload), crc32c(payload), ENTRY, 0, 0, 1, self.index, 0, 64, self.link)
        header = FRAME_HEADER.pack(FRAME_MAGIC, 0, *rest, self.time_us)
        checksum = crc32c(header[8:], crc32c(self.log_id.bytes))
        self.link = checksum << 32 | crc32c(payload)
        self.frames += header[:4] + struct.pack("<I", checksum) + header[8:]
        self.frames += payload + bytes(padded(len(payload)) - len(payload))

    def save(self, *, file_bytes: int = 65_536) -> None:
        """Make the folder a log."""
        fields = (1, file_bytes // 4096, self.log_id.bytes, 1, 0, self.time_us)
        header = FILE_HEADER.pack(WAL_MAGIC, 1, 0, *fields)
        checksum = crc32c(header[16:], crc32c(header[:12]))
        header = header[:12] + struct.pack("<I", checksum) + header[16:]
        record: dict[str, Any] = {"format": 1, "log": str(self.log_id)}
        record["crc32c"] = json_checksum(record)
        (self.root / "wal").mkdir(parents=True)
        content = (header + self.frames).ljust(file_bytes, b"\0")
        (self.root / "wal" / f"{1:020}.wal").write_bytes(content)
        (self.root / "lakebed.json").write_text(json.dumps(record))
