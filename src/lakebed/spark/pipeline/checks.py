"""Parses a document into a pipeline, and lists everything that is wrong with it.

Here is checked what needs neither a log nor Spark. The document is what `tomllib` returns for a
pipeline's file; a pipeline that is written in Python makes the same document.
"""

from __future__ import annotations

import graphlib
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from lakebed.spark.pipeline.fields import IDENTIFIER, SINK_NAME, Fields, PipelineProblem, show
from lakebed.spark.pipeline.relations import check_relations
from lakebed.spark.pipeline.spec import (
    AVAILABLE_NOW,
    RECORD_COLUMNS,
    Decoder,
    Encoder,
    Expectation,
    Otherwise,
    PipelineSpec,
    Restart,
    Sink,
    SinkMode,
    Source,
    Step,
    Watermark,
)
from lakebed.spark.pipeline.sql_names import tables_of

__all__ = ["PipelineProblem", "draft_document", "read_document"]

_OF_TOPICS = (
    *("decode", "schema", "schema_file", "separator", "skip_bytes", "starting"),
    *("include", "otherwise", "batch_records_max", "watermark", "expect"),
)
"""The keys of a source that only a topic has."""


def read_document(
    document: Mapping[str, Any], folder: Path
) -> tuple[PipelineSpec | None, list[PipelineProblem]]:
    """Return the pipeline that a document describes, and every problem; None if one is fatal."""
    spec, problems = draft_document(document, folder)
    return (None if any(problem.fatal for problem in problems) else spec), problems


def draft_document(
    document: Mapping[str, Any], folder: Path
) -> tuple[PipelineSpec, list[PipelineProblem]]:
    """Return a draft of a document's pipeline, whatever is wrong with it, and every problem.

    Parts that are wrong are left out of the draft, or have their defaults.
    """
    problems: list[PipelineProblem] = []
    top = Fields(document, (), problems)
    name = top.text("name", needed=True) or "pipeline"
    if not SINK_NAME.fullmatch(name):
        top.complain(f"name = {name!r} must be letters, digits, '_' or '-'", "name")
    log, checkpoint = top.text("log"), top.text("checkpoint")
    trigger = top.interval("trigger", also=AVAILABLE_NOW) or "1 second"
    dead_letter = top.topic("dead_letter")
    sources = {
        key: _source(key, table, folder, letters=dead_letter is not None)
        for key, table in top.tables("source").items()
    }
    steps = _steps(top.tables("step"), set(sources))
    sinks = {key: _sink(key, table) for key, table in top.tables("sink").items()}
    spark = _spark(top.inner("spark"))
    restart = _restart(top.inner("restart"))
    top.finish()
    spec = PipelineSpec(
        name=name,
        sources=sources,
        steps=_order_steps(steps, problems),
        sinks=sinks,
        log=log,
        checkpoint=checkpoint,
        trigger=trigger,
        dead_letter=dead_letter,
        spark=spark,
        restart=restart,
        folder=folder,
    )
    problems += check_relations(spec)
    return spec, problems


def _source(name: str, fields: Fields, folder: Path, *, letters: bool) -> Source:
    _check_name(name, fields)
    topic, table = fields.topic("topic"), fields.text("table")
    if fields.has("topic") == fields.has("table"):
        fields.complain(f"source.{name} needs either topic or table")
    if fields.has("table"):
        for key in _OF_TOPICS:
            if fields.has(key):
                fields.complain(f"{key} is for topics only: a table has its columns", key)
        fields.finish(_OF_TOPICS)
        return Source(name, table=table)
    decode = fields.choice("decode", Decoder, None)
    source = Source(
        name,
        topic=topic,
        decode=decode,
        schema=_schema(fields, decode, folder),
        separator=_separator(fields, decode),
        skip_bytes=_skip_bytes(fields, decode),
        starting=_starting(fields),
        include=_include(fields),
        otherwise=_undecodable(fields, decode, letters=letters),
        batch_records_max=fields.integer("batch_records_max", 1, 2**40),
        watermark=_watermark(fields),
        expect=_expectations(fields),
    )
    fields.finish()
    return source


def _check_name(name: str, fields: Fields) -> None:
    if not IDENTIFIER.fullmatch(name):
        fields.complain(
            f"{name!r} cannot be used in a query: use letters, digits and '_', a letter first"
        )


def _schema(fields: Fields, decode: Decoder | None, folder: Path) -> str | None:
    schema, file = fields.text("schema"), fields.text("schema_file")
    needed = decode in (Decoder.JSON, Decoder.CSV, Decoder.AVRO)
    if schema is not None and file is not None:
        fields.complain("schema and schema_file are mutually exclusive", "schema")
    if needed and not fields.has("schema") and not fields.has("schema_file"):
        example = "an Avro schema as JSON" if decode == Decoder.AVRO else "'id LONG, name STRING'"
        fields.complain(f"decode = '{decode}' needs schema: {example}", "decode")
    for key in ("schema", "schema_file"):
        if fields.has(key) and not needed and not _mistaken(fields, decode):
            fields.complain(f"{key} is for decode = 'json', 'csv' or 'avro'", key)
    if file is None:
        return schema
    try:
        return (folder / file).read_text("utf8")
    except (OSError, UnicodeDecodeError) as error:
        fields.complain(f"schema_file {file!r} cannot be read: {error}", "schema_file")
        return None


def _mistaken(fields: Fields, decode: Decoder | None) -> bool:
    """Return whether `decode` itself is wrong, so that keys that depend on it cannot be judged."""
    return decode is None and fields.has("decode")


def _separator(fields: Fields, decode: Decoder | None) -> str:
    value = fields.raw("separator")
    if value is None:
        return ","
    if decode != Decoder.CSV and not _mistaken(fields, decode):
        fields.complain("separator is for decode = 'csv'", "separator")
    if not isinstance(value, str) or len(value) != 1:
        fields.complain(f"separator must be one character, not {show(value)}", "separator")
        return ","
    return value


def _skip_bytes(fields: Fields, decode: Decoder | None) -> int:
    skip_bytes = fields.integer("skip_bytes", 0, 1024)
    if skip_bytes is not None and decode != Decoder.AVRO and not _mistaken(fields, decode):
        fields.complain("skip_bytes is for decode = 'avro'", "skip_bytes")
    return skip_bytes or 0


def _starting(fields: Fields) -> str:
    value = fields.text("starting")
    if value is not None and value not in ("earliest", "latest"):
        fields.complain(f"starting must be 'earliest' or 'latest', not {value!r}", "starting")
    return value or "earliest"


def _include(fields: Fields) -> tuple[str, ...]:
    names = fields.names("include") or ()
    for name in names:
        if name not in RECORD_COLUMNS:
            allowed = ", ".join(RECORD_COLUMNS)
            fields.complain(f"include has {name!r}; a record has {allowed}", "include")
    return names


def _undecodable(fields: Fields, decode: Decoder | None, *, letters: bool) -> Otherwise:
    default = Otherwise.DEAD_LETTER if letters else Otherwise.FAIL
    chosen = fields.choice("otherwise", Otherwise, default) or default
    if not fields.has("otherwise"):
        return chosen
    if decode in (None, Decoder.RAW) and not _mistaken(fields, decode):
        fields.complain("otherwise is for records that are decoded: json, csv or avro", "otherwise")
    if chosen == Otherwise.COUNT:
        fields.complain(
            "a record that cannot be decoded has no columns: use 'drop', 'dead-letter' or 'fail'",
            "otherwise",
        )
    return chosen


def _watermark(fields: Fields) -> Watermark | None:
    inner = fields.inner("watermark")
    if inner is None:
        return None
    column, delay = inner.text("column", needed=True), inner.interval("delay", needed=True)
    inner.finish()
    return Watermark(column, delay) if column and delay else None


def _expectations(fields: Fields) -> tuple[Expectation, ...]:
    expectations = []
    for name, table in fields.tables("expect").items():
        _check_name(name, table)
        check = table.text("check", needed=True)
        otherwise = table.choice("otherwise", Otherwise, Otherwise.COUNT) or Otherwise.COUNT
        table.finish()
        if check is not None:
            expectations.append(Expectation(name, check, otherwise))
    return tuple(expectations)


def _steps(tables: Mapping[str, Fields], sources: set[str]) -> dict[str, Step]:
    names = sources | set(tables)
    return {name: _step(name, fields, names) for name, fields in tables.items()}


def _step(name: str, fields: Fields, names: set[str]) -> Step:
    _check_name(name, fields)
    sql = fields.text("sql")
    python, function = _function(fields)
    if fields.has("sql") == fields.has("python"):
        fields.complain(f"step.{name} needs either sql or python")
    inputs = fields.names("from")
    if inputs is None and sql is not None:
        inputs = tuple(table for table in tables_of(sql) if table in names and table != name)
        if not inputs:
            read, there = ", ".join(tables_of(sql)) or "nothing", ", ".join(sorted(names - {name}))
            fields.complain(
                f"the query reads {read}, which is neither a source nor a step; known are {there}",
                "sql",
            )
    elif inputs is None and fields.has("python"):
        fields.complain(f"step.{name} needs from: the sources and steps that the function gets")
    step = Step(
        name,
        inputs=inputs or (),
        sql=sql,
        python=python,
        function=function,
        watermark=_watermark(fields),
        expect=_expectations(fields),
    )
    fields.finish()
    return step


def _function(fields: Fields) -> tuple[str | None, Any]:
    value = fields.raw("python")
    if callable(value):
        return f"{value.__module__}:{value.__qualname__}", value
    text = fields.text("python")
    module, colon, function = (text or "a:b").partition(":")
    names = [*module.split("."), *function.split(".")]
    if not colon or not all(name.isidentifier() for name in names):
        fields.complain(f"python must be 'module:function', not {text!r}", "python")
    return text, None


def _sink(name: str, fields: Fields) -> Sink:
    if not SINK_NAME.fullmatch(name):
        fields.complain(f"{name!r} cannot be a sink's name: use letters, digits, '_' and '-'")
    source = fields.text("from", needed=True) or ""
    topic, table = fields.topic("topic"), fields.text("table")
    if fields.has("topic") == fields.has("table"):
        fields.complain(f"sink.{name} needs either topic or table")
    mode = fields.choice("mode", SinkMode, SinkMode.APPEND) or SinkMode.APPEND
    encode = fields.choice("encode", Encoder, Encoder.TYPED) or Encoder.TYPED
    sink = Sink(
        name,
        source,
        topic=topic,
        table=table,
        key=fields.names("key") or (),
        mode=mode,
        encode=encode,
        partitions=fields.integer("partitions", 1, 10_000) or 1,
        order=fields.text("order"),
        delete=fields.text("delete"),
        buckets=fields.integer("buckets", 1, 10_000),
    )
    _check_sink(sink, fields)
    fields.finish()
    return sink


def _check_sink(sink: Sink, fields: Fields) -> None:
    if fields.has("table"):
        _check_table(sink, fields)
        return
    for key in ("order", "delete", "buckets"):
        if fields.has(key):
            fields.complain(f"{key} is for tables only", key)
    if sink.mode not in (SinkMode.APPEND, SinkMode.UPDATE):
        fields.complain(f"mode = '{sink.mode}' is for tables: a topic keeps every record", "mode")
    if sink.encode == Encoder.RAW and fields.has("key"):
        fields.complain("with encode = 'raw' the key is the column `key` of the step", "key")


def _check_table(sink: Sink, fields: Fields) -> None:
    for key in ("encode", "partitions"):
        if fields.has(key):
            fields.complain(f"{key} is for topics only", key)
    if sink.mode == SinkMode.UPDATE:
        fields.complain("mode = 'update' is for topics: use 'current' for a table", "mode")
    elif sink.mode == SinkMode.APPEND:
        for key in ("key", "order", "delete", "buckets"):
            if fields.has(key):
                fields.complain(f"a table of every row has no {key}: use mode = 'current'", key)
    elif not fields.has("key"):
        fields.complain(f"mode = '{sink.mode}' needs key: the columns that name a row", "mode")
    if sink.mode == SinkMode.HISTORY and not fields.has("order"):
        fields.complain("mode = 'history' needs order: the column with the time of a row", "mode")


def _spark(fields: Fields | None) -> dict[str, str]:
    if fields is None:
        return {}
    settings = dict(_settings(fields.values))
    for name, value in settings.items():
        if not isinstance(value, str | int | bool) or not name.startswith("spark."):
            key = name.partition(".")[0]
            fields.complain(
                f"{name} is not a setting of Spark: settings are 'spark.NAME' with a text, an"
                " integer or true or false",
                key,
            )
    return {name: _setting(value) for name, value in settings.items()}


def _restart(fields: Fields | None) -> Restart:
    if fields is None:
        return Restart()
    default = Restart()
    attempts = fields.integer("attempts_max", 0, 1_000_000)
    backoff_ms = fields.interval_ms("backoff", default.backoff_ms)
    backoff_max_ms = fields.interval_ms("backoff_max", max(default.backoff_max_ms, backoff_ms))
    if backoff_max_ms < backoff_ms:
        fields.complain(
            f"backoff_max must not be shorter than backoff: {backoff_max_ms} ms, {backoff_ms} ms",
            "backoff_max",
        )
    fields.finish()
    return Restart(
        attempts_max=default.attempts_max if attempts is None else attempts,
        backoff_ms=backoff_ms,
        backoff_max_ms=backoff_max_ms,
    )


def _settings(values: Mapping[str, Any], before: str = "") -> Iterable[tuple[str, Any]]:
    """Yield settings with their full names, whether or not the file has them in quotes."""
    for name, value in values.items():
        whole = f"{before}{name}"
        if isinstance(value, Mapping):
            yield from _settings(value, f"{whole}.")
        else:
            yield whole, value


def _setting(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _order_steps(steps: dict[str, Step], problems: list[PipelineProblem]) -> dict[str, Step]:
    """Return the steps in an order in which each comes after its inputs.

    A cycle is a problem, and is cut, so that other problems are found too.
    """
    inputs = {
        name: [source for source in step.inputs if source in steps] for name, step in steps.items()
    }
    try:
        return {name: steps[name] for name in graphlib.TopologicalSorter(inputs).static_order()}
    except graphlib.CycleError as error:
        circle = error.args[1]
        shown = " -> ".join(reversed(circle))
        problems.append(
            PipelineProblem(("step", circle[0]), f"steps are made from each other: {shown}")
        )
        cut = {name: replace(steps[name], inputs=()) for name in circle}
        return _order_steps({**steps, **cut}, problems)
