"""Checks between the parts of a pipeline: that names exist, and that parts fit together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Final

from lakebed.spark.pipeline.fields import PipelineProblem
from lakebed.spark.pipeline.spec import Otherwise, PipelineSpec, Source, Step

_NO_LETTERS: Final = (
    "otherwise = 'dead-letter' needs a topic for dead letters: add dead_letter = 'NAME' at the top"
    " of the file"
)


def check_relations(spec: PipelineSpec) -> Iterator[PipelineProblem]:
    """Yield what is wrong between parts, each of which may be right alone."""
    names = spec.sources.keys() | spec.steps.keys()
    if not spec.sinks:
        yield PipelineProblem(
            ("sink",), "no sink: add [sink.NAME], which says where the rows of a step go"
        )
    for name in spec.sources.keys() & spec.steps.keys():
        yield PipelineProblem(("step", name), f"a source is called {name} too: use another name")
    lost = list(_names(spec, names))
    yield from lost
    yield from _targets(spec)
    yield from _letters(spec)
    yield from _streams(spec)
    if not lost:
        yield from _unread(spec)


def _names(spec: PipelineSpec, names: set[str]) -> Iterator[PipelineProblem]:
    there = ", ".join(sorted(names)) or "none"
    for step in spec.steps.values():
        for source in step.inputs:
            if source not in names:
                message = f"unknown source or step {source!r}; known are {there}"
                yield PipelineProblem(("step", step.name, "from"), message)
            elif source == step.name:
                yield PipelineProblem(("step", step.name, "from"), f"{source} is made from itself")
    for sink in spec.sinks.values():
        if sink.source not in names:
            message = f"unknown source or step {sink.source!r}; known are {there}"
            yield PipelineProblem(("sink", sink.name, "from"), message)


def _targets(spec: PipelineSpec) -> Iterator[PipelineProblem]:
    read = {source.topic for source in spec.sources.values() if source.topic}
    tables = Counter(sink.table for sink in spec.sinks.values())
    for sink in spec.sinks.values():
        if sink.topic in read:
            message = f"the pipeline reads topic {sink.topic} and would read what it has written"
            yield PipelineProblem(("sink", sink.name, "topic"), message)
        if sink.topic and sink.topic == spec.dead_letter:
            yield PipelineProblem(
                ("sink", sink.name, "topic"), "this is the dead-letter topic already"
            )
        if sink.table and tables[sink.table] > 1:
            message = f"two sinks write table {sink.table}: unite their steps by UNION ALL"
            yield PipelineProblem(("sink", sink.name, "table"), message)
    if spec.dead_letter in read:
        yield PipelineProblem(
            ("dead_letter",), "the pipeline reads this topic: dead letters would return"
        )


def _letters(spec: PipelineSpec) -> Iterator[PipelineProblem]:
    if spec.dead_letter is not None:
        return
    for kind, name, part in _parts(spec):
        for expectation in part.expect:
            if expectation.otherwise == Otherwise.DEAD_LETTER:
                yield PipelineProblem((kind, name, "expect", expectation.name), _NO_LETTERS)
        if isinstance(part, Source) and part.otherwise == Otherwise.DEAD_LETTER:
            yield PipelineProblem((kind, name, "otherwise"), _NO_LETTERS)


def _parts(spec: PipelineSpec) -> Iterator[tuple[str, str, Source | Step]]:
    yield from (("source", name, source) for name, source in spec.sources.items())
    yield from (("step", name, step) for name, step in spec.steps.items())


def _streams(spec: PipelineSpec) -> Iterator[PipelineProblem]:
    for sink in spec.sinks.values():
        if not _is_complete(spec, sink.source):
            continue
        sources = [name for name in spec.upstream(sink.source) if name in spec.sources]
        if all(spec.sources[name].table for name in sources):
            message = f"{sink.source} reads no topic, so nothing would ever move it"
            yield PipelineProblem(("sink", sink.name, "from"), message)


def _is_complete(spec: PipelineSpec, name: str) -> bool:
    """Return whether all parts that a part is derived from exist, with their inputs."""
    return all(
        part in spec.sources or (part in spec.steps and spec.steps[part].inputs)
        for part in spec.upstream(name)
    )


def _unread(spec: PipelineSpec) -> Iterator[PipelineProblem]:
    used = {name for sink in spec.sinks.values() for name in spec.upstream(sink.source)}
    for kind, name, _ in _parts(spec):
        if name not in used:
            yield PipelineProblem((kind, name), f"no sink is made from {name}", fatal=False)
