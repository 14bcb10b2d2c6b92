"""Topics to be read by Spark, and the session that reads them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

import lakebed
from bench.logs import TOPIC, settings
from bench.peers import RECORD_BYTES
from bench.report import MIB

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from lakebed import Log

PARTITIONS = 4
_BATCH = 50_000


def session(log: Log | None) -> SparkSession:
    """Return the session that every measurement uses."""
    spark: SparkSession = lakebed.spark.session(
        log=log, conf={"spark.driver.memory": "4g", "spark.sql.shuffle.partitions": "4"}
    )
    return spark


def fill(folder: Path, records: int, *, checkpoint: bool, keys: int | None = None) -> None:
    """Write records of 100 bytes with keys of 8, in some batches; sealed if asked for."""
    rng = np.random.default_rng(0)
    with lakebed.open(folder, settings(1024 * MIB)) as log:
        log.create_topic(
            TOPIC, partitions=PARTITIONS, config={"cleanup": "compact"} if keys else None
        )
        for first in range(0, records, _BATCH):
            count = min(_BATCH, records - first)
            if keys is None:
                numbers = np.arange(first, first + count)
            else:
                numbers = rng.integers(0, keys, count)
            log.append_batch(TOPIC, pa.table({"key": keys_of(numbers), "value": values_of(count)}))
            if checkpoint and (first // _BATCH) % 20 == 19:
                log.checkpoint()
        if checkpoint:
            log.checkpoint()


def keys_of(numbers: np.ndarray[tuple[int], np.dtype[np.int64]]) -> pa.Array:
    """Return numbers as keys of eight bytes."""
    data = numbers.astype(">i8").tobytes()
    return _fixed(data, len(numbers), 8)


def values_of(count: int) -> pa.Array:
    """Return random values of the usual size."""
    return _fixed(os.urandom(count * RECORD_BYTES), count, RECORD_BYTES)


def _fixed(data: bytes, count: int, width: int) -> pa.Array:
    offsets = pa.py_buffer((np.arange(count + 1) * width).astype(np.int32))
    return pa.Array.from_buffers(pa.binary(), count, [None, offsets, pa.py_buffer(data)])
