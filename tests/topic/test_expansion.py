"""Layouts that share values: converted without loss, and counted before memory is taken."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from lakebed.errors import (
    EntryTooLargeError,
    InvalidArgumentError,
    RecordTooLargeError,
    SchemaMismatchError,
)
from lakebed.limits import MIB
from lakebed.topic.records import normalize
from lakebed.topic.schema import check_schema, value_type
from tests.serve import hostile

RAW = pa.binary()
TYPED = value_type(check_schema(hostile.NESTED))


def stored(kind: pa.DataType = RAW, *, record_max: int = MIB, **columns: pa.Array) -> Any:
    """Return what becomes of columns in a batch of at most 8 MiB."""
    return normalize(
        pa.table(columns),
        kind,
        now_us=0,
        record_bytes_max=record_max,
        batch_bytes_max=8 * MIB,
    )


def struct_of(**fields: pa.Array) -> pa.StructArray:
    return pa.StructArray.from_arrays(list(fields.values()), list(fields))


@pytest.mark.parametrize("size", [0, 12, 13, 2**20])
def test_what_is_in_a_null_slot_of_a_view_does_not_matter(size: int) -> None:
    """As programs leave it that put a mask over their values."""
    value = hostile.views(pa.binary_view(), rows=3, null_size=size)
    batch = stored(value=value, key=pa.array([b"k"] * 4))
    assert batch.column("value").to_pylist() == [b"A" * 40] * 3 + [None]


@pytest.mark.parametrize("kind", [pa.binary_view(), pa.string_view()], ids=str)
def test_a_negative_view_is_refused_within_one_process_too(kind: pa.DataType) -> None:
    value = hostile.views(kind, null_size=-1)
    with pytest.raises(InvalidArgumentError, match="negative"):
        stored(value=value, key=pa.array([b"k"] * len(value)))
    with pytest.raises(InvalidArgumentError, match="negative"):
        words = hostile.in_list(hostile.views(pa.string_view(), null_size=-1))
        stored(TYPED, value=struct_of(words=words))


def test_a_slice_of_views_is_checked_where_it_is() -> None:
    value = hostile.views(pa.binary_view())
    assert len(stored(value=value[5:2000])) == 1995


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.string_view()], ids=str)
def test_a_dictionary_of_any_layout_is_written_out(kind: pa.DataType) -> None:
    words = pa.array(["one", None, "three"], pa.string()).cast(kind)
    value = pa.DictionaryArray.from_arrays(pa.array([2, 0, None, 1, 2], pa.int8()), words)
    key = pa.array([b"k"] * 5)
    expected = ["three", "one", None, None, "three"]
    raw = stored(value=value, key=key).column("value")
    assert raw.to_pylist() == [text and text.encode() for text in expected]
    typed = stored(TYPED, value=struct_of(name=value), key=key).column("value")
    assert [row["name"] for row in typed.to_pylist()] == expected


@pytest.mark.parametrize(
    "value",
    [
        hostile.same_word(MIB // 2, 100, pa.binary()),
        hostile.same_word(MIB // 2, 100, pa.string_view()),
        hostile.same_view(pa.binary_view(), MIB // 2, 100),
    ],
    ids=["dictionary", "dictionary of views", "views"],
)
def test_what_many_rows_share_is_counted_for_each_of_them(value: pa.Array) -> None:
    with pytest.raises(EntryTooLargeError):
        stored(value=value)
    with pytest.raises(RecordTooLargeError) as caught:
        stored(value=value, record_max=1000)
    assert caught.value.facts["bytes"] == MIB // 2
    assert len(stored(value=value[:10])) == 10


def test_columns_share_the_room_of_a_batch() -> None:
    """Ten rows of half a megabyte fit once, and not as key and value."""
    word = hostile.same_word(MIB // 2, 10, pa.binary())
    assert len(stored(value=word)) == 10
    with pytest.raises(EntryTooLargeError):
        stored(value=word, key=word)


def test_nulls_and_missing_fields_are_counted() -> None:
    """A column without any bytes becomes one with bytes for each row."""
    schema = check_schema(pa.schema([(f"n{index}", pa.int64()) for index in range(100)]))
    kind = value_type(schema)
    rows = 20_000
    missing = pa.StructArray.from_arrays([pa.nulls(rows)], ["n0"])
    with pytest.raises(EntryTooLargeError):
        stored(kind, value=missing)
    assert len(stored(kind, value=missing[:100])) == 100


def test_values_of_no_width_are_counted() -> None:
    kind = value_type(check_schema(pa.schema([("words", pa.list_(pa.binary()))])))
    with pytest.raises(EntryTooLargeError):
        stored(kind, value=struct_of(words=hostile.zero_width(2**31 - 1)))
    row = stored(kind, value=struct_of(words=hostile.zero_width(3))).column("value")[0]
    assert row.as_py() == {"words": [b""] * 3}


def test_a_small_slice_of_large_lists_is_counted_as_the_slice() -> None:
    words = pa.array([["w" * 1000] * 100] * 200, pa.list_(pa.string_view()))
    with pytest.raises(EntryTooLargeError):
        stored(TYPED, value=struct_of(words=words))
    assert len(stored(TYPED, value=struct_of(words=words)[7:9])) == 2


def test_a_dictionary_of_structs_is_refused() -> None:
    value = pa.DictionaryArray.from_arrays(pa.array([0], pa.int8()), pa.array([{"name": "a"}]))
    with pytest.raises(SchemaMismatchError):
        stored(TYPED, value=value)


@pytest.mark.parametrize("offsets", [b"", hostile.GARBAGE], ids=["missing", "garbage"])
def test_an_empty_map_gets_an_offset_of_its_own(offsets: bytes) -> None:
    """Such an array comes from other libraries too; what is stored can be measured and read."""
    entries = pa.array([], pa.struct([pa.field("key", pa.string(), False), ("value", RAW)]))
    empty = pa.Array.from_buffers(hostile.MAP, 0, [None, pa.py_buffer(offsets)], children=[entries])
    batch = stored(TYPED, value=struct_of(lists=hostile.in_list(empty)))
    inner = batch.column("value").field("lists").values
    assert inner.buffers()[1].size >= 4
    assert inner.offsets.to_pylist() == [0]
