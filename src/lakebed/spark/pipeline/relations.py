"""What the parts of a pipeline have to do with each other: that names lead somewhere, and fit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Final

from lakebed.spark.pipeline.fields import Problem
from lakebed.spark.pipeline.spec import Otherwise, PipelineSpec, Source, Step

_NO_LETTERS: Final = (
    "otherwise = 'dead-letter' needs a topic for dead letters: add dead_letter = 'NAME' at the top"
    " of the file"
)


def check_relations(spec: PipelineSpec) -> Iterator[Problem]:
    """Return what is wrong between parts, each of which may be right alone."""
    known = spec.sources.keys() | spec.steps.keys()
    if not spec.sinks:
        yield Problem(("sink",), "no sink: add [sink.NAME], which says where the rows of a step go")
    for name in spec.sources.keys() & spec.steps.keys():
        yield Problem(("step", name), f"a source is called {name} too: use another name")
    lost = list(_names(spec, known))
    yield from lost
    yield from _targets(spec)
    yield from _letters(spec)
    yield from _streams(spec)
    if not lost:
        yield from _unread(spec)


def _names(spec: PipelineSpec, known: set[str]) -> Iterator[Problem]:
    there = ", ".join(sorted(known)) or "none"
    for step in spec.steps.values():
        for each in step.inputs:
            if each not in known:
                message = f"unknown source or step {each!r}; known are {there}"
                yield Problem(("step", step.name, "from"), message)
            elif each == step.name:
                yield Problem(("step", step.name, "from"), f"{each} is made from itself")
    for sink in spec.sinks.values():
        if sink.source not in known:
            message = f"unknown source or step {sink.source!r}; known are {there}"
            yield Problem(("sink", sink.name, "from"), message)


def _targets(spec: PipelineSpec) -> Iterator[Problem]:
    read = {each.topic for each in spec.sources.values() if each.topic}
    tables = Counter(sink.table for sink in spec.sinks.values())
    for sink in spec.sinks.values():
        if sink.topic in read:
            message = f"the pipeline reads topic {sink.topic} and would read what it has written"
            yield Problem(("sink", sink.name, "topic"), message)
        if sink.topic and sink.topic == spec.dead_letter:
            yield Problem(("sink", sink.name, "topic"), "this is the dead-letter topic already")
        if sink.table and tables[sink.table] > 1:
            message = f"two sinks write table {sink.table}: unite their steps by UNION ALL"
            yield Problem(("sink", sink.name, "table"), message)
    if spec.dead_letter in read:
        yield Problem(("dead_letter",), "the pipeline reads this topic: dead letters would return")


def _letters(spec: PipelineSpec) -> Iterator[Problem]:
    if spec.dead_letter is not None:
        return
    for kind, name, part in _parts(spec):
        for each in part.expect:
            if each.otherwise == Otherwise.DEAD_LETTER:
                yield Problem((kind, name, "expect", each.name), _NO_LETTERS)
        if isinstance(part, Source) and part.otherwise == Otherwise.DEAD_LETTER:
            yield Problem((kind, name, "otherwise"), _NO_LETTERS)


def _parts(spec: PipelineSpec) -> Iterator[tuple[str, str, Source | Step]]:
    yield from (("source", name, each) for name, each in spec.sources.items())
    yield from (("step", name, each) for name, each in spec.steps.items())


def _streams(spec: PipelineSpec) -> Iterator[Problem]:
    for sink in spec.sinks.values():
        if not _is_known(spec, sink.source):
            continue
        sources = [each for each in spec.upstream(sink.source) if each in spec.sources]
        if all(spec.sources[each].table for each in sources):
            message = f"{sink.source} reads no topic, so nothing would ever move it"
            yield Problem(("sink", sink.name, "from"), message)


def _is_known(spec: PipelineSpec, name: str) -> bool:
    """Return whether all that a part is made from is there, and was said."""
    return all(
        each in spec.sources or (each in spec.steps and spec.steps[each].inputs)
        for each in spec.upstream(name)
    )


def _unread(spec: PipelineSpec) -> Iterator[Problem]:
    used = {each for sink in spec.sinks.values() for each in spec.upstream(sink.source)}
    for kind, name, _ in _parts(spec):
        if name not in used:
            yield Problem((kind, name), f"no sink is made from {name}", fatal=False)
