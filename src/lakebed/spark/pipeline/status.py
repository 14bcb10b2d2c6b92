"""Status of the flows of a pipeline: updated after each batch, and read from the checkpoint."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final, Self

from lakebed.api.log import Log
from lakebed.errors import LakebedError
from lakebed.spark.offsets import Position, position
from lakebed.spark.pipeline.checkpoint_folder import STATUS, CheckpointFolder
from lakebed.spark.pipeline.spec import PipelineSpec

Counts = Mapping[str, Mapping[str, int]]
"""Rows that were counted, by part of the pipeline and by what was counted."""


RUNNING: Final = "running"
RESTARTING: Final = "restarting"
LIVE: Final = (RUNNING, RESTARTING)
"""The states of a flow whose process lives."""


@dataclass(frozen=True)
class FlowStatus:
    """How far a flow has come."""

    flow: str
    state: str = "new"
    """new, running, restarting, stopped, failed, or killed if its process is gone."""
    batch: int | None = None
    """The last batch that is done."""
    time: str | None = None
    """When it began."""
    rows: int = 0
    """How many records were read in all."""
    rows_per_second: float = 0.0
    lag: int | None = None
    """How many records are not read yet; None if that is unknown."""
    offsets: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """The next offset to be read, by topic and partition."""
    counts: Counts = field(default_factory=dict)
    error: str | None = None
    restarts: int = 0
    """How many times the flow was restarted in this run of its pipeline."""
    last_error: str | None = None
    """The failure before the last restart, or before the next one."""
    next_attempt: str | None = None
    """When the flow is restarted; None if it does not wait for that."""
    owner: str | None = None
    """The process that runs it: machine and process id."""

    def begin(self, owner: str) -> Self:
        """Return the status of a flow that a new run of its pipeline starts."""
        return replace(
            self,
            state=RUNNING,
            error=None,
            restarts=0,
            last_error=None,
            next_attempt=None,
            owner=owner,
        )

    def document(self) -> dict[str, Any]:
        """Return the status as plain data."""
        return asdict(self)


def advance(status: FlowStatus, progress: Mapping[str, Any]) -> FlowStatus:
    """Return the status after a trigger; without a batch only the lag changes."""
    read, ends = _positions(progress, "endOffset"), _positions(progress, "latestOffset")
    offsets = _offsets(read) or status.offsets
    status = replace(status, offsets=offsets, lag=_behind(offsets, _offsets(ends)))
    if "addBatch" not in progress["durationMs"]:
        return replace(status, rows_per_second=0.0)
    if status.batch is not None and progress["batchId"] <= status.batch:
        return status  # it was done before, and counted, when the pipeline was killed
    return replace(
        status,
        batch=progress["batchId"],
        time=progress["timestamp"],
        rows=status.rows + progress["numInputRows"],
        rows_per_second=float(progress.get("processedRowsPerSecond") or 0.0),
        counts=add_counts(status.counts, progress.get("observedMetrics") or {}),
    )


def add_counts(counts: Counts, more: Counts) -> Counts:
    """Return the sums of two sets of counts."""
    names = dict.fromkeys([*counts, *more])
    return {name: _sums(counts.get(name, {}), more.get(name, {})) for name in names}


def _sums(one: Mapping[str, int], other: Mapping[str, int]) -> dict[str, int]:
    return {name: one.get(name, 0) + other.get(name, 0) for name in dict.fromkeys([*one, *other])}


def _positions(progress: Mapping[str, Any], name: str) -> list[Position]:
    documents = (source.get(name) for source in progress["sources"])
    return [position(document) for document in documents if isinstance(document, dict)]


def _offsets(positions: list[Position]) -> dict[str, dict[str, int]]:
    """Return offsets by topic and partition; of a topic that is read twice, the lower ones."""
    offsets_by_topic: dict[str, dict[str, int]] = {}
    for read in positions:
        for topic, parts in read.offsets.items():
            topic_offsets = offsets_by_topic.setdefault(topic, {})
            for partition, offset in parts.items():
                topic_offsets[str(partition)] = min(
                    offset, topic_offsets.get(str(partition), offset)
                )
    return offsets_by_topic


def _behind(
    offsets: Mapping[str, Mapping[str, int]], ends: Mapping[str, Mapping[str, int]]
) -> int | None:
    if not ends:
        return None
    return sum(
        max(0, end - offsets.get(topic, {}).get(partition, 0))
        for topic, parts in ends.items()
        for partition, end in parts.items()
    )


def read_status(checkpoint: CheckpointFolder, flow: str) -> FlowStatus:
    """Return the status that was written after a flow's last batch."""
    document = checkpoint.read(flow, STATUS)
    if document is None:
        return FlowStatus(flow)
    names = FlowStatus.__dataclass_fields__
    return FlowStatus(**{name: value for name, value in document.items() if name in names})


def look(spec: PipelineSpec, checkpoint: CheckpointFolder, log: Log | None) -> list[FlowStatus]:
    """Return the status of each flow from its checkpoint; with the log, also its lag."""
    return [_look(checkpoint, flow.name, log) for flow in spec.flows()]


def _look(checkpoint: CheckpointFolder, flow: str, log: Log | None) -> FlowStatus:
    status = read_status(checkpoint, flow)
    if status.state in LIVE and _has_exited(status.owner):
        status = replace(status, state="killed", next_attempt=None)
    batch = checkpoint.last_batch(flow)
    if batch is None:
        return replace(status, batch=None)
    # What Spark has committed is authoritative: the status file is written a moment later.
    offsets = _offsets(checkpoint.positions(flow, batch)) or status.offsets
    return replace(status, batch=batch, offsets=offsets, lag=lag_of(offsets, log))


def owner() -> str:
    """Return the name of this process: machine and process id."""
    return f"{socket.gethostname()}:{os.getpid()}"


def _has_exited(owner: str | None) -> bool:
    """Return whether a process of this machine has ended; False for other machines."""
    host, _, process = (owner or "").rpartition(":")
    if host != socket.gethostname():
        return False
    try:
        os.kill(int(process), 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    return False


def lag_of(offsets: Mapping[str, Mapping[str, int]], log: Log | None) -> int | None:
    """Return how many records of a log are not read yet; None if that is unknown."""
    if log is None:
        return None
    ends = {}
    try:
        for topic in offsets:
            ends[topic] = {
                str(partition): end for partition, (_, end) in log.offsets(topic).items()
            }
    except LakebedError:  # the topic is gone; the next start will say so
        return None
    return _behind(offsets, ends)
