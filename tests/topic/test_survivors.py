"""Survivors of a compaction as they travel: packed, unpacked, and refused if they do not fit."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakebed.errors import InvalidArgumentError
from lakebed.topic.survivors import Survivors, pack_survivors


def numbers(*offsets: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return np.array(offsets, dtype=np.int64)


def zstd(data: bytes) -> bytes:
    packed: bytes = pa.compress(data, codec="zstd", asbytes=True)
    return packed


@given(
    st.integers(0, 2**60), st.integers(1, 200), st.sets(st.integers(0, 199)), st.integers(0, 199)
)
def test_what_was_packed_is_unpacked(base: int, count: int, chosen: set[int], at: int) -> None:
    end, at = base + count, base + min(at, count)
    wanted = sorted(base + each for each in chosen if each < count)
    packed = pack_survivors(numbers(*wanted), base=base, end=end)
    survivors = Survivors.unpack(packed, base=base, end=end)
    every = np.arange(base, end, dtype=np.int64)
    assert every[survivors.contain(every)].tolist() == wanted
    assert survivors.count() == len(wanted)
    assert survivors.between(base, at) == sum(each < at for each in wanted)
    assert survivors.between(at, end) == sum(each >= at for each in wanted)


def test_the_lowest_bit_of_the_first_byte_is_the_first_offset() -> None:
    survivors = Survivors.unpack(zstd(b"\x01\x02"), base=100, end=110)
    every = np.arange(100, 110, dtype=np.int64)
    assert every[survivors.contain(every)].tolist() == [100, 109]


def test_more_bits_than_are_counted_at_a_time_are_counted() -> None:
    end = 20_000_001
    packed = pack_survivors(np.arange(0, end, 2, dtype=np.int64), base=0, end=end)
    survivors = Survivors.unpack(packed, base=0, end=end)
    assert survivors.count() == 10_000_001
    assert survivors.between(9_999_999, 10_000_001) == 1


@pytest.mark.parametrize("size", [0, 1, 3, 100])
def test_survivors_of_another_length_are_refused(size: int) -> None:
    with pytest.raises(InvalidArgumentError, match="one bit for each offset"):
        Survivors.unpack(zstd(bytes(size)), base=0, end=16)


def test_a_bit_behind_the_last_offset_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="behind the last offset"):
        Survivors.unpack(zstd(b"\x00\x04"), base=0, end=10)


def test_what_would_unpack_to_much_more_is_not_unpacked() -> None:
    """What is small and stands for gigabytes costs no more memory than what was expected."""
    bomb = zstd(bytes(1 << 24)) * 256
    before = pa.total_allocated_bytes()
    with pytest.raises(InvalidArgumentError, match="one bit for each offset") as caught:
        Survivors.unpack(bomb, base=0, end=16)
    assert caught.value.facts["bytes_found"] == "more than 2"
    assert pa.total_allocated_bytes() - before < 8 << 20


@pytest.mark.parametrize("packed", [b"", b"\x00\x00", zstd(bytes(2))[:-1], zstd(bytes(2)) + b"x"])
def test_what_is_not_compressed_is_refused(packed: bytes) -> None:
    with pytest.raises(InvalidArgumentError, match="survivors"):
        Survivors.unpack(packed, base=0, end=16)


def test_what_is_not_bytes_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="survivors must be bytes"):
        Survivors.unpack("no", base=0, end=16)  # type: ignore[arg-type]


def test_offsets_outside_of_the_range_are_not_packed() -> None:
    for outside in (9, 20):
        with pytest.raises(InvalidArgumentError, match="outside"):
            pack_survivors(numbers(outside), base=10, end=20)
