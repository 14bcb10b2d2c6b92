"""The state machine: commands in, a result and a list of changes out.

Deciding and changing are two steps. `decide` reads the state and gives what is to become of it as a
list of changes, each of which puts a value into a dictionary or takes one out. It changes nothing,
so a command that is refused leaves nothing behind. Carrying changes out twice gives the same state
as once: an exception that strikes in the middle (Ctrl-C) costs nothing but doing it again.

Nothing here asks for the time, draws a number or looks at a disk: the same commands give the same
state, on any machine.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

from lakebed import limits
from lakebed.errors import (
    FencedError,
    GroupNotEmptyError,
    GroupNotFoundError,
    InvalidArgumentError,
    OffsetOutOfRangeError,
    PartitionNotFoundError,
    RejectedError,
    SchemaChangeError,
    SequenceGapError,
    TopicExistsError,
    TopicNotFoundError,
    TransactionClosedError,
    TransactionTimedOutError,
)
from lakebed.state import commands
from lakebed.state.image import State
from lakebed.state.values import (
    Committed,
    Group,
    Marker,
    Part,
    Partition,
    Pending,
    Producer,
    Segment,
    Sequences,
    Token,
    Topic,
    Transaction,
    owner_of,
)

TIMED_OUT: Final = "timed out"
"""The outcome of a transaction that was open for too long."""

GONE: Final = object()
"""The value of a change that takes a key out."""

Change = tuple[Any, Any, Any]
"""A dictionary (or what takes values like one), a key, and the value to put there."""


class Placed(NamedTuple):
    """Rows of a part that got their offsets."""

    topic: int
    partition: int
    base: int
    records: int
    start: int
    """The first row in the part's batch."""
    index: int  # type: ignore[assignment]  # as in Pending
    number: int
    """The entry and the part that hold the batch."""


class Written(NamedTuple):
    """What a write came to: where its rows are, part by part."""

    parts: tuple[tuple[Placed, ...] | RejectedError, ...]
    duplicate: bool = False
    """It was a repeat: the rows are where the first one put them."""


Dropped = tuple[int, int, int]
"""Topic, partition and id of a segment."""


class Decision(NamedTuple):
    """What is to become of the state, and what the caller is told."""

    result: Any
    changes: list[Change]
    dropped: tuple[Dropped, ...] = ()
    """Segments whose files are not needed any more."""


def decide(state: State, index: int, command: commands.Command) -> Decision:
    """Decide on a command, or raise `RejectedError`. The state is only read."""
    placer = _PLACERS.get(type(command))
    if placer is not None:
        return placer(state, index, command)
    return _DECIDERS[type(command)](state, command)


def carry_out(changes: list[Change]) -> None:
    """Make changes; a second time does no harm."""
    for target, key, value in changes:
        if value is GONE:
            target.pop(key, None)
        else:
            target[key] = value


# Topics


def _create_topic(state: State, command: commands.CreateTopic) -> Decision:
    if command.name in state.names:
        raise TopicExistsError("the topic exists", topic=command.name)
    if len(state.topics) >= limits.TOPICS_MAX:
        raise InvalidArgumentError("there are too many topics", topics_max=limits.TOPICS_MAX)
    number = state.numbers["topic"]
    schemas = (command.schema,) if command.schema else ()
    topic = Topic(
        number, command.name, command.partitions, schemas, command.config, command.time_us
    )
    changes: list[Change] = [(state.topics, number, topic), (state.names, topic.name, number)]
    changes += [
        (state.partitions, (number, each), Partition()) for each in range(command.partitions)
    ]
    changes.append((state.numbers, "topic", number + 1))
    return Decision(number, changes)


def _alter_topic(state: State, command: commands.AlterTopic) -> Decision:
    topic = _topic(state, command.topic)
    if len(topic.schemas) != command.schemas:
        raise SchemaChangeError("the schema was changed concurrently", topic=topic.name)
    schemas = (*topic.schemas, command.schema) if command.schema else topic.schemas
    changed = topic._replace(config=command.config, schemas=schemas)
    return Decision(None, [(state.topics, topic.id, changed)])


def _add_partitions(state: State, command: commands.AddPartitions) -> Decision:
    topic = _topic(state, command.topic)
    if command.partitions < topic.partitions:
        raise InvalidArgumentError(
            "a topic's partitions can only grow",
            topic=topic.name,
            partitions=topic.partitions,
            wanted=command.partitions,
        )
    changes: list[Change] = [
        (state.partitions, (topic.id, each), Partition())
        for each in range(topic.partitions, command.partitions)
    ]
    changes.append((state.topics, topic.id, topic._replace(partitions=command.partitions)))
    return Decision(None, changes)


def _delete_topic(state: State, command: commands.DeleteTopic) -> Decision:
    topic = _topic(state, command.topic)
    changes: list[Change] = [(state.topics, topic.id, GONE), (state.names, topic.name, GONE)]
    dropped: list[Dropped] = []
    for each in range(topic.partitions):
        key = (topic.id, each)
        changes.append((state.partitions, key, GONE))
        dropped += [(*key, old.id) for old in state.partitions[key].segments]
    changes += [(state.sequences, key, GONE) for key in state.sequences if key[1] == topic.id]
    changes += [(state.offsets, key, GONE) for key in state.offsets if key[1] == topic.id]
    for name, group in state.groups.items():
        owners = tuple(owner for owner in group.owners if owner[0] != topic.id)
        if owners != group.owners:
            changes.append((state.groups, name, Group(group.generation + 1, owners)))
    return Decision(None, changes, tuple(dropped))


def _purge_topic(state: State, command: commands.PurgeTopic) -> Decision:
    topic = _topic(state, command.topic)
    lows = {each: state.partitions[(topic.id, each)].end for each in range(topic.partitions)}
    return _trimmed(state, topic, lows)


def _trim(state: State, command: commands.Trim) -> Decision:
    topic = _topic(state, command.topic)
    for each, _ in command.lows:
        _partition(topic, each)
    return _trimmed(state, topic, dict(command.lows))


def _trimmed(state: State, topic: Topic, lows: dict[int, int]) -> Decision:
    """Raise low watermarks; segments below them are not needed any more."""
    changes: list[Change] = []
    dropped: list[Dropped] = []
    for each, wanted in lows.items():
        key = (topic.id, each)
        partition = state.partitions[key]
        low = max(partition.low, min(wanted, partition.end))
        kept = tuple(segment for segment in partition.segments if segment.end > low)
        gone = partition.segments[: len(partition.segments) - len(kept)]
        dropped += [(*key, segment.id) for segment in gone]
        flushed = max(partition.flushed, low)
        changed = partition._replace(low=low, flushed=flushed, segments=kept)
        changes.append((state.partitions, key, changed))
    return Decision(None, changes, tuple(dropped))


# Writing


class _Ends:
    """Partitions as the runs of one command leave them, one after another."""

    def __init__(self, state: State) -> None:
        self._state = state
        self.ends: dict[tuple[int, int], int] = {}

    def place(self, part: Part, index: int, number: int) -> tuple[Placed, ...]:
        """Return each run of a part its offsets."""
        topic = _topic(self._state, part.topic)
        if part.schema and part.schema > len(topic.schemas):
            raise SchemaChangeError("the topic does not have this schema version", topic=topic.name)
        for run in part.runs:
            _partition(topic, run.partition)
        placed, start = [], 0
        for run in part.runs:
            key = (part.topic, run.partition)
            base = self.ends.get(key)
            if base is None:
                base = self._state.partitions[key].end
            placed.append(Placed(*key, base, run.records, start, index, number))
            self.ends[key] = base + run.records
            start += run.records
        return tuple(placed)

    def changes(self) -> list[Change]:
        """Return the changes of the partitions."""
        partitions = self._state.partitions
        return [
            (partitions, key, partitions[key]._replace(end=end)) for key, end in self.ends.items()
        ]


def _write(state: State, index: int, command: commands.Write) -> Decision:
    ends = _Ends(state)
    parts: list[tuple[Placed, ...] | RejectedError] = []
    for number, part in enumerate(command.parts):
        try:
            parts.append(ends.place(part, index, number))
        except RejectedError as error:  # of this part alone: others wrote the other ones
            parts.append(error)
    return Decision(Written(tuple(parts)), ends.changes())


def _producer_write(state: State, index: int, command: commands.ProducerWrite) -> Decision:
    producer = _producer(state, command.producer, command.epoch, transactional=False)
    known = _repeated(state, command)
    if known is not None:
        return Decision(Written((known,), duplicate=True), [])
    ends = _Ends(state)
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


def _repeated(state: State, command: commands.ProducerWrite) -> tuple[Placed, ...] | None:
    """Return where a batch is that was written before; None if it is the next one."""
    if len(command.sequences) != len(command.part.runs):
        raise InvalidArgumentError("every run needs its sequence number")
    found: list[Placed] = []
    start = 0
    for run, first in zip(command.part.runs, command.sequences, strict=True):
        sequences = state.sequences.get((command.producer, command.part.topic, run.partition))
        batches: tuple[tuple[int, int, int], ...] = ()
        if sequences is not None and sequences.epoch == command.epoch:
            batches = sequences.batches
        expected = batches[-1][0] + batches[-1][1] if batches else 0
        base = {(at, count): where for at, count, where in batches}.get((first, run.records))
        if base is not None:
            found.append(Placed(command.part.topic, run.partition, base, run.records, start, 0, 0))
        elif first != expected:
            raise SequenceGapError(
                "the batch does not follow the producer's last one",
                partition=run.partition,
                sequence=first,
                expected=expected,
            )
        start += run.records
    if found and len(found) < len(command.part.runs):
        raise SequenceGapError("only some of the batch was written before")
    return tuple(found) if found else None


# Producers and transactions


def _register(
    state: State, name: str, time_us: int, *, transactional: bool
) -> tuple[Producer, list[Change]]:
    number = state.producer_names.get((transactional, name))
    if number is None:
        number = state.numbers["producer"]
        producer = Producer(number, name, 1, time_us, transactional)
        changes: list[Change] = [(state.numbers, "producer", number + 1)]
        if producer.named:
            changes.append((state.producer_names, (transactional, name), number))
    else:
        before = state.producers[number]
        producer = before._replace(epoch=before.epoch + 1, seen_us=time_us)
        changes = []
    changes.append((state.producers, number, producer))
    return producer, changes


def _register_producer(state: State, command: commands.RegisterProducer) -> Decision:
    producer, changes = _register(state, command.name, command.time_us, transactional=False)
    return Decision((producer.id, producer.epoch), changes)


def _begin(state: State, command: commands.BeginTransaction) -> Decision:
    producer, changes = _register(state, command.name, command.time_us, transactional=True)
    transaction = Transaction(producer.id, producer.epoch, command.time_us, command.timeout_us)
    changes.append((state.transactions, producer.id, transaction))
    return Decision((producer.id, producer.epoch), changes)


def _transaction_write(state: State, index: int, command: commands.TransactionWrite) -> Decision:
    transaction = _open(state, command.producer, command.epoch, command.time_us)
    for part in command.parts:
        topic = _topic(state, part.topic)
        for run in part.runs:
            _partition(topic, run.partition)
    added = tuple(Pending(index, number, part) for number, part in enumerate(command.parts))
    changed = transaction._replace(pending=transaction.pending + added)
    return Decision(None, [(state.transactions, command.producer, changed)])


def _commit(state: State, index: int, command: commands.CommitTransaction) -> Decision:
    transaction = _open(state, command.producer, command.epoch, command.time_us)
    ends = _Ends(state)
    added = tuple(Pending(index, number, part) for number, part in enumerate(command.parts))
    parts = [
        ends.place(each.part, each.index, each.number) for each in (*transaction.pending, *added)
    ]
    changes = ends.changes()
    changes += _with_offsets(state, command, ends)
    changes += _ended(state, transaction, "committed", command.time_us)
    return Decision(Written(tuple(parts)), changes)


def _with_offsets(
    state: State, command: commands.CommitTransaction | commands.CommitTogether, ends: _Ends
) -> list[Change]:
    """Return the changes of the consumer offsets that commit with transactions."""
    changes: list[Change] = []
    groups = {group: _owners(state, group) for group, *_ in command.offsets}
    for group, member, topic, partition, offset in command.offsets:
        _check_owner(groups[group], group, member, (topic, partition))
        changes += _committed(state, group, topic, partition, offset, command.time_us, ends)
    return changes


def _commit_together(state: State, _index: int, command: commands.CommitTogether) -> Decision:
    producers = [producer for producer, _ in command.transactions]
    if len(set(producers)) < len(producers):
        raise InvalidArgumentError("a transaction is named twice", name=command.name)
    marker = state.markers.get(command.name)
    if marker is not None and marker.number >= command.number:
        return Decision(Written((), duplicate=True), _superseded(state, command))
    transactions = [_named(state, command, *each) for each in command.transactions]
    ends = _Ends(state)
    parts = [
        ends.place(each.part, each.index, each.number)
        for transaction in transactions
        for each in transaction.pending
    ]
    changes = ends.changes()
    changes += _with_offsets(state, command, ends)
    changes += _marked(state, command)
    for transaction in transactions:
        changes += _ended(state, transaction, "committed", command.time_us)
    return Decision(Written(tuple(parts)), changes)


def _named(state: State, command: commands.CommitTogether, number: int, epoch: int) -> Transaction:
    """Return an open transaction of the one who commits: nobody else's name says what counts."""
    transaction = _open(state, number, epoch, command.time_us)
    if state.producers[number].owner != owner_of(command.name):
        raise FencedError("the transaction belongs to another client", producer=number)
    return transaction


def _superseded(state: State, command: commands.CommitTogether) -> list[Change]:
    """Drop what a repeat names and is still open: what counts was committed before."""
    changes: list[Change] = []
    for number, epoch in command.transactions:
        transaction = state.transactions.get(number)
        if transaction is None or transaction.epoch != epoch:
            continue
        if state.producers[number].owner == owner_of(command.name):
            changes += _ended(state, transaction, "aborted", command.time_us)
    return changes


def _marked(state: State, command: commands.CommitTogether) -> list[Change]:
    """Set the marker of a commit, and forget those that nobody will ask for any more."""
    old = sorted(name for name in state.markers.over(command.time_us) if name != command.name)
    if command.name not in state.markers:
        _check_room("markers", len(state.markers) - len(old), limits.MARKERS_MAX)
    changes: list[Change] = [(state.markers, name, GONE) for name in old]
    marker = Marker(command.number, command.time_us, command.keep_us)
    changes.append((state.markers, command.name, marker))
    return changes


def _abort(state: State, command: commands.AbortTransaction) -> Decision:
    transaction = state.transactions.get(command.producer)
    if transaction is None or transaction.epoch != command.epoch:
        return Decision(None, [])
    seen_us = state.producers[command.producer].seen_us
    return Decision(None, _ended(state, transaction, command.reason, seen_us))


def _ended(state: State, transaction: Transaction, outcome: str, time_us: int) -> list[Change]:
    producer = state.producers[transaction.producer]
    ended = producer._replace(seen_us=time_us, outcome=outcome)
    # One without a name is not heard of again, unless it has to learn that it was too late.
    nameless = not producer.named and outcome != TIMED_OUT
    return [
        (state.transactions, producer.id, GONE),
        (state.producers, producer.id, GONE if nameless else ended),
    ]


def _open(state: State, number: int, epoch: int, time_us: int) -> Transaction:
    """Return an open transaction that this epoch may still write to."""
    producer = _producer(state, number, epoch, transactional=True)
    transaction = state.transactions.get(number)
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


def _producer(state: State, number: int, epoch: int, *, transactional: bool) -> Producer:
    producer = state.producers.get(number)
    if producer is None:
        raise FencedError("the producer is unknown, or has expired", producer=number)
    if producer.epoch != epoch:
        raise FencedError(
            "another client has taken over this name",
            name=producer.name,
            epoch=epoch,
            current=producer.epoch,
        )
    if producer.transactional is not transactional:
        raise InvalidArgumentError("the producer is of another kind", name=producer.name)
    return producer


def _forget(state: State, command: commands.ForgetProducer) -> Decision:
    producer = state.producers.get(command.producer)
    if producer is None or producer.epoch != command.epoch or producer.id in state.transactions:
        return Decision(None, [])
    return Decision(None, _forgotten(state, {producer.id: producer}))


def _forgotten(state: State, gone: dict[int, Producer]) -> list[Change]:
    changes: list[Change] = []
    for producer in gone.values():
        changes.append((state.producers, producer.id, GONE))
        if producer.named:
            changes.append((state.producer_names, (producer.transactional, producer.name), GONE))
    changes += [(state.sequences, key, GONE) for key in state.sequences if key[0] in gone]
    return changes


def _expire(state: State, command: commands.ExpireProducers) -> Decision:
    old = {
        producer.id: producer
        for producer in state.producers.values()
        if producer.seen_us < command.before_us and producer.id not in state.transactions
    }
    return Decision(len(old), _forgotten(state, old))


# Consumer groups


def _commit_offsets(state: State, command: commands.CommitOffsets) -> Decision:
    changes: list[Change] = []
    ends = _Ends(state)
    owners = _owners(state, command.group)
    for topic, partition, offset in command.offsets:
        _check_owner(owners, command.group, command.member, (topic, partition))
        changes += _committed(state, command.group, topic, partition, offset, command.time_us, ends)
    return Decision(None, changes)


def _committed(
    state: State, group: str, topic: int, partition: int, offset: int, time_us: int, ends: _Ends
) -> list[Change]:
    key = (topic, partition)
    found = _topic(state, topic)
    _partition(found, partition)
    end = ends.ends.get(key, state.partitions[key].end)
    if offset > end:
        raise OffsetOutOfRangeError(
            "cannot commit beyond the end",
            topic=found.name,
            partition=partition,
            offset=offset,
            end=end,
        )
    changes: list[Change] = [(state.offsets, (group, *key), Committed(offset, time_us))]
    if group not in state.groups:
        changes.append((state.groups, group, Group()))
    return changes


def _owners(state: State, group: str) -> dict[tuple[int, int], str]:
    return {owner[:2]: owner[2] for owner in state.groups.get(group, Group()).owners}


def _check_owner(
    owners: dict[tuple[int, int], str], group: str, member: str, key: tuple[int, int]
) -> None:
    """Refuse a member that does not hold the partition (any more); no member means no check."""
    owner = owners.get(key)
    if member and owner != member:
        raise FencedError(
            "the partition is no longer assigned to this consumer",
            group=group,
            partition=key[1],
            member=member,
            owner=owner,
        )


def _change_group(state: State, command: commands.ChangeGroup) -> Decision:
    group = state.groups.get(command.group, Group())
    owners = tuple(owner for owner in command.owners if owner[0] in state.topics)
    changed = Group(group.generation + 1, owners)
    return Decision(changed.generation, [(state.groups, command.group, changed)])


def _delete_group(state: State, command: commands.DeleteGroup) -> Decision:
    group = state.groups.get(command.group)
    if group is None:
        raise GroupNotFoundError(f"group {command.group!r} does not exist", group=command.group)
    if group.owners:
        raise GroupNotEmptyError("the group has members", group=command.group)
    changes: list[Change] = [(state.groups, command.group, GONE)]
    changes += [(state.offsets, key, GONE) for key in state.offsets if key[0] == command.group]
    return Decision(None, changes)


# Files


def _flush(state: State, command: commands.Flush) -> Decision:
    """Take segments over. Those that the state holds already, or has outlived, change nothing."""
    grown: dict[tuple[int, int], Partition] = {}
    dropped: list[Dropped] = []
    for topic, number, segment in command.added:
        key = (topic, number)
        partition = grown.get(key) or state.partitions.get(key)
        if partition is not None and segment.end > partition.flushed:
            grown[key] = partition._replace(
                flushed=segment.end, segments=(*partition.segments, segment)
            )
        elif partition is None or segment.id not in {each.id for each in partition.segments}:
            dropped.append((*key, segment.id))
    changes: list[Change] = [(state.partitions, key, each) for key, each in grown.items()]
    for staged in command.staged:
        changes += _stage(state, staged)
    segments = _next([each[2].id for each in command.added], state.numbers["segment"])
    stages = _next([each.id for each in command.staged], state.numbers["staged"])
    changes += [(state.numbers, "segment", segments), (state.numbers, "staged", stages)]
    return Decision(None, changes, tuple(dropped))


def _next(taken: list[int], following: int) -> int:
    return max([following, *(each + 1 for each in taken)])


def _stage(state: State, staged: commands.StagedFile) -> list[Change]:
    transaction = state.transactions.get(staged.producer)
    if transaction is None or transaction.epoch != staged.epoch:
        return []
    places = {(index, number): rest for index, number, *rest in staged.bodies}
    pending = tuple(
        each._replace(
            staged=staged.id,
            position=places[(each.index, each.number)][0],
            checksum=places[(each.index, each.number)][1],
        )
        if (each.index, each.number) in places
        else each
        for each in transaction.pending
    )
    return [(state.transactions, staged.producer, transaction._replace(pending=pending))]


def _replace(state: State, command: commands.ReplaceSegments) -> Decision:
    key = (command.topic, command.partition)
    following = _next([each.id for each in command.added], state.numbers["segment"])
    changes: list[Change] = [(state.numbers, "segment", following)]
    partition = state.partitions.get(key)
    if partition is not None and not command.removed:
        compacted_to = max(partition.compacted_to, command.compacted_to)
        changes.append((state.partitions, key, partition._replace(compacted_to=compacted_to)))
        return Decision(True, changes)
    ids = [] if partition is None else [each.id for each in partition.segments]
    first = (
        ids.index(command.removed[0]) if command.removed[:1] and command.removed[0] in ids else -1
    )
    last = first + len(command.removed)
    if partition is None or first < 0 or tuple(ids[first:last]) != command.removed:
        # The old ones went meanwhile, so what was made of them is not needed.
        return Decision(False, changes, tuple((*key, each.id) for each in command.added))
    old: tuple[Segment, ...] = partition.segments
    changed = partition._replace(
        segments=(*old[:first], *command.added, *old[last:]),
        compacted_to=max(partition.compacted_to, command.compacted_to),
    )
    changes.append((state.partitions, key, changed))
    return Decision(True, changes, tuple((*key, each) for each in command.removed))


def _place(state: State, command: commands.PlaceSegments) -> Decision:
    """Note where files are. A place only ever changes from local to both to the store."""
    wanted: dict[tuple[int, int], dict[int, int]] = {}
    for topic, number, segment, place in command.placed:
        wanted.setdefault((topic, number), {})[segment] = place
    changes: list[Change] = []
    count = 0
    for key, places in wanted.items():
        partition = state.partitions.get(key)
        if partition is None:
            continue
        segments, moved = list(partition.segments), False
        for at, each in enumerate(partition.segments):
            if each.id not in places:
                continue
            count += 1
            if places[each.id] > each.place:
                segments[at], moved = each._replace(place=places[each.id]), True
        if moved:
            changed = partition._replace(segments=tuple(segments))
            changes.append((state.partitions, key, changed))
    return Decision(count, changes)


# Access


def _put_token(state: State, command: commands.PutToken) -> Decision:
    if command.id in state.tokens:
        raise InvalidArgumentError("the token exists", token=command.id)
    kept_from_us = command.created_us - limits.TOKEN_KEPT_US
    old = [token.id for token in state.tokens.values() if 0 < token.ended_us() < kept_from_us]
    _check_room("tokens", len(state.tokens) - len(old), limits.TOKENS_MAX)
    changes: list[Change] = [(state.tokens, each, GONE) for each in old]
    changes.append((state.tokens, command.id, Token(*command)))
    return Decision(None, changes)


def _revoke_token(state: State, command: commands.RevokeToken) -> Decision:
    token = state.tokens.get(command.id)
    if token is None:
        raise InvalidArgumentError("the token does not exist", token=command.id)
    if token.revoked_us:
        return Decision(None, [])
    # At least 1: 0 would mean that it was not revoked.
    revoked = token._replace(revoked_us=max(1, command.time_us))
    return Decision(None, [(state.tokens, token.id, revoked)])


def _set_rule(state: State, command: commands.SetRule) -> Decision:
    key = (command.role, command.action, command.pattern)
    return _set_access(state, state.rules, key, command.present, "rules", limits.RULES_MAX)


def _set_grant(state: State, command: commands.SetGrant) -> Decision:
    key = (command.principal, command.role)
    return _set_access(state, state.grants, key, command.present, "grants", limits.GRANTS_MAX)


def _set_denial(state: State, command: commands.SetDenial) -> Decision:
    key = (command.role, command.action, command.pattern)
    return _set_access(state, state.denials, key, command.present, "denials", limits.RULES_MAX)


def _set_access(
    state: State, target: dict[Any, bool], key: Any, present: int, what: str, most: int
) -> Decision:
    if (key in target) == bool(present):
        return Decision(False, [])
    if present:
        _check_room(what, len(target), most)
    # The number last: whoever finds it unchanged has seen nothing of the change.
    changes = [
        (target, key, True if present else GONE),
        (state.numbers, "access", state.numbers["access"] + 1),
    ]
    return Decision(True, changes)


def _check_room(what: str, count: int, most: int) -> None:
    if count >= most:
        raise InvalidArgumentError(f"there are too many {what}", **{f"{what}_max": most})


def _topic(state: State, number: int) -> Topic:
    topic = state.topics.get(number)
    if topic is None:
        raise TopicNotFoundError("the topic was deleted", topic_id=number)
    return topic


def _partition(topic: Topic, partition: int) -> None:
    if not 0 <= partition < topic.partitions:
        raise PartitionNotFoundError(
            "the partition does not exist",
            topic=topic.name,
            partition=partition,
            partitions=topic.partitions,
        )


_PLACERS: Final[dict[type, Callable[[State, int, Any], Decision]]] = {
    commands.Write: _write,
    commands.ProducerWrite: _producer_write,
    commands.TransactionWrite: _transaction_write,
    commands.CommitTransaction: _commit,
    commands.CommitTogether: _commit_together,
}
"""Those that put batches somewhere, and so must know in which entry they are."""

_DECIDERS: Final[dict[type, Callable[[State, Any], Decision]]] = {
    commands.CreateTopic: _create_topic,
    commands.AlterTopic: _alter_topic,
    commands.AddPartitions: _add_partitions,
    commands.DeleteTopic: _delete_topic,
    commands.PurgeTopic: _purge_topic,
    commands.RegisterProducer: _register_producer,
    commands.BeginTransaction: _begin,
    commands.AbortTransaction: _abort,
    commands.ExpireProducers: _expire,
    commands.ForgetProducer: _forget,
    commands.CommitOffsets: _commit_offsets,
    commands.ChangeGroup: _change_group,
    commands.DeleteGroup: _delete_group,
    commands.Flush: _flush,
    commands.ReplaceSegments: _replace,
    commands.Trim: _trim,
    commands.PlaceSegments: _place,
    commands.PutToken: _put_token,
    commands.RevokeToken: _revoke_token,
    commands.SetRule: _set_rule,
    commands.SetGrant: _set_grant,
    commands.SetDenial: _set_denial,
}
