"""What writes change: where rows are placed, and which batch of a producer is a repetition."""

from __future__ import annotations

from lakebed import limits
from lakebed.errors import (
    InvalidArgumentError,
    RejectedError,
    SequenceGapError,
)
from lakebed.state import commands
from lakebed.state.decide_producers import find_producer
from lakebed.state.decision import (
    Decision,
    Placed,
    Written,
)
from lakebed.state.image import State
from lakebed.state.partition_ends import PartitionEnds
from lakebed.state.values import (
    Sequences,
)


def write(state: State, index: int, command: commands.Write) -> Decision:
    """Place the rows of a write."""
    ends = PartitionEnds(state)
    parts: list[tuple[Placed, ...] | RejectedError] = []
    for part_number, part in enumerate(command.parts):
        try:
            parts.append(ends.place(part, index, part_number))
        except RejectedError as error:  # of this part alone: others wrote the other ones
            parts.append(error)
    return Decision(Written(tuple(parts)), ends.changes())


def producer_write(state: State, index: int, command: commands.ProducerWrite) -> Decision:
    """Place the rows of a producer, or report where they were placed before."""
    producer = find_producer(state, command.producer, command.epoch, transactional=False)
    earlier = _find_repeat(state, command)
    if earlier is not None:
        return Decision(Written((earlier,), duplicate=True), [])
    ends = PartitionEnds(state)
    placed = ends.place(command.part, index, 0)
    changes = ends.changes()
    for run, first in zip(placed, command.sequences, strict=True):
        key = (producer.id, run.topic, run.partition)
        before = state.sequences.get(key)
        batches = before.batches if before is not None and before.epoch == command.epoch else ()
        batches = (*batches, (first, run.records, run.base))[-limits.SEQUENCES_KEPT :]
        changes.append((state.sequences, key, Sequences(command.epoch, batches)))
    changes.append((state.producers, producer.id, producer._replace(seen_us=command.time_us)))
    return Decision(Written((placed,)), changes)


def _find_repeat(state: State, command: commands.ProducerWrite) -> tuple[Placed, ...] | None:
    """Return where a batch is that was written before; None if it is the next one."""
    if len(command.sequences) != len(command.part.runs):
        raise InvalidArgumentError("every run needs its sequence number")
    earlier: list[Placed] = []
    start = 0
    for run, first in zip(command.part.runs, command.sequences, strict=True):
        sequences = state.sequences.get((command.producer, command.part.topic, run.partition))
        batches: tuple[tuple[int, int, int], ...] = ()
        if sequences is not None and sequences.epoch == command.epoch:
            batches = sequences.batches
        expected = batches[-1][0] + batches[-1][1] if batches else 0
        base = {(sequence, count): where for sequence, count, where in batches}.get(
            (first, run.records)
        )
        if base is not None:
            earlier.append(
                Placed(command.part.topic, run.partition, base, run.records, start, 0, 0)
            )
        elif first != expected:
            raise SequenceGapError(
                "the batch does not follow the producer's last one",
                partition=run.partition,
                sequence=first,
                expected=expected,
            )
        start += run.records
    if earlier and len(earlier) < len(command.part.runs):
        raise SequenceGapError("only some of the batch was written before")
    return tuple(earlier) if earlier else None
