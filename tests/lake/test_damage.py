"""Damage to a segment is always told, and never read as data."""

from __future__ import annotations

import contextlib
import itertools
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lakebed import limits
from lakebed.errors import CorruptionError, FormatTooNewError, LakebedError, MissingFileError
from lakebed.host import Mode, OsDisk, SimDisk
from lakebed.lake import LakeFolder, SegmentReader, segment_scan
from lakebed.lake.segment_index import decode
from lakebed.state.values import Segment
from tests.lake.support import (
    ID,
    PARTITION,
    RAW,
    ROOT,
    TOPIC,
    TYPED,
    lake,
    read,
    records,
    verify,
    write,
)

PATH = LakeFolder(SimDisk(), ROOT).path(TOPIC, PARTITION, ID)


@pytest.fixture(autouse=True)
def small_row_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "ROW_GROUP_RECORDS", 8)


def whole(schema: pa.Schema = RAW, count: int = 12) -> tuple[bytes, Segment, pa.Table]:
    """Return the bytes of a small segment, of two row groups unless it has fewer records."""
    disk = SimDisk()
    table = records(range(count), schema=schema)
    segment = write(lake(disk), table)
    return disk.contents()[PATH], segment, table


def damaged(data: bytes) -> LakeFolder:
    disk = SimDisk()
    disk.put(PATH, data)
    return LakeFolder(disk, ROOT)


def flipped(data: bytes, bit: int) -> bytes:
    changed = bytearray(data)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


@contextlib.contextmanager
def told() -> Iterator[None]:
    with pytest.raises(CorruptionError) as raised:
        yield
    assert raised.value.facts["path"] == PATH
    assert isinstance(raised.value.facts["byte"], int)


def test_every_flipped_bit_is_told_by_a_read_of_everything() -> None:
    data, segment, table = whole(count=8)
    folder = damaged(data)
    file = folder.disk.open(PATH, Mode.WRITE)
    reader = SegmentReader(folder, 0)
    silent = []
    for bit in range(len(data) * 8):
        position = bit // 8
        file.write(bytes([data[position] ^ 1 << bit % 8]), position)
        try:
            silent.append((bit, read(reader, segment)))
        except CorruptionError as error:
            assert error.facts["path"] == PATH
        file.write(data[position : position + 1], position)
        reader.forget(ID)
    assert silent == []
    assert read(reader, segment).equals(table)


def test_every_flipped_byte_is_told_by_verify() -> None:
    data, segment, _ = whole()
    for byte in range(len(data)):
        with told():
            verify(damaged(flipped(data, byte * 8 + byte % 8)), segment)


def test_a_read_that_does_not_need_the_damaged_chunk_gives_what_was_written() -> None:
    """A projection, or another row group, reads around the damage; it never gives other data."""
    data, segment, table = whole()
    around = 0
    for byte in range(4, segment.file_bytes - segment.tail_bytes):
        reader = SegmentReader(damaged(flipped(data, byte * 8)), 0)
        for offset, columns in ((0, ["key"]), (8, ["value"]), (3, ["offset", "headers"])):
            with contextlib.suppress(CorruptionError):
                got = read(reader, segment, offset, max_records=4, columns=columns)
                assert got.equals(table.select(columns).slice(offset, 4))
                around += 1
    assert around > 100


def test_every_part_of_a_damaged_row_group_is_an_error_whichever_is_decoded_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(segment_scan, "WHOLE_BYTES_MAX", 0)
    monkeypatch.setattr(segment_scan, "PART_BYTES", 1)
    data, segment, _ = whole(count=8)
    changed = bytearray(data)
    for byte in range(4, segment.file_bytes - segment.tail_bytes):
        changed[byte] ^= 1
    opened = SegmentReader(damaged(bytes(changed)), 0).open(TOPIC, PARTITION, segment)
    found = segment_scan.pieces(
        opened,
        [0],
        ["value"],
        start=0,
        until=100,
        shape=lambda batch: batch,
        reopen=lambda: None,
    )
    parts = list(found)
    assert len(parts) == 8
    for part in reversed(parts):
        with told():
            part.decode()


@pytest.mark.parametrize("copies", [1, 2])
def test_parts_go_on_with_another_copy_where_the_damaged_one_failed(
    monkeypatch: pytest.MonkeyPatch, copies: int
) -> None:
    """Some parts were given already when the library cannot decode the next one."""
    monkeypatch.setattr(segment_scan, "WHOLE_BYTES_MAX", 0)
    monkeypatch.setattr(segment_scan, "PART_BYTES", 1)
    data, segment, table = whole(count=8)
    opened, other = (
        SegmentReader(damaged(data), 0).open(TOPIC, PARTITION, segment) for _ in range(2)
    )
    original = opened.slices

    def failing(*arguments: Any) -> Iterator[pa.RecordBatch]:
        yield from itertools.islice(original(*arguments), 3)
        raise CorruptionError("a row group cannot be decoded")

    monkeypatch.setattr(opened, "slices", failing)
    found = segment_scan.pieces(
        opened,
        [0],
        ["value"],
        start=0,
        until=100,
        shape=lambda batch: batch,
        reopen=lambda: other if copies > 1 else None,
    )
    if copies == 1:
        parts = list(found)
        assert [part.decode().num_rows for part in parts[:3]] == [1, 1, 1]
        for part in parts[3:]:
            with pytest.raises(CorruptionError):
                part.decode()
        return
    values = [value for part in found for value in part.decode().column(0).to_pylist()]
    assert values == table.column("value").to_pylist()


def test_flipped_bits_of_a_typed_segment_are_told() -> None:
    data, segment, _ = whole(TYPED)
    rng = random.Random(9)
    for bit in rng.sample(range(len(data) * 8), 600):
        folder = damaged(flipped(data, bit))
        with told():
            read(SegmentReader(folder, 0), segment)
        with told():
            verify(folder, segment)


def test_every_truncation_is_told() -> None:
    data, segment, _ = whole()
    for length in range(len(data)):
        folder = damaged(data[:length])
        with told():
            read(SegmentReader(folder, 0), segment)
        with told():
            verify(folder, segment)


def test_a_real_file_that_was_cut_off_or_has_grown_is_told(tmp_path: Path) -> None:
    folder = lake(OsDisk(), tmp_path)
    segment = write(folder, records(range(12)))
    path = folder.path(TOPIC, PARTITION, ID)
    data = path.read_bytes()
    for changed in (b"", data[:1], data[:-1], data + b"x"):
        path.write_bytes(changed)
        with pytest.raises(CorruptionError, match="length"):
            read(SegmentReader(folder, 0), segment)
        with pytest.raises(CorruptionError, match="length"):
            verify(folder, segment)


def test_the_error_names_column_and_row_group() -> None:
    data, segment, _ = whole()
    tail = segment.file_bytes - segment.tail_bytes
    with pytest.raises(CorruptionError, match=r"byte=\d+ length=\d+ column=value row_group=1"):
        read(SegmentReader(damaged(flipped(data, (tail - 1) * 8)), 0), segment)


def test_a_missing_file_is_told() -> None:
    _, segment, _ = whole()
    folder = LakeFolder(SimDisk(), ROOT)
    reader = SegmentReader(folder, 0)
    for use in (
        lambda: read(reader, segment),
        lambda: reader.verify(TOPIC, PARTITION, segment),
        lambda: list(reader.scan(TOPIC, PARTITION, segment)),
        lambda: reader.offset_for_time(TOPIC, PARTITION, segment, 0),
    ):
        with pytest.raises(MissingFileError, match=str(PATH)):
            use()


def test_another_segment_under_this_name_is_told() -> None:
    _, segment, _ = whole()
    folder = lake()
    write(folder, records(range(12), value_bytes=21))
    with pytest.raises(CorruptionError):
        read(SegmentReader(folder, 0), segment)


@pytest.mark.parametrize(
    "change",
    [
        {"id": 8},
        {"base": -1},
        {"end": 13},
        {"records": 11},
        {"time_min_us": 0},
        {"time_max_us": 0},
        {"tail_bytes": 0},
        {"tail_bytes": 1 << 40},
        {"tail_checksum": 0},
        {"file_bytes": 5},
    ],
)
def test_a_log_that_says_otherwise_is_told_by_verify(change: dict[str, int]) -> None:
    data, segment, _ = whole()
    verify(damaged(data), segment)
    with pytest.raises(CorruptionError):
        verify(damaged(data), segment._replace(**change))


def test_records_of_another_partition_are_told_by_verify() -> None:
    data, segment, _ = whole()
    folder = damaged(data)
    other = folder.path(TOPIC, 0, ID)
    folder.disk.put(other, data)  # type: ignore[attr-defined]
    with pytest.raises(CorruptionError, match="column=partition"):
        SegmentReader(folder, 0).verify(TOPIC, 0, segment)


def test_damage_is_told_again_and_leaves_nothing_in_the_cache() -> None:
    data, segment, table = whole()
    reader = SegmentReader(damaged(flipped(data, 5 * 8)), 1 << 30)
    for _ in range(2):
        with told():
            read(reader, segment)
    assert reader.stats.cached_bytes == 0
    assert read(reader, segment, 8).equals(table.slice(8)), "the other row group is whole"


@pytest.mark.parametrize(
    "document",
    [
        b"",
        b"[]",
        b"{}",
        b"nonsense",
        b"\xff",
        b'{"format":1,"segment":1,"base":0,"end":1,"row_groups":[{"chunks":[]}]}',
        b'{"format":1,"segment":1,"base":0,"end":1,"row_groups":[{"chunks":[[1]]}]}',
        b'{"format":1,"segment":1,"base":0,"end":1,"row_groups":[{"first":"x","chunks":[]}]}',
        b'{"format":1,"segment":1,"base":0,"end":1,"row_groups":7}',
        b"[" * 100_000,
    ],
)
def test_nonsense_for_an_index_is_told(document: bytes) -> None:
    with pytest.raises(CorruptionError):
        decode(document, PATH)


def test_a_newer_format_is_refused_as_such() -> None:
    with pytest.raises(FormatTooNewError, match="version=3"):
        decode(b'{"format":3}', PATH)


def test_every_error_is_one_of_ours() -> None:
    data, segment, _ = whole()
    rng = random.Random(4)
    for _ in range(300):
        junk = bytearray(data)
        start = rng.randrange(len(data))
        junk[start : start + rng.randrange(1, 200)] = rng.randbytes(rng.randrange(1, 200))
        if junk != data:
            with pytest.raises(LakebedError):
                read(SegmentReader(damaged(bytes(junk)), 0), segment)
