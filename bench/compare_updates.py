"""Tables whose rows change, compared: a hundredth of the keys at a time, and the current state."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import lakebed
from bench.compare_results import Measure
from bench.compare_tables import Reader
from bench.compare_work import Entry, Scale, Workload
from bench.lake_tables import iceberg_table
from bench.load import seconds
from bench.logs import TOPIC
from bench.peers import open_rocks, open_sqlite
from bench.servers import RedisStream
from bench.spark_load import keys_of, values_of

_CHANGED = 100
"""One key in so many is changed in a round."""
_FILL = 50_000
_UPDATE = Measure("a round of updates takes", "ms", more_is_better=False)
_READ = Measure("reading every row takes", "ms", more_is_better=False)

Numbers = np.ndarray[tuple[int], np.dtype[np.int64]]


class _State:
    """Keys with values: filled once, then changed and read."""

    def __init__(self, scale: Scale) -> None:
        self._rng = np.random.default_rng(0)
        self._keys = scale.keys
        self.fill(np.arange(scale.keys))

    def fill(self, numbers: Numbers) -> None:
        """Put every key there is, in some batches."""
        for first in range(0, len(numbers), _FILL):
            part = numbers[first : first + _FILL]
            self.put(part, values_of(len(part)))

    def measure(self) -> dict[str, float]:
        """Change some keys and read all of them."""
        changed = self._keys // _CHANGED
        numbers, given = self._rng.choice(self._keys, changed, replace=False), values_of(changed)
        update = seconds(lambda: self.put(numbers, given))
        found = 0

        def read() -> None:
            nonlocal found
            found = self.read()

        took = seconds(read)
        if found != self._keys:
            raise RuntimeError(f"{found} of {self._keys} rows were read")
        return {_UPDATE.name: update * 1000, _READ.name: took * 1000}

    def put(self, numbers: Numbers, values: pa.Array) -> None:
        """Insert or change rows; return when that is kept."""
        raise NotImplementedError

    def read(self) -> int:
        """Read every row; return how many there are."""
        raise NotImplementedError


class _Ours(_State):
    """Lakebed without anything else: append, and `table.latest`."""

    def __init__(self, folder: Path, scale: Scale) -> None:
        self._log = lakebed.open(folder / "log")
        self._log.create_topic(TOPIC, partitions=4)
        super().__init__(scale)

    def put(self, numbers: Numbers, values: pa.Array) -> None:
        """Append a record for each key."""
        self._log.append_batch(TOPIC, pa.table({"key": keys_of(numbers), "value": values}))

    def read(self) -> int:
        """Return the current record of each key."""
        return int(self._log.table(TOPIC).latest(["key", "value"]).num_rows)

    def rest(self) -> None:
        """Checkpoint, so that nothing is left to be done in the background."""
        self._log.checkpoint()

    def close(self) -> None:
        """Close the log."""
        self._log.close()


class _OurTable(_Ours):
    """Lakebed with Spark: a derived table of what each key is now, read by DuckDB."""

    def __init__(self, folder: Path, scale: Scale) -> None:
        from bench.spark_load import session

        self._spark: Any = None
        self._reader = Reader()
        super().__init__(folder, scale)
        self._spark = session(self._log)

    def put(self, numbers: Numbers, values: pa.Array) -> None:
        """Append, and bring the derived table up to date."""
        super().put(numbers, values)
        if self._spark is not None:  # not for each of the batches that fill it
            self._log.checkpoint()
            lakebed.spark.materialise(self._spark, self._log, TOPIC, "current")

    def read(self) -> int:
        """Read the table with DuckDB."""
        place = self._log.derived.describe("current").metadata
        return int(self._reader.arrow(str(place).removeprefix("file://")).num_rows)

    def close(self) -> None:
        """Stop Spark and close the log."""
        self._reader.close()
        self._spark.stop()
        super().close()


class _Sqlite(_State):
    def __init__(self, folder: Path, scale: Scale) -> None:
        self._db = open_sqlite(folder)
        self._db.execute("create table state (key integer primary key, value blob)")
        super().__init__(scale)

    def put(self, numbers: Numbers, values: pa.Array) -> None:
        """Upsert in a transaction."""
        rows = list(zip(numbers.tolist(), values.to_pylist(), strict=True))
        self._db.execute("begin")
        self._db.executemany(
            "insert into state values (?, ?)"
            " on conflict (key) do update set value = excluded.value",
            rows,
        )
        self._db.execute("commit")

    def read(self) -> int:
        """Select every row."""
        return len(self._db.execute("select key, value from state").fetchall())

    def close(self) -> None:
        """Close the database."""
        self._db.close()


class _Rocks(_State):
    def __init__(self, folder: Path, scale: Scale) -> None:
        self._db, self._write = open_rocks(folder)
        super().__init__(scale)

    def put(self, numbers: Numbers, values: pa.Array) -> None:
        """Put a synced write batch."""
        self._write(_pairs(numbers, values))

    def read(self) -> int:
        """Iterate over keys and values."""
        return len(list(self._db.items()))

    def close(self) -> None:
        """Close the database."""
        self._db.close()


class _Lmdb(_State):
    def __init__(self, folder: Path, scale: Scale) -> None:
        import lmdb

        self._env = lmdb.open(str(folder / "lmdb"), map_size=8 << 30)
        super().__init__(scale)

    def put(self, numbers: Numbers, values: pa.Array) -> None:
        """Put everything in a transaction."""
        with self._env.begin(write=True) as transaction, transaction.cursor() as cursor:
            cursor.putmulti(_pairs(numbers, values))

    def read(self) -> int:
        """Walk over keys and values with a cursor."""
        with self._env.begin() as transaction:
            return len(list(transaction.cursor().iternext(keys=True, values=True)))

    def close(self) -> None:
        """Close the environment."""
        self._env.close()


class _Redis(_State):
    def __init__(self, folder: Path, scale: Scale) -> None:
        import redis

        self._server = RedisStream(folder / "data")
        self._client = redis.Redis(port=self._server.port)
        try:
            super().__init__(scale)
        except BaseException:
            self.close()
            raise

    def put(self, numbers: Numbers, values: pa.Array) -> None:
        """Set fields of a hash, all in one command."""
        self._client.hset("state", mapping=dict(_pairs(numbers, values)))

    def read(self) -> int:
        """Get the whole hash."""
        return len(self._client.hgetall("state"))

    def close(self) -> None:
        """Stop the server."""
        self._client.close()
        self._server.close()


def _pairs(numbers: Numbers, values: pa.Array) -> list[tuple[bytes, bytes]]:
    return list(zip(keys_of(numbers).to_pylist(), values.to_pylist(), strict=True))


def _rows(numbers: Numbers, values: pa.Array) -> pa.Table:
    return pa.table({"key": pa.array(numbers), "value": values})


class _Delta(_State):
    def __init__(self, folder: Path, scale: Scale) -> None:
        import deltalake

        self._delta = deltalake
        self._place = str(folder)
        self._filled = False
        super().__init__(scale)
        self._filled = True

    def put(self, numbers: Numbers, values: pa.Array) -> None:
        """Merge rows by their key."""
        rows = _rows(numbers, values)
        if not self._filled:
            self._delta.write_deltalake(self._place, rows, mode="append")
            return
        merger = self._delta.DeltaTable(self._place).merge(
            rows, "t.key = s.key", source_alias="s", target_alias="t"
        )
        merger.when_matched_update_all().when_not_matched_insert_all().execute()

    def read(self) -> int:
        """Read the table as Arrow."""
        return int(self._delta.DeltaTable(self._place).to_pyarrow_table().num_rows)

    def close(self) -> None:
        """Nothing is open."""


class _Iceberg(_State):
    def __init__(self, folder: Path, scale: Scale) -> None:
        self._table = iceberg_table(folder, _rows(np.arange(1), values_of(1)).schema)
        self._put: Callable[[pa.Table], object] = self._table.append
        super().__init__(scale)
        self._put = lambda rows: self._table.upsert(rows, join_cols=["key"])

    def put(self, numbers: Numbers, values: pa.Array) -> None:
        """Upsert rows by their key."""
        self._put(_rows(numbers, values))

    def read(self) -> int:
        """Read the table as Arrow."""
        return int(self._table.scan().to_arrow().num_rows)

    def close(self) -> None:
        """Nothing is open."""


def _measure(peer: Any, _scale: Scale) -> dict[str, float]:
    found: dict[str, float] = peer.measure()
    return found


UPDATES = Workload(
    "updates",
    "A table of {keys:,} keys: 1 % of them changed, then every row read",
    (_UPDATE, _READ),
    [
        Entry(
            "Lakebed",
            "`append_batch` with keys; `table.latest` gives Arrow",
            _Ours,
            against="",
            optional=False,
        ),
        Entry(
            "Lakebed, derived table",
            "the same, then `checkpoint` and `lakebed.spark.materialise`; read by DuckDB",
            _OurTable,
            programs=("java",),
            modules=("duckdb", "duckdb_extension_iceberg", "pyspark"),
            against="",
        ),
        Entry("SQLite", "upsert, `synchronous=FULL`; every row as Python objects", _Sqlite),
        Entry(
            "RocksDB",
            "a write batch with `sync=True`; every row as Python objects",
            _Rocks,
            modules=("rocksdict",),
        ),
        Entry(
            "LMDB",
            "a transaction, its default syncing; every row as Python objects",
            _Lmdb,
            modules=("lmdb",),
        ),
        Entry(
            "Redis",
            "HSET, `appendfsync always`; HGETALL, every row as Python objects",
            _Redis,
            programs=("redis-server",),
            modules=("redis",),
        ),
        Entry(
            "deltalake",
            "`merge` by key; read as Arrow",
            _Delta,
            modules=("deltalake",),
            synced=False,
        ),
        Entry(
            "pyiceberg",
            "`upsert` by key; read as Arrow",
            _Iceberg,
            synced=False,
        ),
        Entry(
            "RabbitMQ, NATS",
            "not measured: RabbitMQ has no state by key; NATS has buckets, "
            "which take one request for each key",
        ),
    ],
    _measure,
)
