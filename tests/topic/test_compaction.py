"""After a compaction each key has its last record, and nobody else has lost one."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakebed.topic import compaction
from lakebed.topic.compaction import keep, surviving

NOW_US = 1_000_000_000
RETENTION_MS = 100
LIMIT_US = NOW_US - RETENTION_MS * 1000

Row = tuple[bytes | None, bool, int]
"""Key, tombstone, timestamp."""


def batch(rows: Sequence[Row], base: int = 0) -> pa.RecordBatch:
    return pa.record_batch(
        {
            "offset": pa.array(range(base, base + len(rows)), pa.int64()),
            "timestamp": pa.array([row[2] for row in rows], pa.timestamp("us", "UTC")),
            "key": pa.array([row[0] for row in rows], pa.binary()),
            "tombstone": pa.array([row[1] for row in rows], pa.bool_()),
        }
    )


def survivors(*batches: pa.RecordBatch) -> list[int]:
    found = surviving(batches, LIMIT_US)
    assert found.dtype == np.int64
    return [int(offset) for offset in found]


def test_the_last_record_of_each_key_stays() -> None:
    rows: list[Row] = [(key, False, 0) for key in (b"a", b"b", b"a", b"", b"c", b"b", b"")]
    assert survivors(batch(rows)) == [2, 4, 5, 6]


def test_records_without_a_key_always_stay() -> None:
    assert survivors(batch([(None, False, 0), (b"a", False, 0), (None, True, 0)])) == [0, 1, 2]


def test_a_key_is_followed_across_batches() -> None:
    first = batch([(b"a", False, 0), (b"b", False, 0)])
    assert survivors(first, batch([(b"a", False, 0)], base=2)) == [1, 2]


@pytest.mark.parametrize(("timestamp", "left"), [(LIMIT_US, [1]), (LIMIT_US - 1, [])])
def test_a_tombstone_goes_when_it_is_older_than_its_retention(
    timestamp: int, left: list[int]
) -> None:
    assert survivors(batch([(b"a", False, NOW_US), (b"a", True, timestamp)])) == left


def test_a_record_after_an_old_tombstone_stays() -> None:
    assert survivors(batch([(b"a", True, 0), (b"a", False, 0)])) == [1]


def test_of_nothing_nothing_stays() -> None:
    assert survivors() == []
    assert survivors(batch([])) == []


rows_of_any_kind = st.lists(
    st.tuples(
        st.one_of(st.none(), st.sampled_from([b"", b"a", b"b", b"c", b"\x00"])),
        st.booleans(),
        st.sampled_from([LIMIT_US - 1, LIMIT_US]),
    ),
    max_size=30,
)


@given(rows_of_any_kind, st.integers(1, 7), st.integers(0, 5), st.booleans())
def test_the_survivors_are_those_that_a_dictionary_would_leave(
    rows: list[Row], width: int, fold: int, wide: bool
) -> None:
    last = {row[0]: offset for offset, row in enumerate(rows)}
    expected = [
        offset
        for offset, (key, tombstone, timestamp) in enumerate(rows)
        if key is None or (last[key] == offset and not (tombstone and timestamp < LIMIT_US))
    ]
    batches = [batch(rows[at : at + width], at) for at in range(0, len(rows), width)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compaction, "_FOLD_ROWS_MIN", fold)
        if wide:  # as if the keys had more bytes than 32-bit places can count
            patch.setattr(compaction, "_NARROW_BYTES", 0)
        assert survivors(*batches) == expected
    left = [each for part in batches for each in keep(part, np.array(expected, np.int64))["offset"]]
    assert [each.as_py() for each in left] == expected


def test_rows_keep_their_columns_and_order() -> None:
    rows: list[Row] = [(b"a", False, 1), (b"b", False, 2), (b"c", True, 3)]
    kept = keep(batch(rows, base=10), np.array([3, 10, 12, 99], np.int64))
    assert kept.to_pylist() == batch(rows, base=10).take(pa.array([0, 2])).to_pylist()
    assert keep(batch(rows), np.array([], np.int64)).num_rows == 0


def test_a_million_records_take_a_moment() -> None:
    """No step is taken record by record in Python."""
    keys = pa.array(np.arange(1_000_000) % 300_000).cast(pa.string()).cast(pa.binary())
    numbers = pa.array(np.arange(1_000_000))
    none = pa.array(np.zeros(1_000_000, bool))
    whole = pa.record_batch(
        {"offset": numbers, "timestamp": numbers, "key": keys, "tombstone": none}
    )
    started = time.process_time()
    assert survivors(*(whole.slice(at, 65_536) for at in range(0, 1_000_000, 65_536))) == list(
        range(700_000, 1_000_000)
    )
    assert time.process_time() - started < 5
