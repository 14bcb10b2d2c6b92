"""Proof: servers of one log in a store are killed, paused and lost, and clients continue.

A producer writes through every fault. At the end each acknowledged record is in the log once, at
the offset of its acknowledgement, and in the order in which it was sent.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

import lakebed
from lakebed import ClientConfig
from lakebed.errors import LakebedError
from tests import forked
from tests.proof.scale import Rounds, rng
from tests.serve.pair import LEASE_MS, StoreServer
from tests.waiting import until

_TEST = "tests/serve/test_failover.py::test_faults_of_any_kind_in_any_order"


class Servers:
    """Two servers, one of which owns the log."""

    def __init__(self, root: Path) -> None:
        self.all = [StoreServer(root, name) for name in ("a", "b")]
        for server in self.all:
            server.start()

    @property
    def url(self) -> str:
        return "lakebed://" + ",".join(server.place for server in self.all)

    def owner(self) -> StoreServer:
        return until(self._owner, "a server owns the log")  # type: ignore[return-value]

    def _owner(self) -> StoreServer | None:
        return next((server for server in self.all if server.alive and server.is_owner), None)

    def standby(self) -> StoreServer:
        owner = self.owner()
        return next(server for server in self.all if server is not owner)


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[Servers]:
    made = Servers(tmp_path)
    yield made
    for server in made.all:
        server.end()


class Writer:
    """Sends numbered records without a pause, and keeps what came of each."""

    def __init__(self, log: lakebed.Log) -> None:
        self.sent: list[Future[Any] | Any] = []
        self.acked_at: list[float] = []
        self._producer = log.producer("writer")
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._ending.is_set():
            sent = self._producer.send("a", b"%d" % len(self.sent))
            self.sent.append(sent)
            sent.result()
            self.acked_at.append(time.monotonic())

    def continues(self) -> None:
        """Wait until more records are acknowledged than now."""
        before = len(self.acked_at)
        until(lambda: len(self.acked_at) > before + 3, "records are acknowledged")

    def end(self) -> list[Any]:
        """Stop; return the outcome of each record."""
        self._ending.set()
        self._thread.join(120)
        assert not self._thread.is_alive(), "a record was neither acknowledged nor refused"
        return [_outcome(sent) for sent in self.sent]

    def gap_seconds(self) -> float:
        """Return the longest time between two acknowledgements."""
        times = self.acked_at
        return max(after - before for before, after in itertools.pairwise(times))


def _outcome(sent: Any) -> Any:
    try:
        return sent.result()
    except LakebedError as error:
        return error


def _check(log: lakebed.Log, outcomes: list[Any]) -> None:
    """Compare what was acknowledged with what is in the log."""
    values: list[bytes] = []
    while (table := log.read("a", offset=len(values))).num_rows:
        values += table.column("value").to_pylist()
    assert len(set(values)) == len(values), "a record is there twice"
    for number, outcome in enumerate(outcomes):
        assert not isinstance(outcome, LakebedError), outcome
        assert values[outcome.offset] == b"%d" % number
    assert [int(value) for value in values] == sorted(int(value) for value in values)


def _kill(servers: Servers) -> Callable[[], object]:
    owner = servers.owner()
    owner.kill()
    return owner.start


def _lose(servers: Servers) -> Callable[[], object]:
    owner = servers.owner()
    owner.lose()
    return owner.start


def _pause(servers: Servers) -> Callable[[], object]:
    owner = servers.owner()
    before = owner.said.count("role: standby")
    owner.send(signal.SIGSTOP)

    def wake() -> None:
        owner.send(signal.SIGCONT)
        until(lambda: owner.said.count("role: standby") > before, "it is a standby")

    return wake


def _hand_over(servers: Servers) -> Callable[[], object]:
    owner = servers.owner()
    owner.send(signal.SIGTERM)
    assert owner.wait() == 0, owner.said
    return owner.start


_FAULTS = {"killed": _kill, "lost": _lose, "paused": _pause, "handed over": _hand_over}


@pytest.mark.parametrize("fault", sorted(_FAULTS))
def test_a_standby_takes_over_and_every_acknowledged_record_is_there_once(
    servers: Servers, fault: str
) -> None:
    with lakebed.open(servers.url, ClientConfig(retry_ms=120_000)) as log:
        log.create_topic("a", 1)
        writer = Writer(log)
        writer.continues()
        standby = servers.standby()
        recover = _FAULTS[fault](servers)
        writer.continues()
        assert standby.is_owner
        recover()
        writer.continues()
        _check(log, writer.end())


def test_faults_of_any_kind_in_any_order(servers: Servers) -> None:
    with lakebed.open(servers.url, ClientConfig(retry_ms=300_000)) as log:
        log.create_topic("a", 1)
        writer = Writer(log)
        for round_number in Rounds(_TEST, short=4, long=500, seconds=60):
            chance = rng(_TEST, round_number)
            recover = _FAULTS[chance.choice(sorted(_FAULTS))](servers)
            writer.continues()
            recover()
            writer.continues()
        _check(log, writer.end())


def test_a_consumer_and_transactions_continue_at_the_standby(servers: Servers) -> None:
    with lakebed.open(servers.url, ClientConfig(retry_ms=120_000)) as log:
        log.create_topic("a", 1)
        log.create_topic("b", 1)
        log.append_batch("a", [{"value": b"%d" % number} for number in range(10)])
        values: list[bytes] = []
        with log.consumer("g", ["a"]) as consumer:

            def read(count: int) -> None:
                def received() -> bool:
                    values.extend(consumer.poll(1000).column("value").to_pylist())
                    return len(values) >= count

                until(received, "records are read")

            read(10)
            consumer.commit()
            with log.transaction() as transaction:
                transaction.append("b", b"first")
            servers.owner().lose()
            log.append("a", b"10")
            read(11)
            consumer.commit()
        with log.transaction() as transaction:
            transaction.append("b", b"second")
        assert values == [b"%d" % number for number in range(11)]
        assert log.read("b").column("value").to_pylist() == [b"first", b"second"]
        assert log.describe_group("g").lag == 0


# The commands of an operator


def _owner(root: Path, *words: str) -> dict[str, Any]:
    """Run `lakebed owner` and return what it prints."""
    run = forked.run(
        [
            *(sys.executable, "-m", "lakebed.cli", "owner", *words),
            *("--data", f"file://{root / 'store'}", "--json"),
        ],
        env={**os.environ, "LAKEBED_WAL_LEASE_MS": str(LEASE_MS)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    shown: dict[str, Any] = json.loads(run.stdout)
    return shown.get("owner", shown) if isinstance(shown.get("owner"), dict) else shown


@pytest.mark.parametrize("how", ["hand-over", "take"])
def test_an_operator_moves_a_log_to_the_standby(servers: Servers, tmp_path: Path, how: str) -> None:
    with lakebed.open(servers.url, ClientConfig(retry_ms=120_000)) as log:
        log.create_topic("a", 1)
        writer = Writer(log)
        writer.continues()
        first, second = servers.owner(), servers.standby()
        before = _owner(tmp_path, "status")
        assert before["address"] == f"lakebed://{first.place}"
        assert (before["state"], before["alive"]) == ("serving", True)
        assert list(before["fences_missing"]) == []
        after = _owner(tmp_path, how, *(["--yes"] if how == "take" else []))
        assert after["term"] > before["term"]
        if how == "hand-over":
            assert after["address"] == f"lakebed://{second.place}"
        writer.continues()
        until(lambda: first.is_owner != second.is_owner, "one of them owns the log")
        _check(log, writer.end())
