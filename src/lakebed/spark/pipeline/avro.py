"""Avro without a jar: schemas as Arrow's types, and values decoded batch by batch.

Spark's own Avro functions are in a jar that does not come with pyspark. `fastavro` decodes in C;
what is left for Python is one call for each record.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

import pyarrow as pa

from lakebed.errors import InvalidArgumentError
from lakebed.spark.packages import check_packages

PROBLEM: Final = "__problem"
FIELDS: Final = "__fields"

_SIMPLE: Final = {
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "bytes": pa.binary(),
    "fixed": pa.binary(),
    "enum": pa.string(),
}
_LOGICAL: Final = {
    "date": pa.date32(),
    "timestamp-millis": pa.timestamp("us", tz="UTC"),
    "timestamp-micros": pa.timestamp("us", tz="UTC"),
    "local-timestamp-millis": pa.timestamp("us"),
    "local-timestamp-micros": pa.timestamp("us"),
}
_NOT_KEPT: Final = ("time-millis", "time-micros", "duration", "uuid")
"""Logical types that Spark has no type for: their values stay numbers, bytes and texts."""


def parse_avro_schema(text: str) -> Any:
    """Parse an Avro schema of a record; raise `InvalidArgumentError` if it is not one."""
    check_packages("avro", "fastavro")
    import fastavro

    try:
        document = json.loads(text)
    except ValueError as error:
        raise InvalidArgumentError(f"the schema is not JSON: {error}") from error
    try:
        schema = fastavro.parse_schema(_plain(document))
    except Exception as error:  # fastavro's errors have no common base class
        raise InvalidArgumentError(f"not an Avro schema: {error}") from error
    if not isinstance(schema, dict) or schema.get("type") not in ("record", "error"):
        raise InvalidArgumentError("the Avro schema of a source is that of a record")
    return schema


def _plain(schema: Any) -> Any:
    """Return a schema without the logical types whose values Spark could not hold."""
    if isinstance(schema, list):
        return [_plain(branch) for branch in schema]
    if not isinstance(schema, dict):
        return schema
    kept = {name: _plain(inner) for name, inner in schema.items()}
    if kept.get("logicalType") in _NOT_KEPT:
        del kept["logicalType"]
    return kept


def arrow_fields(schema: Any) -> pa.StructType:
    """Return the Arrow type of a parsed record's schema."""
    return _Types().of(schema, "value")


class _Types:
    """Converts Avro types to Arrow types; types may refer to one another by name."""

    def __init__(self) -> None:
        self._named: dict[str, Any] = {}
        self._inside: list[str] = []

    def of(self, schema: Any, path: str) -> pa.DataType:
        if isinstance(schema, list):
            return self._union(schema, path)
        if isinstance(schema, str):
            return self._by_name(schema, path)
        kind, logical = schema["type"], schema.get("logicalType")
        if "name" in schema:
            self._named[schema["name"]] = schema
        if logical in _LOGICAL:
            return _LOGICAL[logical]
        if logical == "decimal":
            return pa.decimal128(schema["precision"], schema.get("scale", 0))
        if kind in ("record", "error"):
            return self._record(schema, path)
        if kind == "array":
            return pa.list_(self.of(schema["items"], f"{path}.element"))
        if kind == "map":
            return pa.map_(pa.string(), self.of(schema["values"], f"{path}.value"))
        return self.of(kind, path) if kind not in _SIMPLE else _SIMPLE[kind]

    def _by_name(self, name: str, path: str) -> pa.DataType:
        if name in _SIMPLE:
            return _SIMPLE[name]
        if name in self._inside:
            raise InvalidArgumentError("Spark does not support recursive records", field=path)
        if name not in self._named:
            raise InvalidArgumentError("Spark has no type for this field", field=path, type=name)
        return self.of(self._named[name], path)

    def _union(self, kinds: list[Any], path: str) -> pa.DataType:
        others = [kind for kind in kinds if kind != "null"]
        if len(others) != 1:
            raise InvalidArgumentError(
                "a field must have one type, or a union of one type and null", field=path
            )
        return self.of(others[0], path)

    def _record(self, schema: Any, path: str) -> pa.DataType:
        self._inside.append(schema["name"])
        fields = [
            (field["name"], self.of(field["type"], f"{path}.{field['name']}"))
            for field in schema["fields"]
        ]
        self._inside.pop()
        return pa.struct(fields)


def decoder(
    text: str, skip_bytes: int
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return a function for `mapInArrow` that adds decoded fields, or why there are none."""

    def decode(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        schema = parse_avro_schema(text)
        kind = arrow_fields(schema)
        for batch in batches:
            fields, problems = _decode(batch.column("value"), schema, kind, skip_bytes)
            yield batch.append_column(FIELDS, fields).append_column(PROBLEM, problems)

    return decode


def _decode(
    values: pa.Array, schema: Any, kind: pa.StructType, skip_bytes: int
) -> tuple[pa.Array, pa.Array]:
    rows, problems = [], []
    for value in values.to_pylist():
        row, problem = (None, None) if value is None else _datum(value, schema, skip_bytes)
        rows.append(row)
        problems.append(problem)
    return pa.array(rows, kind), pa.array(problems, pa.string())


def _datum(
    value: bytes, schema: Any, skip_bytes: int
) -> tuple[Mapping[str, Any] | None, str | None]:
    from fastavro import schemaless_reader

    stream = io.BytesIO(value)
    stream.seek(skip_bytes)
    try:
        row: Any = schemaless_reader(stream, schema, None)
    except Exception as error:  # whatever bytes that are no such value lead to
        return None, f"not Avro of this schema: {type(error).__name__} {error}".strip()
    left = len(value) - stream.tell()
    if left:
        return None, f"not Avro of this schema: {left} bytes are left over"
    return row, None
