"""What tests of Spark share: logs as Spark reaches them, streams that run to their end."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

import lakebed
from lakebed.spark.serving import url_of
from tests.waiting import PATIENCE_SECONDS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

PROCESS_SECONDS = 600
"""How long a process that starts a Spark may take: there may be many of them on few cores."""


def fill(log: lakebed.Log, topic: str, count: int, *, prefix: str = "v") -> None:
    """Append records with keys, headers and numbered values."""
    log.append_batch(
        topic,
        [
            {
                "key": f"k{number % 7}",
                "value": f"{prefix}{number}".encode(),
                "headers": {"n": str(number).encode()},
            }
            for number in range(count)
        ],
    )


def batch(spark: SparkSession, log: lakebed.Log, **options: Any) -> DataFrame:
    """Read a log by `spark.read`."""
    return spark.read.format("lakebed").options(log=url_of(log), **options).load()


def stream(spark: SparkSession, log: lakebed.Log, **options: Any) -> DataFrame:
    """Read a log by `spark.readStream`, from the beginning unless told otherwise."""
    given = {"log": url_of(log), "startingOffsets": "earliest"} | options
    return spark.readStream.format("lakebed").options(**given).load()


def into_topic(frame: DataFrame, log: lakebed.Log, checkpoint: Path, **options: Any) -> Any:
    """Return the writer of a stream into a topic that ends when it has read what there is."""
    return (
        frame.writeStream.format("lakebed")
        .options(log=url_of(log), checkpointLocation=str(checkpoint), **options)
        .trigger(availableNow=True)
    )


def into_files(frame: DataFrame, folder: Path) -> Any:
    """Return the writer of a stream into files, which keep what each batch had."""
    return (
        frame.writeStream.format("parquet")
        .option("path", str(folder / "data"))
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
    )


def ended(query: StreamingQuery) -> StreamingQuery:
    """Wait for the end of a stream, which is an error if it failed."""
    assert query.awaitTermination(int(PATIENCE_SECONDS)), "the query does not end"
    return query


def batches_of(query: StreamingQuery) -> list[int]:
    """Return how many records each micro-batch of a query had, without empty ones."""
    return [each["numInputRows"] for each in query.recentProgress if each["numInputRows"]]


def forget_commit(checkpoint: Path, number: int) -> None:
    """Let Spark believe that it died before it noted the end of a batch."""
    for name in (f"{number}", f".{number}.crc"):
        os.remove(checkpoint / "commits" / name)


def rows_of(table: pa.Table, *names: str) -> list[tuple[Any, ...]]:
    """Return the rows of a table, sorted, maps as sorted pairs."""
    chosen = table.select(list(names)) if names else table
    return sorted(
        (tuple(_plain(value) for value in row.values()) for row in chosen.to_pylist()), key=repr
    )


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return tuple((name, _plain(each)) for name, each in value.items())
    if isinstance(value, list):
        return tuple(_plain(each) for each in value)
    return value


def scanned(log: lakebed.Log, topic: str, *names: str) -> list[tuple[Any, ...]]:
    """Return the rows of a topic as the log itself scans them."""
    return rows_of(log.table(topic).scan().read_all(), *names)


def multiset(log: lakebed.Log, topic: str) -> Counter[tuple[bytes | None, bytes | None]]:
    """Count the pairs of key and value of a topic."""
    found = log.table(topic).scan(["key", "value"]).read_all()
    return Counter(zip(found["key"].to_pylist(), found["value"].to_pylist(), strict=True))


def once(values: Iterable[Any]) -> Counter[Any]:
    """Count each of some values once."""
    return Counter(dict.fromkeys(values, 1))
