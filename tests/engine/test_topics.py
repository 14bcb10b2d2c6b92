"""Topics: made, found, changed, emptied and removed, and what of them survives a restart."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

import lakebed
from lakebed import limits
from lakebed.errors import (
    InvalidArgumentError,
    InvalidNameError,
    SchemaChangeError,
    SchemaMismatchError,
    TopicExistsError,
    TopicNotFoundError,
)
from lakebed.host import SimDisk
from lakebed.reports.topics import TopicInfo
from tests.engine.support import PRICE, at_next_command, everything, inner, quiet, rows, state_of

WIDER = PRICE.append(pa.field("currency", pa.string()))


NO_TABLES = lakebed.LogConfig(lake=lakebed.LakeConfig(iceberg=False))
"""Files go at once: no table can need them."""


def segment_files(folder: Path) -> list[Path]:
    return sorted(folder.glob("lake/*/*.parquet"))


def test_a_topic_is_described_as_it_was_made() -> None:
    with quiet() as log:
        made = log.create_topic("orders", 3, PRICE, {"cleanup": "compact", "segment_ms": "5000"})
        assert made == log.describe_topic("orders")
        assert (made.name, len(made.partitions), made.schema_version) == ("orders", 3, 1)
        assert made.schema is not None
        assert made.schema.equals(PRICE)
        assert (made.config["cleanup"], made.config["segment_ms"]) == ("compact", 5000)
        assert made.config["compression"] == "zstd"
        assert log.topics() == ["orders"]


def test_a_second_topic_of_a_name_is_refused_and_get_or_create_gives_the_first() -> None:
    with quiet() as log:
        first = log.create_topic("orders", 3)
        with pytest.raises(TopicExistsError):
            log.create_topic("orders")
        assert log.get_or_create_topic("orders", 7) == first
        assert len(log.get_or_create_topic("others", 2).partitions) == 2
        assert log.topics() == ["orders", "others"]


def test_get_or_create_makes_a_topic_that_is_deleted_while_it_looks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with quiet() as log:
        first = log.create_topic("orders", 3)
        topics = inner(log).parts.topics
        describe = topics.describe

        def describe_after_a_deletion(name: str) -> TopicInfo:
            monkeypatch.undo()
            inner(log).delete_topic(name)
            return describe(name)

        monkeypatch.setattr(topics, "describe", describe_after_a_deletion)
        made = log.get_or_create_topic("orders", 7)
        assert (made.id, len(made.partitions)) == (first.id + 1, 7)


def test_a_topic_that_is_deleted_as_soon_as_it_is_made_is_described() -> None:
    with quiet() as log:
        core, topics = inner(log).parts.core, inner(log).parts.topics
        with at_next_command(topics, after=lambda: inner(log).delete_topic("orders")):
            made = log.get_or_create_topic("orders", 2, PRICE)
        assert (len(made.partitions), made.records) == (2, 0)
        assert made.schema is not None and made.schema.equals(PRICE)
        assert core.state.topics == {}


def test_a_description_counts_what_is_in_segments_and_in_the_memtable() -> None:
    with quiet() as log:
        log.create_topic("orders")
        log.append_batch("orders", [b"a", b"b", b"c"])
        log.checkpoint()
        log.append("orders", b"d")
        only = log.describe_topic("orders").partitions[0]
        assert (only.earliest, only.end, only.segments, only.memtable_records) == (0, 4, 1, 1)
        assert only.segment_bytes > 0
        assert log.describe_topic("orders").records == 4


@pytest.mark.parametrize("name", ["", "a/b", "__x", ".x", "é", "a" * 250, None, 7, ["x"]])
def test_a_topic_cannot_have_a_bad_name(name: object) -> None:
    with quiet() as log:
        before = state_of(log)
        with pytest.raises(InvalidNameError):
            log.create_topic(name)  # type: ignore[arg-type]
        assert state_of(log) == before


@pytest.mark.parametrize("partitions", [0, -1, limits.PARTITIONS_MAX + 1, True, 1.5, "2"])
def test_a_topic_cannot_have_a_bad_number_of_partitions(partitions: object) -> None:
    with quiet() as log:
        with pytest.raises(InvalidArgumentError):
            log.create_topic("orders", partitions)  # type: ignore[arg-type]
        assert log.topics() == []


@pytest.mark.parametrize(
    "config", [{"nope": 1}, {"cleanup": "burn"}, {"segment_bytes": 1}, {"retention_ms": "x"}, "x"]
)
def test_a_bad_setting_is_refused_when_made_and_when_changed(config: object) -> None:
    with quiet() as log:
        with pytest.raises(InvalidArgumentError):
            log.create_topic("orders", config=config)  # type: ignore[arg-type]
        before = log.create_topic("others")
        with pytest.raises(InvalidArgumentError):
            log.alter_topic("others", config)  # type: ignore[arg-type]
        assert log.topics() == ["others"]
        assert log.describe_topic("others") == before


def test_settings_change_one_by_one_and_survive_reopening() -> None:
    disk = SimDisk()
    with quiet(disk=disk) as log:
        log.create_topic("orders", config={"retention_ms": 5000})
        log.alter_topic("orders", {"segment_ms": 100})
        changed = log.alter_topic("orders", {"retention_ms": -1})
        assert (changed.config["retention_ms"], changed.config["segment_ms"]) == (-1, 100)
    with quiet(disk=disk) as log:
        assert log.describe_topic("orders") == changed


def test_partitions_are_added_and_never_taken_away() -> None:
    with quiet() as log:
        log.create_topic("orders", 2)
        log.append("orders", b"x", partition=1)
        assert len(log.add_partitions("orders", 4).partitions) == 4
        assert log.append("orders", b"y", partition=3) == ("orders", 3, 0)
        assert rows(log, "orders", 1) == [b"x"]
        for fewer in (2, 3):
            with pytest.raises(InvalidArgumentError, match="only grow"):
                log.add_partitions("orders", fewer)
        assert len(log.alter_topic("orders", partitions=5).partitions) == 5
        with pytest.raises(InvalidArgumentError, match="only grow"):
            log.alter_topic("orders", partitions=1)


def test_a_purge_removes_records_and_files_and_offsets_go_on(tmp_path: Path) -> None:
    with lakebed.open(tmp_path, NO_TABLES) as log:
        log.create_topic("orders", 2)
        log.append_batch("orders", [b"a", b"b", b"c", b"d"], partition=0)
        log.checkpoint()
        log.append_batch("orders", [b"e", b"f"], partition=0)
        assert len(segment_files(tmp_path)) == 1
        log.purge_topic("orders")
        assert segment_files(tmp_path) == []
        assert log.offsets("orders") == {0: (6, 6), 1: (0, 0)}
        assert log.stats().memtable_bytes == 0
        assert log.append("orders", b"g", partition=0).offset == 6
        assert rows(log, "orders") == [b"g"]
    with lakebed.open(tmp_path) as log:
        assert log.offsets("orders")[0] == (6, 7)
        assert rows(log, "orders") == [b"g"]


def test_a_deleted_topic_leaves_no_file_no_offset_and_no_sequence(tmp_path: Path) -> None:
    with lakebed.open(tmp_path, NO_TABLES) as log:
        log.create_topic("orders")
        log.create_topic("kept")
        with log.producer("till") as producer:
            producer.send("orders", b"a").result(600)
            log.checkpoint()
            producer.send("orders", b"b").result(600)
        log.append("kept", b"k")
        log.commit_offsets("billing", {("orders", 0): 1, ("kept", 0): 1})
        assert len(segment_files(tmp_path)) == 1
        orders = log.describe_topic("orders").id
        log.delete_topic("orders")
        assert segment_files(tmp_path) == []
        assert log.topics() == ["kept"]
        assert log.committed("billing") == {("kept", 0): 1}
        assert all(topic != orders for _, topic, _ in inner(log).parts.core.state.sequences)
        with pytest.raises(TopicNotFoundError):
            log.read("orders")
        log.create_topic("orders")
        assert log.offsets("orders") == {0: (0, 0)}
        assert everything(log, "orders") == []
        assert log.append("orders", b"new").offset == 0
    with lakebed.open(tmp_path) as log:
        assert everything(log, "orders") == [b"new"]
        assert everything(log, "kept") == [b"k"]


@pytest.mark.parametrize("call", ["describe_topic", "purge_topic", "delete_topic", "offsets"])
def test_an_unknown_topic_is_named_in_the_error(call: str) -> None:
    with quiet() as log, pytest.raises(TopicNotFoundError, match="nowhere"):
        getattr(log, call)("nowhere")


def test_a_typed_topic_gives_back_structs_from_memory_segment_and_wal() -> None:
    disk = SimDisk()
    with quiet(disk=disk) as log:
        log.create_topic("prices", schema=PRICE)
        log.append("prices", {"item": "tea", "price": 3}, key="tea")
        log.append_batch("prices", [{"value": {"item": "rum", "price": None}, "key": b"rum"}])
        expected = [{"item": "tea", "price": 3}, {"item": "rum", "price": None}]
        assert rows(log, "prices") == expected
    with quiet(disk=disk) as log:
        assert rows(log, "prices") == expected
        log.checkpoint()
        assert rows(log, "prices") == expected
        assert rows(log, "prices", column="key") == [b"tea", b"rum"]


def test_a_field_added_later_is_null_in_older_records_wherever_they_are() -> None:
    disk = SimDisk()
    with quiet(disk=disk) as log:
        log.create_topic("prices", schema=PRICE)
        log.append("prices", {"item": "tea", "price": 3})
        log.checkpoint()
        log.append("prices", {"item": "rum", "price": 9})
        assert log.alter_topic("prices", schema=WIDER).schema_version == 2
        log.append("prices", {"item": "gin", "price": 8, "currency": "GBP"})
        expected = [
            {"item": "tea", "price": 3, "currency": None},
            {"item": "rum", "price": 9, "currency": None},
            {"item": "gin", "price": 8, "currency": "GBP"},
        ]
        assert rows(log, "prices") == expected
        log.checkpoint()
        assert rows(log, "prices") == expected
        before = log.read("prices")
        assert before.schema.field("value").type == pa.struct(list(WIDER))
    with quiet(disk=disk) as log:
        assert rows(log, "prices") == expected
        found = log.describe_topic("prices").schema
        assert found is not None
        assert found.equals(WIDER)
        assert log.verify() == 2


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        (pa.schema([PRICE.field(0)]), "gone"),
        (pa.schema([PRICE.field(1), PRICE.field(0)]), "move or be renamed"),
        (pa.schema([PRICE.field(0), pa.field("price", pa.int32())]), "type"),
        (pa.schema([PRICE.field(0), pa.field("price", pa.int64(), nullable=False)]), "nullab"),
        (PRICE.append(pa.field("must", pa.int64(), nullable=False)), "must be nullable"),
    ],
)
def test_any_other_change_of_a_schema_is_refused_with_its_reason(
    schema: pa.Schema, reason: str
) -> None:
    with quiet() as log:
        log.create_topic("prices", schema=PRICE)
        log.append("prices", {"item": "tea", "price": 3})
        before = state_of(log)
        with pytest.raises(SchemaChangeError, match=reason):
            log.alter_topic("prices", schema=schema)
        assert state_of(log) == before


def test_a_raw_topic_does_not_become_a_typed_one() -> None:
    with quiet() as log:
        log.create_topic("orders")
        with pytest.raises(SchemaChangeError, match="raw"):
            log.alter_topic("orders", schema=PRICE)


def test_the_same_schema_again_is_no_new_version() -> None:
    with quiet() as log:
        log.create_topic("prices", schema=PRICE)
        assert log.alter_topic("prices", schema=PRICE).schema_version == 1


def test_a_value_of_another_type_names_the_column_and_both_types() -> None:
    with quiet() as log:
        log.create_topic("prices", schema=PRICE)
        wrong = pa.table({"value": [{"item": "tea", "price": "dear"}]})
        with pytest.raises(SchemaMismatchError) as caught:
            log.append_batch("prices", wrong)
        assert "price" in str(caught.value.facts["column"])
        assert "int64" in str(caught.value.facts["expected"])
        assert "string" in str(caught.value.facts["got"])
        with pytest.raises(SchemaMismatchError):
            log.append("prices", {"item": "tea", "price": 1, "extra": 2})
        assert log.offsets("prices") == {0: (0, 0)}


def test_what_has_no_name_leaves_nothing_behind(tmp_path: Path) -> None:
    with lakebed.open(tmp_path / "log") as log:
        log.create_topic("t")
        for _ in range(3):
            with log.transaction() as transaction:
                transaction.append("t", b"x")
            log.transaction().abort()
            with log.producer() as producer:
                producer.send("t", b"y")
        assert log.stats().producers == 0
        assert not inner(log).parts.core.state.sequences
        with log.producer("named") as producer:
            producer.send("t", b"z")
        assert log.stats().producers == 1
    with lakebed.open(tmp_path / "log") as log:
        assert log.stats().producers == 1
        assert log.read("t").num_rows == 7
