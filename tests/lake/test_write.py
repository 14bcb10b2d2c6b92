"""A segment holds what was written, in the shape that was promised, for any Parquet reader."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.io.pyarrow import pyarrow_to_schema
from pyiceberg.schema import assign_fresh_schema_ids

from lakebed import limits
from lakebed.errors import InvalidArgumentError, SchemaMismatchError
from lakebed.host import OsDisk
from lakebed.lake import (
    COLUMNS,
    COMPRESSIONS,
    SegmentReader,
    row_groups,
    segment_schema,
    write_segment,
)
from lakebed.lake.folder import LakeFolder
from lakebed.lake.schema import schema_with_ids
from lakebed.state.values import Segment
from tests.lake.support import (
    ID,
    PARTITION,
    RAW,
    TOPIC,
    TYPED,
    lake,
    read,
    records,
    verify,
    write,
)


def scanned(folder: LakeFolder, segment: Segment) -> pa.Table:
    reader = SegmentReader(folder, 0)
    return pa.Table.from_batches(list(reader.scan(TOPIC, PARTITION, segment)))


def metadata(folder: LakeFolder) -> Any:
    return pq.read_metadata(folder.path(TOPIC, PARTITION, ID))


@pytest.mark.parametrize("compression", COMPRESSIONS)
@pytest.mark.parametrize("schema", [RAW, TYPED], ids=["raw", "typed"])
def test_what_is_read_is_what_was_written(
    compression: str, schema: pa.Schema, tmp_path: Path
) -> None:
    folder = lake(OsDisk(), tmp_path)
    table = records(range(500), schema=schema)
    segment = write(folder, table, compression=compression)
    found = scanned(folder, segment)
    assert found.equals(table)
    assert found.schema.equals(table.schema)
    assert [field.metadata for field in found.schema] == [None] * 6
    if schema is TYPED:
        assert found.schema.field("value").type.field("count").metadata == {b"unit": b"pieces"}
        assert found.schema.field("value").type.field("name").metadata is None
    assert pq.read_table(folder.path(TOPIC, PARTITION, ID), partitioning=None).equals(table)
    verify(folder, segment)
    assert segment[:4] == (ID, 0, 500, 500)
    assert segment[7:9] == (1_000_000, 1_000_499)
    assert segment.file_bytes == folder.path(TOPIC, PARTITION, ID).stat().st_size


def test_batches_of_one_record_become_full_row_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "ROW_GROUP_RECORDS", 2_000)
    folder = lake()
    table = records(range(5_000))
    segment = write(folder, table.to_batches(max_chunksize=1))
    assert [each.num_rows for each in SegmentReader(folder, 0).scan(TOPIC, PARTITION, segment)] == [
        2_000,
        2_000,
        1_000,
    ]
    assert scanned(folder, segment).equals(table)


def test_batches_of_mixed_sizes_keep_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "ROW_GROUP_RECORDS", 1_500)
    folder = lake()
    table = records(range(6_000))
    cuts = [0, 1, 2, 900, 900, 901, 3_000, 3_010, 5_999, 6_000]
    batches = [table.slice(a, b - a) for a, b in itertools.pairwise(cuts)]
    segment = write(folder, batches, end=6_000)
    groups = list(SegmentReader(folder, 0).scan(TOPIC, PARTITION, segment))
    assert {each.num_rows for each in groups} == {1_500}
    assert scanned(folder, segment).equals(table)
    verify(folder, segment)


def test_row_groups_of_large_records_are_bounded_by_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_groups, "ROW_GROUP_BYTES", 100_000)
    folder = lake()
    large = records(range(300), value_bytes=1_000)
    huge = records([300], value_bytes=500_000)
    small = records(range(301, 900), value_bytes=1)
    table = pa.concat_tables([large, huge, small]).combine_chunks()
    segment = write(folder, table)
    assert (
        max(
            each.slice(0, each.num_rows - 1).nbytes
            for each in SegmentReader(folder, 0).scan(TOPIC, PARTITION, segment)
        )
        <= 3 * 100_000 + 500_000
    )
    assert len(list(SegmentReader(folder, 0).scan(TOPIC, PARTITION, segment))) >= 4
    assert scanned(folder, segment).equals(table)


def test_small_batches_of_large_records_are_not_piled_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """A row group is written before the batches behind it are asked for."""
    monkeypatch.setattr(row_groups, "ROW_GROUP_BYTES", 100_000)
    table = records(range(1, 7), value_bytes=60_000)
    asked = 0

    def batches() -> Any:
        nonlocal asked
        for offset in range(1, 400):
            asked += 1
            yield records([offset], value_bytes=60_000)

    first = next(row_groups.row_groups(batches(), table.schema))
    assert first.nbytes < 200_000
    assert asked < 10


def test_row_groups_hold_as_many_records_as_the_limit_says(tmp_path: Path) -> None:
    folder = lake(OsDisk(), tmp_path)
    write(folder, records(range(limits.ROW_GROUP_RECORDS + 1), value_bytes=1))
    found = metadata(folder)
    rows = [found.row_group(number).num_rows for number in range(found.num_row_groups)]
    assert rows == [65_536, 1]


def test_a_segment_without_records_can_be_written_and_read() -> None:
    folder = lake()
    segment = write(folder, [], base=5, end=9, schema=RAW)
    assert segment.records == 0
    verify(folder, segment)
    reader = SegmentReader(folder, 1_000_000)
    assert read(reader, segment).num_rows == 0
    assert list(reader.scan(TOPIC, PARTITION, segment)) == []
    assert reader.offset_for_time(TOPIC, PARTITION, segment, 0) is None


def test_offsets_may_have_gaps_and_the_bounds_may_be_wider() -> None:
    folder = lake()
    table = records([12, 15, 16, 90])
    segment = write(folder, table, base=10, end=100)
    verify(folder, segment)
    assert scanned(folder, segment).equals(table)


@pytest.mark.parametrize(
    "offsets", [[3, 2], [3, 3], [-1, 0], [5, 10]], ids=["back", "twice", "below", "beyond"]
)
def test_offsets_out_of_order_or_bounds_are_refused(offsets: list[int]) -> None:
    folder = lake()
    with pytest.raises(InvalidArgumentError, match="offsets"):
        write(folder, records(offsets), base=0, end=10)
    assert list(folder.listing()) == []


def test_offsets_that_go_back_between_row_groups_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "ROW_GROUP_RECORDS", 4)
    with pytest.raises(InvalidArgumentError, match="offsets"):
        write(lake(), [records(range(4)), records(range(3, 7))], base=0, end=10)


def test_a_record_without_offset_is_refused() -> None:
    table = records([1, 2])
    table = table.set_column(1, "offset", pa.array([1, None], pa.int64()))
    with pytest.raises(InvalidArgumentError, match="offset"):
        write(lake(), table, end=5)


def test_other_columns_and_compressions_are_refused() -> None:
    folder = lake()
    table = records(range(3))
    with pytest.raises(SchemaMismatchError, match="columns"):
        write(folder, table, schema=table.drop_columns("key").schema)
    with pytest.raises(SchemaMismatchError, match="column=offset"):
        wrong = pa.schema([RAW.field(0), ("offset", pa.int32()), *list(RAW)[2:]])
        write(folder, table, schema=wrong)
    with pytest.raises(SchemaMismatchError, match="batch"):
        write(folder, [table, records(range(3, 5), schema=TYPED)], schema=RAW)
    with pytest.raises(SchemaMismatchError, match="Parquet"):
        write(folder, [], end=1, schema=segment_schema(pa.struct([])))
    with pytest.raises(InvalidArgumentError, match="zstd"):
        write(folder, table, compression="brotli")
    assert list(folder.listing()) == []


def test_an_error_of_whoever_gives_the_batches_is_passed_on() -> None:
    folder = lake()

    def batches() -> Any:
        yield records(range(3))
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        write_lazily(folder, batches())
    assert list(folder.listing()) == []


def write_lazily(folder: LakeFolder, batches: Any) -> None:
    write_segment(
        folder.disk,
        folder.path(TOPIC, PARTITION, ID),
        batches,
        segment_id=ID,
        base=0,
        end=10,
        compression="none",
        schema=RAW,
    )


def test_field_ids_follow_the_documented_order(tmp_path: Path) -> None:
    folder = lake(OsDisk(), tmp_path)
    write(folder, records(range(3), schema=TYPED))
    schema = pq.read_schema(folder.path(TOPIC, PARTITION, ID))
    ids = [int((schema.field(name).metadata or {})[b"PARQUET:field_id"]) for name in COLUMNS]
    assert ids == [1, 2, 3, 4, 5, 6]
    headers = schema.field("headers").type
    assert headers.key_field.metadata[b"PARQUET:field_id"] == b"7"
    assert headers.item_field.metadata[b"PARQUET:field_id"] == b"8"
    inner = [int(field.metadata[b"PARQUET:field_id"]) for field in schema.field("value").type]
    assert inner == list(range(9, 20))


def test_field_ids_are_those_that_a_catalog_gives_a_new_table() -> None:
    schema = pyarrow_to_schema(schema_with_ids([TYPED.field("value").type]))
    assert assign_fresh_schema_ids(schema) == schema


def test_a_field_added_anywhere_gets_the_next_id_and_leaves_the_others() -> None:
    before = pa.struct({"a": pa.struct({"x": pa.int64()}), "b": pa.string()})
    after = pa.struct({"a": pa.struct({"x": pa.int64(), "y": pa.int64()}), "b": pa.string()})
    ids = [
        {
            name: pyarrow_to_schema(schema_with_ids(values)).find_field(name).field_id
            for name in names
        }
        for values, names in (
            ([before], ("value.a", "value.b", "value.a.x")),
            ([before, after], ("value.a", "value.b", "value.a.x", "value.a.y")),
        )
    ]
    assert ids[0] == {"value.a": 9, "value.b": 10, "value.a.x": 11}
    assert ids[1] == {**ids[0], "value.a.y": 12}


def test_the_footer_says_what_each_row_group_holds(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(limits, "ROW_GROUP_RECORDS", 40)
    folder = lake(OsDisk(), tmp_path)
    segment = write(folder, records(range(100)))
    found = json.loads(metadata(folder).metadata[b"lakebed.segment"])
    assert [(each["first"], each["last"], each["rows"]) for each in found["row_groups"]] == [
        (0, 39, 40),
        (40, 79, 40),
        (80, 99, 20),
    ]
    covered = 4 + sum(length for group in found["row_groups"] for _, length, _ in group["chunks"])
    assert covered + segment.tail_bytes == segment.file_bytes


def test_a_raw_value_has_no_dictionary_and_integers_are_packed(tmp_path: Path) -> None:
    folder = lake(OsDisk(), tmp_path)
    write(folder, records(range(100)))
    group = metadata(folder).row_group(0)
    encodings = {group.column(n).path_in_schema: group.column(n).encodings for n in range(7)}
    assert "RLE_DICTIONARY" not in encodings["value"]
    assert "RLE_DICTIONARY" in encodings["key"]
    assert "DELTA_BINARY_PACKED" in encodings["offset"]
    assert "DELTA_BINARY_PACKED" in encodings["timestamp"]


def test_writing_the_same_again_gives_the_same_bytes() -> None:
    table = records(range(50))
    first, second = lake(), lake()
    assert write(first, table) == write(second, table.to_batches(max_chunksize=7))
    path = first.path(TOPIC, PARTITION, ID)
    assert first.disk.contents()[path] == second.disk.contents()[path]  # type: ignore[attr-defined]


def test_a_leftover_of_a_dead_process_is_written_over() -> None:
    folder = lake()
    path = folder.path(TOPIC, PARTITION, ID)
    folder.disk.put(path.with_name(path.name + ".tmp"), b"half")  # type: ignore[attr-defined]
    folder.disk.put(path, b"never referred to")  # type: ignore[attr-defined]
    table = records(range(50))
    segment = write(folder, table)
    assert read(SegmentReader(folder, 0), segment).equals(table)
    assert len(list(folder.listing())) == 1
