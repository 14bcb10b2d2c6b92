"""A pipeline as a picture: lines of text, Mermaid, or plain data."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from lakebed.spark.pipeline.spec import Flow, Mode, PipelineSpec, Sink, Source, Step, decodes


class Node(NamedTuple):
    """A part of a pipeline, with what it is made from."""

    kind: str
    name: str
    inputs: tuple[str, ...]
    about: str


def nodes(spec: PipelineSpec) -> Iterator[Node]:
    """Return the parts of a pipeline, each after those it is made from."""
    for source in spec.sources.values():
        yield Node("source", source.name, (), _source(source))
    for step in spec.steps.values():
        yield Node("step", step.name, step.inputs, _step(step))
    for flow in spec.flows():
        yield _flow(flow, spec)


def _source(source: Source) -> str:
    if source.table:
        return f"table {source.table}, read again for each batch"
    decoded = f", {source.decode}" if source.decode else ""
    return f"topic {source.topic}{decoded}{_more(source)}"


def _step(step: Step) -> str:
    return ("SQL" if step.sql else f"function {step.python}") + _more(step)


def _more(part: Source | Step) -> str:
    late = f", up to {part.watermark.delay} late" if part.watermark else ""
    checks = [f"{each.check} or {each.otherwise}" for each in part.expect]
    decoding = (
        [f"decoded or {part.otherwise}"] if isinstance(part, Source) and decodes(part) else []
    )
    expected = [*decoding, *checks]
    return late + (f"; expects {', '.join(expected)}" if expected else "")


def _flow(flow: Flow, spec: PipelineSpec) -> Node:
    if flow.sink is None:
        return Node("dead-letter", flow.name, (flow.source,), f"topic {spec.dead_letter}")
    return Node("sink", flow.name, (flow.source,), _sink(flow.sink))


def _sink(sink: Sink) -> str:
    key = ", ".join(sink.key)
    if sink.table:
        return f"table {sink.table}, {sink.mode}" + (
            "" if sink.mode == Mode.APPEND else f" by {key}"
        )
    return f"topic {sink.topic}, {sink.encode}" + (f", key {key}" if key else "")


def as_text(spec: PipelineSpec) -> str:
    """Return one line for each part."""
    found = list(nodes(spec))
    kind, name = (max(len(each[place]) for each in found) for place in (0, 1))
    return "\n".join(
        f"{each.kind:<{kind}}  {each.name:<{name}}  "
        + (f"from {', '.join(each.inputs)}: " if each.inputs else "")
        + each.about
        for each in found
    )


def as_mermaid(spec: PipelineSpec) -> str:
    """Return a diagram as Mermaid, which GitHub and most wikis draw."""
    lines = ["flowchart LR"]
    for each in nodes(spec):
        text = f"{each.name}<br/>{each.about}".replace('"', "#quot;")
        begin, end = {"source": ("[(", ")]"), "step": ("[", "]")}.get(each.kind, ("([", "])"))
        lines.append(f'    {_id(each)}{begin}"{text}"{end}')
        lines += [f"    {_id(_named(spec, name))} --> {_id(each)}" for name in each.inputs]
    return "\n".join(lines)


def _named(spec: PipelineSpec, name: str) -> Node:
    return Node("source" if name in spec.sources else "step", name, (), "")


def _key(node: Node) -> str:
    return f"{node.kind}.{node.name}"


def _id(node: Node) -> str:
    kind = "sink" if node.kind == "dead-letter" else node.kind
    return f"{kind}_{node.name}".replace("-", "_").replace(".", "_")


def as_data(spec: PipelineSpec) -> dict[str, Any]:
    """Return the parts and what leads to what, as plain data."""
    found = list(nodes(spec))
    return {
        "pipeline": spec.name,
        "nodes": [{"kind": each.kind, "name": each.name, "about": each.about} for each in found],
        "edges": [
            {"from": _key(_named(spec, name)), "to": _key(each)}
            for each in found
            for name in each.inputs
        ],
    }
