"""Transactions of several client processes, which another one commits together."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import lakebed
from lakebed import Log, ServeConfig
from lakebed.client.config import ClientConfig
from lakebed.client.log import RemoteLog
from lakebed.errors import AccessDeniedError, FencedError, InvalidArgumentError, ProtocolError
from lakebed.serve.server import Server
from tests import forked
from tests.serve.inside import connection_of
from tests.serve.support import ServerProcess

_TASK = """
import sys, lakebed
with lakebed.open(sys.argv[1]) as log, log.transaction() as tx:
    tx.append_batch("t", [b"%s/%d" % (sys.argv[2].encode(), each) for each in range(5000)])
    tx.append("t", b"last")
    print(*tx.prepare())
"""
_DRIVER = """
import json, sys, lakebed
with lakebed.open(sys.argv[1]) as log:
    named = [tuple(each) for each in json.loads(sys.argv[2])]
    for _ in range(2):
        print(log.commit_together(named, name="query", number=7))
"""


def run(code: str, *arguments: str) -> str:
    """Run a client as a process of its own; return what it said."""
    done = forked.run(
        [sys.executable, "-c", code, *arguments],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    return str(done.stdout)


def test_what_two_processes_wrote_is_committed_by_a_third_also_after_the_server_was_killed(
    tmp_path: Path,
) -> None:
    with ServerProcess(tmp_path / "log") as server:
        with server.open() as log:
            log.create_topic("t", 2)
        said = [run(_TASK, server.url, name).split() for name in ("one", "two", "speculative")]
        named = [[int(number), int(epoch)] for number, epoch in said[:2]]
        server.kill()
        server.start()
        told = run(_DRIVER, server.url, repr(named))
        assert told.splitlines() == [
            "CommittedTogether(duplicate=False, records=10002)",
            "CommittedTogether(duplicate=True, records=0)",
        ]
        with server.open() as log:
            found = log.table("t").scan(columns=["value"]).read_all().column("value").to_pylist()
            expected = [
                b"%s/%d" % (name, each) for name in (b"one", b"two") for each in range(5000)
            ]
            assert sorted(found) == sorted([*expected, b"last", b"last"])
            assert log.committed_number("query") == 7


class Clients:
    """A served log that knows `ann` and `bob`, who write, and `eve`, who may do nothing."""

    def __init__(self, server: Server) -> None:
        self.server = server
        access = server.log.access
        access.create_token("admin", roles=["admin"])
        self._opened: list[Any] = []
        roles = {"ann": ["writer"], "bob": ["writer"], "eve": []}
        self.tokens = {
            name: str(access.create_token(name, roles=given)) for name, given in roles.items()
        }

    def open(self, name: str) -> Any:
        self._opened.append(
            lakebed.open(self.server.url, ClientConfig(token=self.tokens[name], retry_ms=5000))
        )
        return self._opened[-1]

    def close(self) -> None:
        for each in self._opened:
            each.close()


@pytest.fixture
def clients(tmp_path: Path) -> Iterator[Clients]:
    """Serve a log from this process."""
    log = Log.open(tmp_path / "log")
    log.create_topic("t")
    with Server(log, ServeConfig(port=0, http_port=-1, stop_timeout_ms=1000)) as server:
        made = Clients(server)
        yield made
        made.close()


def prepared(log: Any, value: bytes) -> tuple[int, int]:
    tx = log.transaction()
    tx.append("t", value)
    identity: tuple[int, int] = tx.prepare()
    return identity


def test_a_transaction_of_another_principal_is_not_committed(clients: Clients) -> None:
    ann, bob = clients.open("ann"), clients.open("bob")
    anns, bobs = prepared(ann, b"ann"), prepared(bob, b"bob")
    with pytest.raises(FencedError, match="another client"):
        ann.commit_together([anns, bobs], name="job", number=1)
    assert ann.commit_together([anns], name="job", number=1).records == 1
    assert ann.commit_together([bobs], name="job", number=1).duplicate  # nor is it dropped
    assert bob.committed_number("job") is None  # a name is its principal's
    assert bob.commit_together([bobs], name="job", number=1).records == 1
    assert ann.committed_number("job") == bob.committed_number("job") == 1
    assert clients.server.log.read("t").column("value").to_pylist() == [b"ann", b"bob"]


def test_who_may_neither_write_nor_use_a_group_sets_no_number(clients: Clients) -> None:
    with pytest.raises(AccessDeniedError):
        clients.open("eve").commit_together([], name="job", number=1)
    assert clients.server.log.parts.core.state.markers == {}


_UNREADABLE: list[tuple[str, dict[str, Any]]] = [
    ("abort_transaction", {"producer": -1, "epoch": 1}),
    ("forget_producer", {"producer": 1, "epoch": -1}),
    ("commit_transaction", {"producer": -1, "epoch": 1, "offsets": []}),
    ("commit_transaction", {"producer": 1, "epoch": 1, "offsets": [("g", "", 1, 0, -1)]}),
    ("commit_together", {"transactions": [(-1, 1)]}),
    ("commit_together", {"transactions": [(1, 1, 1)]}),
    ("commit_together", {"transactions": [1]}),
    ("commit_together", {"number": -1}),
    ("commit_together", {"number": 2**63}),
    ("commit_together", {"keep_ms": -1}),
    ("commit_together", {"name": "a/b"}),
    ("commit_together", {"offsets": [("g", "", 1, 0, -1)]}),
    ("commit_together", {"offsets": [("g", "", -1, 0, 1)]}),
]


def test_numbers_that_no_entry_may_hold_are_refused_before_there_is_one(tmp_path: Path) -> None:
    """An entry that cannot be read again would keep the log from being opened."""
    log = Log.open(tmp_path / "log")
    log.create_topic("t")
    full = {"name": "job", "number": 1, "keep_ms": 1, "transactions": [], "offsets": []}
    config = ServeConfig(port=0, http_port=-1, stop_timeout_ms=1000, audit=False)
    with Server(log, config) as server, RemoteLog(server.url) as client:
        before = log.stats().wal.last_index
        for call, request in _UNREADABLE:
            given = {**(full if call == "commit_together" else {}), **request}
            with pytest.raises((InvalidArgumentError, ProtocolError)):
                connection_of(client).call(call, **given)
        assert log.stats().wal.last_index == before
