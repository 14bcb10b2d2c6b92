"""docs/formats.md is complete: a reader and a writer made from it understand what Lakebed does."""

from __future__ import annotations

import ast
import dataclasses
import re
import struct
import uuid
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lakebed
from lakebed import Log, LogConfig, WalConfig, limits
from lakebed.engine import backup_files
from lakebed.iceberg import derived_properties, table_metadata
from lakebed.lake import schema, segment_index
from lakebed.state import command_codec, image, values
from lakebed.wal import folder, frame
from tests import second_log
from tests.second_log import Folder, Writer
from tests.state.forms import document_of

PAGE = (Path(__file__).parents[1] / "docs" / "formats.md").read_text(encoding="utf8")
SMALL = LogConfig(wal=WalConfig(file_bytes=16 * 4096, spare_files=0))
TYPED = pa.schema([("id", pa.int64()), ("tags", pa.list_(pa.string()))])


def fill(log: Log, round_: int) -> None:
    """Write by every way there is: one by one, batches, a producer, transactions."""
    for number in range(20):
        log.append(
            "orders", b"%d" % number, key=b"k%d" % (number % 7), headers={"r": b"%d" % round_}
        )
    log.append("orders", None, key=b"k1")
    rows = [{"value": {"id": each, "tags": ["a", None]}} for each in range(50)]
    log.append_batch("payments", rows)
    with log.producer("till") as producer:
        for number in range(30):
            producer.send("orders", b"sent %d" % number, key=b"%d" % number)
    with log.transaction("mover") as transaction:
        transaction.append("orders", b"moved")
        transaction.append("payments", {"id": -1, "tags": None})
        transaction.commit_offsets("billing", {("orders", 0): 3})
    log.transaction("dropped").abort()
    prepared = log.transaction()
    prepared.append("orders", b"together")
    log.commit_together([prepared.prepare()], name="job", number=round_)


def all_records(log: Log, topic: str, partition: int) -> dict[int, Any]:
    table = log.read(topic, partition, max_records=1_000_000)
    rows = second_log.records_of(table)
    return dict(zip(table.column("offset").to_pylist(), rows, strict=True))


def assert_same(log: Log, found: Folder) -> int:
    records = 0
    for name in ("orders", "payments"):
        for partition in log.offsets(name):
            expected = all_records(log, name, partition)
            assert found.records(name, partition) == expected
            records += len(expected)
    return records


@pytest.fixture
def log(tmp_path: Path) -> Any:
    with lakebed.open(tmp_path / "log", SMALL) as log:
        log.create_topic("orders", partitions=3)
        log.create_topic("payments", schema=TYPED)
        yield log


def test_another_reader_finds_every_record_in_the_write_ahead_log(log: Log, tmp_path: Path) -> None:
    fill(log, 1)
    found = Folder(tmp_path / "log")
    assert assert_same(log, found) == 20 + 1 + 50 + 30 + 2 + 1
    assert found.commands >= {1, 6, 7, 8, 9, 10, 11, 12, 26}
    assert found.snapshot == 0
    assert found.offsets == {("billing", 1, 0): 3}


def test_another_reader_finds_every_record_after_checkpoints(log: Log, tmp_path: Path) -> None:
    """In segments, the newest snapshot and the entries behind it; also what a transaction left."""
    waiting = log.transaction("waiting")
    waiting.append("orders", b"staged")
    identity = waiting.prepare()
    for round_ in range(1, 4):
        fill(log, round_)
        log.checkpoint()
    log.purge_topic("payments")
    fill(log, 4)
    assert any((tmp_path / "log" / "staging").iterdir())
    log.commit_together([identity], name="late", number=1)
    found = Folder(tmp_path / "log")
    assert assert_same(log, found) == 3 * (20 + 1 + 30 + 1 + 1) + (20 + 1 + 50 + 30 + 2 + 1) + 1
    assert found.snapshot > found.released > 0
    assert second_log.RELEASE in found.kinds
    assert len(list((tmp_path / "log" / "wal").glob("*.wal"))) > 1


def test_another_reader_follows_retention_and_merging(log: Log, tmp_path: Path) -> None:
    for round_ in range(1, 10):
        fill(log, round_)
        log.checkpoint()
    log.add_partitions("orders", 4)
    log.retain()
    fill(log, 10)
    found = Folder(tmp_path / "log")
    assert assert_same(log, found) == 10 * (20 + 1 + 50 + 30 + 2 + 1)
    assert 18 in found.commands


def test_a_log_that_another_program_has_written_is_opened_and_goes_on(tmp_path: Path) -> None:
    writer = Writer(tmp_path / "log", uuid.uuid4(), time_us=1_790_000_000_000_000)
    writer.entry(1, ["orders", 2, b"", [["compression", "lz4"]], 5])
    batch = pa.RecordBatch.from_pylist(
        [
            {"timestamp": 7, "key": b"k", "headers": [("h", b"v")], "value": b"first"},
            {"timestamp": 8, "key": None, "headers": None, "value": b"second"},
        ],
        second_log.storage_schema(pa.binary()),
    )
    body = batch.serialize().to_pybytes()
    writer.entry(6, [9, [[1, 0, [[1, 1], [0, 1]], len(body)]]], body)
    writer.save()
    with lakebed.open(tmp_path / "log") as log:
        assert log.stats().wal.recovery.torn_bytes == 0
        assert all_records(log, "orders", 1) == {0: (7, b"k", [("h", b"v")], b"first")}
        assert all_records(log, "orders", 0) == {0: (8, None, None, b"second")}
        assert log.append("orders", b"third", partition=1).offset == 1
        log.checkpoint()
        assert Folder(tmp_path / "log").log_id == writer.log_id
        assert log.verify() == 2


def test_the_second_implementation_has_nothing_of_lakebed_in_it() -> None:
    tree = ast.parse(Path(second_log.__file__).read_text(encoding="utf8"))
    names = {
        each.name for node in ast.walk(tree) if isinstance(node, ast.Import) for each in node.names
    }
    names |= {str(node.module) for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert not [name for name in names if name.startswith("lakebed")]


# The page against the code


def section(title: str) -> str:
    found = re.search(rf"^#+ {re.escape(title)}\n(.*?)(?=^##|\Z)", PAGE, re.M | re.S)
    assert found is not None, title
    return found[1]


def rows(title: str, columns: int) -> list[list[str]]:
    """Return the rows of the tables of so many columns in a section."""
    lines = re.findall(r"^\|(.*)\|$", section(title), re.M)
    found = [[cell.strip() for cell in line.split("|")] for line in lines]
    return [each for each in found if len(each) == columns]


def layout(title: str) -> list[tuple[int, int]]:
    """Return position and size of each field that a table of bytes lists."""
    found = [each[:2] for each in rows(title, 4) if (each[0] + each[1]).isdigit() and all(each[:2])]
    return [(int(at), int(size)) for at, size in found]


def sizes(structure: struct.Struct) -> list[tuple[int, int]]:
    """Return position and size of each field of a structure."""
    parts = re.findall(r"\d*[a-zA-Z]", structure.format.lstrip("<"))
    found, at = [], 0
    for part in parts:
        found.append((at, struct.calcsize("<" + part)))
        at += found[-1][1]
    return found


def test_the_fields_of_headers_are_where_the_page_says() -> None:
    assert layout("File header") == sizes(frame.FILE_HEADER)
    frames = [each for each in rows("Frame", 4) if each[2] != "name" and each[1].isdigit()]
    assert [(int(at), int(size)) for at, size, *_ in frames] == sizes(frame.FRAME_HEADER)
    assert layout("Commands") == sizes(command_codec._HEAD)
    assert layout("Snapshots") == sizes(image._HEAD)
    assert re.findall(r"\| end - (\d+) \| (\d+) \|", PAGE) == [("20", "8"), ("12", "4"), ("8", "8")]
    assert sizes(image._TAIL) == [(0, 8), (8, 4), (12, 8)]


def test_magic_numbers_and_units_are_those_of_the_code() -> None:
    for magic in (frame.FILE_MAGIC, image.MAGIC):
        assert f"`{magic.decode().rstrip()}\\n`" in PAGE
    assert f"`0x{frame.FRAME_MAGIC:08X}`" in PAGE
    assert f"`{segment_index.MAGIC.decode()}`" in PAGE
    assert f"in {frame.CAPACITY_UNIT} bytes" in PAGE
    assert f"`{segment_index.KEY}`" in PAGE
    assert f"has {limits.ROW_GROUP_RECORDS:,} records" in PAGE
    assert f"at most {limits.ENTRY_BYTES_MAX // limits.GIB} GiB" in PAGE
    assert f"at most {limits.MARK_BYTES_MAX // limits.KIB} KiB" in PAGE
    assert f"The last {limits.SEQUENCES_KEPT} batches" in PAGE


def test_every_kind_of_frame_and_its_number_is_on_the_page() -> None:
    listed = {
        name: int(kind)
        for kind, name, *_ in rows("Frame", 4)
        if kind.isdigit() and name[0].isalpha()
    }
    assert listed == {kind.name.lower().replace("_", " "): int(kind) for kind in frame.FrameKind}


def test_every_command_its_number_and_how_many_fields_it_has_is_on_the_page() -> None:
    listed = [each for each in rows("Commands", 4) if each[0].isdigit() and each[1][:1].isupper()]
    assert [(int(number), name) for number, name, *_ in listed] == [
        (number, kind.__name__) for number, kind in sorted(command_codec.KINDS.items())
    ]
    for number, name, fields, _ in listed:
        plain = re.sub(r"\(.*?\)|\[.*?\]", "", fields)
        expected = command_codec.KINDS[int(number)].__struct_fields__
        assert len(plain.split(",")) == len(expected), name


def test_every_part_of_a_snapshot_is_on_the_page() -> None:
    listed = [name.strip("`") for name, _ in rows("Snapshots", 2) if name.startswith("`")]
    assert listed == list(document_of(image.encode_state(image.State())))
    numbers = re.search(r"\| `numbers` \| name, number: (.*) \|", PAGE)
    assert numbers is not None
    assert numbers[1].replace("`", "").split(", ") == sorted(image.State().numbers)
    segment = [each for each in rows("Snapshots", 3) if each[0].isdigit()]
    names = [name.replace(" ", "_") for _, name, _ in segment]
    assert [re.sub("^time_m..$", r"\g<0>_us", name) for name in names] == list(
        values.Segment._fields
    )


def test_the_columns_of_a_segment_have_the_field_ids_of_the_page() -> None:
    listed = {
        name.strip("`"): int(number) for name, number, _ in rows("Segments", 3) if number.isdigit()
    }
    numbered = schema.schema_with_ids([pa.binary()])
    assert listed == {each.name: int(each.metadata[schema.FIELD_ID]) for each in numbered}
    inside = numbered.field("headers").type
    ids = [int(each.metadata[schema.FIELD_ID]) for each in (inside.key_field, inside.item_field)]
    assert ids == [7, 8]
    typed = schema.schema_with_ids([pa.struct([("id", pa.int64())])]).field("value").type
    assert typed.field(0).metadata[schema.FIELD_ID] == b"9"


def test_every_field_of_a_segments_index_is_on_the_page() -> None:
    listed = {name for each in rows("Segments", 2) for name in re.findall(r"`(\w+)`", each[0])}
    groups = {each.name for each in dataclasses.fields(segment_index.RowGroup)}
    whole = {each.name for each in dataclasses.fields(segment_index.SegmentIndex)}
    assert listed == groups | whole | {"format"}


def test_every_property_of_tables_is_on_the_page() -> None:
    listed = [name.strip("`") for name, _ in rows("Tables", 2) if name.startswith("`lakebed.")]
    topics = [
        table_metadata.LOG,
        table_metadata.TOPIC,
        table_metadata.POSITION,
        table_metadata.OFFSETS,
        table_metadata.TERM,
    ]
    derived = re.findall(r"^(lakebed\.\w+)", derived_properties.__doc__ or "", re.M)
    assert listed == topics + [name for name in derived if name != table_metadata.TERM]


def test_every_field_of_a_backups_manifest_is_on_the_page() -> None:
    listed = {name for each in rows("Backups", 2) for name in re.findall(r"`(\w+)`", each[0])}
    fields = {each.name for each in dataclasses.fields(backup_files.Manifest)}
    assert listed == fields | {"format", "crc32c"}


def test_the_versions_are_those_of_the_code() -> None:
    listed = {name.strip("`"): int(now) for name, now, _ in rows("Versions", 3) if now.isdigit()}
    assert listed == {
        "lakebed.json": folder.FORMAT_VERSION,
        "WAL file": frame.FILE_VERSION,
        "command": command_codec.VERSION,
        "snapshot": image.VERSION,
        "segment": segment_index.FORMAT_VERSION,
        "backup": backup_files.FORMAT,
    }
