"""What producers and transactions change: registration, fencing, commit, abort, expiry."""

from __future__ import annotations

from lakebed import limits
from lakebed.errors import (
    FencedError,
    InvalidArgumentError,
    TransactionClosedError,
    TransactionTimedOutError,
)
from lakebed.state import commands
from lakebed.state.decide_groups import (
    check_group_owner,
    group_owners,
    set_offsets,
)
from lakebed.state.decide_producers import find_producer, register
from lakebed.state.decision import (
    GONE,
    TIMED_OUT,
    Change,
    Decision,
    Written,
    check_partition_id,
    check_room,
    find_topic,
)
from lakebed.state.image import State
from lakebed.state.partition_ends import PartitionEnds
from lakebed.state.values import (
    Marker,
    Pending,
    TransactionState,
    owner_of,
)


def begin_transaction(state: State, command: commands.BeginTransaction) -> Decision:
    """Begin a transaction, which aborts the open one of its name."""
    producer, changes = register(state, command.name, command.time_us, transactional=True)
    transaction = TransactionState(producer.id, producer.epoch, command.time_us, command.timeout_us)
    changes.append((state.transactions, producer.id, transaction))
    return Decision((producer.id, producer.epoch), changes)


def transaction_write(state: State, index: int, command: commands.TransactionWrite) -> Decision:
    """Add rows to an open transaction."""
    transaction = _open(state, command.producer, command.epoch, command.time_us)
    for part in command.parts:
        topic = find_topic(state, part.topic)
        for run in part.runs:
            check_partition_id(topic, run.partition)
    added = tuple(
        Pending(index, part_number, part) for part_number, part in enumerate(command.parts)
    )
    changed = transaction._replace(pending=transaction.pending + added)
    return Decision(None, [(state.transactions, command.producer, changed)])


def commit_transaction(state: State, index: int, command: commands.CommitTransaction) -> Decision:
    """Commit a transaction: place its rows, set its offsets."""
    transaction = _open(state, command.producer, command.epoch, command.time_us)
    ends = PartitionEnds(state)
    added = tuple(
        Pending(index, part_number, part) for part_number, part in enumerate(command.parts)
    )
    parts = [
        ends.place(rows.part, rows.index, rows.number) for rows in (*transaction.pending, *added)
    ]
    changes = ends.changes()
    changes += _with_offsets(state, command, ends)
    changes += _end(state, transaction, "committed", command.time_us)
    return Decision(Written(tuple(parts)), changes)


def _with_offsets(
    state: State, command: commands.CommitTransaction | commands.CommitTogether, ends: PartitionEnds
) -> list[Change]:
    """Return the changes of the consumer offsets that commit with transactions."""
    changes: list[Change] = []
    groups = {group: group_owners(state, group) for group, *_ in command.offsets}
    for group, member, topic, partition, offset in command.offsets:
        check_group_owner(groups[group], group, member, (topic, partition))
        changes += set_offsets(state, group, topic, partition, offset, command.time_us, ends)
    return changes


def commit_together(state: State, _index: int, command: commands.CommitTogether) -> Decision:
    """Commit many transactions at once."""
    producers = [producer for producer, _ in command.transactions]
    if len(set(producers)) < len(producers):
        raise InvalidArgumentError("a transaction is named twice", name=command.name)
    marker = state.markers.get(command.name)
    if marker is not None and marker.number >= command.number:
        return Decision(Written((), duplicate=True), _drop_superseded(state, command))
    transactions = [_find_own(state, command, *identity) for identity in command.transactions]
    ends = PartitionEnds(state)
    parts = [
        ends.place(rows.part, rows.index, rows.number)
        for transaction in transactions
        for rows in transaction.pending
    ]
    changes = ends.changes()
    changes += _with_offsets(state, command, ends)
    changes += _set_marker(state, command)
    for transaction in transactions:
        changes += _end(state, transaction, "committed", command.time_us)
    return Decision(Written(tuple(parts)), changes)


def _find_own(
    state: State, command: commands.CommitTogether, producer_id: int, epoch: int
) -> TransactionState:
    """Return an open transaction of the one who commits: nobody else's name says what counts."""
    transaction = _open(state, producer_id, epoch, command.time_us)
    if state.producers[producer_id].owner != owner_of(command.name):
        raise FencedError("the transaction belongs to another client", producer=producer_id)
    return transaction


def _drop_superseded(state: State, command: commands.CommitTogether) -> list[Change]:
    """Drop what a repeat names and is still open: what counts was committed before."""
    changes: list[Change] = []
    for producer_id, epoch in command.transactions:
        transaction = state.transactions.get(producer_id)
        if transaction is None or transaction.epoch != epoch:
            continue
        if state.producers[producer_id].owner == owner_of(command.name):
            changes += _end(state, transaction, "aborted", command.time_us)
    return changes


def _set_marker(state: State, command: commands.CommitTogether) -> list[Change]:
    """Set the marker of a commit, and forget those that nobody will ask for any more."""
    old = sorted(name for name in state.markers.over(command.time_us) if name != command.name)
    if command.name not in state.markers:
        check_room("markers", len(state.markers) - len(old), limits.MARKERS_MAX)
    changes: list[Change] = [(state.markers, name, GONE) for name in old]
    marker = Marker(command.number, command.time_us, command.keep_us)
    changes.append((state.markers, command.name, marker))
    return changes


def abort_transaction(state: State, command: commands.AbortTransaction) -> Decision:
    """Abort a transaction."""
    transaction = state.transactions.get(command.producer)
    if transaction is None or transaction.epoch != command.epoch:
        return Decision(None, [])
    seen_us = state.producers[command.producer].seen_us
    return Decision(None, _end(state, transaction, command.reason, seen_us))


def _end(state: State, transaction: TransactionState, outcome: str, time_us: int) -> list[Change]:
    producer = state.producers[transaction.producer]
    ended = producer._replace(seen_us=time_us, outcome=outcome)
    # One without a name is not heard of again, unless it has to learn that it was too late.
    nameless = not producer.named and outcome != TIMED_OUT
    return [
        (state.transactions, producer.id, GONE),
        (state.producers, producer.id, GONE if nameless else ended),
    ]


def _open(state: State, producer_id: int, epoch: int, time_us: int) -> TransactionState:
    """Return an open transaction that this epoch may still write to."""
    producer = find_producer(state, producer_id, epoch, transactional=True)
    transaction = state.transactions.get(producer_id)
    if transaction is None:
        if producer.outcome == TIMED_OUT:
            raise TransactionTimedOutError("the transaction timed out", name=producer.name)
        raise TransactionClosedError(
            "the transaction is not open", name=producer.name, outcome=producer.outcome or "none"
        )
    if time_us > transaction.started_us + transaction.timeout_us:
        raise TransactionTimedOutError(
            "the transaction timed out",
            name=producer.name,
            timeout_ms=transaction.timeout_us // 1000,
        )
    return transaction
