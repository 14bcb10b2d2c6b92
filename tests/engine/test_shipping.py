"""A log in a store: what is acknowledged outlives its machine, and a stale owner is refused."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

import lakebed
from lakebed import LogConfig, WalConfig
from lakebed.chain.calls import Procedure
from lakebed.chain.records import Lease, LeaseState, decode_lease
from lakebed.chain.slot import decode_slot
from lakebed.errors import (
    DiskFullError,
    ForeignFileError,
    InvalidArgumentError,
    LakebedError,
    NotOwnerError,
    StoreUnavailableError,
    UnknownOutcomeError,
)
from lakebed.wal.appender import NoRoomError
from lakebed.wal.request import Request
from tests.engine.shipped import Machines, values
from tests.engine.support import lake_parts
from tests.waiting import until


@pytest.fixture
def machines(tmp_path: Path) -> Machines:
    return Machines(tmp_path)


def test_an_empty_machine_has_what_was_acknowledged(machines: Machines) -> None:
    with machines.open("a") as log:
        log.create_topic("orders")
        for number in range(20):
            log.append("orders", b"%d" % number)
        log.checkpoint()
        log.append("orders", b"after")
    shutil.rmtree(machines.root / "a")
    with machines.open("b") as log:
        assert values(log) == [*(b"%d" % number for number in range(20)), b"after"]
        assert log.append("orders", b"more").offset == 21


def test_an_open_transaction_continues_on_another_machine(machines: Machines) -> None:
    """Its data was staged by a checkpoint, and its entries are no longer in slots."""
    with machines.open("a") as log:
        log.create_topic("orders")
        transaction = log.transaction("loader", timeout_ms=600_000)
        transaction.append("orders", b"staged")
        transaction.prepare()  # writes what it has collected
        for number in range(3):
            log.append("orders", b"%d" % number)
            log.checkpoint()
        kept = log.stats().open_transactions
    shutil.rmtree(machines.root / "a")
    assert kept == 1
    with machines.open("b") as log:
        assert log.stats().open_transactions == 1
        state = log.parts.core.state
        (open_transaction,) = state.transactions.values()
        (pending,) = open_transaction.pending
        assert pending.staged
        body = log.parts.core.bodies[(pending.index, pending.number)]
        assert b"staged" in bytes(body.raw())


def test_setting_acks(machines: Machines) -> None:
    """With `store`, nothing is acknowledged or read before its slot is in the store."""
    with machines.open("a") as log:
        log.create_topic("orders")
        machines.take_away_store()
        written = log.append_batch_async("orders", [b"x"])
        until(lambda: log.stats().shipping.last_failure is not None)  # type: ignore[union-attr]
        assert not written.done()
        assert values(log) == []
        machines.bring_back_store()
        written.result(timeout=120)
        assert values(log) == [b"x"]


def test_a_store_that_is_away_refuses_new_writes_and_loses_none(machines: Machines) -> None:
    with machines.open("a", write_timeout_ms=100) as log:
        log.create_topic("orders")
        machines.take_away_store()
        written = log.append_batch_async("orders", [b"in flight"])

        def refused() -> bool:
            try:
                log.append_batch_async("orders", [b"refused?"])
            except StoreUnavailableError as error:
                assert error.retriable
                return True
            return False

        until(refused)
        machines.bring_back_store()
        written.result(timeout=120)
        until(lambda: log.stats().shipping.failing_ms == 0)  # type: ignore[union-attr]
        log.append("orders", b"after")
    shutil.rmtree(machines.root / "a")
    with machines.open("b") as log:
        found = values(log)
        assert found[0] == b"in flight"
        assert found[-1] == b"after"


def test_closing_does_not_wait_forever_for_a_store_that_is_away(machines: Machines) -> None:
    log = machines.open("a")
    log.create_topic("orders")
    machines.take_away_store()
    written = log.append_batch_async("orders", [b"unknown"])
    log.close()
    with pytest.raises(UnknownOutcomeError):
        written.result(timeout=60)
    machines.bring_back_store()
    with machines.open("a") as log:  # it is in the folder, and is shipped now
        until(lambda: log.stats().shipping.unshipped_records == 0)  # type: ignore[union-attr]
        assert values(log) == [b"unknown"]
    shutil.rmtree(machines.root / "a")
    with machines.open("b") as log:
        assert values(log) == [b"unknown"]


def test_a_stale_owner_is_refused(machines: Machines) -> None:
    stale = machines.open("a")
    stale.create_topic("orders")
    stale.append("orders", b"first")
    stop_lease(stale)
    with machines.open("b") as fresh:
        fresh.append("orders", b"second")
        with pytest.raises((NotOwnerError, UnknownOutcomeError)):
            stale.append("orders", b"lost")
        with pytest.raises(NotOwnerError) as refused:
            stale.append("orders", b"lost too")
        assert refused.value.facts["term"]
        assert values(stale) == [b"first"]  # its readers see what was acknowledged
        stale.close()
        assert values(fresh) == [b"first", b"second"]


def test_a_stale_owner_removes_nothing_from_the_store(machines: Machines) -> None:
    """It may not know which segments the new owner has."""
    stale = machines.open("a")
    stale.create_topic("orders")
    stale.append("orders", b"first")
    shipping = stale.parts.shipping
    assert shipping is not None
    shipping.lease._hold.renew = _nothing  # type: ignore[method-assign, assignment]
    with machines.open("b") as fresh:
        del shipping.lease._hold.renew  # it continues
        fresh.append("orders", b"second")
        fresh.checkpoint()
        (segment,) = machines.store.glob("*/segments/*/*.parquet")
        store = lake_parts(stale).store
        assert store is not None
        with pytest.raises(NotOwnerError):
            store.remove(segment.relative_to(machines.store).as_posix())
        assert segment.exists()
        stale.close()


def test_a_forked_child_does_not_release_the_lease(machines: Machines) -> None:
    with machines.open("a", lease_ms=600_000) as log:
        log.create_topic("orders")
        child = os.fork()
        if not child:
            code = 1
            try:
                log.close()
                code = 0
            finally:
                os._exit(code)
        assert os.waitpid(child, 0)[1] == 0
        lease = (next(machines.store.glob("*/lease"))).read_bytes()
        assert b"serving" in lease
        log.append("orders", b"undisturbed")


def test_the_lease_is_renewed_while_an_owner_replays_the_log(machines: Machines) -> None:
    """A replay that takes longer than the lease must not invite another owner."""
    with machines.open("a") as log:
        log.create_topic("orders")
        log.append("orders", b"1")
    seen: list[Lease] = []

    def look(doing: str, _done: int, _total: int) -> None:
        if doing != "replaying entries" or seen:
            return
        seen.append(stored_lease(machines))
        until(lambda: stored_lease(machines).counter > seen[0].counter + 1, "it is renewed")
        seen.append(stored_lease(machines))

    config = machines.config(lease_ms=300)
    with lakebed.open(machines.root / "b", config, progress=look) as other:
        assert [lease.state for lease in seen] == [LeaseState.CLAIMING] * 2
        assert stored_lease(machines).state is LeaseState.SERVING
        other.append("orders", b"2")


def stored_lease(machines: Machines) -> Lease:
    return decode_lease(next(machines.store.glob("*/lease")).read_bytes())


def stop_lease(log: object) -> None:
    """Pause an owner as SIGSTOP does: it renews nothing, and believes what it knew."""
    shipping = log.parts.shipping  # type: ignore[attr-defined]
    shipping.lease._hold.renew = _nothing
    shipping.lease._hold.valid = lambda now: True


def _nothing(_began: float) -> Procedure[None]:
    """Do no call."""
    yield from ()


def test_a_returning_machine_continues_with_what_others_wrote(machines: Machines) -> None:
    with machines.open("a") as log:
        log.create_topic("orders")
        log.append("orders", b"a1")
    with machines.open("b") as log:
        log.append("orders", b"b1")
        log.checkpoint()
        log.append("orders", b"b2")
        log.checkpoint()
        log.append("orders", b"b3")
    with machines.open("a") as log:
        assert values(log) == [b"a1", b"b1", b"b2", b"b3"]
        assert log.stats().shipping.diverged_entries == 0  # type: ignore[union-attr]
        log.append("orders", b"a2")
    assert not (machines.root / "a" / "diverged").exists()
    with machines.open("b") as log:
        assert values(log) == [b"a1", b"b1", b"b2", b"b3", b"a2"]


def test_an_unfinished_segment_does_not_stand_for_that_of_another_owner(
    machines: Machines,
) -> None:
    """Both gave it the same number: the file is put aside, and the store has the right one."""
    with machines.open("a") as log:
        log.create_topic("orders")
        log.append("orders", b"x")
        path = log.parts.segment_folder.path(1, 0, 1)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"of a checkpoint that was killed")
    with machines.open("b") as log:
        log.checkpoint()
        assert [each.name for each in log.parts.segment_folder.path(1, 0, 1).parent.iterdir()]
    with machines.open("a") as log:
        assert values(log) == [b"x"]
        log.verify()
    assert [each.name for each in (machines.root / "a" / "quarantine").iterdir()]


@pytest.mark.parametrize("checkpoints", [False, True])
def test_what_diverged_is_set_aside_with_a_report(machines: Machines, *, checkpoints: bool) -> None:
    """A machine acknowledged locally, died before shipping, and another continued."""
    log = machines.open("a", acks="local", ship_ms=3_600_000)
    log.create_topic("orders")
    log.append("orders", b"shipped")
    log.parts.shipping.flush()  # type: ignore[union-attr]
    lost = [b"lost %d" % number for number in range(3)]
    for value in lost:
        log.append("orders", value)
    shutil.copytree(machines.root / "a", machines.root / "returned")
    log.parts.shipping.lease.lose(NotOwnerError("the test ends this owner"))  # type: ignore[union-attr]
    log.close()
    with machines.open("b") as log:
        assert values(log) == [b"shipped"]
        for number in range(5):
            log.append("orders", b"b%d" % number)
            if checkpoints:
                log.checkpoint()
    with machines.open("returned") as log:
        assert values(log) == [b"shipped", *(b"b%d" % number for number in range(5))]
        assert log.stats().shipping.diverged_entries == 3  # type: ignore[union-attr]
        log.append("orders", b"more")
    (folder,) = (machines.root / "returned" / "diverged").iterdir()
    report = json.loads((folder / "report.json").read_text())
    assert report["entries"] == 3
    assert sum(report["records"].values()) == 3
    kept = b"".join(path.read_bytes() for path in sorted(folder.glob("*.entry")))
    for value in lost:
        assert value in kept
    with machines.open("c") as log:
        assert values(log)[-1] == b"more"


def test_what_only_the_folder_has_is_shipped_when_it_returns(machines: Machines) -> None:
    log = machines.open("a", acks="local", ship_ms=3_600_000)
    log.create_topic("orders")
    log.append("orders", b"one")
    shutil.copytree(machines.root / "a", machines.root / "returned")  # a kill leaves this
    log.parts.shipping.lease.lose(NotOwnerError("the test ends this owner"))  # type: ignore[union-attr]
    log.close()
    with machines.open("returned", acks="local", ship_ms=10) as log:
        assert values(log) == [b"one"]
        until(lambda: log.stats().shipping.unshipped_records == 0)  # type: ignore[union-attr]
        log.parts.shipping.flush()  # type: ignore[union-attr]
    with machines.open("c") as log:
        assert values(log) == [b"one"]


def test_a_log_that_was_in_a_folder_moves_into_the_store_whole(machines: Machines) -> None:
    """Segments, snapshot and entries that it had before are there for an empty machine."""
    with lakebed.open(machines.root / "a") as log:
        log.create_topic("orders")
        log.append("orders", b"old")
        log.checkpoint()
        log.append("orders", b"newer")
    with machines.open("a") as log:
        log.append("orders", b"shipped")
    shutil.rmtree(machines.root / "a")
    with machines.open("b") as log:
        assert values(log) == [b"old", b"newer", b"shipped"]


def test_another_log_in_the_same_prefix_is_refused(machines: Machines) -> None:
    with machines.open("a") as log:
        log.create_topic("orders")
    with lakebed.open(machines.root / "other") as log:
        log.create_topic("others")
    with pytest.raises(ForeignFileError, match="another log"):
        machines.open("other")


def test_a_copy_that_was_never_part_of_the_chain_is_refused(machines: Machines) -> None:
    with lakebed.open(machines.root / "a") as log:
        log.create_topic("orders")
    shutil.copytree(machines.root / "a", machines.root / "copy")
    with lakebed.open(machines.root / "copy") as log:
        log.append("orders", b"its own way")
    with machines.open("a") as log:
        log.append("orders", b"shipped")
    with pytest.raises(ForeignFileError, match="empty folder"):
        machines.open("copy")


def test_a_living_owner_is_not_taken_over(
    machines: Machines, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The lease is long, so that a busy machine renews it in time; the other gives up sooner.
    monkeypatch.setattr("lakebed.engine.ownership._PATIENCE_SECONDS", -59.0)
    with machines.open("a", lease_ms=60_000) as log:
        log.create_topic("orders")
        with pytest.raises(NotOwnerError, match="alive"):
            machines.open("b", lease_ms=60_000)
        log.append("orders", b"undisturbed")


def test_the_folder_of_a_killed_owner_is_opened_at_once(machines: Machines) -> None:
    """Its lock proves that the owner of that folder is gone, whatever its lease says."""
    log = machines.open("a", lease_ms=600_000)
    log.create_topic("orders")
    log.parts.shipping.lease.lose(NotOwnerError("the test ends this owner"))  # type: ignore[union-attr]
    log.close()
    with machines.open("a", lease_ms=600_000) as log:
        assert log.topics() == ["orders"]


# Settings


def test_setting_ship_ms(machines: Machines) -> None:
    with machines.open("a", acks="local", ship_ms=20) as log:
        log.create_topic("orders")
        log.append("orders", b"x" * 100)
        until(lambda: log.stats().shipping.shipped_index == 2)  # type: ignore[union-attr]
        shipped = log.stats().shipping
        assert shipped is not None
        assert shipped.acks == "local"
        assert (shipped.unshipped_records, shipped.unshipped_bytes, shipped.unshipped_ms) == (
            0,
        ) * 3


def test_what_is_not_shipped_is_counted(machines: Machines) -> None:
    with machines.open("a", acks="local", ship_ms=3_600_000) as log:
        log.create_topic("orders")
        log.append_batch("orders", [b"x" * 50] * 7)
        shipped = log.stats().shipping
        assert shipped is not None
        assert shipped.unshipped_records == 7
        assert shipped.unshipped_bytes > 7 * 50
        assert shipped.shipped_index == 0
        log.parts.shipping.flush()  # type: ignore[union-attr]
        assert log.stats().shipping.unshipped_records == 0  # type: ignore[union-attr]


def test_many_bytes_are_shipped_before_their_time(machines: Machines) -> None:
    with machines.open("a", acks="local", ship_ms=3_600_000) as log:
        log.create_topic("orders")
        for _ in range(10):
            log.append_batch("orders", [b"x" * 1000] * 1000)
        until(lambda: log.stats().shipping.shipped_index > 5)  # type: ignore[union-attr]
        assert list(machines.store.glob("*/parts/*"))  # a large group is in parts


def test_setting_store_linger_ms(machines: Machines) -> None:
    def slots(**wal: int) -> int:
        name = f"m{len(list(machines.root.iterdir()))}"
        inner = _fresh(machines.root / name)
        with inner.open("a", **wal) as log:
            log.create_topic("orders")
            sent = [log.append_batch_async("orders", [b"%d" % number]) for number in range(2)]
            for each in sent:
                each.result(timeout=60)
            sent = [log.append_batch_async("orders", [b"%d" % number]) for number in range(40)]
            for each in sent:
                each.result(timeout=60)
            return log.stats().shipping.slots  # type: ignore[union-attr]

    assert slots(store_linger_ms=400) <= 5


def _fresh(root: Path) -> Machines:
    root.mkdir()
    return Machines(root)


def test_setting_lease_ms(machines: Machines) -> None:
    log = machines.open("a", lease_ms=300)
    log.create_topic("orders")
    log.parts.shipping.lease.lose(NotOwnerError("the test ends this owner"))  # type: ignore[union-attr]
    log.close()  # without releasing the lease
    with machines.open("b", lease_ms=300) as log:
        assert log.topics() == ["orders"]


@pytest.mark.parametrize("given", [{"acks": "store"}, {"ship_ms": 1000}])
def test_shipping_needs_a_store(given: dict[str, object], tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match="store"):
        lakebed.open(tmp_path / "a", LogConfig(wal=WalConfig(**given)))  # type: ignore[arg-type]
    assert not (tmp_path / "a").exists()


@pytest.mark.parametrize(
    "given", [{"acks": "both"}, {"ship_ms": -1}, {"lease_ms": 1}, {"store_linger_ms": 70_000}]
)
def test_settings_out_of_bounds_are_refused(given: dict[str, object]) -> None:
    with pytest.raises(InvalidArgumentError):
        WalConfig(**given)  # type: ignore[arg-type]


# What is in the store


def test_a_group_is_one_slot_and_the_fence_comes_first(machines: Machines) -> None:
    with machines.open("a") as log:
        log.create_topic("orders")
        log.append_batch("orders", [b"1", b"2"])
        log_id = log.parts.wal.log_id
    kinds = [
        decode_slot(path.read_bytes(), log_id, int(path.name, 16)).kind.name
        for path in machines.slots()
    ]
    assert kinds == ["FENCE", "DATA", "DATA"]


def test_checkpoints_remove_slots_and_keep_fences(machines: Machines) -> None:
    with machines.open("a") as log:
        log.create_topic("orders")
        for number in range(8):
            log.append("orders", b"%d" % number)
            log.checkpoint()
        assert len(machines.slots()) < 8
        assert machines.slots()[0].name == f"{1:016x}"


def test_an_edited_base_is_refused(machines: Machines) -> None:
    with machines.open("a") as log:
        log.create_topic("orders")
    (base,) = machines.store.glob("*/base")
    base.write_bytes(base.read_bytes().replace(b"slot", b"slut"))
    with pytest.raises(LakebedError):
        machines.open("b")


@pytest.mark.parametrize("acks", ["store", "local"])
def test_a_group_that_was_cut_short_and_finds_no_room_poisons_the_log(
    machines: Machines, monkeypatch: pytest.MonkeyPatch, acks: str
) -> None:
    """It may be in the store: the next group must not take its place there."""
    with machines.open("a", acks=acks, ship_ms=3_600_000) as log:
        log.create_topic("orders")
        writer = log.parts.wal.commits._writer
        replicate = writer.replicate
        assert replicate is not None

        def find_no_room(*_: object) -> None:
            raise NoRoomError(DiskFullError("the disk is full"))

        def strike(group: list[Request]) -> None:
            replicate(group)
            monkeypatch.setattr(writer, "replicate", replicate)
            monkeypatch.setattr(writer, "_make_room", find_no_room)
            raise KeyboardInterrupt

        monkeypatch.setattr(writer, "replicate", strike)
        with pytest.raises(KeyboardInterrupt):
            log.append("orders", b"cut")
        until(lambda: writer.poison is not None)
        with pytest.raises(LakebedError):
            log.append("orders", b"refused")
