"""Owners, fences and bases, one case each; the schedules try all orders."""

from __future__ import annotations

import pytest

from lakebed.chain.checkpoint import write_checkpoint
from lakebed.chain.owner import take_over
from lakebed.chain.records import BASE, Base, decode_base
from lakebed.chain.slot import SlotKind, decode_slot, encode_data, encode_fence, slot_name
from lakebed.chain.walk import Walker
from lakebed.errors import CorruptionError, ForeignFileError, MissingFileError, NotOwnerError
from tests.chain.running import Bench, Reader, entry
from tests.chain.world import LOG


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_a_new_process_reads_what_was_written(bench: Bench) -> None:
    owner = bench.own(1)
    bench.write(owner, b"a", b"b")
    bench.write(owner, b"c")
    assert bench.read() == [b"a", b"b", b"c"]
    assert owner.next_index == 4


def test_a_stale_owner_is_refused_and_stays_refused(bench: Bench) -> None:
    stale, fresh = bench.own(1), None
    bench.write(stale, b"a")
    fresh = bench.own(2)
    for _ in range(2):
        with pytest.raises(NotOwnerError) as refused:
            bench.write(stale, b"lost")
        assert refused.value.facts["term"] == fresh.term
    bench.write(fresh, b"b")
    assert bench.read() == [b"a", b"b"]


def test_the_term_is_the_number_of_the_fence(bench: Bench) -> None:
    assert bench.own(1).term == 1
    assert bench.own(2).term == 2


def test_a_candidate_gives_way_to_the_fence_of_another(bench: Bench) -> None:
    walker, _ = bench.walker()
    taking = take_over(walker, bytes(16), give_way=True)
    call = next(taking)
    while call.name != slot_name(1) or type(call).__name__ != "PutNew":  # type: ignore[union-attr]
        call = taking.send(bench.store.get(call.name))  # type: ignore[union-attr]
    bench.own(2)
    call = taking.send(bench.store.put_new(call.name, call.data).outcome)  # type: ignore[union-attr]
    with pytest.raises(StopIteration) as ended:
        taking.send(bench.store.get(call.name))  # type: ignore[union-attr]
    assert ended.value.value is None


def test_a_checkpoint_moves_the_base_and_removes_what_lies_before_the_reserve(
    bench: Bench,
) -> None:
    owner = bench.own(1)
    for text in (b"a", b"b", b"c"):
        bench.write(owner, text)
        index = owner.next_index - 1
        data = b"\n".join([b"a", b"b", b"c"][:index])
        assert bench.run(write_checkpoint(owner, data, index=index, term=owner.term))
    assert bench.read() == [b"a", b"b", b"c"]
    slots = sorted(int(name[4:], 16) for name in bench.store.objects if name.startswith("wal/"))
    assert slots == [1, 4]  # the fence, and what is behind the base in reserve
    snapshots = [name for name in bench.store.objects if name.startswith("snapshots/")]
    assert len(snapshots) == 2


def test_a_snapshot_in_the_middle_of_a_slot(bench: Bench) -> None:
    """It includes the first entries of the slot behind its base, which are not applied again."""
    owner = bench.own(1)
    bench.write(owner, b"a", b"b", b"c")
    bench.run(write_checkpoint(owner, b"a\nb", index=2, term=owner.term))
    assert decode_base(bench.store.objects[BASE]).slot == 1
    assert bench.read() == [b"a", b"b", b"c"]
    assert bench.own(2).next_index == 4


def test_a_base_never_moves_back(bench: Bench) -> None:
    stale = bench.own(1)
    bench.write(stale, b"a")
    fresh = bench.own(2)
    bench.write(fresh, b"b")
    assert bench.run(write_checkpoint(fresh, b"a\nb", index=2, term=fresh.term))
    assert bench.run(write_checkpoint(stale, b"a", index=1, term=stale.term)) is None
    assert decode_base(bench.store.objects[BASE]).index == 2
    assert bench.read() == [b"a", b"b"]


def test_a_checkpoint_that_changes_nothing_removes_nothing(bench: Bench) -> None:
    owner = bench.own(1)
    bench.write(owner, b"a")
    assert bench.run(write_checkpoint(owner, b"a", index=1, term=owner.term))
    assert bench.run(write_checkpoint(owner, b"a", index=1, term=owner.term)) is None
    assert bench.read() == [b"a"]


def test_the_next_owner_removes_what_a_crash_left(bench: Bench) -> None:
    owner = bench.own(1)
    bench.write(owner, b"a")
    bench.run(write_checkpoint(owner, b"a", index=1, term=owner.term))
    bench.write(owner, b"b")
    writing = write_checkpoint(owner, b"a\nb", index=2, term=owner.term)
    call = next(writing)
    while type(call).__name__ != "Delete":
        call = writing.send(bench.driver._do(call, 0))
    writing.close()  # the process died before it removed anything
    successor = bench.own(2)
    bench.write(successor, b"c")
    bench.run(write_checkpoint(successor, b"a\nb\nc", index=3, term=successor.term))
    slots = sorted(int(name[4:], 16) for name in bench.store.objects if name.startswith("wal/"))
    assert slots == [1, 4, 5]
    assert bench.read() == [b"a", b"b", b"c"]


def test_a_damaged_snapshot_is_passed_over_for_the_one_in_reserve(bench: Bench) -> None:
    owner = bench.own(1)
    bench.write(owner, b"a")
    bench.run(write_checkpoint(owner, b"a", index=1, term=owner.term))
    bench.write(owner, b"b")
    bench.run(write_checkpoint(owner, b"a\nb", index=2, term=owner.term))
    bench.store.objects[decode_base(bench.store.objects[BASE]).snapshot] = b"a\nX"
    assert bench.read() == [b"a", b"b"]
    assert bench.own(2).next_index == 3


def test_a_damaged_only_snapshot_is_refused(bench: Bench) -> None:
    owner = bench.own(1)
    bench.write(owner, b"a")
    bench.run(write_checkpoint(owner, b"a", index=1, term=owner.term))
    name = decode_base(bench.store.objects[BASE]).snapshot
    bench.store.objects[name] = b"X"
    del bench.store.objects[slot_name(2)]
    with pytest.raises(MissingFileError, match="reserve"):
        bench.read()


def test_a_missing_base_is_refused(bench: Bench) -> None:
    """Absence is never read as an empty log."""
    bench.write(bench.own(1), b"a")
    del bench.store.objects[BASE]
    with pytest.raises(MissingFileError):
        bench.read()


@pytest.mark.parametrize("position", range(0, 300, 7))
def test_a_flipped_bit_in_a_slot_is_refused(bench: Bench, position: int) -> None:
    bench.write(bench.own(1), b"a" * 100, b"b" * 60)
    data = bytearray(bench.store.objects[slot_name(2)])
    place = position % len(data)
    data[place] ^= 4
    bench.store.objects[slot_name(2)] = bytes(data)
    try:
        texts = bench.read()
    except (CorruptionError, Exception) as error:
        assert type(error).__module__ == "lakebed.errors"
    else:  # a byte of the padding says nothing
        assert texts == [b"a" * 100, b"b" * 60]


@pytest.mark.parametrize("length", [0, 3, 50, 108, 130, 200])
def test_a_slot_that_was_cut_short_is_refused(bench: Bench, length: int) -> None:
    bench.write(bench.own(1), b"a" * 100)
    bench.store.objects[slot_name(2)] = bench.store.objects[slot_name(2)][:length]
    with pytest.raises(CorruptionError):
        bench.read()


def test_a_slot_of_another_log_is_refused(bench: Bench) -> None:
    import uuid

    other = encode_fence(uuid.UUID(int=9), 1, nonce=bytes(16), next_index=1, previous=bytes(16))
    bench.store.objects[slot_name(1)] = other.data
    with pytest.raises(ForeignFileError):
        bench.read()


def test_a_large_group_is_written_in_parts(bench: Bench) -> None:
    owner = bench.own(1)
    text = bytes(range(256)) * 40
    encoded = encode_data(
        LOG,
        owner.next_slot,
        term=owner.term,
        nonce=owner.nonce,
        first_index=1,
        previous=owner.digest,
        entries=[(entry(text, owner.term), [text])] * 3,
        part_bytes=4096,
    )
    assert len(encoded.parts) == 8
    bench.run(owner.write(encoded))
    assert bench.read() == [text] * 3
    name = encoded.parts[2][0]
    data = bench.store.objects.pop(name)
    with pytest.raises(MissingFileError):
        bench.read()
    bench.store.objects[name] = b"X" + data[1:]
    with pytest.raises(CorruptionError):
        bench.read()
    bench.store.objects[name] = data
    index = owner.next_index - 1
    snapshot = b"\n".join([b"1", b"2", b"3"])
    bench.run(write_checkpoint(owner, snapshot, index=index, term=owner.term))
    bench.write(owner, b"d")
    bench.run(write_checkpoint(owner, snapshot, index=4, term=owner.term))
    assert not [name for name in bench.store.objects if name.startswith("parts/")]


def test_a_reader_follows_the_owner_without_loading_again(bench: Bench) -> None:
    """A base that moves to a slot which was walked here is noted, not loaded."""
    owner = bench.own(1)
    reader = Reader()
    walker = Walker(LOG, reader)
    bench.run(walker.load())
    loads = []
    original = reader.load
    reader.load = lambda base: loads.append(base) or original(base)  # type: ignore[method-assign,func-returns-value]
    texts = [b"%d" % number for number in range(6)]
    for number, text in enumerate(texts):
        bench.write(owner, text)
        bench.run(walker.to_end())
        data = b"\n".join(texts[: number + 1])
        bench.run(write_checkpoint(owner, data, index=number + 1, term=owner.term))
        bench.run(walker.to_end())
    assert reader.payloads == texts
    assert loads == []
    assert len(walker.seen) <= 2


def test_fences_stay(bench: Bench) -> None:
    texts: list[bytes] = []
    for number in range(4):
        owner = bench.own(number)
        texts.append(b"%d" % number)
        bench.write(owner, texts[-1])
        data = b"\n".join(texts)
        bench.run(write_checkpoint(owner, data, index=len(texts), term=owner.term))
    kinds = [
        decode_slot(data, LOG, int(name[4:], 16)).kind
        for name, data in bench.store.objects.items()
        if name.startswith("wal/")
    ]
    assert kinds.count(SlotKind.FENCE) == 4


def test_a_log_is_created_once(bench: Bench) -> None:
    from lakebed.chain.owner import create_base

    assert bench.run(create_base(LOG, Base(index=7, snapshot="other"))) == Base()
