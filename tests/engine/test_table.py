"""A topic as a table: what a plain model of its records says, whatever moves below it."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import lakebed
from lakebed.api.table import Table
from lakebed.engine.table import EmbeddedTable
from lakebed.engine.table_keys import _HotKeys
from lakebed.errors import (
    ClosedError,
    CorruptionError,
    InvalidArgumentError,
    LakebedError,
    MissingFileError,
    OffsetOutOfRangeError,
    PartitionNotFoundError,
    TopicNotFoundError,
)
from lakebed.host import ManualClock, SimDisk
from lakebed.lake.open_segment import OpenSegment
from lakebed.lake.segment_reader import SegmentReader
from tests.engine.support import PRICE, any_time, in_threads, inner, quiet
from tests.proof.scale import trials
from tests.waiting import until

COLUMNS = ["partition", "offset", "timestamp", "key", "headers", "value"]
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
Row = dict[str, Any]


def truth(log: lakebed.Log, topic: str) -> list[Row]:
    """Return every record that consumers get, partition after partition."""
    found: list[Row] = []
    for partition, (low, end) in log.offsets(topic).items():
        offset = low
        while offset < end:
            rows = log.read(topic, partition, offset, max_records=1_000).to_pylist()
            if not rows:
                break
            found += rows
            offset = rows[-1]["offset"] + 1
    return found


def last_of_keys(rows: list[Row]) -> dict[bytes, Row]:
    """Return the latest record of each key: the last of its partition, of these the newest."""
    last: dict[tuple[bytes, int], Row] = {}
    for row in rows:
        if row["key"] is not None:
            last[row["key"], row["partition"]] = row
    found: dict[bytes, Row] = {}
    for (key, _), row in last.items():
        other = found.get(key)
        if other is None or age(row) > age(other):
            found[key] = row
    return found


def age(row: Row) -> tuple[Any, ...]:
    return row["timestamp"], row["partition"], row["offset"]


def check(log: lakebed.Log, topic: str, keys: list[bytes]) -> None:
    """Compare everything a table says with the model."""
    table, rows = log.table(topic), truth(log, topic)
    assert table.scan().read_all().to_pylist() == rows
    last = last_of_keys(rows)
    for key in keys:
        assert table.record(key) == last.get(key)
        value = last[key]["value"] if key in last else None
        assert table.get(key, "none") == ("none" if value is None else value)
    living = [row for row in last.values() if row["value"] is not None]
    living.sort(key=lambda row: (row["partition"], row["offset"]))
    assert table.latest().to_pylist() == living
    assert table.latest(["key"]).column("key").to_pylist() == [row["key"] for row in living]


class Life:
    """A log that random things happen to."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.clock, self.disk = ManualClock(), SimDisk()
        self.typed = seed % 2 == 1
        self.fields = [*PRICE]
        self.keys = [b"key %d" % number for number in range(30)]
        self.log = quiet(disk=self.disk, clock=self.clock)
        cleanup = ["compact", "delete", "compact,delete"][seed % 3]
        self.log.create_topic(
            "t",
            1 + seed % 3,
            PRICE if self.typed else None,
            {"cleanup": cleanup, "segment_bytes": 100_000, "compact_dirty_percent": 30},
        )

    def step(self) -> None:
        acts: list[tuple[Callable[[], object], int]] = [
            (self.append, 10),
            (self.append_batch, 10),
            (self.log.checkpoint, 6),
            (self.log.retain, 3),
            (self.remove_old, 1),
            (self.add_partition, 1),
            (self.add_field, 1),
            (self.reopen, 1),
            (lambda: self.clock.advance(self.random.random()), 4),
        ]
        self.random.choices([act for act, _ in acts], [weight for _, weight in acts])[0]()

    def row(self) -> Row:
        key = self.random.choice([*self.keys, None])
        deleted = key is not None and self.random.random() < 0.2
        number = self.random.randrange(1000)
        value: Any = b"%d" % number
        if self.typed:
            value = {field.name: None for field in self.fields} | {"item": "i", "price": number}
            if len(self.fields) > 2:
                value[self.fields[-1].name] = number
        return {"key": key, "value": None if deleted else value}

    def append(self) -> None:
        partition = self.random.choice([None, *self.log.offsets("t")])
        late = self.random.random() < 0.1
        time_us = self.clock.time_us() - self.random.randrange(2_000_000) * late
        self.log.append("t", **self.row(), partition=partition, timestamp=time_us)

    def append_batch(self) -> None:
        rows = [self.row() for _ in range(self.random.randrange(1, 40))]
        self.log.append_batch("t", rows, partition=self.random.choice([None, 0]))

    def remove_old(self) -> None:
        self.log.alter_topic("t", {"retention_ms": 1_000})
        self.log.retain("t")
        self.log.alter_topic("t", {"retention_ms": -1})

    def add_partition(self) -> None:
        self.log.add_partitions("t", len(self.log.offsets("t")) + 1)

    def add_field(self) -> None:
        if self.typed:
            self.fields.append(pa.field(f"f{len(self.fields)}", pa.int64()))
            self.log.alter_topic("t", schema=pa.schema(self.fields))

    def reopen(self) -> None:
        self.log.close()
        self.log = quiet(disk=self.disk, clock=self.clock)


@pytest.mark.parametrize("seed", range(9))
def test_a_table_says_what_a_model_of_the_records_says(seed: int) -> None:
    life = Life(seed)
    for step in range(64):
        life.step()
        if step % 8 == 7:
            check(life.log, "t", [*life.keys, b"", b"nobody"])
    life.log.close()


# Scans


def filled(log: lakebed.Log, segments: int = 4, each: int = 50, *, hot: int = 20) -> None:
    """Fill a typed topic: sealed segments with ascending prices, and some records in memory."""
    log.create_topic("t", schema=PRICE)
    for number in range(segments):
        append_prices(log, number * each, (number + 1) * each)
        log.checkpoint()
    append_prices(log, segments * each, segments * each + hot)


def append_prices(log: lakebed.Log, first: int, last: int) -> None:
    rows = [
        {"key": b"k%d" % n, "value": {"item": f"i{n % 3}", "price": None if n % 10 == 9 else n}}
        for n in range(first, last)
    ]
    log.append_batch("t", rows)


def decoded(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, ...]]:
    """Note the columns of each row group that is decoded."""
    noted: list[tuple[str, ...]] = []
    columns = OpenSegment.columns

    def noting(self: OpenSegment, number: int, names: Any, **options: Any) -> Any:
        noted.append(tuple(names))
        return columns(self, number, names, **options)

    monkeypatch.setattr(OpenSegment, "columns", noting)
    return noted


PRICE_FIELD = pc.field("value", "price")

PREDICATES: list[tuple[pc.Expression, Callable[[Row], object], int]] = [
    (PRICE_FIELD >= 100, lambda row: price(row) is not None and price(row) >= 100, 2),
    (PRICE_FIELD == 7, lambda row: price(row) == 7, 1),
    (PRICE_FIELD == 9, lambda _: False, 1),
    (PRICE_FIELD > 10_000, lambda _: False, 0),
    (PRICE_FIELD.is_null(), lambda row: price(row) is None, 4),
    (~(PRICE_FIELD < 60), lambda row: price(row) is not None and price(row) >= 60, 3),
    (pc.field("value", "item") == "i1", lambda row: row["value"]["item"] == "i1", 4),
    (pc.field("value", "item") == "none", lambda _: False, 0),
    (pc.field("offset") < 50, lambda row: row["offset"] < 50, 1),
    (pc.field("key") == b"k120", lambda row: row["key"] == b"k120", 2),
    (pc.field("key").is_null(), lambda _: False, 0),
    (pc.field("partition") == 0, lambda _: True, 4),
]


def price(row: Row) -> Any:
    return row["value"]["price"]


@pytest.mark.parametrize("number", range(len(PREDICATES)))
def test_a_predicate_gives_its_records_and_leaves_out_row_groups_without_any(
    number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    where, model, row_groups = PREDICATES[number]
    with quiet() as log:
        filled(log)
        expected = [row for row in truth(log, "t") if model(row)]
        noted = decoded(monkeypatch)
        assert log.table("t").scan(where=where).read_all().to_pylist() == expected
        assert len(noted) <= row_groups
        offsets = log.table("t").scan(["offset"], where).read_all()
        assert offsets.schema.names == ["offset"]
        assert offsets.column("offset").to_pylist() == [row["offset"] for row in expected]


def test_a_plan_tells_about_how_many_bytes_are_in_no_file() -> None:
    """By the share of each batch that is in the range; what is in a file does not count."""
    with quiet() as log:
        log.create_topic("t", 2)
        log.append_batch("t", [b"x" * 1000] * 10, partition=0)
        log.checkpoint()
        log.append_batch("t", [b"x" * 1000] * 10, partition=0)
        log.append_batch("t", [b"x" * 1000] * 40, partition=0)
        table = log.table("t")
        (hot,) = table.plan().hot
        assert (hot.partition, hot.start, hot.until) == (0, 10, 60)
        assert 50_000 <= hot.bytes < 60_000
        (some,) = table.plan(start=15, until=30).hot
        assert 15_000 <= some.bytes < 20_000
        assert table.plan(until=10).hot == ()


def test_a_scan_decodes_only_the_columns_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    with quiet() as log:
        filled(log)
        noted = decoded(monkeypatch)
        log.table("t").scan(["offset", "key"]).read_all()
        assert set(noted) == {("offset", "key")}


def test_a_field_that_a_segment_lacks_is_null_for_a_predicate(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    place = pa.field("place", pa.struct([("city", pa.string())]))
    with quiet() as log:
        filled(log, hot=0)
        wide = pa.schema([*PRICE, pa.field("tax", pa.int64()), place])
        log.alter_topic("t", schema=wide)
        value = {"item": "new", "price": 1, "tax": 3, "place": {"city": "x"}}
        log.append("t", value, b"new")
        log.checkpoint()
        table = log.table("t")
        tax, city = pc.field("value", "tax"), pc.field("value", "place", "city")
        assert table.schema.field("value").type == pa.struct(list(wide))
        assert table.scan(where=tax == 3).read_all().column("key").to_pylist() == [b"new"]
        assert table.scan(where=tax.is_null()).read_all().num_rows == 200
        noted = decoded(monkeypatch)
        assert table.scan(where=tax > 0).read_all().num_rows == 1
        assert table.scan(where=city == "x").read_all().num_rows == 1
        assert len(noted) == 2
        assert table.get(b"k3") == {"item": "i0", "price": 3, "tax": None, "place": None}
        assert table.get(b"new") == value


def test_floats_that_are_not_numbers_are_not_lost_to_the_statistics() -> None:
    with quiet() as log:
        log.create_topic("t", schema=pa.schema([("x", pa.float64())]))
        log.append_batch("t", [{"value": {"x": number}} for number in (1.0, float("nan"), 2.0)])
        log.checkpoint()
        where = ~(pc.field("value", "x") <= 5.0)
        assert log.table("t").scan(["offset"], where).read_all().to_pylist() == [{"offset": 1}]


def test_offsets_and_partitions_bound_a_scan() -> None:
    with quiet() as log:
        log.create_topic("t", 3, config={"cleanup": "compact"})
        for _ in range(3):
            for partition in range(3):
                rows = [{"key": b"%d" % (n % 7), "value": b"%d" % n} for n in range(20)]
                log.append_batch("t", rows, partition=partition)
            log.checkpoint()
            log.retain()
        log.append_batch("t", [{"value": b"hot"}] * 5, partition=1)
        table = log.table("t")

        def places(**bounds: Any) -> list[tuple[int, int]]:
            found = table.scan(["partition", "offset"], **bounds).read_all().to_pylist()
            return [(row["partition"], row["offset"]) for row in found]

        every = [(row["partition"], row["offset"]) for row in truth(log, "t")]
        assert len(every) < 140
        assert places() == every
        assert places(partitions=[2, 0]) == [each for each in every if each[0] != 1]
        assert places(partitions=[]) == []
        for start in range(0, 70, 3):
            late = [each for each in every if each[1] >= start]
            assert places(start=start) == late
            assert places(until=start) == [each for each in every if each[1] < start]
            assert places(start=start, until=start + 9) == [e for e in late if e[1] < start + 9]
        assert places(start={1: 60}, until={0: 0, 2: 0}) == [(1, n) for n in range(60, 65)]


def test_a_scan_does_not_have_what_is_appended_after_the_call() -> None:
    with quiet() as log:
        filled(log, 2, 10, hot=5)
        scan = log.table("t").scan()
        append_prices(log, 100, 200)
        log.checkpoint()
        assert scan.read_all().num_rows == 25


def test_a_scan_that_began_before_a_field_was_added_keeps_its_schema() -> None:
    with quiet() as log:
        filled(log, 1, 10, hot=5)
        scan, schema = log.table("t").scan(), log.table("t").schema
        log.alter_topic("t", schema=pa.schema([*PRICE, pa.field("tax", pa.int64())]))
        log.append("t", {"item": "x", "price": 1, "tax": 1}, b"x")
        log.checkpoint()  # the scan's last records are in a segment with the new field now
        found = scan.read_all()
        assert found.schema == schema
        assert [price(row) for row in found.to_pylist()] == [*range(9), None, *range(10, 15)]


def test_what_merging_moves_during_a_scan_comes_once_and_what_retention_removes_is_left_out(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with quiet() as log:
        filled(log, 40, 10, hot=5)
        before = [row["offset"] for row in truth(log, "t")]
        scan = log.table("t").scan(["offset"])
        found = scan.read_next_batch().column("offset").to_pylist()
        assert log.retain().segments_merged
        found += scan.read_all().column("offset").to_pylist()
        assert found == before

        for _ in range(20):
            append_prices(log, 0, 10)
            log.checkpoint()
        scan = log.table("t").scan(["offset"])
        first = scan.read_next_batch().column("offset").to_pylist()
        log.alter_topic("t", {"retention_bytes": 0})
        log.retain()
        append_prices(log, 0, 3)
        rest = scan.read_all().column("offset").to_pylist()
        assert first + rest == [*range(len(first + rest))]
        assert len(first + rest) < 600
        assert "left out what was removed" in caplog.text


@pytest.mark.parametrize("name", ["open", "find"])
def test_a_segment_that_is_replaced_just_before_it_is_opened_is_looked_for_again(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with quiet() as log:
        filled(log, 40, 10, hot=5)
        original = getattr(SegmentReader, name)
        failed: list[Exception] = []

        def overtaken(*arguments: Any, **options: Any) -> Any:
            if not failed:
                assert log.retain().segments_merged
            try:
                return original(*arguments, **options)
            except MissingFileError as error:
                failed.append(error)
                raise

        monkeypatch.setattr(SegmentReader, name, overtaken)
        if name == "open":
            offsets = log.table("t").scan(["offset"]).read_all().column("offset").to_pylist()
            assert offsets == [*range(405)]
        else:
            assert log.table("t").get(b"k5") == {"item": "i2", "price": 5}
        assert len(failed) == 1


def uses(table: Table) -> list[Callable[[], object]]:
    return [table.scan, table.latest, lambda: table.get(b"k"), lambda: table.schema]


def test_a_purge_or_the_end_of_a_topic_ends_a_scan_in_an_orderly_way() -> None:
    with quiet() as log:
        filled(log, 20, 10)
        scan = log.table("t").scan(["offset"])
        scan.read_next_batch()
        log.purge_topic("t")
        assert scan.read_all().num_rows < 200
        table = log.table("t")
        assert table.scan().read_all().num_rows == 0
        append_prices(log, 0, 30)
        scan = table.scan()
        log.delete_topic("t")
        with pytest.raises(TopicNotFoundError):
            scan.read_all()


def test_a_table_is_not_that_of_a_topic_made_later_under_its_name() -> None:
    with quiet() as log:
        log.create_topic("t", schema=PRICE)
        table = log.table("t")
        append_prices(log, 0, 30)
        log.delete_topic("t")
        log.create_topic("t")
        for use in uses(table):
            with pytest.raises(TopicNotFoundError):
                use()


def test_a_reader_that_is_dropped_early_leaves_nothing_behind(tmp_path: Path) -> None:
    with lakebed.open(tmp_path / "log") as log:
        filled(log, 30, 10)
        for _ in range(10):
            scan = log.table("t").scan()
            scan.read_next_batch()
            assert mapped(tmp_path)
            del scan
            until(lambda: not mapped(tmp_path))
        assert 0 < len(scan_threads()) <= 4
    assert not scan_threads()


def scan_threads() -> list[threading.Thread]:
    return [each for each in threading.enumerate() if each.name.startswith("lakebed-scan")]


def mapped(folder: Path) -> int:
    """Count the segments that are mapped."""
    maps = Path("/proc/self/maps").read_text(encoding="utf8")
    return sum(f"{folder}" in line and ".parquet" in line for line in maps.splitlines())


def test_closing_the_log_ends_its_scans() -> None:
    log = quiet()
    filled(log, 30, 10)
    scan, table = log.table("t").scan(), log.table("t")
    scan.read_next_batch()
    log.close()
    with pytest.raises(ClosedError):
        scan.read_all()
    for use in uses(table):
        with pytest.raises(ClosedError):
            use()
    with pytest.raises(ClosedError):
        log.table("t")


def test_a_row_group_after_another_is_scanned_looked_up_and_made_current() -> None:
    """Several row groups in one segment, more keys than one batch of the first pass has."""
    count = 150_000
    keys = np.arange(count) % 100_000
    with quiet() as log:
        log.create_topic("t")
        for first in range(0, count, 50_000):
            part = keys[first : first + 50_000]
            values = pa.array([b"%d" % number for number in range(first, first + 50_000)])
            batch = pa.table({"key": pa.array([b"%d" % key for key in part]), "value": values})
            log.append_batch("t", batch)
        log.checkpoint()
        table = log.table("t")
        assert [len(batch) for batch in table.scan(["offset"])] == [65_536, 65_536, 18_928]
        bounded = table.scan(["value"], start=60_000, until=140_000).read_all()
        assert bounded.column("value").to_pylist() == [b"%d" % n for n in range(60_000, 140_000)]
        assert table.get("70000") == b"70000"
        assert table.get("49999") == b"149999"
        latest = table.latest(["offset"]).column("offset").to_pylist()
        assert latest == [*range(50_000, 150_000)]


@pytest.mark.parametrize("cleanup", ["delete", "compact"])
def test_a_row_group_of_large_records_is_scanned_in_parts(cleanup: str) -> None:
    count = 8_000
    with quiet() as log:
        log.create_topic("t", config={"cleanup": cleanup})
        values = [b"%d" % number + bytes(4_000) for number in range(count)]
        keys = [b"%d" % (number if number % 3 else 0) for number in range(count)]
        log.append_batch("t", pa.table({"key": keys, "value": values}))
        log.checkpoint()
        log.retain()
        kept = [n for n in range(count) if cleanup == "delete" or n % 3 or n == count - 2]
        table = log.table("t")
        batches = list(table.scan(["value"]))
        assert len(batches) > 1
        found = [int(value.rstrip(b"\0")) for batch in batches for value in batch[0].to_pylist()]
        assert found == kept
        for start, until in ((0, 1), (2_345, 2_350), (1_000, 7_000), (7_999, 9_000)):
            rows = table.scan(["value"], start=start, until=until).read_all().column(0).to_pylist()
            expected = [number for number in kept if start <= number < until]
            assert [int(value.rstrip(b"\0")) for value in rows] == expected


def test_large_typed_records_are_scanned_in_parts_with_fields_added_since() -> None:
    with quiet() as log:
        log.create_topic("t", schema=PRICE)
        noise = random.Random(0)
        rows: list[Row] = [
            {"key": b"%d" % n, "value": {"item": noise.randbytes(4_000).hex(), "price": n}}
            for n in range(3_000)
        ]
        log.append_batch("t", rows)
        log.checkpoint()
        log.alter_topic("t", schema=pa.schema([*PRICE, pa.field("tax", pa.int64())]))
        table = log.table("t")
        batches = list(table.scan(["value"], PRICE_FIELD < 2_500))
        assert len(batches) > 1
        found = [row for batch in batches for row in batch.column(0).to_pylist()]
        assert found == [row["value"] | {"tax": None} for row in rows[:2_500]]
        assert table.get("2999") == rows[-1]["value"] | {"tax": None}


def test_latest_reads_values_only_where_a_current_record_stands(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with quiet() as log:
        log.create_topic("t")
        for number in range(5):
            log.append_batch("t", [{"key": b"k%d" % n, "value": b"%d" % number} for n in range(9)])
            log.checkpoint()
        noted = decoded(monkeypatch)
        assert set(log.table("t").latest().column("value").to_pylist()) == {b"4"}
        assert sum("value" in names for names in noted) == 1


def test_latest_begins_again_if_a_compaction_removes_what_it_was_about_to_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A key that always had a value is never missing."""
    with quiet() as log:
        log.create_topic("t", config={"cleanup": "compact", "compact_dirty_percent": 0})
        log.append("t", b"old", b"k")
        log.checkpoint()
        passes = []

        def overtaken(self: EmbeddedTable, *scan: Any) -> Any:
            passes.append(1)
            if len(passes) == 2:
                log.append("t", b"new", b"k")
                log.checkpoint()
                log.retain()
            return original(self, *scan)

        original = EmbeddedTable._scan
        monkeypatch.setattr(EmbeddedTable, "_scan", overtaken)
        assert log.table("t").latest(["value"]).to_pylist() == [{"value": b"new"}]
        assert len(passes) == 4


def test_latest_ends_though_what_it_is_about_to_read_is_removed_each_time(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with quiet() as log:
        log.create_topic("t")
        log.append("t", b"old", b"k")
        passes = []

        def overtaken(self: EmbeddedTable, *scan: Any) -> Any:
            passes.append(1)
            if len(passes) % 2 == 0:
                log.purge_topic("t")
                log.append("t", b"new", b"k")
            return original(self, *scan)

        original = EmbeddedTable._scan
        monkeypatch.setattr(EmbeddedTable, "_scan", overtaken)
        assert log.table("t").latest(["value"]).num_rows == 0
        assert len(passes) == 20
        assert "removed again and again" in caplog.text


# Lookups


def test_get_gives_the_current_value_and_record_the_whole_of_it() -> None:
    with quiet() as log:
        log.create_topic("t", 2)
        table = log.table("t")
        assert table.get(b"k") is None
        assert table.record(b"k") is None
        log.append("t", b"1", "k", headers={"h": b"x"}, partition=1, timestamp=5)
        assert table.get("k") == table.get(b"k") == b"1"
        assert table.record("k") == {
            "partition": 1,
            "offset": 0,
            "timestamp": EPOCH + timedelta(microseconds=5),
            "key": b"k",
            "headers": [("h", b"x")],
            "value": b"1",
        }
        log.checkpoint()
        log.append("t", None, b"k", partition=1, timestamp=6)
        assert table.get(b"k", "gone") == "gone"
        record = table.record(b"k")
        assert record is not None
        assert record["value"] is None
        log.append("t", b"", b"")
        assert table.get(b"") == b""


def test_of_several_partitions_the_one_with_the_newest_record_has_the_current_value() -> None:
    with quiet() as log:
        log.create_topic("t", 3)
        table = log.table("t")
        for partition, time_us, value in ((0, 50, b"a"), (2, 40, b"b"), (1, 50, b"c")):
            log.append("t", value, b"k", partition=partition, timestamp=time_us)
        for _ in range(2):
            assert table.get(b"k") == b"c"
            assert table.latest(["value"]).to_pylist() == [{"value": b"c"}]
            log.checkpoint()
        log.append("t", b"behind", b"k", partition=1, timestamp=1)
        assert table.get(b"k") == b"a"  # the last of partition 1 is the older one now
        assert table.latest(["value"]).to_pylist() == [{"value": b"a"}]


def test_a_lookup_decodes_one_row_group_and_an_absent_key_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with quiet() as log:
        filled(log, 30, 50)
        noted = decoded(monkeypatch)
        assert price({"value": log.table("t").get(b"k777")}) == 777
        assert len(noted) <= 3  # its keys, its other columns, and one in a hundred in vain
        noted.clear()
        assert sum(log.table("t").get(b"no%d" % number) is not None for number in range(100)) == 0
        assert len(noted) <= 100 * 30 // 100


def test_many_single_records_in_memory_are_found_and_forgotten_with_their_memtable() -> None:
    with quiet() as log:
        log.create_topic("t")
        table = log.table("t")
        for number in range(300):
            log.append("t", b"%d" % number, b"%d" % (number % 50))
            if number % 7 == 0:
                assert table.get(b"%d" % (number % 50)) == b"%d" % number
        assert table.get(b"49") == b"299"
        log.checkpoint()
        assert table.get(b"49") == b"299"
        assert not inner(log).parts.lookup._hot
        log.append("t", b"again", b"49")
        assert table.get(b"49") == b"again"
        log.delete_topic("t")
        log.create_topic("u")
        log.append("u", b"1", b"k")
        assert log.table("u").get(b"k") == b"1"
        assert len(inner(log).parts.lookup._hot) == 1


def test_who_looked_at_a_memtable_before_others_finds_what_was_in_it_then() -> None:
    """Threads that saw more records, or a checkpoint, leave keys that are not of this caller."""
    with quiet() as log:
        log.create_topic("t")
        for number in range(6):
            log.append("t", b"%d" % number, b"k")
        (memtable,) = inner(log).parts.core.memtables.values()
        chunks = memtable.chunks()
        assert len(chunks) == 6
        keys = _HotKeys()
        found = []
        for first, last in ((0, 6), (0, 2), (4, 6), (1, 3), (0, 6)):
            row = keys.find(chunks[first:last], 0, b"k")
            found.append(row.base if row is not None else None)
        assert found == [5, 1, 5, 2, 5]
        assert keys.find(chunks, 6, b"k") is None


def test_what_retention_removed_is_not_found() -> None:
    with quiet() as log:
        log.create_topic("t")
        log.append("t", b"1", b"old")
        log.checkpoint()
        log.append("t", b"2", b"new")
        table = log.table("t")
        assert table.get(b"old") == b"1"
        log.alter_topic("t", {"retention_bytes": 0})
        log.retain()
        assert table.record(b"old") is None
        assert table.get(b"new") == b"2"
        assert table.latest(["key"]).to_pylist() == [{"key": b"new"}]


# Earlier points


def test_as_of_an_offset_gives_the_records_below_it() -> None:
    with quiet() as log:
        log.create_topic("t", 2)
        log.append_batch("t", [{"value": b"%d" % n} for n in range(10)], partition=0)
        log.checkpoint()
        log.append_batch("t", [{"value": b"%d" % n} for n in range(10)], partition=1)
        table = log.table("t")
        assert table.as_of(4).column("value").to_pylist() == [b"0", b"1", b"2", b"3"] * 2
        assert table.as_of({1: 3}, columns=["offset"]).num_rows == 13
        assert table.as_of(0).num_rows == 0
        assert table.as_of(10).num_rows == 20
        found = table.as_of(5, where=pc.field("offset") > 2, columns=["partition"])
        assert found.column("partition").to_pylist() == [0, 0, 1, 1]
        with pytest.raises(OffsetOutOfRangeError, match="above the end"):
            table.as_of(11)
        log.alter_topic("t", {"retention_bytes": 0})
        log.retain()
        with pytest.raises(OffsetOutOfRangeError, match="below the low watermark"):
            table.as_of({0: 9, 1: 10})


def test_as_of_a_time_gives_the_records_up_to_it() -> None:
    clock = ManualClock(1_000_000)
    with quiet(clock=clock) as log:
        log.create_topic("t")
        for time_us in (10, 30, 20):
            log.append("t", b"%d" % time_us, timestamp=time_us)
        log.checkpoint()
        log.append("t", b"40", timestamp=40)
        table = log.table("t")
        assert table.as_of(time=20, columns=["value"]).to_pylist() == [
            {"value": b"10"},
            {"value": b"20"},
        ]
        assert table.as_of(time=EPOCH + timedelta(microseconds=40)).num_rows == 4
        assert table.as_of(time=30, where=pc.field("offset") > 0).num_rows == 2
        assert table.as_of(time=9).num_rows == 0
        log.alter_topic("t", {"retention_bytes": 0})
        log.retain()
        assert table.as_of(time=40).num_rows == 1
        with pytest.raises(OffsetOutOfRangeError, match="before the first record that is left"):
            table.as_of(time=39)


# Input and damage


BAD: list[tuple[Callable[[Table], object], type[LakebedError], str]] = [
    (lambda t: t.scan("value"), InvalidArgumentError, "columns must be a list of"),
    (lambda t: t.scan([]), InvalidArgumentError, "columns must be a list of"),
    (lambda t: t.scan(["amount"]), InvalidArgumentError, "columns must be a list of"),
    (lambda t: t.scan([1]), InvalidArgumentError, "columns must be a list of"),  # type: ignore[list-item]
    (lambda t: t.scan(5), InvalidArgumentError, "columns must be a list of"),  # type: ignore[arg-type]
    (lambda t: t.scan(where="x"), InvalidArgumentError, "where must be filters"),
    (lambda t: t.scan(where=pc.field("nope") > 1), InvalidArgumentError, "does not fit the table"),
    (
        lambda t: t.scan(where=pc.field("value", "nope") > 1),
        InvalidArgumentError,
        "does not fit the table",
    ),
    (lambda t: t.scan(where=pc.field("offset")), InvalidArgumentError, "does not fit the table"),
    (
        lambda t: t.scan(where=pc.field("offset") == "x"),
        InvalidArgumentError,
        "does not fit the table",
    ),
    (lambda t: t.scan(where=pc.field(1) > 3), InvalidArgumentError, "not by their positions"),
    (
        lambda t: t.scan(where=pc.scalar(5) / pc.field("offset") > 1).read_all(),
        InvalidArgumentError,
        "cannot be evaluated",
    ),
    (lambda t: t.scan(start=-1), InvalidArgumentError, "start must be an offset of 0"),
    (lambda t: t.scan(until=1.5), InvalidArgumentError, "until must be an offset"),  # type: ignore[arg-type]
    (lambda t: t.scan(start=True), InvalidArgumentError, "start must be an offset"),
    (lambda t: t.scan(start={0: "x"}), InvalidArgumentError, "start must be an offset"),  # type: ignore[dict-item]
    (lambda t: t.scan(start={7: 1}), PartitionNotFoundError, "partition"),
    (lambda t: t.scan(until={"a": 1}), PartitionNotFoundError, "partition"),  # type: ignore[dict-item]
    (lambda t: t.scan(partitions=[7]), PartitionNotFoundError, "partition"),
    (lambda t: t.scan(partitions=3), InvalidArgumentError, "partitions must be"),  # type: ignore[arg-type]
    (lambda t: t.scan(partitions="0"), InvalidArgumentError, "partitions must be"),  # type: ignore[arg-type]
    (lambda t: t.scan(partitions=[True]), InvalidArgumentError, "partitions must be"),
    (lambda t: t.get(None), InvalidArgumentError, "key must be bytes or str"),  # type: ignore[arg-type]
    (lambda t: t.get(5), InvalidArgumentError, "key must be bytes or str"),  # type: ignore[arg-type]
    (lambda t: t.get("\ud800"), InvalidArgumentError, "key must be bytes or str"),
    (lambda t: t.record([]), InvalidArgumentError, "key must be bytes or str"),  # type: ignore[arg-type]
    (lambda t: t.latest(["nope"]), InvalidArgumentError, "columns must be a list of"),
    (lambda t: t.as_of(), InvalidArgumentError, "either an offset or a time"),
    (lambda t: t.as_of(1, 2), InvalidArgumentError, "either an offset or a time"),
    (lambda t: t.as_of(-1), InvalidArgumentError, "offset must be an offset of 0"),
    (lambda t: t.as_of(time="now"), InvalidArgumentError, "timestamp"),  # type: ignore[arg-type]
    (lambda t: t.as_of(time=1 << 70), InvalidArgumentError, "time"),
    (lambda t: t.as_of(5), OffsetOutOfRangeError, "above the end"),
]


@pytest.mark.parametrize("number", range(len(BAD)))
def test_bad_input_is_refused_with_what_to_do(number: int) -> None:
    use, kind, message = BAD[number]
    with quiet() as log:
        log.create_topic("t")
        log.append("t", b"x", b"k")
        with pytest.raises(kind, match=message):
            use(log.table("t"))


def test_a_table_needs_a_topic() -> None:
    with quiet() as log:
        with pytest.raises(TopicNotFoundError):
            log.table("t")
        with pytest.raises(InvalidArgumentError, match="topic must be a str"):
            log.table(5)  # type: ignore[arg-type]


def segment_files(folder: Path) -> list[Path]:
    return sorted(folder.glob("lake/*/*.parquet"))


@pytest.mark.parametrize("place", [100, -100, -3000])
def test_damage_is_a_typed_error_of_scans_and_lookups(tmp_path: Path, place: int) -> None:
    folder = tmp_path / "log"
    with lakebed.open(folder) as log:
        filled(log, 1, 5_000, hot=0)
        (path,) = segment_files(folder)
        data = bytearray(path.read_bytes())
        data[place] ^= 1
        path.write_bytes(data)
        table = log.table("t")
        with pytest.raises(CorruptionError):
            table.scan().read_all()
        if place < 0:
            with pytest.raises(CorruptionError):
                table.get(b"k3")
        with pytest.raises(CorruptionError):
            table.latest()


def test_a_segment_that_is_gone_is_a_typed_error(tmp_path: Path) -> None:
    folder = tmp_path / "log"
    with lakebed.open(folder) as log:
        filled(log, 1, 10, hot=0)
        segment_files(folder)[0].unlink()
        with pytest.raises(MissingFileError):
            log.table("t").scan().read_all()
        with pytest.raises(MissingFileError):
            log.table("t").get(b"k3")


@pytest.mark.parametrize("ending", ["merged", "deleted"])
def test_verifying_leaves_out_what_goes_meanwhile(
    ending: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with quiet() as log:
        filled(log, 40, 10, hot=0)
        original = SegmentReader.verify
        checked = []

        def overtaken(*arguments: Any) -> None:
            checked.append(arguments)
            if len(checked) == 2 and ending == "merged":
                assert log.retain().segments_merged
            elif len(checked) == 2:
                log.delete_topic("t")
            original(*arguments)

        monkeypatch.setattr(SegmentReader, "verify", overtaken)
        assert 1 <= log.verify() < 40
        assert len(checked) == 40


def test_verifying_finds_a_segment_missing_that_should_be_there(tmp_path: Path) -> None:
    with lakebed.open(tmp_path / "log") as log:
        filled(log, 2, 10, hot=0)
        segment_files(tmp_path / "log")[1].unlink()
        for topic in ("t", None):
            with pytest.raises(MissingFileError):
                log.verify(topic)


# Threads


def test_scans_and_lookups_are_right_while_records_move(tmp_path: Path) -> None:
    """A writer counts each key up; checkpoints, merges and compactions run all the time."""
    keys = [b"key %d" % number for number in range(20)]
    stop = threading.Event()
    config = {"cleanup": "compact", "segment_bytes": 50_000, "compact_dirty_percent": 20}
    written = [0]
    with lakebed.open(tmp_path / "log") as log:
        log.create_topic("t", 2, config=config)
        log.append_batch("t", [{"key": key, "value": b"0"} for key in keys])
        table = log.table("t")

        def write() -> None:
            for count in range(1, trials(80, 1_000)):
                log.append_batch("t", [{"key": key, "value": b"%d" % count} for key in keys])
                written[0] = count
            stop.set()

        def move() -> None:
            while not stop.is_set():
                log.checkpoint()
                log.retain()

        def look() -> None:
            while not stop.is_set():
                least = written[0]
                for key in keys:
                    assert least <= int(table.get(key)) <= written[0] + 1
                    least = written[0]

        def count_current() -> None:
            while not stop.is_set():
                least = written[0]
                latest = table.latest(["key", "value"])
                assert sorted(latest.column("key").to_pylist()) == sorted(keys)
                values = {int(value) for value in latest.column("value").to_pylist()}
                assert len(values) == 1  # a batch over both partitions is seen whole
                assert least <= values.pop() <= written[0] + 1

        def scan() -> None:
            while not stop.is_set():
                offsets = table.scan(["offset"], partitions=[1]).read_all().column("offset")
                numbers = np.asarray(offsets)
                assert (numbers[1:] > numbers[:-1]).all()

        work = [write, move, look, count_current, scan]
        assert in_threads(len(work), lambda number: work[number]()) == [None] * len(work)
        stop.set()


def test_a_scan_misses_nothing_while_segments_are_merged(tmp_path: Path) -> None:
    stop = threading.Event()
    with lakebed.open(tmp_path / "log") as log:
        log.create_topic("t", config={"segment_bytes": 200_000})
        log.append("t", b"first")
        table = log.table("t")

        def write() -> None:
            for _ in range(trials(100, 1_000)):
                log.append_batch("t", [{"value": b"x" * 50}] * 10)
            stop.set()

        def move() -> None:
            while not stop.is_set():
                log.checkpoint()
                log.retain()

        def scan() -> None:
            while not stop.is_set():
                low = log.offsets("t")[0][1]
                offsets = table.scan(["offset"]).read_all().column("offset").to_pylist()
                assert offsets == [*range(len(offsets))]
                assert low <= len(offsets)

        work = [write, move, scan, scan]
        assert in_threads(len(work), lambda number: work[number]()) == [None] * len(work)


def test_a_date_of_no_calendar_breaks_no_predicate(tmp_path: Path) -> None:
    schema = pa.schema({"day": pa.date32(), "cents": pa.int64()})
    with lakebed.open(tmp_path) as log:
        log.create_topic("t", 1, schema)
        days = pa.array([2**31 - 1, 5], pa.int32()).cast(pa.date32())
        value = pa.StructArray.from_arrays([days, pa.array([1, 2])], fields=list(schema))
        with any_time():  # as an older version accepted it
            log.append_batch("t", pa.table({"value": value}))
        log.checkpoint()
        found = log.table("t").scan(where=pc.field("value", "cents") == 2).read_all()
        assert found.num_rows == 1
