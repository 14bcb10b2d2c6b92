"""Checks mutated Arrow streams and predicates in a process that may crash.

    python -m tests.proof.wire_fuzz_child streams|predicates FOLDER

It reads the number of a round from each line of its input, tries the inputs of that round, and
answers with a line: how many inputs there were, and how many of them were refused. Before an input
is tried it is written to `FOLDER/input`, so that the input that ended the process is there.
"""

from __future__ import annotations

import random
import struct
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgpack
import pyarrow as pa

import lakebed
from lakebed import Log
from lakebed.errors import InvalidArgumentError, LakebedError
from lakebed.wire.predicates import FIXED, MANY, MATCHES, unpack_predicate
from lakebed.wire.protocol import pack, unpack
from lakebed.wire.received import Received, batch_bytes
from tests.proof.scale import rng
from tests.serve.hostile import MAP, NESTED

INPUTS_PER_ROUND = 200
_REQUEST_BYTES_MAX = 64 << 20
_WORDS = (0, 1, 2, 5, 12, 13, 255, 2**16, 2**31 - 1, -1, -2, -79_000, -(2**31))
_LONGS = (0, 1, 3, 8, 64, 2**31, 2**40, 2**62, -1, -8)


# Streams


_TEXTS = (pa.string(), pa.binary(), pa.large_string(), pa.large_binary())
_VIEWS = (pa.string_view(), pa.binary_view())


def _nullable(chance: random.Random, values: list[Any]) -> list[Any]:
    return [None if chance.random() < 0.3 else value for value in values]


def _texts(chance: random.Random, rows: int, kind: pa.DataType) -> pa.Array:
    values = ["x" * chance.choice([0, 3, 12, 13, 40]) + str(row) for row in range(rows)]
    array = pa.array(_nullable(chance, values), pa.string()).cast(kind)
    return _tamper(chance, array) if kind in _VIEWS and chance.random() < 0.3 else array


def _tamper(chance: random.Random, array: pa.Array) -> pa.Array:
    """Return an array of views with anything in its null slots, which is valid to Arrow."""
    valid, slots, *data = array.buffers()
    if valid is None:
        return array
    changed = bytearray(slots.to_pybytes())
    for row in range(len(array)):
        if not array[row].is_valid:
            struct.pack_into("<i", changed, 16 * row, chance.choice(_WORDS))
    return pa.Array.from_buffers(array.type, len(array), [valid, pa.py_buffer(changed), *data])


def _column(chance: random.Random, rows: int) -> pa.Array:
    """Return text or bytes in one of the layouts that a topic takes."""
    kind = chance.choice([*_TEXTS, *_VIEWS, *_VIEWS])
    array = _texts(chance, rows, kind)
    if chance.random() < 0.3:
        words = _texts(chance, 3, kind)
        indices = _nullable(chance, [chance.randrange(3) for _ in range(rows)])
        return pa.DictionaryArray.from_arrays(pa.array(indices, pa.int8()), words)
    if kind == pa.binary() and chance.random() < 0.3:
        return pa.array(_nullable(chance, [b"abcd"] * rows), pa.binary(4))
    return array


def _map(chance: random.Random, rows: int) -> pa.Array:
    kind = pa.map_(chance.choice([pa.string(), pa.string_view()]), chance.choice(_TEXTS + _VIEWS))
    entries = [[(f"k{n}", "v" * 13)] * chance.randrange(3) for n in range(rows)]
    return pa.array(entries, pa.map_(pa.string(), pa.string())).cast(kind)


def _value(chance: random.Random, rows: int) -> pa.Array:
    """Return values of the nested topic, in layouts that it takes."""
    words = _texts(chance, 2 * rows, chance.choice([pa.string(), pa.string_view()]))
    listed = chance.choice([pa.ListArray, pa.LargeListArray])
    lists = [[[("k", b"v")]] * chance.randrange(2) for _ in range(rows)]
    fields = {
        "name": _texts(chance, rows, chance.choice([pa.string(), *_VIEWS[:1]])),
        "words": listed.from_arrays(list(range(0, 2 * rows + 1, 2)), words),
        "tags": _map(chance, rows),
        "lists": pa.array(lists, pa.list_(MAP)),
    }
    chosen = [name for name in fields if chance.random() < 0.7] or ["name"]
    return pa.StructArray.from_arrays([fields[name] for name in chosen], chosen)


def _stream(chance: random.Random) -> tuple[str, bytes]:
    """Return a valid stream, and the topic that takes it."""
    rows = chance.choice([0, 1, 3, 20, 200])
    topic = chance.choice(["raw", NESTED_TOPIC])
    columns = {
        "value": _column(chance, rows) if topic == "raw" else _value(chance, rows),
        "key": pa.array([b"k"] * rows) if chance.random() < 0.8 else _column(chance, rows),
    }
    if chance.random() < 0.3:
        columns["headers"] = _map(chance, rows)
    if chance.random() < 0.3:
        unit = chance.choice(["s", "ms", "us", "ns"])
        columns["timestamp"] = pa.array(
            [1] * rows, pa.timestamp(unit, chance.choice([None, "UTC"]))
        )
    batch = pa.record_batch(columns)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return topic, sink.getvalue().to_pybytes()


NESTED_TOPIC = "nested"


def _mutate(chance: random.Random, data: bytes) -> bytes:
    """Return a stream with some bytes, words or lengths changed."""
    changed = bytearray(data)
    for _ in range(chance.choice([0, 1, 1, 1, 2, 4])):
        choice = chance.random()
        if choice < 0.2:
            changed[chance.randrange(len(changed))] = chance.randrange(256)
        elif choice < 0.75:
            position = chance.randrange(len(changed) // 4) * 4
            struct.pack_into("<i", changed, position, chance.choice(_WORDS))
        else:
            position = chance.randrange(len(changed) // 8) * 8
            struct.pack_into("<q", changed, position, chance.choice(_LONGS))
    return bytes(changed)


def streams(chance: random.Random) -> Iterator[bytes]:
    """Draw the inputs of a round: a topic and a stream, as msgpack."""
    for _ in range(INPUTS_PER_ROUND):
        topic, stream = _stream(chance)
        yield pack([topic, _mutate(chance, stream)])


def put(log: Log, data: bytes) -> None:
    """Do with a stream what a server does with a put stream; compare what is read then."""
    topic, stream = unpack(data)
    try:
        reader = pa.ipc.open_stream(stream)
        batches = list(reader)
    except (pa.ArrowException, OSError, EOFError, ValueError, MemoryError) as error:
        raise InvalidArgumentError("not a stream", reason=str(error)) from error
    received = Received()
    for batch in batches:
        if batch_bytes(batch) > _REQUEST_BYTES_MAX:
            raise InvalidArgumentError("too large")
        checked = received.check(batch)
        acks = log.append_batch(topic, checked, partition=0)
        if len(acks):
            _compare(log, topic, checked, acks[0].offset)


def _compare(log: Log, topic: str, batch: pa.RecordBatch, offset: int) -> None:
    """See that what was written is what was sent, apart from its layout."""
    read = log.read(topic, 0, offset, max_records=batch.num_rows).combine_chunks()
    read.validate(full=True)
    assert read.num_rows == batch.num_rows
    for name in ("key", "value"):
        if name in batch.schema.names:
            sent = [_plain(value) for value in batch.column(name).to_pylist()]
            assert [_plain(value) for value in read.column(name).to_pylist()] == sent, name


def _plain(value: Any) -> Any:
    """Return a value without what its layout adds: text as bytes, no fields that are null."""
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items() if each is not None}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return value


# Predicates

_TYPES: dict[str, Any] = {
    **dict.fromkeys(("int8", "int64", "uint64", "date32[day]", "date64[ms]", "time32[s]"), 86_400),
    **dict.fromkeys(("time64[us]", "timestamp[us]", "timestamp[us, tz=UTC]", "duration[s]"), 1),
    **dict.fromkeys(("string", "large_string", "string_view"), "k"),
    **dict.fromkeys(("binary", "large_binary", "binary_view"), b"k"),
    **dict.fromkeys(("decimal128(20, 4)", "decimal256(50, 4)"), "1.5"),
    **dict.fromkeys(("float", "double"), 1.5),
    "bool": True,
    "fixed_size_binary[1]": b"k",
    "null": None,
}
_FIELDS = [
    *(["key"], ["value"], ["offset"], ["timestamp"], ["partition"], ["headers"]),
    *(["value", "name"], ["value", "words"], ["value", "tags"], ["value", "lists"]),
]


def _tree(chance: random.Random, depth: int = 0) -> Any:
    choice = chance.random()
    if depth > 3 or choice < 0.25:
        return ["field", *chance.choice(_FIELDS)]
    kind = chance.choice(list(_TYPES))
    value = None if chance.random() < 0.4 else _TYPES[kind]
    if choice < 0.5:
        return ["value", value, kind]
    below = depth + 1
    if choice < 0.55:
        return ["cast", _tree(chance, below), kind, chance.random() < 0.5]
    if choice < 0.6:
        values = [chance.choice([None, _TYPES[kind]]) for _ in range(chance.randrange(4))]
        return ["is_in", _tree(chance, below), kind, values, chance.random() < 0.5]
    if choice < 0.65:
        pattern = chance.choice(["k", b"k", b"\xff", ""])
        return [chance.choice(list(MATCHES)), _tree(chance, below), pattern, chance.random() < 0.5]
    if choice < 0.7:
        return ["is_null", _tree(chance, below), chance.random() < 0.5]
    if choice < 0.8:
        return [chance.choice(list(MANY)), *(_tree(chance, below) for _ in range(2))]
    name = chance.choice(list(FIXED))
    return [name, *(_tree(chance, below) for _ in range(FIXED[name][0]))]


def predicates(chance: random.Random) -> Iterator[bytes]:
    """Draw the inputs of a round: predicates as they travel."""
    for _ in range(INPUTS_PER_ROUND):
        yield msgpack.packb(_tree(chance))


def scan(log: Log, data: bytes) -> None:
    """Scan both topics with a predicate, which fits them or is refused."""
    where = unpack_predicate(unpack(data))
    refused: LakebedError | None = None
    for topic in ("raw", NESTED_TOPIC):
        try:
            log.table(topic).scan(where=where).read_all().validate(full=True)
        except LakebedError as error:
            refused = error
        except pa.ArrowException as error:  # an overflow, say: it depends on the rows
            refused = InvalidArgumentError("not evaluated", reason=str(error))
    if refused is not None:
        raise refused


# The process

_Draw = Callable[[random.Random], Iterator[bytes]]
_Attempt = Callable[[Log, bytes], None]
MODES: dict[str, tuple[_Draw, _Attempt]] = {
    "streams": (streams, put),
    "predicates": (predicates, scan),
}


def _fill(log: Log) -> None:
    """Have sealed records and others in both topics."""
    log.create_topic("raw")
    log.create_topic(NESTED_TOPIC, schema=NESTED)
    for _ in range(2):
        log.append("raw", b"v", b"k")
        log.append(NESTED_TOPIC, {"name": "v", "words": ["w"], "tags": {"t": b"t"}}, b"k")
        log.checkpoint()
    log.append("raw", b"last", b"k")


def main(mode: str, folder: Path) -> None:
    """Try rounds until the input ends."""
    draw, attempt = MODES[mode]
    current = folder / "input"
    with lakebed.open(folder / "log") as log:
        _fill(log)
        for line in sys.stdin:
            inputs = refused = 0
            for data in draw(rng("wire-fuzz", mode, int(line))):
                current.write_bytes(data)
                inputs += 1
                try:
                    attempt(log, data)
                except LakebedError:
                    refused += 1
            sys.stdout.write(f"{inputs} {refused}\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
