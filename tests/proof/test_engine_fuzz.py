"""Fuzzed decoders of the engine: any bytes give a value or a typed error, in bounded time."""

from __future__ import annotations

import random
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgpack
import pytest
from crc32c import crc32c

from lakebed.errors import LakebedError
from lakebed.lake.segment_index import ColumnChunk, RowGroup, SegmentIndex
from lakebed.lake.segment_index import decode as decode_index
from lakebed.state.command_codec import decode, encode
from lakebed.state.image import MAGIC, State, decode_state, encode_state
from lakebed.state.values import Partition, Segment, Topic
from tests.engine.support import inner
from tests.proof.engine_life import Life, Worker, small_transactions
from tests.proof.engine_writer import SCRIPT, begin, write_pending
from tests.proof.scale import Rounds, repeat_with, rng
from tests.proof.simulated import simulation

pytestmark = pytest.mark.proof

FILE = "tests/proof/test_engine_fuzz.py"
_INPUTS_PER_ROUND = 300
_SLOW_SECONDS = 5.0
_PATH = Path("/segment")


def _value(chance: random.Random, depth: int = 0) -> Any:
    """Draw plain data of any shape."""
    kinds: list[Callable[[], Any]] = [
        lambda: chance.choice([0, 1, -1, 2**31, 2**63, 2**64 - 1, -(2**63)]),
        lambda: chance.randrange(100),
        lambda: chance.randbytes(chance.randrange(9)),
        lambda: chance.choice(["", "orders", "timed out", "\x00", "é" * 3]),
        lambda: chance.choice([None, True, False, 1.5, float("nan")]),
    ]
    if depth < 5:
        kinds += [
            lambda: [_value(chance, depth + 1) for _ in range(chance.randrange(6))],
            lambda: [_value(chance, depth + 1) for _ in range(chance.randrange(6))],
            lambda: {str(n): _value(chance, depth + 1) for n in range(chance.randrange(3))},
        ]
    return chance.choice(kinds)()


def _mangled(chance: random.Random, value: Any) -> Any:
    """Return the same data with one place changed."""
    if isinstance(value, list | tuple) and value and chance.random() < 0.9:
        at = chance.randrange(len(value))
        items = list(value)
        if chance.random() < 0.1:
            del items[at]
        else:
            items[at] = _mangled(chance, items[at])
        return items
    if isinstance(value, dict) and value and chance.random() < 0.9:
        key = chance.choice(sorted(value))
        return {**value, key: _mangled(chance, value[key])}
    return _value(chance)


def _damaged(chance: random.Random, data: bytes) -> bytes:
    """Return bytes with some of them changed, cut or repeated."""
    changed = bytearray(data)
    for _ in range(chance.randint(1, 4)):
        if changed:
            changed[chance.randrange(len(changed))] = chance.randrange(256)
    if chance.random() < 0.2:
        del changed[chance.randrange(len(changed) + 1) :]
    if chance.random() < 0.1:
        changed += chance.randbytes(20)
    return bytes(changed)


def _fuzz(name: str, draw: Callable[[random.Random], Any], decoder: Callable[[Any], Any]) -> None:
    """Decode many drawn inputs: a value or an error of ours, each in bounded time."""
    refused = 0
    test = f"{FILE}::test_fuzzed_{name}_are_decoded_or_refused"
    for number in (rounds := Rounds(test, short=3_000, long=5_000_000, seconds=1.5)):
        chance = rng("engine-fuzz", name, number)
        rounds.count(_INPUTS_PER_ROUND)
        for _ in range(_INPUTS_PER_ROUND):
            refused += _is_refused(draw(chance), decoder, name)
    assert refused, "nothing was refused"


def _is_refused(data: Any, decoder: Callable[[Any], Any], name: str) -> bool:
    """Decode one input; raise if that fails in a way that is not typed, or takes long."""
    started = time.process_time()
    try:
        decoder(data)
        return False
    except LakebedError:
        return True
    except BaseException as error:
        error.add_note(f"input: {data!r}; repeat with: {repeat_with(FILE)} -k {name}")
        raise
    finally:
        assert time.process_time() - started < _SLOW_SECONDS, f"{data!r} took too long"


@simulation("engine-fuzz")
@small_transactions()
def _payloads() -> list[bytes]:
    """Return the entries of a real log: one of nearly every kind of command."""
    from lakebed.host import SimDisk

    life = Life(rng("engine-fuzz"), SCRIPT, SimDisk())
    worker = life.open()
    for action in (
        Worker.prepare,
        Worker.transaction,
        begin,
        write_pending,
        Worker.produce,
        Worker.checkpoint,
        Worker.retain,
        Worker.commit_offsets,
        Worker.purge,
        Worker.recreate,
        Worker.stale_abort,
        Worker.add_partitions,
    ):
        worker.do(action)
    return [bytes(entry.payload) for entry in inner(worker.log).parts.wal.entries()]


def _enveloped(kind: int, fields: Any) -> memoryview:
    envelope = msgpack.packb(fields)
    return memoryview(struct.pack("<BBHI", 1, kind, 0, len(envelope)) + envelope)


def test_fuzzed_commands_are_decoded_or_refused() -> None:
    """Damaged entries, damaged envelopes with sound framing, and arbitrary bytes."""
    payloads = _payloads()
    for payload in payloads:
        command, bodies = decode(memoryview(payload))
        assert b"".join(bytes(part) for part in encode(command, bodies)) == payload

    def draw(chance: random.Random) -> memoryview:
        kind = chance.random()
        payload = chance.choice(payloads)
        if kind < 0.4:
            return memoryview(_damaged(chance, payload))
        if kind < 0.5:
            return memoryview(chance.randbytes(chance.randrange(80)))
        if kind < 0.6:
            return _enveloped(chance.randrange(22), _value(chance))
        length = struct.unpack_from("<I", payload, 4)[0]
        fields = msgpack.unpackb(payload[8 : 8 + length])
        return _enveloped(payload[1], _mangled(chance, fields))

    _fuzz("commands", draw, decode)


def _state() -> State:
    state = State()
    state.topics[1] = Topic(1, "orders", 1, (), (), 5)
    state.names["orders"] = 1
    segment = Segment(1, 0, 3, 3, 900, 400, 7, 1, 2)
    state.partitions[(1, 0)] = Partition(0, 3, 3, (segment,), 0)
    state.numbers["applied"] = 9
    return state


def test_fuzzed_snapshots_are_decoded_or_refused() -> None:
    """Damaged bytes, and damaged documents under a sound checksum."""
    whole = encode_state(_state())
    assert encode_state(decode_state(whole, "here")) == whole
    document = msgpack.unpackb(whole[12:-20])

    def sealed(body: bytes) -> bytes:
        return body + struct.pack("<QI8s", len(body), crc32c(body), MAGIC)

    def draw(chance: random.Random) -> bytes:
        if chance.random() < 0.3:
            return _damaged(chance, whole)
        if chance.random() < 0.3:
            return sealed(whole[:12] + _damaged(chance, whole[12:-20]))
        return sealed(whole[:12] + msgpack.packb(_mangled(chance, document)))

    _fuzz("snapshots", draw, lambda data: decode_state(data, "here"))


def test_fuzzed_segment_indexes_are_decoded_or_refused() -> None:
    """Damaged documents in the end of a segment."""
    group = RowGroup(0, 1, 2, 5, 6, (ColumnChunk(4, 71, 2093467512), ColumnChunk(75, 10, 1)))
    whole = SegmentIndex(7, 0, 2, (group,)).encode()
    assert decode_index(whole, _PATH).encode() == whole

    def draw(chance: random.Random) -> bytes:
        if chance.random() < 0.1:
            return b"[" * chance.randrange(100_000)
        return _damaged(chance, whole)

    _fuzz("segment_indexes", draw, lambda data: decode_index(data, _PATH))
