"""Commands at random, mostly such that they mean something."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from lakebed import limits
from lakebed.state import commands
from lakebed.state.commands import Command
from lakebed.state.values import Part, Run, Segment

_TOPIC = st.integers(1, 3)
_PARTITION = st.integers(0, 2)
_PRODUCER = st.integers(1, 4)
_EPOCH = st.integers(1, 2)
_TIME = st.integers(0, 100)
_NAME = st.sampled_from(["a", "b"])
_MEMBER = st.sampled_from(["", "m", "n"])


def part_with(topic: int, runs: tuple[tuple[int, int], ...], schema: int = 0) -> Part:
    """Make a part of the runs given."""
    return Part(topic, schema, tuple(Run(*run) for run in runs), 100)


def _runs() -> st.SearchStrategy[tuple[tuple[int, int], ...]]:
    run = st.tuples(_PARTITION, st.integers(1, 3))
    return st.lists(run, min_size=1, max_size=3, unique_by=lambda each: each[0]).map(tuple)


_PART = st.builds(part_with, _TOPIC, _runs())
_PARTS = st.lists(_PART, max_size=2).map(tuple)


@st.composite
def _segment(draw: Any) -> Segment:
    base = draw(st.integers(0, 6))
    records = draw(st.integers(1, 4))
    number = draw(st.integers(1, 20))
    return Segment(number, base, base + records, records, 1000, 100, 7, 0, draw(_TIME))


@st.composite
def _producer_write(draw: Any) -> commands.ProducerWrite:
    part = draw(_PART)
    sequences = tuple(draw(st.integers(0, 4)) for _ in part.runs)
    return commands.ProducerWrite(draw(_TIME), draw(_PRODUCER), draw(_EPOCH), sequences, part)


@st.composite
def _write_many(draw: Any) -> commands.WriteMany:
    parts = draw(_PARTS)
    claim = st.just(()) | st.tuples(_PRODUCER, _EPOCH, st.integers(0, 4))
    claims = tuple(tuple(draw(claim) for _ in part.runs) for part in parts)
    return commands.WriteMany(draw(_TIME), parts, claims)


_OFFSET = st.tuples(_NAME, _MEMBER, _TOPIC, _PARTITION, st.integers(0, 4))
_STAGED = st.builds(
    commands.StagedFile,
    st.integers(1, 5),
    _PRODUCER,
    _EPOCH,
    st.lists(st.tuples(st.integers(1, 9), st.integers(0, 1), _TIME, _TIME), max_size=2).map(tuple),
)


def command() -> st.SearchStrategy[Command]:
    """Return any command."""
    return st.one_of(
        st.builds(commands.CreateTopic, _NAME, st.integers(1, 3), st.just(b""), st.just(()), _TIME),
        st.builds(commands.AlterTopic, _TOPIC, st.just((("segment_ms", 7),)), st.just(b""), _EPOCH),
        st.builds(commands.AddPartitions, _TOPIC, st.integers(1, 4)),
        st.builds(commands.DeleteTopic, _TOPIC),
        st.builds(commands.PurgeTopic, _TOPIC),
        st.builds(commands.Write, _TIME, _PARTS),
        st.builds(commands.Write, _TIME, _PARTS),
        _producer_write(),
        _write_many(),
        st.builds(commands.RegisterProducer, _NAME, _TIME),
        st.builds(commands.BeginTransaction, _NAME, st.integers(1, 200), _TIME),
        st.builds(commands.TransactionWrite, _PRODUCER, _EPOCH, _TIME, _PARTS),
        st.builds(
            commands.CommitTransaction,
            _PRODUCER,
            _EPOCH,
            _TIME,
            _PARTS,
            st.lists(_OFFSET, max_size=2).map(tuple),
        ),
        st.builds(
            commands.CommitTogether,
            _NAME,
            st.integers(0, 3),
            _TIME,
            st.integers(0, 50),
            st.lists(st.tuples(_PRODUCER, _EPOCH), max_size=2).map(tuple),
            st.lists(_OFFSET, max_size=1).map(tuple),
        ),
        st.builds(commands.AbortTransaction, _PRODUCER, _EPOCH, st.just("aborted")),
        st.builds(commands.ExpireProducers, _TIME),
        st.builds(commands.ForgetProducer, st.integers(1, 3), st.integers(1, 3)),
        st.builds(
            commands.CommitOffsets,
            _NAME,
            _MEMBER,
            st.lists(st.tuples(_TOPIC, _PARTITION, st.integers(0, 4)), max_size=2).map(tuple),
            _TIME,
        ),
        st.builds(
            commands.ChangeGroup,
            _NAME,
            st.lists(st.tuples(_TOPIC, _PARTITION, st.just("m")), max_size=2).map(tuple),
        ),
        st.builds(commands.DeleteGroup, _NAME),
        st.builds(
            commands.Flush,
            st.lists(st.tuples(_TOPIC, _PARTITION, _segment()), max_size=2).map(tuple),
            st.lists(_STAGED, max_size=1).map(tuple),
        ),
        st.builds(
            commands.ReplaceSegments,
            _TOPIC,
            _PARTITION,
            st.lists(st.integers(1, 20), max_size=2).map(tuple),
            st.just(()),
            st.integers(0, 5),
        ),
        st.builds(
            commands.Trim,
            _TOPIC,
            st.lists(st.tuples(_PARTITION, st.integers(0, 6)), max_size=2).map(tuple),
        ),
        st.builds(
            commands.PlaceSegments,
            st.lists(
                st.tuples(_TOPIC, _PARTITION, st.integers(1, 20), st.integers(0, 2)), max_size=2
            ).map(tuple),
        ),
        st.builds(
            commands.PutToken,
            _NAME,
            _NAME,
            st.sampled_from([bytes(32), b"\x07" * 32]),
            st.sampled_from([0, 100, 2 * limits.TOKEN_KEPT_US]),
            st.integers(0, 100),
        ),
        st.builds(commands.RevokeToken, _NAME, _TIME),
        st.builds(
            commands.SetRule,
            _NAME,
            st.sampled_from(["read", "admin"]),
            st.sampled_from(["*", "a*"]),
            st.integers(0, 1),
        ),
        st.builds(
            commands.SetDenial,
            _NAME,
            st.sampled_from(["read", "admin"]),
            st.sampled_from(["*", "a*"]),
            st.integers(0, 1),
        ),
        st.builds(commands.SetGrant, _NAME, st.sampled_from(["admin", "b"]), st.integers(0, 1)),
    )
