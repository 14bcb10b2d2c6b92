"""What can be checked of a pipeline without Spark: functions, and its log's topics and tables."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from lakebed.api.log import Log
from lakebed.errors import LakebedError
from lakebed.spark.pipeline.avro import arrow_fields, parsed_schema
from lakebed.spark.pipeline.fields import Problem
from lakebed.spark.pipeline.plan import function_of
from lakebed.spark.pipeline.spec import Decoder, Encoder, Flow, PipelineSpec, Sink, Source

KeyPath = tuple[str, ...]


def functions_and_schemas(spec: PipelineSpec, wrong: Collection[KeyPath] = ()) -> Iterator[Problem]:
    """Import the functions of steps and read Avro schemas; return what is wrong with them.

    The pipeline may be a draft: of keys that are known to be `wrong` nothing more is said.
    """
    for step in spec.steps.values():
        if step.python is not None and ("step", step.name, "python") not in wrong:
            try:
                function_of(step, str(spec.folder))
            except LakebedError as error:
                yield Problem(("step", step.name, "python"), str(error))
    for source in spec.sources.values():
        if source.decode == Decoder.AVRO and source.schema is not None:
            try:
                arrow_fields(parsed_schema(source.schema))
            except LakebedError as error:
                yield Problem(("source", source.name, "schema"), str(error))


def topics_and_tables(
    spec: PipelineSpec, log: Log, wrong: Collection[KeyPath] = ()
) -> Iterator[Problem]:
    """Look up what a pipeline reads and writes; return what is not there, or does not fit.

    Of a part with mistakes of its own nobody knows yet whether it fits.
    """
    topics = set(log.topics())
    doubtful = {each[:2] for each in wrong}
    for source in spec.sources.values():
        if source.topic is not None and source.topic not in topics:
            advice = f"create it: lakebed topic create {source.topic}"
            yield Problem(
                ("source", source.name, "topic"), f"topic {source.topic!r} does not exist; {advice}"
            )
        elif source.topic is not None and ("source", source.name) not in doubtful:
            yield from _decoding(source, log)
        elif source.table is not None and source.table not in log.derived.tables():
            known = ", ".join(log.derived.tables()) or "none"
            message = f"unknown table; known are {known}"
            yield Problem(("source", source.name, "table"), message)
    for sink in spec.sinks.values():
        if sink.topic in topics and ("sink", sink.name) not in doubtful:
            yield from _encoding(sink, log)


def sound_flows(spec: PipelineSpec, wrong: Collection[KeyPath]) -> list[Flow]:
    """Return the flows of a draft that Spark can be asked about: no part of them is wrong."""
    if any(each[0] in ("log", "spark") for each in wrong if each):
        return []
    doubtful = {each[:2] for each in wrong}
    doubtful |= {("step", each.name) for each in spec.steps.values() if not each.inputs}

    def is_sound(flow: Flow) -> bool:
        names = list(spec.upstream(flow.source))
        known = all(each in spec.sources or each in spec.steps for each in names)
        parts = [(kind, each) for kind in ("source", "step") for each in names]
        return known and doubtful.isdisjoint([("sink", flow.name), *parts])

    return [each for each in spec.flows() if is_sound(each)]


def _decoding(source: Source, log: Log) -> Iterator[Problem]:
    raw = log.describe_topic(str(source.topic)).schema is None
    if raw and source.decode is None:
        message = "the topic is raw: say decode = 'json', 'avro', 'csv' or 'raw'"
        yield Problem(("source", source.name), message)
    if not raw and source.decode is not None:
        message = "the topic is typed and needs no decoding: leave out decode"
        yield Problem(("source", source.name, "decode"), message)


def _encoding(sink: Sink, log: Log) -> Iterator[Problem]:
    raw = log.describe_topic(str(sink.topic)).schema is None
    if raw and sink.encode == Encoder.TYPED:
        message = "the topic is raw: say encode = 'json' or 'raw'"
        yield Problem(("sink", sink.name, "topic"), message)
    if not raw and sink.encode == Encoder.JSON:
        message = "the topic is typed: leave out encode"
        yield Problem(("sink", sink.name, "encode"), message)
