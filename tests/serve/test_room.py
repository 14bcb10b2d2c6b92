"""What callers of a server may add to its state: so much each, and a rest for administrators."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lakebed import Log, ServeConfig, limits
from lakebed.errors import InvalidArgumentError
from lakebed.serve.server import Server
from tests.serve.http_raw import call
from tests.serve.test_matrix import Caller


@pytest.fixture
def served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[Server, dict[str, str]]]:
    """Serve a log with small limits; return tokens of two writers and an administrator."""
    small = {"MARKERS_MAX": 8, "PRODUCERS_MAX": 8, "GROUPS_MAX": 8, "ADMIN_RESERVE": 2}
    for name, most in {**small, "MARKERS_OF_ONE_MAX": 4, "PRODUCERS_OF_ONE_MAX": 4}.items():
        monkeypatch.setattr(limits, name, most)
    log = Log.open(tmp_path / "log")
    log.create_topic("apple")
    roles = {"ann": ["writer", "reader"], "bob": ["writer", "reader"], "root": ["admin"]}
    tokens = {name: str(log.access.create_token(name, roles=each)) for name, each in roles.items()}
    with Server(log, ServeConfig(port=0, http_port=0, stop_timeout_ms=1000)) as server:
        yield server, tokens


@pytest.fixture
def callers(served: tuple[Server, dict[str, str]]) -> Iterator[dict[str, Caller]]:
    """Clients of the served log."""
    server, tokens = served
    with contextlib.ExitStack() as stack:
        found = {name: Caller(server, token) for name, token in tokens.items()}
        for caller in found.values():
            stack.callback(caller.close)
        yield found


def _marker(caller: Caller, name: str, number: int = 1) -> Any:
    request = {"name": name, "number": number, "keep_ms": 10**9, "transactions": [], "offsets": []}
    return caller.call("commit_together", request)


def _transaction(caller: Caller, name: str) -> Any:
    return caller.call("begin_transaction", {"name": name, "timeout_ms": 86_400_000})


def _group(caller: Caller, name: str) -> Any:
    return caller.call("commit_offsets", {"group": name, "offsets": [("apple", 0, 0)]})


def _count(make: Any, caller: Caller, prefix: str) -> int:
    """Make things until one is refused; return how many there are."""
    for number in range(20):
        got = make(caller, f"{prefix}{number}")
        if isinstance(got, InvalidArgumentError):
            assert "too many" in str(got)
            return number
        assert not isinstance(got, Exception), got
    raise AssertionError("none was refused")


@pytest.mark.parametrize("make", [_marker, _transaction], ids=["markers", "transactions"])
def test_one_caller_leaves_room_for_the_others(callers: dict[str, Caller], make: Any) -> None:
    assert _count(make, callers["ann"], "a") == 4
    assert _count(make, callers["bob"], "b") == 2, "the rest is for administrators"
    assert _count(make, callers["root"], "r") == 2
    again = make(callers["ann"], "a0")
    assert not isinstance(again, Exception), "a name that is there is no new one"


def test_producers_count_with_transactions(callers: dict[str, Caller]) -> None:
    for number in range(2):
        callers["ann"].call("register_producer", {"name": f"p{number}"})
    assert _count(_transaction, callers["ann"], "a") == 2


def test_groups_have_a_reserve_for_administrators(callers: dict[str, Caller]) -> None:
    assert _count(_group, callers["ann"], "a") == 6
    got = callers["bob"].call(
        "join", {"group": "new", "topics": ["apple"], "session_seconds": 1, "strategy": "sticky"}
    )
    assert isinstance(got, InvalidArgumentError)
    assert _group(callers["bob"], "a1") is None
    assert _count(_group, callers["root"], "r") == 2


def test_groups_of_commits_by_http_are_limited_too(served: tuple[Server, dict[str, str]]) -> None:
    server, tokens = served

    def commit(name: str, group: str) -> int:
        body = {"offsets": [{"topic": "apple", "partition": 0, "offset": 0}]}
        status, answer = call(
            server, "PUT", f"/v1/groups/{group}/offsets", body, token=tokens[name]
        )
        assert status == 204 or b"there are too many groups" in answer
        return status

    assert [commit("ann", f"a{number}") for number in range(7)] == [204] * 6 + [400]
    assert commit("bob", "b") == 400, "the rest is for administrators"
    assert commit("bob", "a1") == 204, "a group that exists is no new one"
    assert [commit("root", f"r{number}") for number in range(3)] == [204] * 2 + [400]


def test_a_marker_whose_time_is_over_makes_room(callers: dict[str, Caller]) -> None:
    request = {"number": 1, "keep_ms": 0, "transactions": [], "offsets": []}
    for number in range(20):
        got = callers["ann"].call("commit_together", {"name": f"m{number}", **request})
        assert not isinstance(got, Exception), got
