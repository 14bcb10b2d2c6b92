"""Many messages decoded in one pass are what Arrow makes of them one by one, or are left to it."""

from __future__ import annotations

import random
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from lakebed.topic.messages import Unusual, decode_messages
from lakebed.topic.records import deserialize, normalize, serialize
from lakebed.topic.schema import storage_schema

RAW = pa.binary()
TYPED = pa.struct(
    [
        pa.field("flag", pa.bool_()),
        pa.field("count", pa.int32(), nullable=False),
        pa.field("ratio", pa.float64()),
        pa.field("name", pa.string()),
        pa.field("blob", pa.binary()),
        pa.field("day", pa.date32()),
        pa.field("amount", pa.decimal128(20, 2)),
        pa.field("seen", pa.timestamp("us", "UTC")),
        pa.field("tags", pa.list_(pa.field("element", pa.string()))),
        pa.field("inner", pa.struct([pa.field("x", pa.int64()), pa.field("ok", pa.bool_())])),
        pa.field("counts", pa.map_(pa.string(), pa.int64())),
    ]
)


def maybe(generator: random.Random, value: Any) -> Any:
    return value if generator.random() < 0.7 else None


def raw_value(generator: random.Random) -> bytes:
    return generator.randbytes(generator.randrange(200))


def typed_value(generator: random.Random) -> dict[str, Any]:
    words = [maybe(generator, "ä" * generator.randrange(5)) for _ in range(generator.randrange(4))]
    return {
        "flag": maybe(generator, generator.random() < 0.5),
        "count": generator.randrange(1000),
        "ratio": maybe(generator, generator.random()),
        "name": maybe(generator, "n" * generator.randrange(20)),
        "blob": maybe(generator, generator.randbytes(generator.randrange(9))),
        "day": maybe(generator, generator.randrange(20_000)),
        "amount": maybe(generator, Decimal(generator.randrange(10**9)) / 100),
        "seen": maybe(generator, generator.randrange(10**15)),
        "tags": maybe(generator, words),
        "inner": maybe(generator, {"x": maybe(generator, 7), "ok": maybe(generator, True)}),
        "counts": maybe(generator, [(f"k{n}", n) for n in range(generator.randrange(3))]),
    }


def message(generator: random.Random, kind: pa.DataType, rows: int) -> memoryview:
    given = []
    for _ in range(rows):
        value: Any = raw_value(generator) if kind == RAW else typed_value(generator)
        key = maybe(generator, generator.randbytes(generator.randrange(9)))
        headers = {f"h{n}": generator.randbytes(n) for n in range(generator.randrange(3))}
        if key is not None and generator.random() < 0.1:
            value = None
        given.append({"value": value, "key": key, "headers": maybe(generator, headers)})
    batch = normalize(given, kind, now_us=generator.randrange(10**15), record_bytes_max=1 << 20)
    return memoryview(serialize(batch))


def one_by_one(messages: list[memoryview], schema: pa.Schema) -> pa.RecordBatch:
    return pa.concat_batches([deserialize(each, schema) for each in messages])


@pytest.mark.parametrize("kind", [RAW, TYPED], ids=["raw", "typed"])
@pytest.mark.parametrize("seed", range(10))
def test_one_pass_gives_the_rows_that_arrow_gives(seed: int, kind: pa.DataType) -> None:
    generator, schema = random.Random(seed), storage_schema(kind)
    rows_max = generator.choice([1, 2, 20])
    counts = [generator.randint(1, rows_max) for _ in range(generator.choice([1, 2, 100]))]
    messages = [message(generator, kind, count) for count in counts]
    batch, rows = decode_messages(messages, schema)
    batch.validate(full=True)
    assert batch.equals(one_by_one(messages, schema))
    assert batch.schema.equals(schema)
    assert rows.tolist() == counts


def test_plain_records_without_keys_and_headers_hold_little_more_than_their_payload() -> None:
    schema = storage_schema(RAW)
    rows = [[{"value": bytes([n]) * 100}] for n in range(200)]
    batches = [normalize(each, RAW, now_us=1, record_bytes_max=1000) for each in rows]
    batch, _ = decode_messages([memoryview(serialize(each)) for each in batches], schema)
    assert batch.column("value").to_pylist() == [each[0]["value"] for each in rows]
    assert batch.nbytes < 200 * 130


def test_a_sliced_batch_is_decoded_without_the_rows_around_it() -> None:
    schema = storage_schema(TYPED)
    whole = deserialize(message(random.Random(1), TYPED, 50), schema)
    messages = [memoryview(serialize(whole.slice(start, 3))) for start in range(5, 40, 3)]
    batch, _ = decode_messages(messages, schema)
    assert batch.equals(one_by_one(messages, schema))


def test_messages_of_different_make_are_left_to_arrow() -> None:
    generator, schema = random.Random(2), storage_schema(RAW)
    first = message(generator, RAW, 1)
    for other in (message(generator, TYPED, 1), first[:-8], first[:100], memoryview(b"")):
        with pytest.raises(Unusual):
            decode_messages([first, other], schema)
        with pytest.raises(Unusual):
            decode_messages([other, other], schema)
    compressed = pa.ipc.IpcWriteOptions(compression="zstd")
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema, options=compressed) as stream:
        stream.write_batch(deserialize(first, schema))
    reader = pa.ipc.MessageReader.open_stream(pa.BufferReader(sink.getvalue()))
    reader.read_next_message()
    with pytest.raises(Unusual):
        decode_messages([memoryview(reader.read_next_message().serialize())] * 2, schema)
    with pytest.raises(Unusual):
        decode_messages([first, first], pa.schema([schema.field(0)]))
    with pytest.raises(Unusual):
        decode_messages([first, first], schema.append(pa.field("more", pa.int64())))


@pytest.mark.parametrize("kind", [RAW, TYPED], ids=["raw", "typed"])
def test_damaged_messages_are_never_decoded_to_an_invalid_batch(kind: pa.DataType) -> None:
    generator, schema = random.Random(3), storage_schema(kind)
    messages = [message(generator, kind, 2) for _ in range(8)]
    refused = 0
    for _ in range(600):
        damaged = bytearray(messages[0])
        for _ in range(generator.randint(1, 3)):
            damaged[generator.randrange(len(damaged))] = generator.choice([0, 1, 127, 255])
        given = [*messages, memoryview(damaged)]
        generator.shuffle(given)
        try:
            batch, _ = decode_messages(given, schema)
        except (Unusual, pa.ArrowException):
            refused += 1
            continue
        for column in batch.select(["timestamp", "key"]).columns:
            column.validate(full=True)
        batch.validate()
    assert refused > 50
