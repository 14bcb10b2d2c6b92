"""Writes rows into topics: creates the topic if it does not exist, and makes records of rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pyarrow as pa

from lakebed.api.log import Log
from lakebed.errors import InvalidArgumentError, SchemaMismatchError
from lakebed.spark.pipeline.spec import Encoder, Sink
from lakebed.spark.types import arrow_schema, plain

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


def ready_topic(log: Log, sink: Sink, frame: DataFrame) -> None:
    """Create the topic of a sink, or check that it takes what the sink writes."""
    topic = str(sink.topic)
    columns = frame.columns
    missing = [column for column in sink.key if column not in columns]
    if missing:
        raise InvalidArgumentError(
            "the key names an unknown column",
            sink=sink.name,
            key=", ".join(missing),
            columns=", ".join(columns),
        )
    wanted = _schema(frame) if sink.encode == Encoder.TYPED else None
    if topic not in log.topics():
        log.create_topic(topic, partitions=sink.partitions, schema=wanted)
        return
    schema = log.describe_topic(topic).schema
    if (schema is None) != (wanted is None):
        kind = "raw: say encode = 'json'" if schema is None else "typed: leave out encode"
        raise SchemaMismatchError(f"the topic is {kind}", sink=sink.name, topic=sink.topic)
    if schema is not None and wanted is not None:
        _check_fields(sink, schema, wanted)


def ready_letters(log: Log, topic: str) -> None:
    """Create the dead-letter topic, or check that it is raw."""
    if topic not in log.topics():
        log.create_topic(topic)
    elif log.describe_topic(topic).schema is not None:
        raise SchemaMismatchError(
            "a dead-letter topic is raw, since it takes what could not be read", topic=topic
        )


def _schema(frame: DataFrame) -> pa.Schema:
    """Return the fields of a topic that takes these rows: each of them may be null."""
    fields = arrow_schema(frame.schema)
    return pa.schema([(field.name, plain(field.type)) for field in fields])


def _check_fields(sink: Sink, schema: pa.Schema, wanted: pa.Schema) -> None:
    for field in wanted:
        index = schema.get_field_index(field.name)
        if index < 0:
            raise SchemaMismatchError(
                "the topic does not have this field: add it with `lakebed topic alter`, or "
                "leave it out",
                sink=sink.name,
                topic=sink.topic,
                field=field.name,
            )
        if plain(schema.field(index).type) != field.type:
            raise SchemaMismatchError(
                "the topic has another type for a field: cast it in the query",
                sink=sink.name,
                topic=sink.topic,
                field=field.name,
                type=field.type,
                wanted=schema.field(index).type,
            )


def records(frame: DataFrame, sink: Sink) -> DataFrame:
    """Return the rows of a sink as records: value and key, or all columns if it is raw."""
    from pyspark.sql import functions as f

    if sink.encode == Encoder.RAW:
        return frame
    value = f.struct("*")
    if sink.encode == Encoder.JSON:
        value = f.to_json(value, {"ignoreNullFields": "false"}).cast("binary")
    key = [_key(frame, sink).alias("key")] if sink.key else []
    return frame.select(value.alias("value"), *key)


def topic_writer(log: Log, url: str, topic: str, writer: str) -> Callable[[DataFrame, int], None]:
    """Return a writer for batches of changed results: Spark's own sinks take final ones only.

    A batch that is repeated is known by the writer and its number, as that of a sink by its query.
    """

    def write(frame: DataFrame, batch_number: int) -> None:
        done = log.committed_number(writer)
        if done is not None and batch_number <= done:
            compute(frame)
            return
        sink = frame.write.format("lakebed").mode("append").option("log", url)
        sink.option("topic", topic).option("txnAppId", writer).option(
            "txnVersion", batch_number
        ).save()

    return write


def compute(frame: DataFrame) -> None:
    """Compute a batch without writing it: Spark needs the state that it leaves for the next."""
    frame.write.format("noop").mode("append").save()


def _key(frame: DataFrame, sink: Sink) -> Column:
    """Return the key of a record: the text of its column, or of several as a JSON array."""
    from pyspark.sql import functions as f

    columns = [f.col(f"`{column}`") for column in sink.key]
    if len(columns) > 1:
        return f.to_json(f.array(*(column.cast("string") for column in columns))).cast("binary")
    if frame.schema[sink.key[0]].dataType.typeName() == "binary":
        return columns[0]
    return columns[0].cast("string").cast("binary")
