"""From a write to a table that others read, compared: how fresh, how fast, and how many files."""

from __future__ import annotations

import importlib
import json
import os
import statistics
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

import lakebed
from bench.compare_results import Measure
from bench.compare_work import Entry, Scale, Workload
from bench.lake_tables import iceberg_table
from bench.logs import TOPIC, table

BATCH = 1000
_SINGLE = 5
"""Batches of a round that are watched from their write until a reader has them."""
_PATIENCE_SECONDS = 60.0

_ACKNOWLEDGED = Measure("acknowledged after", "ms", more_is_better=False)
_SEEN = Measure("seen by DuckDB after", "ms", more_is_better=False)
_RATE = Measure("batches per second", "/s", more_is_better=True)
_FILES = Measure("files per batch", "", more_is_better=False, compared=False)


class Reader:
    """DuckDB, which counts the rows of a table for each of the peers."""

    def __init__(self) -> None:
        import duckdb

        self._connection = duckdb.connect()
        for name in ("avro", "iceberg"):
            package = importlib.import_module(f"duckdb_extension_{name}")
            (path,) = Path(package.__path__[0]).glob("extensions/*/*.duckdb_extension")
            self._connection.execute(f"LOAD '{path}'")

    def iceberg(self, place: str) -> int:
        """Count the rows of an Iceberg table."""
        return self._count(f"iceberg_scan('{place}')")

    def parquet(self, files: list[str]) -> int:
        """Count the rows of files."""
        return self._count(f"read_parquet({files!r})") if files else 0

    def arrow(self, place: str) -> pa.Table:
        """Return an Iceberg table."""
        found: pa.Table = self._connection.execute(
            f"select * from iceberg_scan('{place}')"
        ).to_arrow_table()
        return found

    def _count(self, what: str) -> int:
        row = self._connection.execute(f"select count(*) from {what}").fetchone()
        assert row is not None
        return int(row[0])

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()


class Ours:
    """Lakebed: durable in the log, in the table after a checkpoint and a sync."""

    def __init__(self, folder: Path, _scale: Scale) -> None:
        self._folder = folder
        self._log = lakebed.open(folder / "log")
        self._log.create_topic(TOPIC)
        self._reader = Reader()
        self.put(table(BATCH, keys=True))
        self.show()

    def put(self, batch: pa.Table) -> None:
        """Append a batch; it is durable then."""
        self._log.append_batch(TOPIC, batch)

    def show(self) -> None:
        """Bring the table up to date."""
        self._log.checkpoint()
        self._log.lake.sync(TOPIC)

    def count(self) -> int:
        """Count what a reader sees."""
        return self._reader.iceberg(f"{self._folder}/log/iceberg/1")

    def files(self) -> int:
        """Count the files of the table: its data and its metadata."""
        return sum(files_in(self._folder / "log" / each) for each in ("lake", "iceberg"))

    def close(self) -> None:
        """Close the log."""
        self._reader.close()
        self._log.close()


class _Table:
    """A table that is written by commits: what is acknowledged is in it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._reader = Reader()

    def show(self) -> None:
        """Do nothing: it is shown already."""

    def files(self) -> int:
        """Count the files of the table: its data and its metadata."""
        return files_in(self._folder)

    def close(self) -> None:
        """Close the reader."""
        self._reader.close()


class _Iceberg(_Table):
    def __init__(self, folder: Path, _scale: Scale) -> None:
        super().__init__(folder)
        self._made = iceberg_table(folder, table(1, keys=True).schema)
        self.put(table(BATCH, keys=True))

    def put(self, batch: pa.Table) -> None:
        """Commit a batch."""
        self._made.append(batch)

    def count(self) -> int:
        """Count what a reader sees."""
        return self._reader.iceberg(self._made.metadata_location.removeprefix("file://"))


class _Delta(_Table):
    def __init__(self, folder: Path, _scale: Scale) -> None:
        import deltalake

        super().__init__(folder)
        self._delta = deltalake
        self.put(table(BATCH, keys=True))

    def put(self, batch: pa.Table) -> None:
        """Commit a batch."""
        self._delta.write_deltalake(str(self._folder), batch, mode="append")

    def count(self) -> int:
        """Count what a reader sees."""
        found = self._delta.DeltaTable(str(self._folder)).file_uris()
        return self._reader.parquet(list(found))


class _Spark(_Table):
    """Files in a folder, which a stream of Spark takes to a Parquet sink."""

    def __init__(self, folder: Path, _scale: Scale) -> None:
        from bench.spark_load import session

        super().__init__(folder / "sink")
        self._source = folder / "source"
        self._checkpoint = folder / "checkpoint"
        self._source.mkdir()
        self._number = 0
        self._spark = session(None)
        self._schema = "value binary, key binary"
        self._query: Any = None

    def begin(self) -> None:
        """Start the stream: one that waits needs a core, so that it runs when it is measured."""
        self._query = (
            self._spark.readStream.schema(self._schema)
            .parquet(str(self._source))
            .writeStream.format("parquet")
            .option("checkpointLocation", str(self._checkpoint))
            .start(str(self._folder))
        )

    def end(self) -> None:
        """Stop the stream."""
        self._query.stop()

    def put(self, batch: pa.Table) -> None:
        """Write a file, sync it, and return it the name by which the stream finds it."""
        self._number += 1
        path = self._source / f".{self._number}.parquet"
        pq.write_table(batch, path)
        with path.open("rb") as file:
            os.fsync(file.fileno())
        path.rename(self._source / f"{self._number}.parquet")

    def count(self) -> int:
        """Count what a reader of the sink's list of files sees."""
        return self._reader.parquet(_sink_files(self._folder / "_spark_metadata"))

    def close(self) -> None:
        """Stop Spark."""
        self._spark.stop()
        super().close()


def _sink_files(folder: Path) -> list[str]:
    """Return the files that a sink's list names: of its last summary and what came after."""
    if not folder.exists():
        return []
    numbers = {int(path.name.split(".")[0]): path for path in folder.glob("[0-9]*")}
    summaries = [number for number, path in numbers.items() if path.suffix == ".compact"]
    first = max(summaries, default=0)
    found = []
    for number in sorted(each for each in numbers if each >= first):
        for line in numbers[number].read_text(encoding="utf8").splitlines()[1:]:
            found.append(json.loads(line)["path"].removeprefix("file://"))
    return found


def files_in(folder: Path) -> int:
    """Count the files below a folder."""
    return sum(path.is_file() for path in folder.rglob("*"))


def _freshness(peer: Any, scale: Scale) -> dict[str, float]:
    begin, end = getattr(peer, "begin", None), getattr(peer, "end", None)
    if begin:
        begin()
        peer.put(table(BATCH, keys=True))  # the stream has begun when this one is through
        _await(peer, peer.count() + BATCH)
    acknowledged, seen = [], []
    for _ in range(_SINGLE):
        before, batch = peer.count(), table(BATCH, keys=True)
        started = time.perf_counter()
        peer.put(batch)
        acknowledged.append(time.perf_counter() - started)
        peer.show()
        _await(peer, before + BATCH)
        seen.append(time.perf_counter() - started)
    rate, files = _many(peer, scale.batches)
    if end:
        end()
    return {
        _ACKNOWLEDGED.name: statistics.median(acknowledged) * 1000,
        _SEEN.name: statistics.median(seen) * 1000,
        _RATE.name: rate,
        _FILES.name: files,
    }


def _many(peer: Any, count: int) -> tuple[float, float]:
    """Put batches one after the other; return their rate until all are seen, and files for each."""
    batch = table(BATCH, keys=True)
    before, files = peer.count(), peer.files()
    started = time.perf_counter()
    for _ in range(count):
        peer.put(batch)
    peer.show()
    _await(peer, before + count * BATCH)
    took = time.perf_counter() - started
    return count / took, (peer.files() - files) / count


def _await(peer: Any, expected: int) -> None:
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while (found := peer.count()) < expected:
        if time.monotonic() > deadline:
            raise TimeoutError(f"a reader sees {found} of {expected} records")
        time.sleep(0.005)


_NO_TABLE = "no table that other engines read"

FRESHNESS = Workload(
    "freshness",
    "From a write to a table that others read, 1,000 x 100 B at a time",
    (_ACKNOWLEDGED, _SEEN, _RATE, _FILES),
    [
        Entry(
            "Lakebed",
            "`append_batch`; then `checkpoint` and `lake.sync`, once for many batches",
            Ours,
            modules=("duckdb", "duckdb_extension_iceberg"),
            against="",
            optional=False,
        ),
        Entry(
            "pyiceberg",
            "`append` of each batch, SQLite as catalog",
            _Iceberg,
            modules=("duckdb", "duckdb_extension_iceberg"),
            synced=False,
        ),
        Entry(
            "deltalake",
            '`write_deltalake(mode="append")` of each batch',
            _Delta,
            modules=("duckdb", "deltalake"),
            synced=False,
        ),
        Entry(
            "Spark, file stream",
            "a Parquet file for each batch, a stream to a Parquet sink",
            _Spark,
            programs=("java",),
            modules=("duckdb", "pyspark"),
            synced=False,
        ),
        Entry("SQLite, RocksDB, LMDB", _NO_TABLE),
        Entry("Redis, RabbitMQ, NATS", _NO_TABLE),
    ],
    _freshness,
)
