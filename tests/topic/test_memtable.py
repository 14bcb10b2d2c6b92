"""Small chunks are merged: the same rows at the same offsets, in less memory."""

from __future__ import annotations

import logging
from functools import partial

import pyarrow as pa
import pytest

from lakebed.errors import CorruptionError
from lakebed.topic import memtable as module
from lakebed.topic.memtable import RUN_CHUNKS, Body, Chunk, Memtable, decode_chunks
from lakebed.topic.records import normalize, serialize
from lakebed.topic.schema import storage_schema

SCHEMA = storage_schema(pa.binary())


def body(*values: bytes, holders: int = 1) -> Body:
    rows = [{"value": value} for value in values]
    raw = serialize(normalize(rows, pa.binary(), now_us=1, record_bytes_max=1 << 20))
    return Body(lambda: raw, SCHEMA, raw.size, holders=holders)


def _same(raw: pa.Buffer) -> pa.Buffer:
    return raw


def filled(count: int, start: int = 0) -> Memtable:
    memtable = Memtable(0.0)
    add(memtable, count, start)
    return memtable


def add(memtable: Memtable, count: int, start: int) -> None:
    for offset in range(start, start + count):
        memtable[offset] = Chunk(offset, 1, body(b"%d" % offset), 0, 650)


def values(memtable: Memtable) -> list[tuple[int, bytes]]:
    found = []
    for base, batch in decode_chunks(memtable.chunks()):
        found += list(enumerate(batch.column("value").to_pylist(), base))
    return found


def numbered(first: int, last: int) -> list[tuple[int, bytes]]:
    return [(offset, b"%d" % offset) for offset in range(first, last)]


def consolidated(memtable: Memtable) -> Memtable:
    done = memtable.consolidate()
    assert done is not None
    return done.memtable


def test_many_small_chunks_become_one() -> None:
    memtable = filled(RUN_CHUNKS - 1)
    assert not memtable.consolidation_due()
    add(memtable, 1, RUN_CHUNKS - 1)
    assert memtable.consolidation_due()
    before = memtable.chunks()
    done = memtable.consolidate()
    assert done is not None
    assert (done.merged, len(done.made), len(done.memtable)) == (before, 1, 1)
    assert not done.memtable.consolidation_due()
    assert values(done.memtable) == numbered(0, RUN_CHUNKS)
    # Readers that hold the old one see what they saw.
    assert memtable.chunks() == before
    assert values(memtable) == numbered(0, RUN_CHUNKS)
    add(done.memtable, 10, RUN_CHUNKS)
    assert values(done.memtable) == numbered(0, RUN_CHUNKS + 10)
    assert next(done.memtable.starting(100)).base == 0


def test_large_chunks_stay_as_they_are_between_merged_ones() -> None:
    memtable = filled(100)
    large = body(bytes(20_000))
    memtable[100] = Chunk(100, 1, large, 0, large.size_bytes)
    add(memtable, 200, 101)
    merged = consolidated(memtable)
    assert [chunk.records for chunk in merged.chunks()] == [100, 1, 200]
    assert merged.chunks()[1].body is large


def test_a_few_small_chunks_between_large_ones_are_not_merged() -> None:
    memtable = Memtable(0.0)
    for offset in range(0, 300, 2):
        add(memtable, 1, offset)
        large = body(bytes(10_000))
        memtable[offset + 1] = Chunk(offset + 1, 1, large, 0, large.size_bytes)
    assert memtable.consolidation_due()
    assert memtable.consolidate() is None
    assert not memtable.consolidation_due()


def test_a_partition_merges_its_own_rows_of_shared_bodies() -> None:
    memtable = Memtable(0.0)
    for number in range(100):
        shared = body(*(b"%d.%d" % (number, row) for row in range(5)), holders=2)
        memtable[3 * number] = Chunk(3 * number, 3, shared, number % 3, 400)
    want = [b"%d.%d" % (n, row) for n in range(100) for row in range(n % 3, n % 3 + 3)]
    assert values(consolidated(memtable)) == list(enumerate(want))


def test_bodies_of_different_schemas_are_merged_apart() -> None:
    memtable = filled(60)
    other = pa.schema(list(SCHEMA))
    for offset in range(60, 120):
        raw = body(b"%d" % offset).raw()
        memtable[offset] = Chunk(offset, 1, Body(partial(_same, raw), other, raw.size), 0, 650)
    merged = consolidated(memtable)
    assert [chunk.body.schema is other for chunk in merged.chunks()] == [False, True]
    assert values(merged) == numbered(0, 120)


def test_dropping_what_was_flushed_cuts_the_chunk_that_lies_across() -> None:
    merged = consolidated(filled(RUN_CHUNKS))
    add(merged, 5, RUN_CHUNKS)
    rest = merged.above(100, 1.0)
    assert rest.chunks()[0][:2] == (100, RUN_CHUNKS - 100)
    assert values(rest) == numbered(100, RUN_CHUNKS + 5)
    assert values(rest.above(120, 1.0)) == numbered(120, RUN_CHUNKS + 5)
    assert rest.bytes_between(100, RUN_CHUNKS) < merged.bytes_between(0, RUN_CHUNKS)


def test_merged_rows_are_counted_with_all_that_is_held() -> None:
    memtable = filled(RUN_CHUNKS)
    done = memtable.consolidate()
    assert done is not None
    (chunk,) = done.made
    held = sum(column.get_total_buffer_size() for column in chunk.body.batch().columns)
    assert held <= chunk.body.memory_bytes <= 2 * held
    small = [each.body for each in done.merged]
    assert all(each.memory_bytes > each.size_bytes for each in small)
    assert chunk.body.memory_bytes < sum(each.memory_bytes for each in small) / 10


def test_a_small_body_is_not_kept_twice_after_it_was_read() -> None:
    small, large = body(b"x"), body(bytes(10_000))
    assert small.batch() is not small.batch()
    assert large.batch() is large.batch()


@pytest.mark.parametrize("one_pass_min", [2, 1000])
def test_a_body_that_cannot_be_read_stays_for_its_readers(
    one_pass_min: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "ONE_PASS_MIN", one_pass_min)
    memtable = filled(20)
    memtable[20] = Chunk(20, 1, Body(lambda: b"not a batch", SCHEMA, 11), 0, 11)
    with caplog.at_level(logging.ERROR, "lakebed.engine"):
        assert memtable.consolidate() is None
    assert "are not merged" in caplog.text
    assert len(memtable) == 21
    with pytest.raises(CorruptionError):
        values(memtable)


def test_an_entry_that_says_more_rows_than_its_batch_has_is_not_merged() -> None:
    memtable = filled(60)
    memtable[60] = Chunk(60, 3, body(b"60"), 0, 650)
    assert memtable.consolidate() is None
