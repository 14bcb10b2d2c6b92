"""Commands and snapshots as bytes: what goes in comes out, and rubbish is a typed error."""

from __future__ import annotations

import random
import tracemalloc

import msgpack
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakebed.errors import CorruptionError, FormatTooNewError
from lakebed.state import command_codec, commands, image
from lakebed.state.command_codec import decode, encode
from lakebed.state.commands import Command, parts_of
from lakebed.state.image import State, decode_state, encode_state
from lakebed.state.machine import carry_out, decide
from lakebed.state.owned import Markers
from lakebed.state.values import Part, Run, Segment
from lakebed.types import GroupName
from tests.state.forms import document_of, entry_of, snapshot_of
from tests.state.machines import command, part_with

SEGMENT = Segment(1, 0, 3, 3, 1000, 100, 7, -5, 5)
PART = part_with(1, ((0, 2), (1, 3)))
EXAMPLES: list[Command] = [
    commands.CreateTopic("t", 2, b"schema", (("cleanup", "compact"), ("segment_ms", 5)), 1),
    commands.AlterTopic(1, (), b"", 1),
    commands.AddPartitions(1, 3),
    commands.DeleteTopic(1),
    commands.PurgeTopic(1),
    commands.Write(1, (PART, PART)),
    commands.ProducerWrite(1, 2, 3, (4, 5), PART),
    commands.WriteMany(1, (PART, PART), (((1, 2, 3), ()), ((), (4, 5, 6)))),
    commands.RegisterProducer("p", 1),
    commands.BeginTransaction("x", 5, 1),
    commands.TransactionWrite(1, 2, 3, (PART,)),
    commands.CommitTransaction(1, 2, 3, (PART,), (("g", "m", 1, 0, 5),)),
    commands.AbortTransaction(1, 2, "timed out"),
    commands.ExpireProducers(7),
    commands.ForgetProducer(1, 2),
    commands.CommitOffsets("g", "m", ((1, 0, 5),), 1),
    commands.ChangeGroup("g", ((1, 0, "m"),)),
    commands.DeleteGroup("g"),
    commands.Flush(((1, 0, SEGMENT),), (commands.StagedFile(1, 2, 3, ((4, 0, 64, 9),)),)),
    commands.ReplaceSegments(1, 0, (1, 2), (SEGMENT,), 3),
    commands.Trim(1, ((0, 5),)),
    commands.PlaceSegments(((1, 0, 7, 2),)),
    commands.PutToken("0123456789abcdef", "alice", bytes(range(32)), 5, 0),
    commands.RevokeToken("0123456789abcdef", 7),
    commands.SetRule("clerk", "read", "orders*", 1),
    commands.SetGrant("alice", "clerk", 0),
    commands.SetDenial("clerk", "read", "secret*", 1),
    commands.CommitTogether("job", 7, 1, 2, ((1, 2), (3, 4)), (("g", "", 1, 0, 5),)),
]
KINDS = frozenset(type(each) for each in EXAMPLES)


def payload(made: Command) -> bytes:
    bodies = [bytes([number]) * part.body_bytes for number, part in enumerate(parts_of(made))]
    return b"".join(bytes(each) for each in encode(made, bodies))


def test_there_is_an_example_of_every_command() -> None:
    assert set(command_codec.KINDS.values()) == KINDS
    assert len(command_codec.KINDS) == len(Command.__subclasses__())  # no number is used twice


@pytest.mark.parametrize("made", EXAMPLES, ids=lambda each: type(each).__name__)
def test_a_command_comes_back_as_it_was_with_its_bodies(made: Command) -> None:
    found, bodies = decode(memoryview(payload(made)))
    assert found == made
    assert type(found) is type(made)
    for number, (part, body) in enumerate(zip(parts_of(made), bodies, strict=True)):
        assert bytes(body) == bytes([number]) * part.body_bytes


@pytest.mark.parametrize("made", EXAMPLES, ids=lambda each: type(each).__name__)
def test_an_envelope_is_what_another_library_writes(made: Command) -> None:
    envelope = msgpack.packb(msgspec.structs.astuple(made))
    assert bytes(encode(made)[0]).rstrip(b"\0") == entry_of(made.kind, envelope).rstrip(b"\0")


def test_a_checked_name_is_written_as_text() -> None:
    assert encode(commands.DeleteGroup(GroupName("g"))) == encode(commands.DeleteGroup("g"))
    with pytest.raises(TypeError, match="no form"):
        encode(commands.DeleteGroup(object()))  # type: ignore[arg-type]


def _hostile(kind: type[Command]) -> list[bytes]:
    """Return envelopes that announce far more than they hold, at each field of a command."""
    bombs = [b"\xdd\xff\xff\xff\xff", b"\xdf\xff\xff\xff\xff", b"\xdc\xff\xff", b"\x91"]
    bombs += [b"\xdb\xff\xff\xff\xff", b"\xc6\xff\xff\xff\xff", b"\xc9\xff\xff\xff\xff\1"]
    fields = [msgpack.packb(each) for each in msgspec.structs.astuple(example_of(kind))]
    head = bytes([0x90 + len(fields)])
    fronts = [head + b"".join(fields[:count]) for count in range(len(fields))]
    return [
        front + bomb * times for front in (b"", *fronts) for bomb in bombs for times in (1, 5000)
    ]


def example_of(kind: type[Command]) -> Command:
    return next(each for each in EXAMPLES if type(each) is kind)


@pytest.mark.parametrize("kind", command_codec.KINDS.values())
def test_a_length_that_an_envelope_announces_takes_no_memory(kind: type[Command]) -> None:
    tracemalloc.start()
    try:
        for envelope in _hostile(kind):
            entry = entry_of(kind.kind, envelope)
            tracemalloc.reset_peak()
            before = tracemalloc.get_traced_memory()[0]
            with pytest.raises(CorruptionError):
                decode(memoryview(entry))
            assert tracemalloc.get_traced_memory()[1] - before < 200_000
    finally:
        tracemalloc.stop()


@given(command())
@settings(max_examples=200, deadline=None)
def test_any_command_comes_back_as_it_was(made: Command) -> None:
    assert decode(memoryview(payload(made)))[0] == made


@pytest.mark.parametrize("made", EXAMPLES, ids=lambda each: type(each).__name__)
def test_a_damaged_command_is_a_typed_error_or_another_command(made: Command) -> None:
    data = payload(made)
    generator = random.Random(1)
    refused = 0
    for _ in range(300):
        damaged = bytearray(data)
        for _ in range(generator.randint(1, 3)):
            damaged[generator.randrange(min(len(data), 120))] = generator.randrange(256)
        try:
            assert type(decode(memoryview(bytes(damaged)))[0]) in KINDS
        except (CorruptionError, FormatTooNewError):
            refused += 1
    assert refused
    for length in range(len(data)):
        try:
            assert type(decode(memoryview(data[:length]))[0]) in KINDS
        except CorruptionError:
            continue


@given(st.binary(max_size=200))
@settings(max_examples=200, deadline=None)
def test_rubbish_is_a_typed_error(data: bytes) -> None:
    with pytest.raises((CorruptionError, FormatTooNewError)):
        decode(memoryview(b"\x01\xff" + data))
    with pytest.raises(CorruptionError):
        decode_state(data, "rubbish")


def test_a_command_of_a_newer_version_says_so() -> None:
    data = bytearray(payload(EXAMPLES[0]))
    data[0] = command_codec.VERSION + 1
    with pytest.raises(FormatTooNewError):
        decode(memoryview(bytes(data)))


def some_state() -> State:
    state = State()
    made: list[Command] = [
        commands.CreateTopic("t", 2, b"", (("segment_ms", 5),), 1),
        commands.RegisterProducer("p", 1),
        commands.ProducerWrite(1, 1, 1, (0, 0), PART),
        commands.BeginTransaction("x", 5, 1),
        commands.TransactionWrite(2, 1, 3, (PART,)),
        commands.CommitOffsets("g", "", ((1, 0, 1),), 1),
        commands.ChangeGroup("g", ((1, 0, "m"),)),
        commands.Flush(((1, 0, SEGMENT._replace(end=2)),), ()),
        commands.PutToken("t", "alice", bytes(32), 5, 9),
        commands.RevokeToken("t", 7),
        commands.SetRule("clerk", "read", "orders*", 1),
        commands.SetGrant("alice", "clerk", 1),
        commands.SetDenial("clerk", "read", "secret*", 1),
        commands.CommitTogether("job", 7, 1, 2, (), ()),
        commands.CommitTogether("ann/job", 0, 2, 3, (), ()),
    ]
    for index, each in enumerate(made, 1):
        carry_out(decide(state, index, each).changes)
        state.numbers["applied"] = index
    return state


def test_a_snapshot_comes_back_as_the_same_state() -> None:
    state = some_state()
    assert decode_state(encode_state(state), "it") == state
    assert decode_state(encode_state(State()), "it") == State()
    assert encode_state(decode_state(encode_state(state), "it")) == encode_state(state)


def test_a_snapshot_of_the_first_version_has_no_tokens_rules_and_grants() -> None:
    state = some_state()
    data = encode_state(state)
    document = document_of(data)
    for name in ("tokens", "rules", "grants", "markers", "denials"):
        del document[name]
    document["numbers"] = [each for each in document["numbers"] if each[0] != "access"]
    found = decode_state(snapshot_of(document, version=1), "it")
    state.tokens, state.rules, state.grants, state.markers = {}, {}, {}, Markers()
    state.denials = {}
    state.numbers["access"] = 0
    assert found == state
    assert encode_state(found) == encode_state(state)


def test_a_snapshot_of_the_second_version_has_no_markers() -> None:
    state = some_state()
    data = encode_state(state)
    document = document_of(data)
    assert document.pop("markers") == [["ann/job", 0, 2, 3], ["job", 7, 1, 2]]
    found = decode_state(snapshot_of(document, version=2), "it")
    state.markers, state.denials = Markers(), {}
    assert found == state
    assert encode_state(found) == encode_state(state)
    with pytest.raises(CorruptionError):  # of this version they are missing
        decode_state(snapshot_of(document), "it")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("markers", [["job", 7, 1]]),
        ("markers", [["job", -1, 1, 2]]),
        ("markers", [["job", "7", 1, 2]]),
        ("markers", [[7, 7, 1, 2]]),
        ("markers", [["job", 7, 1, -2]]),
        ("markers", None),
        ("tokens", [["t", "alice", bytes(31), 5, 9, 0]]),
        ("tokens", [["t", "alice", bytes(32), 5, 9]]),
        ("tokens", [["t", b"alice", bytes(32), 5, 9, 0]]),
        ("rules", [["clerk", "read"]]),
        ("rules", [["clerk", "read", 1]]),
        ("grants", [["alice"]]),
        ("grants", ["ab"]),
        ("grants", None),
    ],
)
def test_a_value_of_another_shape_is_a_typed_error(name: str, value: object) -> None:
    data = encode_state(some_state())
    document = document_of(data)
    document[name] = value
    with pytest.raises(CorruptionError):
        decode_state(snapshot_of(document), "it")


@pytest.mark.parametrize("number", range(22, 26))
def test_an_entry_about_access_of_another_shape_is_a_typed_error(number: int) -> None:
    for fields in (("t", "alice", b"short", 5, 0), ("clerk", "read", "*", 2), ("a", "b", True), ()):
        with pytest.raises(CorruptionError):
            decode(memoryview(entry_of(number, msgpack.packb(fields))))


@pytest.mark.parametrize(
    "fields",
    [
        (),
        ("job", -1, 1, 2, (), ()),
        ("job", 1, 1, -2, (), ()),
        (b"job", 1, 1, 2, (), ()),
        ("job", 1, 1, 2, ((1,),), ()),
        ("job", 1, 1, 2, ((1, -1),), ()),
        ("job", 1, 1, 2, (), (("g", 1, 0, 5),)),
    ],
)
def test_a_commit_together_of_another_shape_is_a_typed_error(fields: tuple[object, ...]) -> None:
    with pytest.raises(CorruptionError):
        decode(memoryview(entry_of(26, msgpack.packb(fields))))


@pytest.mark.parametrize("claim", [(1,), (1, 2), (1, 2, 3, 4), (1, 2, -3), ("1", 2, 3), None])
def test_a_claim_of_another_shape_is_a_typed_error(claim: object) -> None:
    envelope = msgpack.packb((1, (), ((claim,),)))
    with pytest.raises(CorruptionError):
        decode(memoryview(entry_of(28, envelope)))


def test_every_flipped_bit_and_every_cut_of_a_snapshot_is_seen() -> None:
    data = encode_state(some_state())
    for position in range(len(data) * 8):
        damaged = bytearray(data)
        damaged[position // 8] ^= 1 << position % 8
        with pytest.raises(CorruptionError):
            decode_state(bytes(damaged), "it")
    for length in range(len(data)):
        with pytest.raises(CorruptionError):
            decode_state(data[:length], "it")


plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-5, 2**63)
    | st.text(max_size=3)
    | st.binary(max_size=3),
    lambda inner: st.lists(inner, max_size=5),
    max_leaves=12,
)


@given(st.dictionaries(st.sampled_from(sorted(vars(State()))), plain))
@settings(max_examples=300, deadline=None)
def test_a_document_of_another_shape_is_a_typed_error(document: dict[str, object]) -> None:
    full = {**dict.fromkeys(vars(State()), ()), **document}
    for each in (document, full):
        try:
            assert isinstance(decode_state(snapshot_of(each), "it"), State)
        except CorruptionError:
            continue


def test_a_snapshot_of_a_newer_version_says_so() -> None:
    with pytest.raises(FormatTooNewError):
        decode_state(snapshot_of({}, version=image.VERSION + 1), "it")
    assert Run(1, 2) == (1, 2)
    assert isinstance(PART, Part)
