"""Expectations on rows: violations are counted for every batch, and dropped, diverted or fatal.

Counts are Spark's observed metrics of the batch that is processed: no second pass. Dead letters are
written by a separate flow, which reads the same source again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from lakebed.spark.pipeline.avro import FIELDS, PROBLEM
from lakebed.spark.pipeline.decode import RECORD, decode_records, rows
from lakebed.spark.pipeline.spec import Expectation, Otherwise, PipelineSpec, Source, Step

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

BEGIN, END = "lakebed-bad-record(", ")lakebed-bad-record"
"""Delimiters of the record that failed a batch, in Spark's message."""

_EXAMPLE_LETTERS: Final = 300
REASON: Final = "__reason"


def accept(frame: DataFrame, source: Source) -> DataFrame:
    """Return the rows of a source: decoded, counted, and without rejected ones."""
    from pyspark.sql import functions as f

    records = decode_records(frame, source)
    problem, tombstone = (
        f.col(PROBLEM).isNotNull(),
        f.col(PROBLEM).isNull() & f.col(FIELDS).isNull(),
    )
    records = records.observe(
        f"source.{source.name}",
        f.count(f.lit(1)).alias("rows"),
        f.count_if(tombstone).alias("tombstones"),
        f.count_if(problem).alias("undecodable"),
    )
    if source.otherwise == Otherwise.FAIL:
        where = f"{RECORD}.partition", f"{RECORD}.offset"
        records = records.filter(
            f.when(~problem, f.lit(True)).otherwise(
                _fail(
                    f"source={source.name} topic={source.topic}",
                    f.col(PROBLEM),
                    f.format_string("partition=%d offset=%d", *where),
                )
            )
        )
    decoded = rows(records.filter(f.col(FIELDS).isNotNull()), source)
    return apply_expectations(decoded, f"source.{source.name}", source.expect)


def apply_expectations(
    frame: DataFrame, part: str, expectations: Sequence[Expectation]
) -> DataFrame:
    """Return the rows that pass; rows that do not meet an expectation are counted."""
    from pyspark.sql import functions as f

    if not expectations:
        return frame
    frame = frame.observe(
        f"{part}.expect",
        f.count(f.lit(1)).alias("rows"),
        *(
            f.count_if(~_is_met(expectation)).alias(expectation.name)
            for expectation in expectations
        ),
    )
    for expectation in expectations:
        if expectation.otherwise == Otherwise.FAIL:
            row = f.substring(f.to_json(f.struct("*")), 1, _EXAMPLE_LETTERS)
            raised = _fail(
                f"expectation={part}.{expectation.name}", f.lit(f"not {expectation.check}"), row
            )
            frame = frame.filter(f.when(_is_met(expectation), f.lit(True)).otherwise(raised))
        elif expectation.otherwise != Otherwise.COUNT:
            frame = frame.filter(_is_met(expectation))
    return frame


def _is_met(expectation: Expectation) -> Column:
    """Return a column: whether a row meets an expectation. Null means that it does not."""
    from pyspark.sql import functions as f

    return f.coalesce(f.expr(f"({expectation.check})").cast("boolean"), f.lit(False))


def _fail(who: str, reason: Column, record: Column) -> Column:
    """Return a column that fails the batch, with the expectation, the reason and an example."""
    from pyspark.sql import functions as f

    said = f.concat_ws("|", f.lit(BEGIN + who), reason, f.concat(record, f.lit(END)))
    return f.raise_error(said).cast("boolean")


def letters_of_source(frame: DataFrame, source: Source, spec: PipelineSpec) -> DataFrame:
    """Return the dead letters of a source: records as they were, with headers that say why."""
    from pyspark.sql import functions as f

    records = decode_records(frame, source)
    reasons = [f.col(PROBLEM)] if source.otherwise == Otherwise.DEAD_LETTER else []
    checked = [
        expectation
        for expectation in source.expect
        if expectation.otherwise == Otherwise.DEAD_LETTER
    ]
    reasons += [f.when(f.col(FIELDS).isNotNull(), _unmet(expectation)) for expectation in checked]
    # Conditions use the decoded columns, so these are beside the record for a moment.
    beside = [f.col(f"{RECORD}.{column}").alias(column) for column in source.include]
    records = records.select(RECORD, FIELDS, PROBLEM, f"{FIELDS}.*", *beside)
    records = records.select(RECORD, f.concat_ws("; ", *reasons).alias(REASON))
    letters = records.filter(f.col(REASON) != "").select(f"{RECORD}.*", REASON)
    return _letters(
        letters,
        {
            "lakebed.topic": f.lit(source.topic),
            "lakebed.partition": f.col("partition").cast("string"),
            "lakebed.offset": f.col("offset").cast("string"),
            "lakebed.pipeline": f.lit(spec.name),
        },
    )


def letters_of_step(frame: DataFrame, step: Step, spec: PipelineSpec) -> DataFrame:
    """Return the dead letters of a step: its rows as JSON, with headers that say why."""
    from pyspark.sql import functions as f

    reasons = [
        _unmet(expectation)
        for expectation in step.expect
        if expectation.otherwise == Otherwise.DEAD_LETTER
    ]
    row = f.to_json(f.struct("*"), {"ignoreNullFields": "false"}).cast("binary")
    letters = frame.select(row.alias("value"), f.concat_ws("; ", *reasons).alias(REASON))
    more = {"lakebed.step": f.lit(step.name), "lakebed.pipeline": f.lit(spec.name)}
    return _letters(letters.filter(f.col(REASON) != ""), more)


def _unmet(expectation: Expectation) -> Column:
    """Return a column: why a row does not meet an expectation; null if it does."""
    from pyspark.sql import functions as f

    reason = f"expectation {expectation.name}: not {expectation.check}"
    return f.when(~_is_met(expectation), f.lit(reason))


def _letters(records: DataFrame, more: dict[str, Column]) -> DataFrame:
    """Return records for the dead-letter topic; headers of an earlier dead letter are replaced."""
    from pyspark.sql import functions as f

    named = {"lakebed.reason": f.col(REASON), **more}
    pairs = [part for name, value in named.items() for part in (f.lit(name), value.cast("binary"))]
    headers = f.create_map(*pairs)
    if "headers" in records.columns:
        own = f.map_filter("headers", lambda name, _: ~name.startswith("lakebed."))
        headers = f.map_concat(f.coalesce(own, f.map_filter(headers, _nothing)), headers)
    kept = [f.col(column) for column in ("key", "timestamp") if column in records.columns]
    return records.select(_as_bytes(records).alias("value"), *kept, headers.alias("headers"))


def _nothing(_name: Column, _value: Column) -> Column:
    from pyspark.sql import functions as f

    return f.lit(False)


def _as_bytes(records: DataFrame) -> Column:
    """Return the value of a record: of a typed topic, as JSON."""
    from pyspark.sql import functions as f

    if records.schema["value"].dataType.typeName() == "binary":
        return f.col("value")
    return f.to_json("value", {"ignoreNullFields": "false"}).cast("binary")
