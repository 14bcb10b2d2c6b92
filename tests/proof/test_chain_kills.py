"""Proof: a log in a store keeps every acknowledged record, even if its machine is lost.

Owners are killed, paused beyond their lease, and their folders removed, while they write with
producers, transactions, groups, checkpoints and retention. One ledger checks what every owner
reported against what the next one has.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
from dataclasses import replace
from pathlib import Path

import pytest

from lakebed import AckMode, Log
from lakebed.errors import NotOwnerError
from lakebed.host import failpoints
from tests.proof.chain_writer import LEASE_MS, in_store
from tests.proof.engine_child import ForkedChild
from tests.proof.engine_ledger import Ledger, payload_of
from tests.proof.engine_writer import SCRIPT, random_config
from tests.proof.scale import SEED, Rounds, in_turn, kept_on_failure, rng, trials

_MODULE = "tests.proof.chain_writer"
_FILE = "tests/proof/test_chain_kills.py"

_NOT_MET = {
    "chain.parts_written": "a group above 4 MiB; tests/chain/test_owner.py has parts",
    "chain.local_set_aside": "a folder that diverged: below",
    "chain.snapshot_installed": "as above",
    "chain.local_reset": "as above",
    "ship.lease_renewed": "met by time alone",
}
"""Points that the scripted life does not come by, and why."""
_POINTS = [
    name
    for name in failpoints.names()
    if name.startswith(("chain.", "ship.", "host.conditional.")) and name not in _NOT_MET
]


def _child(
    root: Path, machine: str, run: int, mode: str, ledger: Ledger, **more: str
) -> ForkedChild:
    return ForkedChild(
        root / machine,
        root / "store",
        run,
        SEED,
        mode,
        take=ledger.take,
        errors=root / f"{machine}-{run}.stderr",
        module=_MODULE,
        **more,
    )


def _write_for_a_while(child: ForkedChild, ledger: Ledger, chance: random.Random) -> None:
    child.listen(lambda: ledger.phase == "opened")
    lines = child.lines + chance.randint(20, 250)
    child.listen(lambda: child.lines >= lines)
    child.listen_for(chance.uniform(0, 0.01))


def _adopt(root: Path, machine: str, ledger: Ledger, chance: random.Random) -> None:
    """Open the log on a machine, compare it with the ledger, and let go of it."""
    config = in_store(random_config(chance), str(root / "store"))
    with Log.open(root / machine, config) as log:
        ledger.adopt(log)
        log.verify()
        if chance.random() < 0.3:
            log.checkpoint()
            ledger.check(log)


def _lose_machines(root: Path, chance: random.Random) -> int:
    """Kill owners one after another; some lose their folder, some come back with it."""
    ledger, machine = Ledger(), "m0"
    for run in range(4):
        ledger.phase = "absent"
        with _child(root, machine, run, "store", ledger) as child:
            _write_for_a_while(child, ledger, chance)
            child.kill()
        fate = chance.choice(("lost", "returns", "other"))
        if fate == "lost":
            shutil.rmtree(root / machine)
        if fate != "returns":
            machine = f"m{chance.randrange(3)}"
        _adopt(root, machine, ledger, chance)
    return ledger.acks


@pytest.mark.proof
def test_a_killed_owner_whose_machine_is_lost_loses_nothing(tmp_path: Path) -> None:
    """SIGKILL, and the folder removed or not: the next owner has every acknowledged record."""
    test = f"{_FILE}::test_a_killed_owner_whose_machine_is_lost_loses_nothing"
    acks = 0
    for life in (rounds := Rounds(test, short=20, long=2_000, seconds=20)):
        rounds.count(4)
        root = tmp_path / f"life-{life}"
        (root / "store").mkdir(parents=True)
        with kept_on_failure(root, test, f"life {life}"):
            acks += _lose_machines(root, rng("chain-kill", life))
        shutil.rmtree(root)
    assert acks > 0


@pytest.mark.proof
def test_a_paused_owner_that_was_taken_over_is_refused(tmp_path: Path) -> None:
    """SIGSTOP for longer than the lease: another owner writes, and the paused one is refused."""
    test = f"{_FILE}::test_a_paused_owner_that_was_taken_over_is_refused"
    for life in Rounds(test, short=4, long=400, seconds=15):
        root, chance, ledger = tmp_path / f"life-{life}", rng("chain-pause", life), Ledger()
        (root / "store").mkdir(parents=True)
        with kept_on_failure(root, test, f"life {life}"):
            with _child(root, "a", 0, "store", ledger) as paused:
                _write_for_a_while(paused, ledger, chance)
                pid = paused._child.pid
                assert pid is not None
                os.kill(pid, signal.SIGSTOP)
                paused.listen_for(0.05)  # what it reported before comes before what follows
                ledger.phase = "absent"
                with _child(root, "b", 1, "store", ledger) as fresh:
                    _write_for_a_while(fresh, ledger, chance)
                    fresh.listen_for(chance.uniform(0, LEASE_MS / 1000))
                    os.kill(pid, signal.SIGCONT)
                    assert paused.wait() == 0, paused.errors()
                    lines = fresh.lines + 20
                    fresh.listen(lambda fresh=fresh, lines=lines: fresh.lines >= lines)  # type: ignore[misc]
                    fresh.kill()
            _adopt(root, chance.choice("abc"), ledger, chance)
            _adopt(root, "a", ledger, chance)
        shutil.rmtree(root)


@pytest.mark.proof
@pytest.mark.parametrize("point", _POINTS)
def test_a_failpoint_of_the_chain_breaks_no_promise(point: str, tmp_path: Path) -> None:
    """Killed or failing at the nth hit, the log is what was acknowledged, on any machine."""
    test = f"{_FILE}::test_a_failpoint_of_the_chain_breaks_no_promise[{point}]"
    for nth in range(1, trials(1, 50) + 1):
        for action in in_turn(point, ("kill", "error")):
            root, ledger = tmp_path / f"{action}-{nth}", Ledger()
            (root / "store").mkdir(parents=True)
            with kept_on_failure(root, test, f"{point}={action}@{nth}"):
                armed = f"{point}={action}@{nth}"
                with _child(root, "a", 0, "script", ledger, failpoint=armed) as child:
                    code = child.wait()
                    assert code in (0, -signal.SIGKILL), child.errors()
                if action == "kill" and code == 0:
                    assert nth > 1, f"the script never comes by {point}"
                for machine in ("a", "b", "a"):
                    config = in_store(SCRIPT, str(root / "store"))
                    with Log.open(root / machine, config, threaded=False) as log:
                        ledger.adopt(log)
                        log.verify()
                        log.checkpoint()
                        ledger.check(log)
            shutil.rmtree(root)


@pytest.mark.proof
def test_what_a_local_owner_had_not_shipped_is_in_diverged(tmp_path: Path) -> None:
    """With `local`, a kill and a takeover lose what was not shipped; the folder still has it."""
    test = f"{_FILE}::test_what_a_local_owner_had_not_shipped_is_in_diverged"
    for life in Rounds(test, short=4, long=400, seconds=10):
        root, chance, ledger = tmp_path / f"life-{life}", rng("chain-local", life), Ledger()
        (root / "store").mkdir(parents=True)
        with kept_on_failure(root, test, f"life {life}"):
            with _child(root, "a", 0, "local", ledger) as child:
                _write_for_a_while(child, ledger, chance)
                child.kill()
            acked = {
                name: item
                for name, item in ledger.items.items()
                if item.acked_at and item.topic == "fixed"
            }
            config = in_store(random_config(chance), str(root / "store"))
            with Log.open(root / "b", config) as log:
                found = ledger.adopt(log, weak=True)
                log.create_topic("taken-over")  # from here on the two logs differ
            lost = {name: item for name, item in acked.items() if name not in found.places}
            with Log.open(root / "a", config) as log:
                ledger.check(log)
            kept = b"".join(
                path.read_bytes() for path in sorted((root / "a").glob("diverged/*/*.entry"))
            )
            for name, item in lost.items():
                assert payload_of(name, item.size) in kept, f"{name} is nowhere"
            _adopt(root, "c", ledger, chance)
        shutil.rmtree(root)


@pytest.mark.proof
@pytest.mark.parametrize(
    "point", ["chain.local_set_aside", "chain.snapshot_installed", "chain.local_reset"]
)
def test_a_folder_that_diverged_is_killed_while_it_is_reconciled(
    point: str, tmp_path: Path
) -> None:
    """Opened again, it has the store's log, and what was set aside is still there, once."""
    ledger = Ledger()
    (tmp_path / "store").mkdir()
    config = in_store(SCRIPT, str(tmp_path / "store"))
    slow = replace(config, wal=replace(config.wal, acks=AckMode.LOCAL, ship_ms=3_600_000))
    log = Log.open(tmp_path / "a", slow)
    log.create_topic("fixed")
    log.parts.shipping.flush()  # type: ignore[union-attr]
    log.append("fixed", b"only here")
    shutil.copytree(tmp_path / "a", tmp_path / "returned")
    log.parts.shipping.lease.lose(NotOwnerError("the test ends this owner"))  # type: ignore[union-attr]
    log.close()
    with Log.open(tmp_path / "b", config) as log:
        log.create_topic("other")
        log.checkpoint()
        log.create_topic("another")
        log.checkpoint()
    armed = f"{point}=kill"
    with _child(tmp_path, "returned", 0, "store", ledger, failpoint=armed) as child:
        assert child.wait() == -signal.SIGKILL, child.errors()
    with Log.open(tmp_path / "returned", config) as log:
        assert sorted(log.topics()) == ["another", "fixed", "other"]
        assert log.read("fixed").num_rows == 0
        log.verify()
    (entry,) = (tmp_path / "returned").glob("diverged/*/*.entry")
    assert b"only here" in entry.read_bytes()
