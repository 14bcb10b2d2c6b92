"""What commands on producers change: registration, fencing, expiry."""

from __future__ import annotations

from lakebed.errors import (
    FencedError,
    InvalidArgumentError,
)
from lakebed.state import commands
from lakebed.state.decision import (
    GONE,
    Change,
    Decision,
)
from lakebed.state.image import State
from lakebed.state.values import (
    ProducerState,
)


def register(
    state: State, name: str, time_us: int, *, transactional: bool
) -> tuple[ProducerState, list[Change]]:
    """Return a producer with a new epoch, and the changes that make it so."""
    producer_id = state.producer_names.get((transactional, name))
    if producer_id is None:
        producer_id = state.numbers["producer"]
        producer = ProducerState(producer_id, name, 1, time_us, transactional)
        changes: list[Change] = [(state.numbers, "producer", producer_id + 1)]
        if producer.named:
            changes.append((state.producer_names, (transactional, name), producer_id))
    else:
        before = state.producers[producer_id]
        producer = before._replace(epoch=before.epoch + 1, seen_us=time_us)
        changes = []
    changes.append((state.producers, producer_id, producer))
    return producer, changes


def register_producer(state: State, command: commands.RegisterProducer) -> Decision:
    """Register a producer, which fences the one before it."""
    producer, changes = register(state, command.name, command.time_us, transactional=False)
    return Decision((producer.id, producer.epoch), changes)


def find_producer(
    state: State, producer_id: int, epoch: int, *, transactional: bool
) -> ProducerState:
    """Return a producer, or raise if its id or epoch is not current."""
    producer = state.producers.get(producer_id)
    if producer is None:
        raise FencedError("the producer is unknown, or has expired", producer=producer_id)
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


def forget_producer(state: State, command: commands.ForgetProducer) -> Decision:
    """Remove a producer that its owner has closed."""
    producer = state.producers.get(command.producer)
    if producer is None or producer.epoch != command.epoch or producer.id in state.transactions:
        return Decision(None, [])
    return Decision(None, _forgotten(state, {producer.id: producer}))


def _forgotten(state: State, gone: dict[int, ProducerState]) -> list[Change]:
    changes: list[Change] = []
    for producer in gone.values():
        changes.append((state.producers, producer.id, GONE))
        if producer.named:
            changes.append((state.producer_names, (producer.transactional, producer.name), GONE))
    changes += [(state.sequences, key, GONE) for key in state.sequences if key[0] in gone]
    return changes


def expire_producers(state: State, command: commands.ExpireProducers) -> Decision:
    """Remove producers that were not used for long."""
    old = {
        producer.id: producer
        for producer in state.producers.values()
        if producer.seen_us < command.before_us and producer.id not in state.transactions
    }
    return Decision(len(old), _forgotten(state, old))
