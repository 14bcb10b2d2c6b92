"""The failover demonstration: the owner's machine is lost while orders flow, and no order is.

Two servers of one log, whose store is a folder; a real one is a bucket, and the servers are on two
machines. The owner is killed (SIGKILL) and its folder deleted. The standby takes over, the client
follows it, and every acknowledged order is looked for.
"""

from __future__ import annotations

import contextlib
import html
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, Protocol

import lakebed
from lakebed.demo import orders
from lakebed.errors import DemoFailedError, LakebedError
from lakebed.types import Closing

TOPIC: Final = "orders"
LEASE_MS: Final = 3_000
_IN_FLIGHT: Final = 64
_START_SECONDS: Final = 120.0
_RETRY_MS: Final = 120_000
_LOOK_SECONDS: Final = 0.02


class FailoverTeller(Protocol):
    """Shows how far the demonstration has come."""

    def act(self, text: str) -> None:
        """Report the step that begins."""
        ...

    def fact(self, text: str) -> None:
        """Report a result."""
        ...


@dataclass(frozen=True)
class FailoverMeasures:
    """The results."""

    sent: int
    acknowledged: int
    acknowledged_before: int
    """Orders that were acknowledged before the owner was killed."""
    lost: int
    """Acknowledged orders that are not in the log, or not where the acknowledgement says."""
    twice: int
    refused: int
    lease_ms: int
    gap_ms: int
    """The longest time without an acknowledgement: from the kill to the standby's first."""
    first_owner: str
    second_owner: str

    @property
    def is_right(self) -> bool:
        """Whether every order was acknowledged, and is in the log once, by the other server."""
        moved = self.first_owner != self.second_owner
        return moved and not (self.lost or self.twice or self.refused)


class ServerNode(Closing):
    """A server: a process and a folder, as a machine would have them."""

    def __init__(self, root: Path, name: str) -> None:
        self.folder = root / name
        self.port = _free_port()
        self._output = root / f"{name}.log"
        others = {key: text for key, text in os.environ.items() if not key.startswith("LAKEBED_")}
        with self._output.open("ab") as output:
            self._process = subprocess.Popen(  # noqa: S603  # a command of ours
                [
                    *(sys.executable, "-m", "lakebed.cli", "serve", "--standby"),
                    *("--data", f"file://{(root / 'store').absolute()}"),
                    *("--folder", str(self.folder), "--port", str(self.port), "--http-port", "-1"),
                ],
                env={**others, "LAKEBED_WAL_LEASE_MS": str(LEASE_MS)},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )

    @property
    def address(self) -> str:
        """Where clients reach it."""
        return f"127.0.0.1:{self.port}"

    @property
    def role(self) -> str:
        """Its last role; empty before it has one."""
        text = self._output.read_text(errors="replace")
        return text.rpartition(" role: ")[2].split()[0] if " role: " in text else ""

    def wait_for_role(self, *roles: str) -> None:
        """Wait until it has one of these roles."""
        until = time.monotonic() + _START_SECONDS
        while self.role not in roles:
            if self._process.poll() is not None or time.monotonic() > until:
                raise DemoFailedError("a server did not start", log=self._output)
            time.sleep(_LOOK_SECONDS)

    def lose(self) -> None:
        """Kill it and delete its folder."""
        self._process.kill()
        self._process.wait()
        shutil.rmtree(self.folder)

    def close(self) -> None:
        """Kill it."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()


class _Checkout:
    """Sends orders in a thread, some in flight at a time, and records their outcomes."""

    def __init__(self, log: lakebed.Log, count: int) -> None:
        self.offsets: dict[int, int] = {}
        self.times: list[float] = []
        self.refused = 0
        self._producer = log.producer("checkout")
        self._count = count
        self._room = threading.Semaphore(_IN_FLIGHT)
        self._guard = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="lakebed-demo", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        for index in range(self._count):
            self._room.acquire()
            value = b"%d %b" % (index, orders.change(0, index).value or b"")
            sent = self._producer.send(TOPIC, value)
            sent.add_done_callback(partial(self._note, index))
        self._producer.flush()

    def _note(self, index: int, done: Any) -> None:
        try:
            offset = done.result().offset
        except LakebedError:
            with self._guard:
                self.refused += 1
        else:
            with self._guard:
                self.offsets[index] = offset
                self.times.append(time.monotonic())
        self._room.release()

    def wait_for(self, count: int) -> None:
        """Wait until `count` orders are acknowledged."""
        while len(self.times) < count and self._thread.is_alive():
            time.sleep(_LOOK_SECONDS)

    def finish(self) -> None:
        """Wait until each order has an outcome."""
        self._thread.join()
        self._producer.close()


def run_failover(folder: Path, records: int, teller: FailoverTeller) -> FailoverMeasures:
    """Run the demonstration in a folder; return the results."""
    (folder / "store").mkdir(parents=True)
    with _two_nodes(folder) as (owner, standby):
        teller.act("Two servers of one log, whose store is a folder.")
        teller.fact(f"{owner.address} owns the log; {standby.address} is its standby.")
        url = f"lakebed://{owner.address},{standby.address}"
        with lakebed.open(url, lakebed.ClientConfig(retry_ms=_RETRY_MS)) as log:
            log.create_topic(TOPIC, 1)
            teller.act(f"A producer sends {records:,} orders to {url}.")
            checkout = _Checkout(log, records)
            checkout.wait_for(records // 2)
            before = len(checkout.times)
            teller.act(f"After {before:,} acknowledgements the owner is killed, its disk deleted.")
            owner.lose()
            checkout.finish()
            gap_ms = int(max(late - early for early, late in pairwise(checkout.times)) * 1000)
            teller.fact(f"{standby.address} took over: no acknowledgement for {gap_ms:,} ms.")
            teller.act("Every acknowledged order is looked for.")
            lost, twice = _compare(log, checkout.offsets)
        measures = FailoverMeasures(
            sent=records,
            acknowledged=len(checkout.times),
            acknowledged_before=before,
            lost=lost,
            twice=twice,
            refused=checkout.refused,
            lease_ms=LEASE_MS,
            gap_ms=gap_ms,
            first_owner=owner.address,
            second_owner=standby.address if standby.role == "owner" else owner.address,
        )
    teller.fact(
        f"{measures.acknowledged:,} acknowledged, {lost} lost, {twice} twice, "
        f"{measures.refused} refused."
    )
    return measures


@contextlib.contextmanager
def _two_nodes(folder: Path) -> Iterator[tuple[ServerNode, ServerNode]]:
    """Start two servers within the block; return the owner first."""
    with contextlib.ExitStack() as stack:
        first = stack.enter_context(ServerNode(folder, "machine-1"))
        first.wait_for_role("owner")
        second = stack.enter_context(ServerNode(folder, "machine-2"))
        second.wait_for_role("standby")
        yield first, second


def _compare(log: lakebed.Log, offsets: dict[int, int]) -> tuple[int, int]:
    """Return how many acknowledged orders are lost, and how many records are duplicates."""
    values: list[bytes] = []
    while (table := log.read(TOPIC, offset=len(values))).num_rows:
        values += table.column("value").to_pylist()
    numbers = [int(value.split(b" ", 1)[0]) for value in values]
    lost = sum(
        1 for index, offset in offsets.items() if offset >= len(numbers) or numbers[offset] != index
    )
    return lost, len(numbers) - len(set(numbers))


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def failover_page(measures: FailoverMeasures) -> str:
    """Return the report as HTML."""
    verdict = "All checks passed" if measures.is_right else "SOME CHECKS FAILED"
    rows = [
        ("orders sent", f"{measures.sent:,}"),
        ("acknowledged", f"{measures.acknowledged:,}"),
        ("… before the owner was killed", f"{measures.acknowledged_before:,}"),
        ("acknowledged and lost", f"{measures.lost:,}"),
        ("there twice", f"{measures.twice:,}"),
        ("refused", f"{measures.refused:,}"),
        ("longest time without an acknowledgement", f"{measures.gap_ms:,} ms"),
        ("lease", f"{measures.lease_ms:,} ms"),
        ("owner before", measures.first_owner),
        ("owner after", measures.second_owner),
    ]
    cells = "".join(
        f"<tr><th>{html.escape(name)}</th><td>{html.escape(text)}</td></tr>" for name, text in rows
    )
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8"><title>Lakebed failover</title>'
        "<style>body{font:16px sans-serif;margin:2em}th{text-align:left;padding-right:2em;"
        "font-weight:normal}td{text-align:right}</style>"
        f"<h1>Failover</h1><p>{verdict}.</p><table>{cells}</table></html>\n"
    )
