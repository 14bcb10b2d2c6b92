"""Maps a DataFrame's columns to a record's: value, key, headers, timestamp, partition, topic.

Columns that mean something by their name: `value`, `key`, `headers`, `timestamp`, `partition` and
`topic`. Without a column `value`, the others are the fields of a typed topic's value. A null value
with a key is a tombstone.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from lakebed.errors import InvalidArgumentError, SchemaMismatchError
from lakebed.spark.options import SinkOptions
from lakebed.spark.types import arrow_schema, fit
from lakebed.types import TopicName

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from lakebed.api.log import Log
    from lakebed.api.transaction import Transaction

_VALUE: Final = "value"
_KEY: Final = "key"
_TOPIC: Final = "topic"
_PARTITION: Final = "partition"
_COLUMNS: Final = (_VALUE, _KEY, "headers", "timestamp", _PARTITION, _TOPIC)


class Rows:
    """Writes batches of a DataFrame into transactions. One task, one thread."""

    def __init__(self, log: Log, options: SinkOptions, schema: StructType) -> None:
        self._log = log
        self._options = options
        self._types: dict[str, pa.DataType] = {}
        names = schema.fieldNames()
        for option, column in (
            ("keyColumn", options.key_column),
            ("partitionColumn", options.partition_column),
        ):
            if column is not None and column not in names:
                raise InvalidArgumentError(
                    f"{option} names an unknown column",
                    column=column,
                    columns=", ".join(names),
                )
        self._by_topic = _TOPIC in names and options.topic is None
        if options.topic is None and not self._by_topic:
            raise InvalidArgumentError(
                "no topic given: set the option topic, or add a column topic",
                columns=", ".join(names),
            )
        self._partition = options.partition_column or self._partition_of(names)
        taken = {_KEY, "headers", "timestamp", self._partition, _TOPIC if self._by_topic else None}
        self._fields = [name for name in names if name not in taken and name != _VALUE]
        self._has_value = _VALUE in names
        if self._has_value and self._fields:
            unknown = [
                name
                for name in self._fields
                if name not in (*_COLUMNS, "offset", options.key_column)
            ]
            if unknown:
                raise SchemaMismatchError(
                    "a column cannot be used beside a column value: drop it, or put it into "
                    "the value",
                    column=unknown[0],
                    known=", ".join(_COLUMNS),
                )

    def _partition_of(self, names: list[str]) -> str | None:
        """Return the column of partitions; None if it is a field of the value or does not exist."""
        if _PARTITION not in names:
            return None
        topic = self._options.topic
        if topic is None or _VALUE in names:
            return _PARTITION
        return None if _PARTITION in _names(self._type(topic)) else _PARTITION

    def check(self, topic: str, schema: pa.Schema) -> None:
        """Raise if the columns do not fit a topic."""
        self._table(topic, pa.RecordBatch.from_pylist([], schema=schema))

    def write(self, transaction: Transaction, batch: pa.RecordBatch) -> int:
        """Add a batch to a transaction; return how many records there are in it."""
        for topic, rows in self._of_topics(batch):
            table = self._table(topic, rows)
            if self._partition is None:
                transaction.append_batch(topic, table)
                continue
            for partition, chosen in _group(rows.column(self._partition)):
                self._check_partition(topic, partition)
                picked = table if chosen is None else table.filter(chosen)
                transaction.append_batch(topic, picked, partition=partition)
        return int(batch.num_rows)

    def _check_partition(self, topic: str, partition: Any) -> None:
        if partition is None:
            raise InvalidArgumentError(
                "a row has no partition", topic=topic, column=self._partition
            )
        if type(partition) is not int:
            raise InvalidArgumentError(
                "partition must be an integer",
                topic=topic,
                column=self._partition,
                got=repr(partition),
            )

    def _of_topics(self, batch: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
        if not self._by_topic:
            assert self._options.topic is not None  # noqa: S101  # checked at the beginning
            yield self._options.topic, batch
            return
        for name, chosen in _group(batch.column(_TOPIC)):
            if name is None:
                raise InvalidArgumentError("a row has no topic", column=_TOPIC)
            yield str(TopicName(name)), batch if chosen is None else batch.filter(chosen)

    def _table(self, topic: str, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return rows with the columns of records."""
        kind = self._type(topic)
        columns: dict[str, Any] = {_VALUE: self._value(topic, kind, rows)}
        key = self._options.key_column or (_KEY if _KEY in rows.schema.names else None)
        if key is not None:
            columns[_KEY] = _bytes(rows.column(key), key)
        for name in ("headers", "timestamp"):
            if name in rows.schema.names and (self._has_value or name not in _names(kind)):
                columns[name] = rows.column(name)
        return pa.RecordBatch.from_pydict(columns)

    def _type(self, topic: str) -> pa.DataType:
        kind = self._types.get(topic)
        if kind is None:
            schema = self._log.describe_topic(topic).schema
            kind = self._types[topic] = pa.binary() if schema is None else pa.struct(list(schema))
        return kind

    def _value(self, topic: str, kind: pa.DataType, rows: pa.RecordBatch) -> Any:
        typed = pt.is_struct(kind)
        if self._has_value:
            value = rows.column(_VALUE)
            if typed and not pt.is_struct(value.type):
                raise SchemaMismatchError(
                    "the topic is typed: its value is a struct, or the columns of one",
                    topic=topic,
                    type=value.type,
                    wanted=kind,
                )
            return _fit(value, kind, topic) if typed else _bytes(value, _VALUE)
        if not typed:
            raise SchemaMismatchError(
                "the topic is raw: add a column value of bytes or text, such as "
                "to_json(struct(*)) AS value",
                topic=topic,
                columns=", ".join(rows.schema.names),
            )
        names = _names(kind)
        unknown = [name for name in self._fields if name not in names]
        if self._options.key_column in unknown:
            unknown.remove(self._options.key_column)
        if unknown:
            raise SchemaMismatchError(
                "the value of the topic does not have this field",
                topic=topic,
                column=unknown[0],
                fields=", ".join(names),
            )
        fields = [name for name in rows.schema.names if name in names]
        struct = pa.StructArray.from_arrays([rows.column(name) for name in fields], fields)
        return _fit(struct, kind, topic)


def check_rows(log: Log, options: SinkOptions, schema: StructType) -> None:
    """Raise if a DataFrame does not fit its topic, before a task finds out."""
    rows = Rows(log, options, schema)
    if options.topic is not None:
        rows.check(options.topic, arrow_schema(schema))


def _names(kind: pa.DataType) -> list[str]:
    return [field.name for field in kind] if pt.is_struct(kind) else []


def _fit(value: Any, kind: pa.DataType, topic: str) -> Any:
    unknown = _unknown(value.type, kind, "")
    if unknown is not None:
        raise SchemaMismatchError(
            "the value of the topic does not have this field",
            topic=topic,
            field=unknown,
            fields=", ".join(_names(kind)),
        )
    return fit(value, kind)


def _unknown(actual: pa.DataType, kind: pa.DataType, path: str) -> str | None:
    """Return the path of the first field, at any depth, that is in `actual` and not in `kind`."""
    if pt.is_struct(actual) and pt.is_struct(kind):
        types = {field.name: field.type for field in kind}
        for field in actual:
            if field.name not in types:
                return f"{path}{field.name}"
            unknown = _unknown(field.type, types[field.name], f"{path}{field.name}.")
            if unknown is not None:
                return unknown
    elif pt.is_map(actual) and pt.is_map(kind):
        return _unknown(actual.item_type, kind.item_type, path)
    elif pt.is_nested(actual) and pt.is_nested(kind) and not pt.is_struct(actual):
        return _unknown(actual.value_type, kind.value_type, path)
    return None


def _bytes(column: Any, name: str) -> Any:
    """Return a column as bytes: text as UTF-8, numbers as their digits."""
    kind = column.type
    if pt.is_binary(kind) or pt.is_large_binary(kind):
        return column
    if pt.is_string(kind) or pt.is_large_string(kind):
        return column.cast(pa.binary())
    if pt.is_integer(kind) or pt.is_boolean(kind) or pt.is_date(kind) or pt.is_decimal(kind):
        return column.cast(pa.string()).cast(pa.binary())
    raise SchemaMismatchError(
        "a column cannot become bytes: make it text or binary", column=name, type=kind
    )


def _group(column: Any) -> Iterator[tuple[Any, Any]]:
    """Yield each value of a column with a mask of its rows; None if all rows have it."""
    values = pc.unique(column)
    if len(values) == 1:
        yield values[0].as_py(), None
        return
    for value in values:
        chosen = pc.is_null(column) if not value.is_valid else pc.equal(column, value)
        yield value.as_py(), chosen.fill_null(False)
