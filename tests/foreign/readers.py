"""Readers of an Iceberg table that know nothing of Lakebed, used as their users use them.

Each gives an Arrow table of the columns of a topic, ascending by partition and offset. They differ
in how they spell a type (large or not, of fixed size or not, the time zone's name); `plain` takes
that away and nothing else, so whatever two tables differ in afterwards is a difference in content.
"""

from __future__ import annotations

import collections
import hashlib
import importlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

import duckdb
import polars
import pyarrow as pa
from pyiceberg.table import StaticTable, Table

from lakebed.lake.schema import COLUMNS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Record = tuple[int, int]
"""Which record: its partition and its offset."""

Contents = collections.Counter[tuple[Record, str]]
"""What a table holds: each record with a digest of its content, and how often."""

_ORDER: Final = [("partition", "ascending"), ("offset", "ascending")]
_POLARS_PLANNER: Final = "POLARS_ICEBERG_PLANNER"

os.environ.setdefault(_POLARS_PLANNER, "pyiceberg")  # Polars warns without its own planner


def read_pyiceberg(table: Table) -> pa.Table:
    """Read by pyiceberg, into Arrow."""
    return _ordered(table.scan().to_arrow())


def read_duckdb(source: str, *, s3: Mapping[str, str] | None = None, **arguments: Any) -> pa.Table:
    """Read by DuckDB: `source` is a metadata file, or a table's folder that has a version hint."""
    with duckdb_connection(s3=s3) as connection:
        return duckdb_scan(connection, source, **arguments)


def read_polars(
    source: Table | str,
    *,
    reader: Literal["native", "pyiceberg"] | None = None,
    storage: dict[str, Any] | None = None,
) -> pa.Table:
    """Read by Polars: `source` is a pyiceberg table or the location of a metadata file."""
    scan = polars.scan_iceberg(source, reader_override=reader, storage_options=storage)
    return _ordered(scan.collect().to_arrow())


def read_spark(session: SparkSession, table: Table) -> pa.Table:
    """Read the table's files by Spark, which comes without Iceberg.

    The files are the whole table as long as none has deletes beside it, which is checked.
    """
    tasks = list(table.scan().plan_files())
    assert not any(task.delete_files for task in tasks), "Spark would not see the deletes"
    if not tasks:
        return _ordered(table.schema().as_arrow().empty_table())
    files = [task.file.file_path for task in tasks]
    frame = session.read.option("mergeSchema", "true").parquet(*files)
    return _ordered(frame.toArrow())


def static(metadata_location: str, **properties: str) -> Table:
    """Open a table without its catalog."""
    return StaticTable.from_metadata(metadata_location, properties=properties)


def duckdb_connection(*, s3: Mapping[str, str] | None = None) -> duckdb.DuckDBPyConnection:
    """Connect to an empty database with the extensions from Python packages, and nothing else.

    `s3` are the parameters of a DuckDB secret: `KEY_ID`, `SECRET`, `REGION`, `ENDPOINT`, ….
    """
    connection = duckdb.connect(config={"autoinstall_known_extensions": "false"})
    for name in ("avro", "iceberg", *(("httpfs",) if s3 else ())):
        connection.execute(f"LOAD '{_extension(name)}'")
    connection.execute("SET TimeZone = 'UTC'")
    if s3:
        options = ", ".join(f"{name} '{value}'" for name, value in s3.items())
        connection.execute(f"CREATE SECRET (TYPE s3, {options})")
    return connection


def duckdb_scan(
    connection: duckdb.DuckDBPyConnection, source: str, where: str = "true", **arguments: Any
) -> pa.Table:
    """Read by a connection that is open. `arguments` are those of `iceberg_scan`."""
    named = "".join(f", {name} = ${name}" for name in arguments)
    query = f"SELECT * FROM iceberg_scan($source{named}) WHERE {where}"
    found = connection.execute(query, {"source": source, **arguments})
    return _ordered(found.to_arrow_table())


def contents(table: pa.Table) -> Contents:
    """Return the records of a table: how often each is in it, by partition, offset and digest.

    Two tables have the same records if, and only if, this is the same for both; a record that is
    there twice counts twice. It costs some 20 µs a record; where there are many, `Table.equals` of
    what two readers gave says the same, without saying which records differ.
    """
    batches = plain(table).select(COLUMNS).to_batches()
    return collections.Counter(record for batch in batches for record in _records(batch))


def plain(table: pa.Table) -> pa.Table:
    """Return the same table in the simplest spelling of its types, without metadata."""
    schema = pa.schema([pa.field(each.name, _plain_type(each.type)) for each in table.schema])
    return table.replace_schema_metadata(None).cast(schema)


def _ordered(table: pa.Table) -> pa.Table:
    return plain(table).select(COLUMNS).sort_by(_ORDER).combine_chunks()


def _extension(name: str) -> Path:
    """Find the file of a DuckDB extension in the Python package that holds it."""
    package = importlib.import_module(f"duckdb_extension_{name}")
    folder = Path(next(iter(package.__path__))) / "extensions" / f"v{duckdb.__version__}"
    return folder / f"{name}.duckdb_extension"


def _records(batch: pa.RecordBatch) -> Iterator[tuple[Record, str]]:
    """Digest what Python shows of each record: equal exactly if types and values are."""
    columns = (batch.column(name).to_pylist() for name in COLUMNS)
    for partition, offset, *rest in zip(*columns, strict=True):
        shown = repr(rest).encode()
        yield (partition, offset), hashlib.blake2b(shown, digest_size=16).hexdigest()


def _plain_type(kind: pa.DataType) -> pa.DataType:
    """Return the simplest type that has the same values."""
    if pa.types.is_dictionary(kind):
        return _plain_type(kind.value_type)
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(each.name, _plain_type(each.type)) for each in kind])
    if pa.types.is_map(kind):
        return pa.map_(_plain_type(kind.key_type), _plain_type(kind.item_type))
    if _is_list(kind):
        return pa.list_(pa.field("element", _plain_type(kind.value_type)))
    return _plain_leaf(kind)


def _plain_leaf(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return pa.string()
    if _is_binary(kind):
        return pa.binary()
    if pa.types.is_time64(kind):
        return pa.time64("us")
    if pa.types.is_timestamp(kind) and kind.tz is not None:
        return pa.timestamp(kind.unit, "UTC")
    return kind


def _is_binary(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_large_binary(kind)
        or pa.types.is_binary_view(kind)
        or pa.types.is_fixed_size_binary(kind)
    )


def _is_list(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_list(kind)
        or pa.types.is_large_list(kind)
        or pa.types.is_list_view(kind)
        or pa.types.is_large_list_view(kind)
    )
