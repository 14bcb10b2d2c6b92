"""What commands on files change: flushed, replaced and moved segments, staged data."""

from __future__ import annotations

from lakebed.state import commands
from lakebed.state.decision import (
    Change,
    Decision,
    Dropped,
)
from lakebed.state.image import State
from lakebed.state.values import (
    Partition,
    Segment,
)


def flush(state: State, command: commands.Flush) -> Decision:
    """Take segments over. Those that the state holds already, or has outlived, change nothing."""
    grown: dict[tuple[int, int], Partition] = {}
    dropped: list[Dropped] = []
    for topic, partition_id, segment in command.added:
        key = (topic, partition_id)
        partition = grown.get(key) or state.partitions.get(key)
        if partition is not None and segment.end > partition.flushed:
            grown[key] = partition._replace(
                flushed=segment.end, segments=(*partition.segments, segment)
            )
        elif partition is None or segment.id not in {present.id for present in partition.segments}:
            dropped.append((*key, segment.id))
    changes: list[Change] = [(state.partitions, key, changed) for key, changed in grown.items()]
    for staged in command.staged:
        changes += _stage(state, staged)
    segments = _next([added[2].id for added in command.added], state.numbers["segment"])
    stages = _next([staged.id for staged in command.staged], state.numbers["staged"])
    changes += [(state.numbers, "segment", segments), (state.numbers, "staged", stages)]
    return Decision(None, changes, tuple(dropped))


def _next(taken: list[int], following: int) -> int:
    return max([following, *(used + 1 for used in taken)])


def _stage(state: State, staged: commands.StagedFile) -> list[Change]:
    transaction = state.transactions.get(staged.producer)
    if transaction is None or transaction.epoch != staged.epoch:
        return []
    places = {(index, part_number): rest for index, part_number, *rest in staged.bodies}
    pending = tuple(
        rows._replace(
            staged=staged.id,
            position=places[(rows.index, rows.number)][0],
            checksum=places[(rows.index, rows.number)][1],
        )
        if (rows.index, rows.number) in places
        else rows
        for rows in transaction.pending
    )
    return [(state.transactions, staged.producer, transaction._replace(pending=pending))]


def replace_segments(state: State, command: commands.ReplaceSegments) -> Decision:
    """Replace segments of a partition by others."""
    key = (command.topic, command.partition)
    following = _next([segment.id for segment in command.added], state.numbers["segment"])
    changes: list[Change] = [(state.numbers, "segment", following)]
    partition = state.partitions.get(key)
    if partition is not None and not command.removed:
        compacted_to = max(partition.compacted_to, command.compacted_to)
        changes.append((state.partitions, key, partition._replace(compacted_to=compacted_to)))
        return Decision(True, changes)
    ids = [] if partition is None else [segment.id for segment in partition.segments]
    first = (
        ids.index(command.removed[0]) if command.removed[:1] and command.removed[0] in ids else -1
    )
    last = first + len(command.removed)
    if partition is None or first < 0 or tuple(ids[first:last]) != command.removed:
        # The old ones went meanwhile, so what was made of them is not needed.
        return Decision(False, changes, tuple((*key, segment.id) for segment in command.added))
    old: tuple[Segment, ...] = partition.segments
    changed = partition._replace(
        segments=(*old[:first], *command.added, *old[last:]),
        compacted_to=max(partition.compacted_to, command.compacted_to),
    )
    changes.append((state.partitions, key, changed))
    return Decision(True, changes, tuple((*key, segment_id) for segment_id in command.removed))


def place_segments(state: State, command: commands.PlaceSegments) -> Decision:
    """Note where files are. A place only ever changes from local to both to the store."""
    wanted: dict[tuple[int, int], dict[int, int]] = {}
    for topic, partition_id, segment_id, where in command.placed:
        wanted.setdefault((topic, partition_id), {})[segment_id] = where
    changes: list[Change] = []
    count = 0
    for key, places in wanted.items():
        partition = state.partitions.get(key)
        if partition is None:
            continue
        segments, moved = list(partition.segments), False
        for position, segment in enumerate(partition.segments):
            if segment.id not in places:
                continue
            count += 1
            if places[segment.id] > segment.place:
                segments[position], moved = segment._replace(place=places[segment.id]), True
        if moved:
            changed = partition._replace(segments=tuple(segments))
            changes.append((state.partitions, key, changed))
    return Decision(count, changes)
