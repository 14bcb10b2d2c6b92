"""DuckDB, Polars, pyiceberg and Spark read a topic that is being written and was killed twice.

A child process writes orders and reports what was acknowledged. It is killed without warning,
twice, and started again; the third one goes on writing while each reader reads the topic's Iceberg
table, which it finds through the catalog or the folder alone. Offsets are dense: every reader must
see each of them once, and every acknowledged order as it was written. Run it with
`.venv/bin/python examples/readers.py`.
"""

from __future__ import annotations

import importlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from rich.console import Console
from rich.table import Table as Picture

import lakebed

PARTITIONS = 3
RECORDS_PER_LIFE = 5_000
COLUMNS = ["partition", "offset", "value"]


def write(folder: str) -> None:
    """Write orders forever, and report each that was acknowledged: partition, offset, value."""
    config = lakebed.LogConfig(checkpoint_interval_ms=300)  # in the table within a second
    log = lakebed.open(folder, config)
    log.get_or_create_topic("orders", partitions=PARTITIONS)
    number = 0
    while True:
        orders = [b"%d/%d" % (os.getpid(), number + each) for each in range(200)]
        acks = log.append_batch("orders", [{"value": order, "key": order} for order in orders])
        lines = [
            b"%d %d %s\n" % (ack.partition, ack.offset, order)
            for ack, order in zip(acks, orders, strict=True)
        ]
        os.write(1, b"".join(lines))
        number += len(orders)
        time.sleep(0.01)


class Writer:
    """The child process, and what it reported."""

    def __init__(self, folder: Path, acknowledged: dict[tuple[int, int], bytes]) -> None:
        command = [sys.executable, __file__, "--write", str(folder)]
        self._child = subprocess.Popen(command, stdout=subprocess.PIPE)  # noqa: S603  # ourselves
        self._acknowledged = acknowledged
        self._listening = threading.Thread(target=self._listen, daemon=True)
        self._listening.start()

    def _listen(self) -> None:
        assert self._child.stdout is not None
        for line in self._child.stdout:
            if line.endswith(b"\n"):
                partition, offset, value = line.split()
                self._acknowledged[(int(partition), int(offset))] = value

    def await_records(self, count: int) -> None:
        """Wait until it has reported so many records more, or has ended."""
        wanted = len(self._acknowledged) + count
        while len(self._acknowledged) < wanted and self._child.poll() is None:
            time.sleep(0.05)

    def kill(self) -> None:
        """Kill it without warning."""
        self._child.send_signal(signal.SIGKILL)
        self._child.wait()
        self._listening.join()


def iceberg_table(folder: Path) -> Any:
    """Find the table through its catalog."""
    from pyiceberg.catalog import load_catalog

    uri = f"sqlite:///{folder}/iceberg/catalog.db"
    with load_catalog("lakebed", type="sql", uri=uri) as catalog:
        return catalog.load_table("lakebed.orders")


def await_table(folder: Path) -> None:
    """Wait until the table shows records of the two lives that ended: it follows a second later."""
    hint = folder / "iceberg" / "1" / "metadata" / "version-hint.text"
    while not hint.exists() or iceberg_table(folder).scan().count() < 2 * RECORDS_PER_LIFE:
        time.sleep(0.2)


def by_pyiceberg(folder: Path) -> pa.Table:
    """Read with pyiceberg."""
    return iceberg_table(folder).scan(selected_fields=tuple(COLUMNS)).to_arrow()


def by_duckdb(folder: Path) -> pa.Table:
    """Read with DuckDB; its extensions come from Python packages, or by `INSTALL iceberg`."""
    import duckdb

    connection = duckdb.connect(config={"autoinstall_known_extensions": "false"})
    for name in ("avro", "iceberg"):
        package = importlib.import_module(f"duckdb_extension_{name}")
        (place,) = Path(str(package.__file__)).parent.glob("extensions/*/*.duckdb_extension")
        connection.execute(f"LOAD '{place}'")
    query = """SELECT partition, "offset", value FROM iceberg_scan($table)"""
    return connection.execute(query, {"table": f"{folder}/iceberg/1"}).to_arrow_table()


def by_polars(folder: Path) -> pa.Table:
    """Read with Polars."""
    import polars

    os.environ.setdefault("POLARS_ICEBERG_PLANNER", "pyiceberg")
    return polars.scan_iceberg(iceberg_table(folder)).select(COLUMNS).collect().to_arrow()


def by_spark(folder: Path) -> pa.Table:
    """Read with Spark, which needs no plugin for the files of the table."""
    from pyspark.sql import SparkSession

    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    spark = (
        SparkSession.builder.master("local[*,4]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.log.level", "OFF")
        .getOrCreate()
    )
    files = [task.file.file_path for task in iceberg_table(folder).scan().plan_files()]
    found = spark.read.parquet(*files).select(*COLUMNS).toArrow()
    spark.stop()
    return found


READERS: dict[str, Callable[[Path], pa.Table]] = {
    "pyiceberg": by_pyiceberg,
    "DuckDB": by_duckdb,
    "Polars": by_polars,
    "Spark": by_spark,
}


def examine(
    found: pa.Table, acknowledged: dict[tuple[int, int], bytes]
) -> tuple[int, int, int, int]:
    """Count records, those seen twice, those missing, and acknowledged ones that are wrong."""
    twice = missing = wrong = 0
    for partition in range(PARTITIONS):
        part = found.filter(pc.equal(found["partition"], partition))
        offsets = part["offset"]
        different = pc.count_distinct(offsets).as_py()
        end = (pc.max(offsets).as_py() or -1) + 1 if part.num_rows else 0
        twice += part.num_rows - different
        missing += end - different
        values = dict(zip(offsets.to_pylist(), part["value"].to_pylist(), strict=True))
        for (where, offset), value in acknowledged.items():
            if where == partition and offset < end and values.get(offset) != value:
                wrong += 1
    return found.num_rows, twice, missing, wrong


def main() -> int:
    """Write, kill, kill, and read while the writer goes on."""
    console = Console(width=100)
    folder = Path(tempfile.mkdtemp(prefix="lakebed-readers-"))
    acknowledged: dict[tuple[int, int], bytes] = {}
    try:
        for _ in range(2):
            writer = Writer(folder, acknowledged)
            writer.await_records(RECORDS_PER_LIFE)
            writer.kill()
            console.print(f"killed (SIGKILL) after {len(acknowledged):,} acknowledged records")
        writer = Writer(folder, acknowledged)
        writer.await_records(RECORDS_PER_LIFE)
        await_table(folder)
        picture = Picture("reader", "records", "twice", "missing", "acknowledged, but wrong")
        bad = 0
        for name, read in READERS.items():
            known = dict(acknowledged)
            counts = examine(read(folder), known)
            picture.add_row(name, *(f"{count:,}" for count in counts))
            bad += sum(counts[1:]) + (counts[0] == 0)
        console.print(picture)
        writer.kill()
        console.print(f"{len(acknowledged):,} records were acknowledged in the end")
        return 1 if bad else 0
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--write"]:
        write(sys.argv[2])
    sys.exit(main())
