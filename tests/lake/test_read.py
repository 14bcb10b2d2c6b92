"""Reading gives the records asked for, no others, and holds no more memory than it may."""

from __future__ import annotations

import random
import threading
from pathlib import Path

import pyarrow as pa
import pytest

from lakebed import limits
from lakebed.errors import ClosedError, InvalidArgumentError, MissingFileError
from lakebed.host import OsDisk
from lakebed.lake import COLUMNS, LakeFolder, SegmentReader, segment_reader
from lakebed.state.values import Segment
from tests.lake.support import EVERYTHING, PARTITION, RAW, TOPIC, TYPED, lake, read, records, write

MUCH = 1 << 30


@pytest.fixture(autouse=True)
def small_row_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "ROW_GROUP_RECORDS", 100)


def dense() -> tuple[LakeFolder, Segment, pa.Table]:
    folder, table = lake(), records(range(1_000, 2_050))
    return folder, write(folder, table, base=1_000), table


def sparse() -> tuple[LakeFolder, Segment, pa.Table]:
    rng = random.Random(5)
    offsets = sorted(rng.sample(range(50, 5_000), 730))
    folder, table = lake(), records(offsets)
    return folder, write(folder, table, base=0, end=6_000), table


def from_offset(table: pa.Table, offset: int) -> pa.Table:
    return table.filter(pa.compute.greater_equal(table.column("offset"), offset))


@pytest.mark.parametrize("make", [dense, sparse])
@pytest.mark.parametrize("cache_bytes", [0, 30_000, MUCH])
def test_any_range_is_what_was_written(make: object, cache_bytes: int) -> None:
    folder, segment, table = make()  # type: ignore[operator]
    found = SegmentReader(folder, cache_bytes)
    rng = random.Random(1)
    for _ in range(60):
        offset, count = rng.randrange(0, segment.end + 5), rng.choice([1, 3, 100, 101, 5_000])
        columns = rng.choice([None, ["value"], ["offset", "key"], list(COLUMNS)])
        expected = from_offset(table, offset).slice(0, count)
        if columns:
            expected = expected.select(columns)
        got = read(found, segment, offset, max_records=count, columns=columns)
        assert got.equals(expected) if expected.num_rows else not got.num_rows
        assert found.stats.cached_bytes <= cache_bytes
    found.close()


def test_columns_come_in_their_fixed_order_whatever_order_they_are_asked_in() -> None:
    folder, segment, _ = dense()
    got = read(SegmentReader(folder, MUCH), segment, columns=["value", "partition", "headers"])
    assert got.column_names == ["partition", "headers", "value"]
    assert [field.type for field in got.schema] == [RAW.field(n).type for n in (0, 4, 5)]


@pytest.mark.parametrize("columns", [[], ["nonsense"], ["value", "x"]])
def test_unknown_columns_are_refused(columns: list[str]) -> None:
    folder, segment, _ = dense()
    with pytest.raises(InvalidArgumentError, match="columns must be some of"):
        read(SegmentReader(folder, MUCH), segment, columns=columns)


@pytest.mark.parametrize("bound", ["max_records", "max_bytes"])
def test_a_bound_of_nothing_is_refused(bound: str) -> None:
    folder, segment, _ = dense()
    with pytest.raises(InvalidArgumentError, match=bound):
        read(SegmentReader(folder, MUCH), segment, **{bound: 0})  # type: ignore[arg-type]


def test_max_bytes_stops_near_its_bound_and_gives_at_least_one_record() -> None:
    folder, segment, table = dense()
    found = SegmentReader(folder, MUCH)
    row_bytes = table.nbytes / table.num_rows
    for wanted in (1, 10, 99, 100, 150, 420):
        got = read(found, segment, 1_000, max_bytes=int(wanted * row_bytes))
        assert 0.8 * wanted - 1 <= got.num_rows <= 1.2 * wanted + 1
    assert read(found, segment, 1_234, max_bytes=1).equals(table.slice(234, 1))


def test_reading_on_by_what_was_read_gives_everything_once() -> None:
    folder, segment, table = sparse()
    found, offset, got = SegmentReader(folder, MUCH), 0, []
    while offset < segment.end:
        batches = found.read(
            TOPIC, PARTITION, segment, offset=offset, max_records=64, max_bytes=3_000
        )
        if not batches:
            break
        got += batches
        offset = batches[-1].column("offset")[-1].as_py() + 1
    assert pa.Table.from_batches(got).equals(table)


def test_slices_share_the_memory_of_the_cached_row_group() -> None:
    folder, segment, _ = dense()
    found = SegmentReader(folder, MUCH)
    first = read(found, segment, 1_000, max_records=10).column("value").chunk(0)
    second = read(found, segment, 1_050, max_records=10).column("value").chunk(0)
    assert first.buffers()[2].address == second.buffers()[2].address


def test_a_row_group_is_decoded_once_while_it_is_cached() -> None:
    folder, segment, _ = dense()
    found = SegmentReader(folder, MUCH)
    for offset in range(1_001, 1_099):
        read(found, segment, offset, max_records=1)
    assert found.stats.hits == 97
    assert found.stats.misses == 1
    assert found.stats.cached_bytes > 0


def test_a_column_that_was_not_decoded_yet_joins_the_others() -> None:
    folder, segment, table = dense()
    found = SegmentReader(folder, MUCH)
    read(found, segment, 1_001, max_records=1, columns=["key"])
    little = found.stats.cached_bytes
    assert read(found, segment, 1_001, max_records=1).equals(table.slice(1, 1))
    assert found.stats.cached_bytes > little
    assert found.stats.misses == 2


def test_a_row_group_larger_than_the_cache_is_served_and_not_kept() -> None:
    folder, segment, table = dense()
    found = SegmentReader(folder, 100)
    assert read(found, segment, 1_000).equals(table)
    assert found.stats == (0, 11, 0)


def test_the_least_recently_used_row_groups_go_first() -> None:
    folder, segment, _ = dense()
    found = SegmentReader(folder, MUCH)
    read(found, segment, 1_001, max_records=1)
    bounded = SegmentReader(folder, int(found.stats.cached_bytes * 2.5))
    for offset in (1_001, 1_101, 1_001, 1_201, 1_001):  # the first one stays in use
        read(bounded, segment, offset, max_records=1)
    assert bounded.stats.misses == 3
    read(bounded, segment, 1_101, max_records=1)
    assert bounded.stats.misses == 4


def test_a_read_that_ends_with_a_row_group_does_not_decode_the_next() -> None:
    folder, segment, table = dense()
    found = SegmentReader(folder, MUCH)
    assert read(found, segment, 1_000, max_records=100).equals(table.slice(0, 100))
    assert found.stats.misses == 1


def test_batches_stay_valid_when_the_segment_is_removed_and_forgotten(tmp_path: Path) -> None:
    folder, table = lake(OsDisk(), tmp_path), records(range(500))
    segment = write(folder, table, compression="none")
    found = SegmentReader(folder, MUCH)
    got = read(found, segment, 0, max_records=50)
    folder.remove(TOPIC, PARTITION, segment.id)
    assert read(found, segment, 333).equals(table.slice(333)), "it is still mapped"
    found.forget(segment.id)
    assert found.stats.cached_bytes == 0
    assert got.equals(table.slice(0, 50))
    with pytest.raises(MissingFileError):
        read(found, segment)
    found.close()


def test_a_scan_does_not_fill_the_cache() -> None:
    folder, segment, table = dense()
    found = SegmentReader(folder, MUCH)
    scanned = list(found.scan(TOPIC, PARTITION, segment, columns=["offset", "value"]))
    assert pa.Table.from_batches(scanned).equals(table.select(["offset", "value"]))
    assert found.stats == (0, 0, 0)


def test_only_so_many_segments_stay_mapped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segment_reader, "OPEN_SEGMENTS_MAX", 3)
    folder, table = lake(), records(range(10))
    segments = [write(folder, table, segment_id=number) for number in range(8)]
    found = SegmentReader(folder, 0)
    for segment in [*segments, *segments]:
        assert read(found, segment).equals(table)
        assert len(found._open) <= 3


def test_a_closed_reader_refuses() -> None:
    folder, segment, _ = dense()
    found = SegmentReader(folder, MUCH)
    read(found, segment, 1_000)
    found.close()
    found.close()
    assert found.stats.cached_bytes == 0
    with pytest.raises(ClosedError):
        read(found, segment, 1_000)


@pytest.mark.parametrize("make", [dense, sparse])
def test_the_first_offset_at_or_after_a_time(make: object) -> None:
    folder, segment, _ = make()  # type: ignore[operator]
    offsets = read(SegmentReader(folder, 0), segment).column("offset").to_pylist()
    rng = random.Random(3)
    times = [rng.randrange(10_000) for _ in offsets]  # producers' clocks differ
    segment = write(folder, records(offsets, times=times), base=segment.base, segment_id=8)
    found = SegmentReader(folder, MUCH)
    for time_us in [-5, *times[::17], 9_000, 9_999, 10_000]:
        later = [o for o, t in zip(offsets, times, strict=True) if t >= time_us]
        expected = later[0] if later else None
        assert found.offset_for_time(TOPIC, PARTITION, segment, time_us) == expected


def test_typed_values_can_be_read_by_offset() -> None:
    folder, table = lake(), records(range(450), schema=TYPED)
    segment = write(folder, table)
    found = SegmentReader(folder, MUCH)
    assert read(found, segment, 95, max_records=210).equals(table.slice(95, 210))
    assert read(found, segment, 95, columns=["value"]).equals(table.select(["value"]).slice(95))


@pytest.mark.parametrize("cache_bytes", [0, 40_000, MUCH])
def test_many_threads_read_at_once(cache_bytes: int, tmp_path: Path) -> None:
    folder, table = lake(OsDisk(), tmp_path), records(range(1_500))
    segments = [write(folder, table, segment_id=number) for number in range(3)]
    found = SegmentReader(folder, cache_bytes)
    wrong: list[object] = []

    def work(seed: int) -> None:
        rng = random.Random(seed)
        try:
            for _ in range(40):
                offset, count = rng.randrange(1_500), rng.choice([1, 50, 400])
                if rng.random() < 0.1:
                    found.forget(rng.randrange(3))
                got = read(found, rng.choice(segments), offset, max_records=count)
                if not got.equals(table.slice(offset, count)):
                    wrong.append((seed, offset, count))
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert found.stats.cached_bytes <= cache_bytes
    found.close()


def test_a_read_from_before_the_segment_begins_at_its_first_record() -> None:
    folder, segment, table = dense()
    got = read(SegmentReader(folder, MUCH), segment, 0, max_records=5, max_bytes=EVERYTHING)
    assert got.equals(table.slice(0, 5))
