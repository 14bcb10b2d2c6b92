"""Whether a flow can continue from its checkpoint, or is another flow under the same name.

A checkpoint holds how far each source was read, by its position in the plan, and the state of
aggregations, joins and deduplication. So a flow can continue if it reads the same topics in the
same order, keeps the same state, and writes to the same target in the same way. Everything else may
change: queries without state, functions, conditions, decoding, the trigger.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from lakebed.errors import PipelineChangedError
from lakebed.spark.pipeline.spec import Flow, PipelineSpec

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_NUMBERS: Final = re.compile(r"#\d+L?|-T\d+ms")
"""What Spark adds to names of columns, and differs from run to run."""

_STATEFUL: Final = frozenset(
    ["Aggregate", "Distinct", "Deduplicate", "DeduplicateWithinWatermark", "GlobalLimit"]
)
_STATEFUL_FUNCTIONS: Final = ("GroupsWithState", "TransformWithState", "InPandasWithState")


def definition(spec: PipelineSpec, flow: Flow, frame: DataFrame, spark: str) -> dict[str, Any]:
    """Return the properties of a flow that its checkpoint depends on, as plain data."""
    plan = frame._jdf.queryExecution().analyzed()
    sink = flow.sink
    return {
        "spark": spark,
        "topics": list(_topics(plan)),
        "state": list(_state(plan)),
        "target": _target(spec, flow),
        "key": list(sink.key) if sink is not None and sink.table else [],
        "mode": str(sink.mode) if sink is not None else "append",
    }


def _target(spec: PipelineSpec, flow: Flow) -> str:
    if flow.sink is None:
        return f"topic {spec.dead_letter}"
    return f"table {flow.sink.table}" if flow.sink.table else f"topic {flow.sink.topic}"


def _nodes(plan: Any) -> Iterator[Any]:
    """Yield the streaming nodes of a plan, from the top, in Spark's order."""
    if not plan.isStreaming():
        return
    yield plan
    children = plan.children()
    for index in range(children.size()):
        yield from _nodes(children.apply(index))


def _topics(plan: Any) -> Iterator[str]:
    for node in _nodes(plan):
        if node.nodeName() == "StreamingRelationV2":
            yield str(node.extraOptions().get("topic"))


def _state(plan: Any) -> Iterator[str]:
    for node in _nodes(plan):
        name = str(node.nodeName())
        joins = name == "Join" and node.left().isStreaming() and node.right().isStreaming()
        calls = any(function in name for function in _STATEFUL_FUNCTIONS)
        if joins or calls or name in _STATEFUL:
            yield _describe(name, node)


def _describe(name: str, node: Any) -> str:
    """Describe a node that keeps state: what it does, and its columns."""
    said = _NUMBERS.sub("", str(node.simpleString(10_000))).lstrip("~")  # it marks a stream
    columns = _NUMBERS.sub("", str(node.schema().simpleString()))
    return f"{said} -> {columns}" if said.startswith(name) else f"{name} {said} -> {columns}"


def check_compatible(flow: str, was: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Raise `PipelineChangedError` with the change, if a flow does not fit its checkpoint."""
    for change in _changes(was, now):
        raise PipelineChangedError(change, flow=flow)


def _changes(was: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    for name, what in (
        ("topics", "the flow read other topics, or in another order"),
        ("target", "the flow wrote elsewhere"),
        ("key", "the flow wrote rows under another key"),
        ("mode", "the flow wrote in another mode"),
    ):
        if was[name] != now[name]:
            yield f"{what}: was {_text(was[name])}, is {_text(now[name])}"
    if _state_of(was, now) != _state_of(now, was):
        yield (
            "the flow keeps another state, which its checkpoint does not hold: was"
            f" {_text(was['state'])}, is {_text(now['state'])}"
        )


def _state_of(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    """Return the state that a flow keeps; another version of Spark may word it differently."""
    if one["spark"] == other["spark"]:
        return list(one["state"])
    return [node.partition(" ")[0] for node in one["state"]]


def _text(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "none"
    return str(value)
