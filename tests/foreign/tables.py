"""Iceberg tables of topics made by pyiceberg alone, to hold the readers against each other."""

from __future__ import annotations

import datetime
import decimal
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.catalog import Catalog
from pyiceberg.io.pyarrow import (
    _pyarrow_to_schema_without_ids,
    parquet_files_to_data_files,
    schema_to_pyarrow,
)
from pyiceberg.manifest import DataFile
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema, assign_fresh_schema_ids
from pyiceberg.table import Table, Transaction
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import NestedField, StringType, StructType

from lakebed.lake.schema import segment_schema
from tests.foreign.readers import plain

NAME: Final = ("topics", "orders")
BY_PARTITION: Final = PartitionSpec(
    PartitionField(source_id=1, field_id=1000, transform=IdentityTransform(), name="partition")
)
RAW: Final = segment_schema(pa.binary())
_FIELDS: Final = [
    pa.field("id", pa.int64()),
    pa.field("name", pa.string()),
    pa.field("price", pa.decimal128(12, 2)),
    pa.field("day", pa.date32()),
    pa.field("at", pa.timestamp("us", "UTC")),
    pa.field("local", pa.timestamp("us")),
    pa.field("code", pa.binary(4)),
    pa.field("tags", pa.list_(pa.string())),
    pa.field("sizes", pa.map_(pa.string(), pa.int32())),
    pa.field(
        "place",
        pa.struct(
            [
                pa.field("lat", pa.float64()),
                pa.field("ok", pa.bool_()),
                pa.field("blob", pa.binary()),
                pa.field("steps", pa.list_(pa.struct([("n", pa.int32())]))),
            ]
        ),
    ),
]
TYPED: Final = segment_schema(pa.struct(_FIELDS))
WIDER: Final = segment_schema(pa.struct([*_FIELDS, pa.field("note", pa.string())]))
"""The typed topic after the field `note` was added to its values."""

_NOTE_ID: Final = 40
_MIDNIGHT: Final = datetime.datetime(2024, 5, 1, tzinfo=datetime.UTC)


def records(schema: pa.Schema, partition: int, first: int, end: int) -> pa.Table:
    """Return records with nulls, empty things and bytes that are no text, at every depth."""
    rows = [_record(schema, partition, offset) for offset in range(first, end)]
    return pa.Table.from_pylist(rows, schema=schema)


def create(where: Catalog, schema: pa.Schema) -> Table:
    """Make the table of a topic, without records."""
    properties = {"commit.retry.num-retries": "0"}
    numbered = assign_fresh_schema_ids(_pyarrow_to_schema_without_ids(schema))
    return where.create_table(NAME, numbered, partition_spec=BY_PARTITION, properties=properties)


def write(folder: Path, table: pa.Table, schema: Schema) -> str:
    """Write records as one file with the field ids of a table's schema; return its path."""
    partition, first = table["partition"][0].as_py(), table["offset"][0].as_py()
    path = folder / f"{partition}-{first:020d}-{table.num_rows}.parquet"
    pq.write_table(table.cast(schema_to_pyarrow(schema)), path)
    return str(path)


def data_files(transaction: Transaction, paths: Iterable[str]) -> list[DataFile]:
    """Describe files to Iceberg, by the schema that the table has within the transaction."""
    io, metadata = transaction._table.io, transaction.table_metadata
    return list(parquet_files_to_data_files(io, metadata, iter(paths)))


def live_files(table: Table) -> dict[str, DataFile]:
    """Return the files a table has now, by path."""
    return {task.file.file_path: task.file for task in table.scan().plan_files()}


def wider(schema: Schema) -> Schema:
    """Return a table's schema with the field `note` added to the value, under an id of its own."""
    value = schema.find_field("value")
    assert isinstance(value.field_type, StructType)
    note = NestedField(_NOTE_ID, "note", StringType(), required=False)
    grown = StructType(*value.field_type.fields, note)
    fields = [*schema.fields[:-1], NestedField(value.field_id, "value", grown, required=False)]
    return Schema(*fields, schema_id=schema.schema_id + 1)


def with_note(table: pa.Table) -> pa.Table:
    """Return typed records as they read after `note` was added: without one."""
    rows = plain(table).to_pylist()
    for row in rows:
        if row["value"] is not None:
            row["value"].setdefault("note", None)
    return pa.Table.from_pylist(rows, schema=WIDER)


def _record(schema: pa.Schema, partition: int, offset: int) -> dict[str, Any]:
    headers = ([], None, [("trace", b"\x00\xff"), ("none", None)], [("empty", b"")])[offset % 4]
    raw = schema.field("value").type == pa.binary()
    return {
        "partition": partition,
        "offset": offset,
        "timestamp": _MIDNIGHT + datetime.timedelta(milliseconds=offset, microseconds=partition),
        "key": None if offset % 3 == 0 else b"key \xff%d" % offset,
        "headers": headers,
        "value": b"\xff\x00%d" % offset if raw and offset % 5 else _typed(schema, offset),
    }


def _typed(schema: pa.Schema, number: int) -> dict[str, Any] | None:
    kind = schema.field("value").type
    if number % 5 == 0 or not pa.types.is_struct(kind):
        return None
    value = {
        "id": number,
        "name": None if number % 2 else f"näme {number}",
        "price": decimal.Decimal(number) / 4,
        "day": _MIDNIGHT.date() + datetime.timedelta(days=number),
        "at": _MIDNIGHT + datetime.timedelta(microseconds=number),
        "local": _MIDNIGHT.replace(tzinfo=None) + datetime.timedelta(microseconds=number),
        "code": None if number % 6 == 0 else number.to_bytes(4, "big"),
        "tags": [] if number % 3 else [f"tag {number}", None],
        "sizes": None if number % 4 else [("s", number), ("m", None)],
        "place": None if number % 7 == 0 else _place(number),
        "note": f"note {number}",
    }
    return {field.name: value[field.name] for field in kind}


def _place(number: int) -> dict[str, Any]:
    steps = [{"n": number}, None]
    return {"lat": number / 3, "ok": number % 2 == 0, "blob": bytes([number % 256]), "steps": steps}
