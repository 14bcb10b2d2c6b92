"""Decodes records into rows: a value's columns from JSON, CSV, Avro or the topic's schema.

`decode_records` returns every record of a source with its decoded columns or, where there are none,
the reason. A tombstone in a decoded topic has no columns; it is counted and dropped.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from lakebed.errors import InvalidArgumentError
from lakebed.spark.pipeline.avro import FIELDS, PROBLEM, arrow_fields, decoder, parse_avro_schema
from lakebed.spark.pipeline.spec import Decoder, Source

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_CORRUPT: Final = "__corrupt"
RECORD: Final = "__record"
"""The column that holds the record itself, before it was decoded."""


def decode_records(frame: DataFrame, source: Source) -> DataFrame:
    """Return the columns `__record`, `__problem` and `__fields` for each record of a source.

    `__fields` is a struct; it is null for a tombstone and for a record with a problem.
    """
    from pyspark.sql import functions as f

    if source.decode == Decoder.AVRO:
        decoded = _by_avro(frame, source)
    elif source.decode in (Decoder.JSON, Decoder.CSV):
        decoded = _by_spark(frame, source)
    elif source.decode == Decoder.RAW:
        _check_binary(frame, source)
        decoded = frame.withColumn(FIELDS, f.struct("value")).withColumn(PROBLEM, _no_problem())
    else:
        _check_struct(frame, source)
        decoded = frame.withColumn(FIELDS, f.col("value")).withColumn(PROBLEM, _no_problem())
    record = f.struct(*(f.col(column) for column in frame.columns))
    return decoded.select(record.alias(RECORD), FIELDS, PROBLEM)


def _no_problem() -> Column:
    from pyspark.sql import functions as f

    return f.lit(None).cast("string")


def _check_binary(frame: DataFrame, source: Source) -> None:
    if frame.schema["value"].dataType.typeName() != "binary":
        raise InvalidArgumentError(
            "the topic is typed and needs no decoding: leave out decode",
            source=source.name,
            topic=source.topic,
        )


def _check_struct(frame: DataFrame, source: Source) -> None:
    if frame.schema["value"].dataType.typeName() != "struct":
        raise InvalidArgumentError(
            "the topic is raw: set decode = 'json', 'avro', 'csv' or 'raw'",
            source=source.name,
            topic=source.topic,
        )


def _by_spark(frame: DataFrame, source: Source) -> DataFrame:
    """Decode with Spark's functions, which put what they could not decode in another column."""
    from pyspark.sql import functions as f

    _check_binary(frame, source)
    text = f.col("value").cast("string")
    schema = f"{source.schema}, {_CORRUPT} STRING"
    options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _CORRUPT}
    if source.decode == Decoder.JSON:
        parsed = f.from_json(text, schema, options)
    else:
        parsed = f.from_csv(text, schema, {**options, "sep": source.separator})
    read = frame.withColumn("__parsed", parsed)
    bad = f.col("value").isNotNull() & (
        f.col("__parsed").isNull() | f.col(f"__parsed.{_CORRUPT}").isNotNull()
    )
    fields = [f.col(f"__parsed.`{name}`") for name in _names(read)]
    good = f.when(f.col("value").isNotNull() & ~bad, f.struct(*fields))
    return read.select(
        *frame.columns,
        good.alias(FIELDS),
        f.when(bad, _reason(source)).alias(PROBLEM),
    )


def _names(read: DataFrame) -> list[str]:
    parsed: Any = read.schema["__parsed"].dataType
    return [name for name in parsed.fieldNames() if name != _CORRUPT]


def _reason(source: Source) -> Column:
    from pyspark.sql import functions as f

    if source.decode == Decoder.CSV:
        return f.lit("not CSV of this schema")
    is_json = f.get_json_object(f.col("value").cast("string"), "$").isNotNull()
    return f.when(is_json, f.lit("JSON that does not fit the schema")).otherwise(f.lit("not JSON"))


def _by_avro(frame: DataFrame, source: Source) -> DataFrame:
    from pyspark.sql.pandas.types import from_arrow_type
    from pyspark.sql.types import StringType, StructField, StructType

    _check_binary(frame, source)
    schema = source.schema or ""
    fields = from_arrow_type(arrow_fields(parse_avro_schema(schema)))
    whole = StructType(
        [
            *frame.schema.fields,
            StructField(FIELDS, fields),
            StructField(PROBLEM, StringType()),
        ]
    )
    return frame.mapInArrow(decoder(schema, source.skip_bytes), whole)


def rows(frame: DataFrame, source: Source) -> DataFrame:
    """Return the decoded columns of a source, with the columns of the record that it includes."""
    from pyspark.sql import functions as f

    clash = [column for column in source.include if column in frame.select(f"{FIELDS}.*").columns]
    if clash:
        raise InvalidArgumentError(
            "the value has a column of the same name: leave it out of include",
            source=source.name,
            column=", ".join(clash),
        )
    included = [f.col(f"{RECORD}.{column}").alias(column) for column in source.include]
    return frame.select(f"{FIELDS}.*", *included)
