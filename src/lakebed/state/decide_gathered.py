"""What writes of many producers in one entry change.

Every run stands alone: one that is refused, or was written before, leaves the others. The rules for
a run with a claim are Kafka's. A run that is among the last ones of its producer in the partition
is a repeat. The next one has to follow the last one, modulo 2^31; of a producer that is not known
in the partition any first sequence is accepted. A higher epoch of a producer without a name is
taken over if it begins at sequence 0: such a producer raises its epoch itself.
"""

from __future__ import annotations

from typing import Final

from lakebed import limits
from lakebed.errors import (
    FencedError,
    InvalidArgumentError,
    RejectedError,
    SequenceGapError,
)
from lakebed.state import commands
from lakebed.state.decision import Change, Decision, Placed, Written, check_partition_id
from lakebed.state.image import State
from lakebed.state.partition_ends import PartitionEnds
from lakebed.state.values import Part, ProducerState, Run, Sequences

SEQUENCE_MODULUS: Final = 1 << 31

_Claim = tuple[int, ...]
_Outcome = Placed | RejectedError


def write_many(state: State, index: int, command: commands.WriteMany) -> Decision:
    """Place the runs of many writers, each as if it were alone."""
    counts = [len(part.runs) for part in command.parts]
    if [len(claims) for claims in command.claims] != counts:
        raise InvalidArgumentError("every run needs its claim, which may be empty")
    placing = _Placing(state, index, command.time_us)
    outcomes = tuple(
        placing.place(part_number, part, claims)
        for part_number, (part, claims) in enumerate(
            zip(command.parts, command.claims, strict=True)
        )
    )
    return Decision(Written(tuple(placing.parts), runs=outcomes), placing.changes())


class _Placing:
    """State as the runs of one command leave it, one after another."""

    def __init__(self, state: State, index: int, time_us: int) -> None:
        self._state = state
        self._index = index
        self._time_us = time_us
        self._ends = PartitionEnds(state)
        self._producers: dict[int, ProducerState] = {}
        self._sequences: dict[tuple[int, int, int], Sequences] = {}
        self.parts: list[tuple[Placed, ...]] = []
        """The rows that are new, part by part; those that follow each other as one."""

    def place(
        self, part_number: int, part: Part, claims: tuple[_Claim, ...]
    ) -> tuple[_Outcome, ...]:
        """Place the runs of a part."""
        fresh: list[Placed] = []
        outcomes: list[_Outcome] = []
        start = 0
        for run, claim in zip(part.runs, claims, strict=True):
            try:
                placed, is_new = self._place_run(part_number, part, run, claim, start)
                outcomes.append(placed)
                if is_new:
                    _extend(fresh, placed)
            except RejectedError as error:  # of this run alone: others wrote the other ones
                outcomes.append(error)
            start += run.records
        self.parts.append(tuple(fresh))
        return tuple(outcomes)

    def _place_run(
        self, part_number: int, part: Part, run: Run, claim: _Claim, start: int
    ) -> tuple[Placed, bool]:
        """Return where a run is, and whether it is new."""
        check_partition_id(self._ends.check_part(part), run.partition)
        key = (part.topic, run.partition)
        if not claim:
            base = self._ends.take(key, run.records)
            return Placed(*key, base, run.records, start, self._index, part_number), True
        producer, epoch, first = claim
        current = self._check_producer(producer, epoch, first)
        batches = self._batches((producer, *key), epoch, first)
        for sequence, records, base in batches:
            if (sequence, records) == (first, run.records):
                return Placed(*key, base, run.records, start, 0, 0), False
        _check_follows(batches, first, run.partition)
        base = self._ends.take(key, run.records)
        kept = (*batches, (first, run.records, base))[-limits.SEQUENCES_KEPT :]
        self._sequences[(producer, *key)] = Sequences(epoch, kept)
        self._producers[producer] = current._replace(epoch=epoch, seen_us=self._time_us)
        return Placed(*key, base, run.records, start, self._index, part_number), True

    def _check_producer(self, producer_id: int, epoch: int, first: int) -> ProducerState:
        producer = self._producers.get(producer_id) or self._state.producers.get(producer_id)
        if producer is None:
            raise FencedError("the producer is not known any more", producer=producer_id)
        if producer.transactional:
            raise InvalidArgumentError("the producer is of another kind", name=producer.name)
        is_raised = epoch > producer.epoch and not producer.named and first == 0
        if epoch != producer.epoch and not is_raised:
            raise FencedError(
                "the epoch is not the producer's",
                producer=producer_id,
                epoch=epoch,
                current=producer.epoch,
            )
        return producer

    def _batches(
        self, key: tuple[int, int, int], epoch: int, first: int
    ) -> tuple[tuple[int, int, int], ...]:
        """Return the last batches of a producer in a partition."""
        sequences = self._sequences.get(key) or self._state.sequences.get(key)
        if sequences is None:
            return ()
        if sequences.epoch == epoch:
            return sequences.batches
        if first:
            raise SequenceGapError(
                "a new epoch begins at sequence 0", partition=key[2], sequence=first, expected=0
            )
        return ()

    def changes(self) -> list[Change]:
        """Return what the command changes."""
        state = self._state
        changes = self._ends.changes()
        changes += [(state.sequences, key, value) for key, value in self._sequences.items()]
        changes += [(state.producers, key, value) for key, value in self._producers.items()]
        return changes


def _check_follows(batches: tuple[tuple[int, int, int], ...], first: int, partition: int) -> None:
    if not batches:
        return
    sequence, records, _ = batches[-1]
    expected = (sequence + records) % SEQUENCE_MODULUS
    if first != expected:
        raise SequenceGapError(
            "the batch does not follow the producer's last one",
            partition=partition,
            sequence=first,
            expected=expected,
        )


def _extend(fresh: list[Placed], placed: Placed) -> None:
    """Add rows to those that are new, to the last ones if they follow these."""
    if fresh:
        last = fresh[-1]
        ends = (last.partition, last.base + last.records, last.start + last.records)
        if ends == (placed.partition, placed.base, placed.start):
            fresh[-1] = last._replace(records=last.records + placed.records)
            return
    fresh.append(placed)
