"""Records go to the partition Kafka would choose, and those without a key are spread evenly."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakebed.errors import PartitionNotFoundError
from lakebed.topic.routing import hash_of, murmur2, partitions_of, route, split, spread


def plain_murmur2(data: bytes) -> int:
    """Kafka's hash, step by step."""
    m, mask = 0x5BD1E995, 0xFFFFFFFF
    h = 0x9747B28C ^ len(data)
    whole = len(data) // 4 * 4
    for at in range(0, whole, 4):
        k = int.from_bytes(data[at : at + 4], "little") * m & mask
        k = (k ^ (k >> 24)) * m & mask
        h = (h * m & mask) ^ k
    for place, byte in reversed(list(enumerate(data[whole:]))):
        h ^= byte << 8 * place
    if data[whole:]:
        h = h * m & mask
    h = (h ^ (h >> 13)) * m & mask
    h ^= h >> 15
    return h - 2**32 if h >= 2**31 else h


KAFKA = {
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
}

keys_lists = st.lists(st.none() | st.binary(max_size=40), max_size=300)


def binary(keys: list[bytes | None]) -> pa.Array:
    return pa.array(keys, pa.binary())


def storage(keys: list[bytes | None]) -> pa.RecordBatch:
    return pa.record_batch({"key": binary(keys), "value": pa.array(range(len(keys)), pa.int64())})


@pytest.mark.parametrize(("key", "expected"), KAFKA.items())
def test_hashes_are_those_of_kafka(key: bytes, expected: int) -> None:
    assert plain_murmur2(key) == expected
    assert murmur2(binary([key])).tolist() == [expected]
    assert murmur2(binary([key] * 100)).tolist() == [expected] * 100


@settings(deadline=None)
@given(keys_lists, st.integers(0, 50), st.integers(0, 50))
def test_any_slice_of_any_keys_hashes_like_one_key_at_a_time(
    keys: list[bytes | None], before: int, after: int
) -> None:
    end = max(before, len(keys) - after)
    array = binary(keys).slice(before, end - before)
    hashes = murmur2(array).tolist()
    for key, found in zip(keys[before:end], hashes, strict=True):
        assert key is None or found == plain_murmur2(key)


@settings(deadline=None)
@given(st.integers(0, 12), st.integers(33, 200), st.randoms(use_true_random=False))
def test_keys_of_one_length_hash_like_one_key_at_a_time(length: int, count: int, random) -> None:  # type: ignore[no-untyped-def]
    keys = [random.randbytes(length) for _ in range(count)]
    assert murmur2(binary([*keys])).tolist() == [plain_murmur2(key) for key in keys]


def test_long_keys_among_short_ones_hash_right() -> None:
    keys = [b"%d" % number for number in range(1000)]
    keys[17] = bytes(range(256)) * 4099 + b"xyz"
    keys[500:600] = [bytes([number]) * (300 + number) for number in range(100)]
    assert murmur2(binary([*keys])).tolist() == [plain_murmur2(key) for key in keys]


def test_single_keys_hash_right_whatever_their_length() -> None:
    for length in [*range(140), 5000, 70_000 * 4 + 1]:
        key = (b"0123456789abcdef" * (length // 16 + 1))[:length]
        assert hash_of(key) == plain_murmur2(key) % 2**32


def test_text_and_large_keys_hash_like_their_bytes() -> None:
    expected = murmur2(binary([b"a", b"bc"])).tolist()
    assert murmur2(pa.array(["a", "bc"])).tolist() == expected
    assert murmur2(pa.array([b"a", b"bc"], pa.large_binary())).tolist() == expected


@settings(deadline=None)
@given(keys_lists, st.integers(1, 1000))
def test_a_partition_is_the_positive_hash_modulo_their_number(
    keys: list[bytes | None], count: int
) -> None:
    expected = [-1 if key is None else (plain_murmur2(key) & 0x7FFFFFFF) % count for key in keys]
    assert partitions_of(binary(keys), count).tolist() == expected


@settings(deadline=None)
@given(st.lists(st.integers(0, 5) | st.integers(0, 70_000), max_size=200))
def test_a_split_keeps_each_partitions_rows_in_order(partitions: list[int]) -> None:
    batch = storage([None] * len(partitions))
    arranged, parts, order = split(batch, np.array(partitions, np.int32))
    expected = sorted(range(len(partitions)), key=lambda row: partitions[row])
    assert arranged.column("value").to_pylist() == expected
    assert parts == [(p, partitions.count(p)) for p in sorted(set(partitions))]
    if order is None:
        assert arranged is batch
    else:
        assert order.tolist() == expected


@settings(deadline=None)
@given(st.integers(0, 500), st.integers(1, 50), st.integers(0, 10**12))
def test_rows_are_spread_evenly_beginning_at_start(rows: int, count: int, start: int) -> None:
    parts = spread(rows, count, start)
    assert sum(length for _, length in parts) == rows
    assert [partition for partition, _ in parts] == [
        (start + run) % count for run in range(min(rows, count))
    ]
    lengths = [length for _, length in parts]
    assert not lengths or max(lengths) - min(lengths) <= 1


def test_an_explicit_partition_takes_everything_as_it_is() -> None:
    batch = storage([b"a", None, b"b"])
    assert route(batch, 4, partition=3, start=0) == (batch, [(3, 3)], None)
    assert route(batch.slice(0, 0), 4, partition=3, start=0).parts == []


@pytest.mark.parametrize("partition", [-1, 4])
def test_a_partition_that_does_not_exist_is_refused(partition: int) -> None:
    with pytest.raises(PartitionNotFoundError, match="partitions=4"):
        route(storage([b"a"]), 4, partition=partition, start=0)


def test_records_without_keys_are_spread_and_not_moved() -> None:
    batch = storage([None] * 7)
    routed = route(batch, 3, partition=None, start=5)
    assert routed.batch is batch
    assert routed.parts == [(2, 3), (0, 2), (1, 2)]
    assert route(storage([None]), 3, partition=None, start=4).parts == [(1, 1)]


def test_an_empty_batch_goes_nowhere() -> None:
    assert route(storage([]), 3, partition=None, start=1).parts == []


@settings(deadline=None)
@given(keys_lists, st.integers(1, 20), st.integers(0, 100))
def test_every_record_arrives_once_and_keys_where_they_belong(
    keys: list[bytes | None], count: int, start: int
) -> None:
    batch = storage(keys)
    routed = route(batch, count, partition=None, start=start)
    partitions = [partition for partition, rows in routed.parts for _ in range(rows)]
    rows = routed.batch.column("value").to_pylist()
    assert sorted(rows) == list(range(len(keys)))
    assert rows == (list(range(len(keys))) if routed.order is None else routed.order.tolist())
    keyless = [0] * count
    for row, partition in zip(rows, partitions, strict=True):
        key = keys[row]
        if key is None:
            keyless[partition] += 1
        else:
            assert partition == (plain_murmur2(key) & 0x7FFFFFFF) % count
    assert max(keyless) - min(keyless) <= 1


def test_a_batch_with_headers_and_structs_is_split_whole() -> None:
    batch = pa.record_batch(
        {
            "key": binary([b"1", b"2", None, b"1"]),
            "headers": pa.array(
                [[("a", b"1")], None, [], [("b", None)]], pa.map_(pa.string(), pa.binary())
            ),
            "value": pa.array([{"x": 1}, None, {"x": 3}, {"x": 4}]),
        }
    )
    routed = route(batch, 5, partition=None, start=0)
    assert routed.order is not None
    before = batch.to_pylist()
    assert routed.batch.to_pylist() == [before[row] for row in routed.order]
