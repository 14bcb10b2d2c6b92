"""A pipeline as a picture: lines of text, Mermaid, or plain data."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from lakebed.spark.pipeline.spec import Flow, PipelineSpec, Sink, SinkMode, Source, Step, decodes


class PipelineNode(NamedTuple):
    """A part of a pipeline, with its inputs."""

    kind: str
    name: str
    inputs: tuple[str, ...]
    about: str


def nodes(spec: PipelineSpec) -> Iterator[PipelineNode]:
    """Yield the parts of a pipeline, each after its inputs."""
    for source in spec.sources.values():
        yield PipelineNode("source", source.name, (), _source(source))
    for step in spec.steps.values():
        yield PipelineNode("step", step.name, step.inputs, _step(step))
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
    checks = [f"{expectation.check} or {expectation.otherwise}" for expectation in part.expect]
    decoding = (
        [f"decoded or {part.otherwise}"] if isinstance(part, Source) and decodes(part) else []
    )
    expected = [*decoding, *checks]
    return late + (f"; expects {', '.join(expected)}" if expected else "")


def _flow(flow: Flow, spec: PipelineSpec) -> PipelineNode:
    if flow.sink is None:
        return PipelineNode("dead-letter", flow.name, (flow.source,), f"topic {spec.dead_letter}")
    return PipelineNode("sink", flow.name, (flow.source,), _sink(flow.sink))


def _sink(sink: Sink) -> str:
    key = ", ".join(sink.key)
    if sink.table:
        return f"table {sink.table}, {sink.mode}" + (
            "" if sink.mode == SinkMode.APPEND else f" by {key}"
        )
    return f"topic {sink.topic}, {sink.encode}" + (f", key {key}" if key else "")


def as_text(spec: PipelineSpec) -> str:
    """Return one line for each part."""
    parts = list(nodes(spec))
    kind, name = (max(len(node[index]) for node in parts) for index in (0, 1))
    return "\n".join(
        f"{node.kind:<{kind}}  {node.name:<{name}}  "
        + (f"from {', '.join(node.inputs)}: " if node.inputs else "")
        + node.about
        for node in parts
    )


def as_mermaid(spec: PipelineSpec) -> str:
    """Return a diagram as Mermaid, which GitHub and most wikis draw."""
    lines = ["flowchart LR"]
    for node in nodes(spec):
        text = f"{node.name}<br/>{node.about}".replace('"', "#quot;")
        begin, end = {"source": ("[(", ")]"), "step": ("[", "]")}.get(node.kind, ("([", "])"))
        lines.append(f'    {_id(node)}{begin}"{text}"{end}')
        lines += [f"    {_id(_input_node(spec, name))} --> {_id(node)}" for name in node.inputs]
    return "\n".join(lines)


def _input_node(spec: PipelineSpec, name: str) -> PipelineNode:
    return PipelineNode("source" if name in spec.sources else "step", name, (), "")


def _key(node: PipelineNode) -> str:
    return f"{node.kind}.{node.name}"


def _id(node: PipelineNode) -> str:
    kind = "sink" if node.kind == "dead-letter" else node.kind
    return f"{kind}_{node.name}".replace("-", "_").replace(".", "_")


def as_data(spec: PipelineSpec) -> dict[str, Any]:
    """Return the parts and the edges between them, as plain data."""
    parts = list(nodes(spec))
    return {
        "pipeline": spec.name,
        "nodes": [{"kind": node.kind, "name": node.name, "about": node.about} for node in parts],
        "edges": [
            {"from": _key(_input_node(spec, name)), "to": _key(node)}
            for node in parts
            for name in node.inputs
        ],
    }
