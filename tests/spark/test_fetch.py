"""What a task reads: from files, from the owner, and behind the last record when one is lost."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql.types import StructType

import lakebed
from lakebed.client.config import ClientConfig
from lakebed.errors import CorruptionError, DataLossError, ServerUnavailableError
from lakebed.spark.fetch import Fetch
from lakebed.spark.options import Target
from lakebed.spark.planning import ScanPiece
from lakebed.spark.serving import url_of
from tests.serve.support import ServerProcess

SCHEMA = StructType().add("value", "binary")
LARGE = 64 * 1024
"""Of a value: the stream of a topic of them is longer than what is under way at a time."""


@pytest.fixture
def log(tmp_path: Path) -> Iterator[lakebed.Log]:
    with lakebed.open(tmp_path / "log") as opened:
        opened.create_topic("in", 1)
        yield opened


def fetch(url: str, *, fail: bool = True, retry_ms: int = 30_000) -> Fetch:
    return Fetch(Target(url, ClientConfig(retry_ms=retry_ms)), SCHEMA, fail_on_data_loss=fail)


def piece(log: lakebed.Log, *, start: int = 0) -> ScanPiece:
    """Return the whole topic as one piece."""
    plan = log.table("in").plan(start=start)
    ((_, end),) = log.offsets("in").values()
    return ScanPiece(
        topic="in",
        topic_id=log.describe_topic("in").id,
        partition=0,
        start=start,
        until=end,
        files=plan.files,
    )


def numbers(batches: Iterator[pa.RecordBatch]) -> list[int]:
    """Return the numbers that values begin with."""
    found: list[int] = []
    for batch in batches:
        assert batch.schema.names == ["value"]
        found += [int(each[:8]) for each in batch.column(0).to_pylist()]
    return found


def values(first: int, last: int, size: int = 8) -> pa.Table:
    return pa.table({"value": [(b"%08d" % number).ljust(size) for number in range(first, last)]})


def test_files_and_memory_are_read_as_one(log: lakebed.Log) -> None:
    for part in range(3):
        log.append_batch("in", values(10 * part, 10 * part + 10))
        if part < 2:
            log.checkpoint()
    whole = piece(log)
    assert len(whole.files) == 2
    assert numbers(fetch(url_of(log)).batches(whole)) == list(range(30))
    middle = piece(log, start=5)
    assert numbers(fetch(url_of(log)).batches(middle)) == list(range(5, 30))


def test_a_file_that_is_gone_is_read_through_the_owner(log: lakebed.Log) -> None:
    for part in range(2):
        log.append_batch("in", values(10 * part, 10 * part + 10))
        log.checkpoint()
    whole = piece(log)
    for place in ("file:///nowhere/x.parquet", "s3://bucket-of-another/x.parquet"):
        files = tuple(replace(each, location=place) for each in whole.files)
        moved = replace(whole, files=files)
        assert numbers(fetch(url_of(log)).batches(moved)) == list(range(20))


def test_a_damaged_file_is_never_given_to_spark(log: lakebed.Log) -> None:
    log.append_batch("in", values(0, 1000, 100))
    log.checkpoint()
    (file,) = piece(log).files
    path = Path(file.location.removeprefix("file://"))
    damaged = bytearray(path.read_bytes())
    chunk = pq.ParquetFile(path).metadata.row_group(0).column(6)
    assert chunk.path_in_schema == "value"
    damaged[chunk.data_page_offset + chunk.total_compressed_size // 2] ^= 1
    path.write_bytes(damaged)
    with pytest.raises(CorruptionError):
        numbers(fetch(url_of(log)).batches(piece(log)))


def test_what_was_removed_meanwhile_is_told_or_left_out(
    log: lakebed.Log, caplog: pytest.LogCaptureFixture
) -> None:
    log.append_batch("in", values(0, 10))
    whole = piece(log)
    log.purge_topic("in")
    with pytest.raises(DataLossError, match="from_offset=0 to_offset=10 low=10"):
        numbers(fetch(url_of(log)).batches(whole))
    with caplog.at_level(logging.WARNING, "lakebed.spark"):
        assert numbers(fetch(url_of(log), fail=False).batches(whole)) == []
    assert "records are left out" in caplog.text
    log.delete_topic("in")
    log.create_topic("in", 1)
    log.append_batch("in", values(90, 99))
    with pytest.raises(DataLossError, match="created again"):
        numbers(fetch(url_of(log)).batches(whole))
    assert numbers(fetch(url_of(log), fail=False).batches(whole)) == []


def test_reading_goes_on_behind_the_last_record_when_the_server_is_lost(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "log") as server, server.open() as log:
        log.create_topic("in", 1)
        for part in range(16):
            log.append_batch("in", values(32 * part, 32 * part + 32, LARGE))
        whole = piece(log)
        assert not whole.files
        batches = fetch(server.url).batches(whole)
        found = numbers(iter([next(batches)]))
        server.kill()
        server.start()
        assert len(found) < 512
        assert found + numbers(batches) == list(range(512))
        batches = fetch(server.url, retry_ms=0).batches(whole)
        next(batches)
        server.kill()
        with pytest.raises(ServerUnavailableError):
            numbers(batches)
