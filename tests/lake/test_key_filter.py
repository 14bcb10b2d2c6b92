"""Key filters: a key that is there is never missed, one that is not is hardly ever looked for."""

from __future__ import annotations

import json
import random

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lakebed.errors import CorruptionError
from lakebed.host import Mode
from lakebed.lake import LakeFolder, SegmentReader
from lakebed.lake.key_filter import blocks_of, may_hold, probe, xxh64
from lakebed.lake.open_segment import OpenSegment, open_segment
from lakebed.lake.segment_keys import KeysCache, RowGroupKeys, SegmentKeys
from lakebed.state.values import Segment
from tests.lake.support import ID, PARTITION, RAW, TOPIC, lake, records, verify, write

ROW_GROUP = 65_536


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", 0xEF46DB3751D8E999),
        (b"a", 0xD24EC4F1A98C6E5B),
        (b"abc", 0x44BC2CF5AD770999),
        (b"Nobody inspects the spammish repetition", 0xFBCEA83C8A378BF1),
    ],
)
def test_the_hash_gives_the_known_values(data: bytes, expected: int) -> None:
    assert xxh64(data) == expected


def keyed(keys: list[bytes | None]) -> pa.Table:
    table = records(range(len(keys)))
    return table.set_column(3, RAW.field("key"), pa.array(keys, pa.binary()))


def random_keys(count: int, seed: int = 0) -> list[bytes]:
    rng = np.random.default_rng(seed)
    return [rng.bytes(int(length)) + b"%d" % seed for length in rng.integers(8, 90, count)]


def opened(folder: LakeFolder, segment: Segment) -> OpenSegment:
    return open_segment(folder.disk, folder.path(TOPIC, PARTITION, segment.id), segment)


def test_no_key_is_missed_and_few_are_looked_for_in_vain() -> None:
    """Every length from 8 to 90 bytes, so every path through the hash, in two row groups."""
    folder, keys = lake(), random_keys(70_000)
    found = opened(folder, write(folder, keyed(list(keys)))).keys()
    assert len(found) == 2
    filters = [group.filter for group in found]
    for number, key in enumerate(keys):
        blocks = filters[number // ROW_GROUP]
        assert blocks is not None
        assert may_hold(blocks, probe(key))
    absent = random_keys(10_000, seed=1)
    in_vain = sum(len(found.candidates(probe(key))) for key in absent)
    assert in_vain / (2 * len(absent)) < 0.01


@pytest.mark.parametrize("length", range(8))
def test_short_keys_are_found_too(length: int) -> None:
    folder, key = lake(), b"x" * length
    group = opened(folder, write(folder, keyed([None, key, None]))).keys()[0]
    assert group.filter is not None
    assert may_hold(group.filter, probe(key))
    assert group.may_hold(probe(key))


def test_a_small_segment_has_a_small_filter_and_one_without_keys_none_to_speak_of() -> None:
    folder = lake()
    with_keys = write(folder, keyed([b"a", b"b"]), segment_id=1)
    without = write(folder, keyed([None, None]), segment_id=2)
    assert len(opened(folder, with_keys).keys()[0].filter or b"") == 32
    assert with_keys.tail_bytes < 4096
    assert without.tail_bytes < 4096
    group = opened(folder, without).keys()[0]
    assert not group.some
    assert not group.may_hold(probe(b"a"))


def test_the_least_and_the_greatest_key_rule_out_what_lies_beyond_them() -> None:
    group = RowGroupKeys(None, b"b", b"d", some=True)
    asked = [group.may_hold(probe(key)) for key in (b"a", b"b", b"c", b"d", b"d\0")]
    assert asked == [False, True, True, True, False]


def place_of_filter(data: bytes | memoryview) -> tuple[int, int]:
    """Return where the index says that the first row group's filter is; the footer must not."""
    found = pq.read_metadata(pa.BufferReader(data))
    assert found.row_group(0).column(3).bloom_filter_offset is None
    start, length = json.loads(found.metadata[b"lakebed.segment"])["row_groups"][0]["key_filter"]
    return start, length


def test_a_filter_of_another_kind_is_taken_as_none() -> None:
    folder = lake()
    segment = write(folder, keyed(list(random_keys(100))))
    path = folder.path(TOPIC, PARTITION, ID)
    file = folder.disk.open(path, Mode.READ)
    data = bytes(file.map().view(0, segment.file_bytes))
    start, length = place_of_filter(data)
    stored = data[start : start + length]
    blocks = blocks_of(stored)
    assert blocks is not None
    assert stored.endswith(blocks)
    header = stored[: -len(blocks)]
    algorithm = header.replace(b"\x1c\x1c\x00\x00", b"\x1c\x2c\x00\x00", 1)
    for other in (
        b"",
        header,
        stored[:-1],
        stored + b"\0",
        algorithm + blocks,
        b"\x15\x01" + stored,
    ):
        assert blocks_of(other) is None


def test_a_segment_with_filters_verifies_and_other_readers_read_it() -> None:
    folder, table = lake(), keyed(list(random_keys(1_000)))
    segment = write(folder, table)
    verify(folder, segment)
    file = folder.disk.open(folder.path(TOPIC, PARTITION, ID), Mode.READ)
    data = bytes(file.map().view(0, segment.file_bytes))
    assert pq.read_table(pa.BufferReader(data)).column("key") == table.column("key")


def test_damage_in_a_filter_is_an_error_and_not_a_missing_key() -> None:
    folder, keys = lake(), random_keys(1_000)
    segment = write(folder, keyed(list(keys)))
    path = folder.path(TOPIC, PARTITION, ID)
    file = folder.disk.open(path, Mode.WRITE)
    data = file.map().view(0, segment.file_bytes)
    file.write(b"\0" * 64, place_of_filter(data)[0] + 100)
    reader = SegmentReader(folder, 1 << 20)
    with pytest.raises(CorruptionError, match="tail is damaged"):
        reader.find(TOPIC, PARTITION, segment, probe(keys[0]), low=0)
    reader.close()


def test_a_key_is_found_where_it_was_written_last_and_only_there() -> None:
    folder = lake()
    keys: list[bytes | None] = [b"%d" % (number % 50_000) for number in range(140_000)]
    segment = write(folder, keyed(keys))
    reader = SegmentReader(folder, 1 << 24)
    for key, offset in ((b"0", 100_000), (b"39999", 139_999), (b"40000", 90_000)):
        found = reader.find(TOPIC, PARTITION, segment, probe(key), low=0)
        assert found is not None
        assert found.column("offset").to_pylist() == [offset]
        assert reader.find(TOPIC, PARTITION, segment, probe(key), low=offset) is not None
        assert reader.find(TOPIC, PARTITION, segment, probe(key), low=offset + 1) is None
    assert reader.find(TOPIC, PARTITION, segment, probe(b"nobody"), low=0) is None
    reader.close()


def test_the_filters_held_stay_within_their_bytes_and_the_newest_stay() -> None:
    keys = SegmentKeys([RowGroupKeys(b"\0" * 1000, b"a", b"z", some=True)])
    cache = KeysCache(5_000)
    for segment in (3, 1, 5, 2, 4):
        cache.put(segment, keys)
    assert cache.held_bytes <= 5_000
    assert [segment for segment in range(1, 6) if cache.get(segment) is not None] == [3, 4, 5]
    cache.forget(4)
    cache.put(1, keys)
    assert [segment for segment in range(1, 6) if cache.get(segment) is not None] == [1, 3, 5]
    cache.clear()
    assert not cache.held_bytes


def test_the_filters_held_are_always_those_of_the_highest_ids_that_were_put() -> None:
    keys = SegmentKeys([RowGroupKeys(b"\0" * 1000, b"a", b"z", some=True)])
    cache, model, chance = KeysCache(20_000), set[int](), random.Random(5)
    cache.put(0, keys)
    room = 20_000 // cache.held_bytes
    cache.clear()
    for _ in range(2_000):
        segment = chance.randrange(60)
        if chance.random() < 0.7:
            cache.put(segment, keys)
            model = set(sorted(model | {segment})[-room:])
        else:
            cache.forget(segment)
            model.discard(segment)
        assert {each for each in range(60) if cache.get(each) is not None} == model


def test_a_segment_whose_filter_is_not_held_is_opened_again() -> None:
    folder, keys = lake(), random_keys(100)
    segment = write(folder, keyed(list(keys)))
    reader = SegmentReader(folder, 0)
    reader._keys = KeysCache(0)
    for _ in range(2):
        found = reader.find(TOPIC, PARTITION, segment, probe(keys[7]), low=0, columns=["offset"])
        assert found is not None
        assert found.column("offset").to_pylist() == [7]
    reader.close()
