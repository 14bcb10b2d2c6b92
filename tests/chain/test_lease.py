"""The lease: when a watcher may act, when the owner must stop, and what an edited one does."""

from __future__ import annotations

import pytest

from lakebed.chain.lease import Hold, Watch, read
from lakebed.chain.records import (
    LEASE,
    Lease,
    LeaseState,
    decode_lease,
    encode_lease,
    new_nonce,
)
from lakebed.errors import CorruptionError, NotOwnerError
from lakebed.host.conditional import Versioned
from tests.chain.running import Bench

TTL = 3.0


@pytest.fixture
def bench() -> Bench:
    return Bench()


def held(bench: Bench, owner: str, now: float = 100.0) -> Hold:
    hold = Hold(owner, f"{owner}:4747", TTL)
    assert bench.run(hold.claim())
    bench.run(hold.serve(7, now))
    return hold


def test_the_owner_stops_before_any_watcher_acts(bench: Bench) -> None:
    hold, watch = held(bench, "a"), Watch(TTL)
    watch.note(bench.run(read()), 100.0)
    assert hold.valid(101.9)
    assert not hold.valid(102.0)
    assert not watch.may_take_over(102.9)
    assert watch.may_take_over(103.0)


def test_a_renewal_counts_from_when_it_began(bench: Bench) -> None:
    hold, watch = held(bench, "a"), Watch(TTL)
    watch.note(bench.run(read()), 100.0)
    bench.run(hold.renew(101.0))
    watch.note(bench.run(read()), 102.0)
    assert hold.valid(102.9)
    assert not watch.may_take_over(104.9)
    assert watch.may_take_over(105.0)


def test_time_in_which_the_lease_was_not_looked_at_is_left_out(bench: Bench) -> None:
    watch = Watch(TTL)
    watch.discount(50.0)
    watch.note(bench.run(read()), 40.0)
    held(bench, "a")
    watch.note(bench.run(read()), 100.0)
    watch.discount(7.0)
    watch.note(bench.run(read()), 108.0)
    assert not watch.may_take_over(109.9)
    assert watch.may_take_over(110.0)


def test_a_released_lease_may_be_taken_at_once(bench: Bench) -> None:
    hold, watch = held(bench, "a"), Watch(TTL)
    bench.run(hold.release())
    assert not hold.valid(100.0)
    watch.note(bench.run(read()), 100.0)
    assert watch.may_take_over(100.0)
    assert watch.lease is not None
    assert watch.lease.state is LeaseState.RELEASED


def test_a_log_without_a_lease_may_be_taken_at_once(bench: Bench) -> None:
    watch = Watch(TTL)
    assert not watch.may_take_over(100.0)  # nothing was read yet
    watch.note(bench.run(read()), 100.0)
    assert watch.may_take_over(100.0)


def test_an_owner_learns_who_took_over(bench: Bench) -> None:
    stale = held(bench, "a")
    held(bench, "b")
    with pytest.raises(NotOwnerError) as refused:
        bench.run(stale.renew(101.0))
    assert refused.value.facts == {"owner": "b", "address": "b:4747", "term": 7}
    assert not stale.valid(100.1)


def test_of_two_claims_one_wins(bench: Bench) -> None:
    held(bench, "a")
    first, second = Hold("b", "", TTL), Hold("c", "", TTL)
    claiming = first.claim()
    call = next(claiming)
    call = claiming.send(bench.store.get(LEASE))
    assert bench.run(second.claim())
    call = claiming.send(bench.store.put_if(LEASE, call.data, call.version).outcome)  # type: ignore[union-attr]
    with pytest.raises(StopIteration) as ended:
        claiming.send(bench.store.get(LEASE))
    assert ended.value.value is False


def test_equal_leases_have_different_bytes() -> None:
    lease = Lease("a", "a:1", 3, LeaseState.SERVING, 9)
    assert encode_lease(lease, new_nonce()) != encode_lease(lease, new_nonce())
    assert decode_lease(encode_lease(lease, new_nonce())) == lease


@pytest.mark.parametrize("data", [b"", b"{}", b"not json", b'{"crc32c": "0", "body": "{}"}', b"[]"])
def test_an_edited_lease_says_nothing_and_is_written_again(bench: Bench, data: bytes) -> None:
    hold, watch = held(bench, "a"), Watch(TTL)
    bench.store.objects[LEASE] = data
    with pytest.raises(CorruptionError):
        decode_lease(data)
    watch.note(bench.run(read()), 100.0)
    assert watch.lease is None
    assert not watch.may_take_over(102.0)
    bench.run(hold.renew(101.0))
    assert decode_lease(bench.store.objects[LEASE]).owner == "a"


def test_a_removed_lease_is_written_again(bench: Bench) -> None:
    hold = held(bench, "a")
    del bench.store.objects[LEASE]
    bench.run(hold.renew(101.0))
    assert decode_lease(bench.store.objects[LEASE]).owner == "a"


def test_a_lease_that_is_not_held_cannot_be_renewed(bench: Bench) -> None:
    with pytest.raises(NotOwnerError):
        bench.run(Hold("a", "", TTL).renew(1.0))


def test_a_watch_compares_versions_alone() -> None:
    """Neither clock of the owner nor anything in the lease says when it expires."""
    watch = Watch(TTL)
    first = encode_lease(Lease("a", counter=5), new_nonce())
    watch.note(Versioned(first, "1"), 10.0)
    watch.note(Versioned(first, "1"), 12.0)
    assert watch.may_take_over(13.0)
    watch.note(Versioned(encode_lease(Lease("a", counter=1), new_nonce()), "2"), 13.0)
    assert not watch.may_take_over(15.9)
