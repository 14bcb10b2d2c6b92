"""Checks of a pipeline without Spark: its functions, and its log's topics and tables."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from lakebed.api.log import Log
from lakebed.errors import LakebedError
from lakebed.spark.pipeline.avro import arrow_fields, parse_avro_schema
from lakebed.spark.pipeline.fields import PipelineProblem
from lakebed.spark.pipeline.plan import function_of
from lakebed.spark.pipeline.spec import Decoder, Encoder, Flow, PipelineSpec, Sink, Source

KeyPath = tuple[str, ...]


def functions_and_schemas(
    spec: PipelineSpec, wrong: Collection[KeyPath] = ()
) -> Iterator[PipelineProblem]:
    """Import the functions of steps and parse Avro schemas; yield what is wrong with them.

    The pipeline may be a draft: keys that are known to be `wrong` are not reported again.
    """
    for step in spec.steps.values():
        if step.python is not None and ("step", step.name, "python") not in wrong:
            try:
                function_of(step, str(spec.folder))
            except LakebedError as error:
                yield PipelineProblem(("step", step.name, "python"), str(error))
    for source in spec.sources.values():
        if source.decode == Decoder.AVRO and source.schema is not None:
            try:
                arrow_fields(parse_avro_schema(source.schema))
            except LakebedError as error:
                yield PipelineProblem(("source", source.name, "schema"), str(error))


def topics_and_tables(
    spec: PipelineSpec, log: Log, wrong: Collection[KeyPath] = ()
) -> Iterator[PipelineProblem]:
    """Look up what a pipeline reads and writes; yield what does not exist or does not fit.

    Parts with problems (`wrong`) are not checked: they may change.
    """
    topics = set(log.topics())
    doubtful = {path[:2] for path in wrong}
    for source in spec.sources.values():
        if source.topic is not None and source.topic not in topics:
            advice = f"create it: lakebed topic create {source.topic}"
            yield PipelineProblem(
                ("source", source.name, "topic"), f"topic {source.topic!r} does not exist; {advice}"
            )
        elif source.topic is not None and ("source", source.name) not in doubtful:
            yield from _decoding(source, log)
        elif source.table is not None and source.table not in log.derived.tables():
            tables = ", ".join(log.derived.tables()) or "none"
            message = f"unknown table; known are {tables}"
            yield PipelineProblem(("source", source.name, "table"), message)
    for sink in spec.sinks.values():
        if sink.topic in topics and ("sink", sink.name) not in doubtful:
            yield from _encoding(sink, log)


def sound_flows(spec: PipelineSpec, wrong: Collection[KeyPath]) -> list[Flow]:
    """Return the flows of a draft that Spark can analyse: no part of them is wrong."""
    if any(path[0] in ("log", "spark") for path in wrong if path):
        return []
    doubtful = {path[:2] for path in wrong}
    doubtful |= {("step", step.name) for step in spec.steps.values() if not step.inputs}

    def is_sound(flow: Flow) -> bool:
        names = list(spec.upstream(flow.source))
        exist = all(name in spec.sources or name in spec.steps for name in names)
        parts = [(kind, name) for kind in ("source", "step") for name in names]
        return exist and doubtful.isdisjoint([("sink", flow.name), *parts])

    return [flow for flow in spec.flows() if is_sound(flow)]


def _decoding(source: Source, log: Log) -> Iterator[PipelineProblem]:
    raw = log.describe_topic(str(source.topic)).schema is None
    if raw and source.decode is None:
        message = "the topic is raw: say decode = 'json', 'avro', 'csv' or 'raw'"
        yield PipelineProblem(("source", source.name), message)
    if not raw and source.decode is not None:
        message = "the topic is typed and needs no decoding: leave out decode"
        yield PipelineProblem(("source", source.name, "decode"), message)


def _encoding(sink: Sink, log: Log) -> Iterator[PipelineProblem]:
    raw = log.describe_topic(str(sink.topic)).schema is None
    if raw and sink.encode == Encoder.TYPED:
        message = "the topic is raw: say encode = 'json' or 'raw'"
        yield PipelineProblem(("sink", sink.name, "topic"), message)
    if not raw and sink.encode == Encoder.JSON:
        message = "the topic is typed: leave out encode"
        yield PipelineProblem(("sink", sink.name, "encode"), message)
