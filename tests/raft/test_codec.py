"""Arbitrary bytes give a value or a typed error, and equal values have equal bytes."""

from __future__ import annotations

import random
import tracemalloc
from collections.abc import Callable

import msgpack
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from lakebed.errors import CorruptionError, FormatTooNewError, LakebedError
from lakebed.raft import Membership, decode_membership, encode_membership
from lakebed.raft.codec import Note, decode_note, encode_note

NODES = st.integers(0, 2**64 - 1)
MEMBERSHIPS = st.sets(NODES, max_size=8).flatmap(
    lambda nodes: st.integers(0, len(nodes)).map(
        lambda voters: Membership(tuple(nodes)[:voters], tuple(nodes)[voters:])
    )
)
NOTES = st.builds(Note, st.integers(0, 2**32), st.integers(0, 2**32 - 1), MEMBERSHIPS)


@given(MEMBERSHIPS)
@example(Membership(tuple(range(2**64 - 1024, 2**64))))
def test_a_membership_comes_back(membership: Membership) -> None:
    assert decode_membership(encode_membership(membership)) == membership


@given(NOTES)
def test_a_note_comes_back(note: Note) -> None:
    assert decode_note(encode_note(note)) == note


def _mutations(rng: random.Random, count: int) -> list[bytes]:
    """Return random bytes, and valid encodings with bytes changed, cut or added."""
    valid = [
        encode_membership(Membership((1, 2, 300), (2**40,))),
        encode_note(Note(70_000, 2**31, Membership((1, 2, 3)))),
    ]
    made = []
    for _ in range(count):
        if rng.random() < 0.3:
            made.append(rng.randbytes(rng.randrange(40)))
            continue
        data = bytearray(rng.choice(valid))
        for _ in range(rng.randrange(1, 4)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        made.append(bytes(data[: rng.randrange(len(data) + 1)]) + rng.randbytes(rng.randrange(3)))
    return made


def _outcome(decode: Callable[[bytes], object], data: bytes) -> object:
    try:
        return decode(data)
    except (CorruptionError, FormatTooNewError) as error:
        return error


def test_five_thousand_byte_strings_give_a_value_or_a_typed_error() -> None:
    values = 0
    for data in _mutations(random.Random(1), 5000):
        members, note = _outcome(decode_membership, data), _outcome(decode_note, data)
        assert isinstance(members, Membership | LakebedError)
        assert isinstance(note, Note | LakebedError)
        if isinstance(members, Membership):
            assert encode_membership(members) == data
        if isinstance(note, Note):
            assert encode_note(note) == data
        values += isinstance(members, Membership) + isinstance(note, Note)
    assert values > 10, "the mutations are to reach the fields, not only the framing"


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xdd\xff\xff\xff\xff",
        b"\x91" * 5000,
        b"\xdc\x04\x00" * 3000,
        b"\xc6\xff\xff\xff\xff",
        b"\xdf\xff\xff\xff\xff",
        b"\x01" * 100_000,
    ],
)
@pytest.mark.parametrize("decode", [decode_membership, decode_note])
def test_what_the_input_claims_is_not_allocated(
    decode: Callable[[bytes], object], data: bytes
) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(CorruptionError):
            decode(data)
        assert tracemalloc.get_traced_memory()[1] < 32 * 1024 * 1024
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    "fields",
    [
        [],
        7,
        [0, 5, 5, [1], []],
        [1, 5, 5, [1]],
        [1, 5, 5, [1], [], 0],
        [1, -1, 5, [1], []],
        [1, 2**33, 5, [1], []],
        [1, 5.0, 5, [1], []],
        [1, True, 5, [1], []],
        [1, 5, 2**32, [1], []],
        [1, 5, 5, [1, 1], []],
        [1, 5, 5, [1], [1]],
        [1, 5, 5, [-1], []],
        [1, 5, 5, [None], []],
        [1, 5, 5, [[1]], []],
        [1, 5, 5, 1, []],
        [True, 5, 5, [1], []],
        [1, 5, 5, list(range(1000)), list(range(1000, 1100))],
    ],
)
def test_every_field_of_a_note_is_checked(fields: object) -> None:
    with pytest.raises(CorruptionError):
        decode_note(msgpack.packb(fields))


def test_only_the_shortest_encoding_is_accepted() -> None:
    packed = encode_membership(Membership((1,)))
    longer = packed.replace(b"\x91\x01", b"\x91\xcc\x01")
    assert msgpack.unpackb(longer) == msgpack.unpackb(packed)
    with pytest.raises(CorruptionError):
        decode_membership(longer)


def test_a_newer_version_is_told_from_damage() -> None:
    with pytest.raises(FormatTooNewError):
        decode_note(msgpack.packb([2, "whatever"[:0]]))
    with pytest.raises(FormatTooNewError):
        decode_membership(msgpack.packb([2, [], []]))
