"""Proof: a server that is attacked for as long as wanted serves its honest clients as before.

Honest and hostile clients are processes; all of them use one address. The first quarter of the run
is without the attack. It lasts a minute, or until `LAKEBED_PROVE_UNTIL` (`make prove PART=soak`).
"""

from __future__ import annotations

import os
import sys
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa
import pytest

from lakebed import Log
from tests.proof.scale import kept_on_failure
from tests.proof.soak_attacks import HEAVY, MIB, STREAMS_MAX, TOPIC
from tests.proof.soak_clients import GROUP, TOPICS
from tests.proof.soak_process import Participant, Phases
from tests.proof.soak_report import Soak
from tests.proving import Note
from tests.serve.support import ServerProcess, check_serves

_TEST = "tests/proof/test_soak.py::test_honest_clients_are_served_beside_hostile_ones"
_SECONDS = 60.0
_MARGIN_SECONDS = 240.0
"""What is left of the time of a long run for comparing every record at its end."""
_LONG_SECONDS = 600.0
"""From here on the ratio of latencies means something, and is a condition."""
_RATIO_MAX = 3.0
_GROWTH_MAX, _GROWTH_BYTES = 1.25, 64 * MIB
_HONEST = ("single", "single", "producer", "batch", "transaction", "http", "consumer", "consumer")
_HOSTILE = ("anonymous", "http", "data", "tenant")
_NEVER_TAKEN = ("negative_views", "shared_words", "large")
_SETTINGS = (
    f"principal_streams_max={STREAMS_MAX}",
    f"principal_inflight_bytes_max={64 * MIB}",
    "flight_unauthenticated_ms=10000",
    "flight_stall_timeout_ms=5000",
    "http_stall_timeout_ms=5000",
    "http_body_timeout_ms=5000",
)
_TOML = f"""
memtable_bytes = {16 * MIB}
wal_bytes = {64 * MIB}
cache_bytes = {16 * MIB}
checkpoint_interval_ms = 10000

[lake]
iceberg = false
"""


def _duration() -> float:
    """Return how many seconds the run lasts."""
    until = os.environ.get("LAKEBED_PROVE_UNTIL")
    if until is None:
        return _SECONDS
    return max(_SECONDS, float(until) - time.time() - _MARGIN_SECONDS)


def _prepare(folder: Path) -> dict[str, str]:
    """Make topics, rules and tokens; return the tokens by principal."""
    with Log.open(folder) as log:
        for topic in TOPICS:
            log.create_topic(topic, 3)
        log.create_topic(TOPIC)
        log.append(TOPIC, b"v")  # so that a stream that follows the topic has a first batch
        log.create_topic(HEAVY)
        rows = pa.record_batch({"value": pa.array([b"\x01" * (64 << 10)] * 8, pa.binary())})
        for _ in range(8):
            log.append_batch(HEAVY, rows)
        tokens = {"root": str(log.access.create_token("root", roles=["admin"]))}
        log.access.allow("attacker", "read", "target*")
        log.access.allow("attacker", "write", TOPIC)
        for kind in {*_HONEST, *_HOSTILE}:
            honest = f"honest-{kind}", ["reader", "writer"]
            hostile = f"hostile-{kind}", ["attacker"]
            for principal, roles in (honest, hostile):
                tokens[principal] = str(log.access.create_token(principal, roles=roles))
        return tokens


class Run:
    """The server and every process of the soak."""

    def __init__(self, server: ServerProcess, tokens: dict[str, str]) -> None:
        self._server = server
        self._tokens = tokens
        self._honest = [self._start("honest", kind, n) for n, kind in enumerate(_HONEST)]
        self._hostile = [self._start("hostile", kind, n) for n, kind in enumerate(_HOSTILE)]

    def _start(self, side: str, kind: str, number: int) -> tuple[str, Participant]:
        module = "tests.proof.soak_clients" if side == "honest" else "tests.proof.soak_attacks"
        token = self._tokens[f"{side}-{kind}"]
        return kind, Participant(module, kind, f"{side}-{kind}-{number}", self._server, token)

    @property
    def _participants(self) -> Iterable[Participant]:
        return (participant for _, participant in (*self._honest, *self._hostile))

    def run(self, seconds: float) -> Soak:
        """Let everything happen; return the figures."""
        for participant in self._participants:
            participant.wait_until_ready()
        now = time.time()
        phases = Phases(now + seconds / 4, now + seconds)
        for participant in self._participants:
            participant.begin(phases)
        soak = Soak(seconds)
        while not phases.ended:
            soak.resident.append(self._server.resident_bytes)
            for participant in self._participants:
                participant.check()
            time.sleep(1)
        for kind, participant in self._honest:
            soak.honest.setdefault(kind, []).append(participant.report())
        for kind, participant in self._hostile:
            soak.hostile[kind] = participant.report()
        return soak

    def kill(self) -> None:
        """Leave no process behind."""
        for participant in self._participants:
            participant.kill()


def _read_all(log: Log) -> tuple[Counter[str], int]:
    """Return how often each value is in the topics, and how many records `orders` has."""
    values: Counter[str] = Counter()
    orders = 0
    for topic in TOPICS:
        for partition, (offset, end) in log.offsets(topic).items():
            orders += end - offset if topic == "orders" else 0
            while offset < end:
                column = log.read(topic, partition, offset).column("value")
                values.update(value.decode() for value in column.to_pylist())
                offset += len(column)
    return values, orders


def _check_records(soak: Soak, values: Counter[str]) -> None:
    """Check that acknowledged records exist once, refused ones never, and nothing else."""
    for value, count in values.items():
        assert count == 1, f"{value} exists {count} times"
    for reports in soak.honest.values():
        for report in reports:
            refused, unknown = set(report["refused"]), set(report["unknown"])
            for number in range(report["numbers"]):
                found = values.pop(f"{report['name']}/{number}", 0)
                if number not in unknown:
                    expected = int(number not in refused)
                    assert found == expected, f"{report['name']}/{number}: {found}, not {expected}"
    assert not values, f"records that no client wrote: {list(values)[:5]}"


def _check_group(soak: Soak, log: Log, orders: int) -> None:
    """Check that the group was given every record at least once."""
    read = sum(report["read"] for report in soak.honest["consumer"])
    with log.consumer(GROUP, ["orders"]) as consumer:
        while any(consumer.lag().values()) or not consumer.assignment():
            read += consumer.poll(1000).num_rows
    assert read >= orders, f"the group read {read} of {orders} records"


def _check_log(server: ServerProcess, token: str, soak: Soak) -> None:
    with server.open(token=token) as log:
        values, orders = _read_all(log)
        _check_records(soak, values)
        _check_group(soak, log, orders)
    check_serves(server, token=token)


def _check_figures(soak: Soak) -> None:
    assert not soak.unexpected, f"honest clients saw errors: {soak.unexpected}"
    assert soak.latencies("single", "during"), "nothing was appended under attack"
    for attacks in soak.hostile.values():
        for attack, outcomes in attacks.items():
            assert sum(outcomes.values()), f"{attack} was never made"
            assert attack not in _NEVER_TAKEN or "taken" not in outcomes, f"{attack}: {outcomes}"
    if soak.seconds >= _LONG_SECONDS:
        assert soak.ratio <= _RATIO_MAX, f"p99 under attack is {soak.ratio:.2f} times that before"
    second, last = soak.resident_of(1), soak.resident_of(3)
    assert last <= _GROWTH_MAX * second + _GROWTH_BYTES, f"{second:,.0f} bytes became {last:,.0f}"


def _publish(soak: Soak) -> None:
    """Print the figures, and keep them and the count of calls where `make prove` looks."""
    sys.stdout.write("\n" + soak.render())
    if folder := os.environ.get("LAKEBED_PROVE_FOLDER"):
        (Path(folder) / "soak.txt").write_text(soak.render(), encoding="utf8")
        complete = soak.seconds >= _LONG_SECONDS
        Note(_TEST, Path(folder)).write(1, soak.operations, complete=complete)


@pytest.mark.prove
def test_honest_clients_are_served_beside_hostile_ones(tmp_path: Path) -> None:
    """No error but documented refusals, every record once, steady memory, the same process."""
    server = ServerProcess(tmp_path / "log", *_SETTINGS, toml=_TOML, http_port=0)
    tokens = _prepare(server.folder)
    with kept_on_failure(tmp_path, _TEST), server:
        process = server.pid
        run = Run(server, tokens)
        try:
            soak = run.run(_duration())
        finally:
            run.kill()
        try:
            assert server.alive, server.said
            assert server.pid == process
            _check_log(server, tokens["root"], soak)
            soak.resident_after = server.resident_bytes
        finally:
            _publish(soak)
        _check_figures(soak)
        assert "unforeseen" not in server.said
        assert "a defect" not in server.said
