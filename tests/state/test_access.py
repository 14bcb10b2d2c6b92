"""Tokens, rules and grants in the state: what each command leaves, and what is refused."""

from __future__ import annotations

import pytest

from lakebed import limits
from lakebed.errors import InvalidArgumentError
from lakebed.state.commands import Command, PutToken, RevokeToken, SetGrant, SetRule
from lakebed.state.image import State, encode_state
from lakebed.state.machine import carry_out, decide
from lakebed.state.permissions import BUILT_IN, Action, Permissions, is_open
from lakebed.state.values import Token

DIGEST = bytes(range(32))


def applied(*made: Command) -> State:
    state = State()
    for index, each in enumerate(made, 1):
        carry_out(decide(state, index, each).changes)
    return state


def test_a_token_is_kept_as_its_digest_until_it_is_revoked() -> None:
    state = applied(PutToken("t", "alice", DIGEST, 5, 100))
    assert state.tokens == {"t": Token("t", "alice", DIGEST, 5, 100, 0)}
    assert state.tokens["t"].valid_at(99)
    assert not state.tokens["t"].valid_at(100)
    carry_out(decide(state, 2, RevokeToken("t", 7)).changes)
    assert state.tokens["t"].revoked_us == 7
    assert not state.tokens["t"].valid_at(8)
    assert decide(state, 3, RevokeToken("t", 9)).changes == []


def test_a_token_that_was_revoked_at_time_zero_is_revoked() -> None:
    state = applied(PutToken("t", "alice", DIGEST, 0, 0), RevokeToken("t", 0))
    assert not state.tokens["t"].valid_at(0)


def test_an_id_is_given_once_and_an_unknown_one_cannot_be_revoked() -> None:
    state = applied(PutToken("t", "alice", DIGEST, 5, 0))
    before = encode_state(state)
    with pytest.raises(InvalidArgumentError):
        decide(state, 2, PutToken("t", "bob", DIGEST, 6, 0))
    with pytest.raises(InvalidArgumentError):
        decide(state, 2, RevokeToken("u", 6))
    assert encode_state(state) == before


def test_tokens_that_ended_long_ago_go_when_another_is_made() -> None:
    kept = limits.TOKEN_KEPT_US
    state = applied(
        PutToken("expired", "alice", DIGEST, 0, 10),
        PutToken("revoked", "alice", DIGEST, 0, 0),
        PutToken("endless", "alice", DIGEST, 0, 0),
        PutToken("later", "alice", DIGEST, 0, kept),
        RevokeToken("revoked", 10),
        PutToken("on the day", "bob", DIGEST, kept + 10, 0),
    )
    assert "expired" in state.tokens
    carry_out(decide(state, 7, PutToken("after", "bob", DIGEST, kept + 11, 0)).changes)
    assert sorted(state.tokens) == ["after", "endless", "later", "on the day"]


def test_there_is_a_most_of_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TOKENS_MAX", "RULES_MAX", "GRANTS_MAX"):
        monkeypatch.setattr(limits, name, 1)
    state = applied(
        PutToken("t", "a", DIGEST, 0, 0), SetRule("r", "read", "*", 1), SetGrant("a", "r", 1)
    )
    refused: list[Command] = [
        PutToken("u", "a", DIGEST, 0, 0),
        SetRule("r", "write", "*", 1),
        SetGrant("b", "r", 1),
    ]
    for more in refused:
        with pytest.raises(InvalidArgumentError, match="too many"):
            decide(state, 4, more)
    assert decide(state, 4, SetRule("r", "read", "*", 1)).result is False
    assert decide(state, 4, SetRule("r", "read", "*", 0)).result is True


def test_setting_what_is_set_changes_nothing_and_every_change_is_counted() -> None:
    state = State()
    made: list[tuple[Command, bool]] = [
        (SetRule("r", "read", "a*", 1), True),
        (SetRule("r", "read", "a*", 1), False),
        (SetGrant("a", "r", 0), False),
        (SetGrant("a", "r", 1), True),
        (SetRule("r", "read", "a*", 0), True),
    ]
    counts = []
    for index, (command, new) in enumerate(made, 1):
        decision = decide(state, index, command)
        assert decision.result is new
        carry_out(decision.changes)
        counts.append(state.numbers["access"])
    assert counts == [1, 1, 1, 2, 3]
    assert state.rules == {}
    assert state.grants == {("a", "r"): True}


def test_a_log_is_open_until_it_knows_of_anything_and_never_by_revoking_a_token() -> None:
    assert is_open(State())
    assert not is_open(applied(SetRule("r", "read", "*", 1)))
    assert not is_open(applied(SetGrant("a", "r", 1)))
    assert not is_open(applied(PutToken("t", "a", DIGEST, 0, 0), RevokeToken("t", 1)))
    assert is_open(applied(SetGrant("a", "r", 1), SetGrant("a", "r", 0)))


@pytest.mark.parametrize("action", Action)
@pytest.mark.parametrize("role", [*BUILT_IN, "unheard-of"])
def test_what_the_roles_that_need_no_rules_may_do(role: str, action: Action) -> None:
    table = {
        "admin": {"read", "write", "group", "manage", "admin"},
        "reader": {"read", "group"},
        "writer": {"write"},
        "unheard-of": set(),
    }
    permissions = Permissions([], [("alice", role)])
    expected = action.value in table[role]
    assert permissions.permits("alice", action, "orders") is expected
    assert permissions.permits_everywhere("alice", action) is expected
    assert not permissions.permits("bob", action, "orders")


@pytest.mark.parametrize(
    ("pattern", "fitting", "other"),
    [
        ("orders", ["orders"], ["orders2", "order", "Orders", "my.orders"]),
        ("orders*", ["orders", "orders.eu"], ["order", "my-orders"]),
        ("*.eu", ["orders.eu", ".eu"], ["ordersXeu", "orders.eu.x"]),
        ("a?c", ["abc", "a.c"], ["ac", "abbc", "a\nbc"]),
        ("*", ["orders", "é", ""], []),
    ],
)
def test_a_pattern_fits_whole_names(pattern: str, fitting: list[str], other: list[str]) -> None:
    permissions = Permissions([("r", "read", pattern)], [("alice", "r")])
    assert [name for name in fitting if not permissions.permits("alice", Action.READ, name)] == []
    assert [name for name in other if permissions.permits("alice", Action.READ, name)] == []
    assert not permissions.permits("alice", Action.WRITE, fitting[0])
    assert permissions.permits_everywhere("alice", Action.READ) is (pattern == "*")


def test_a_pattern_made_to_be_slow_is_not() -> None:
    permissions = Permissions([("r", "read", "*a" * 60 + "b")], [("alice", "r")])
    assert not permissions.permits("alice", Action.READ, "a" * 128)


def test_administrators_are_those_who_may_administer_everything() -> None:
    rules = [("ops", "admin", "*"), ("some", "admin", "x*"), ("nobody", "admin", "*")]
    grants = [("alice", "admin"), ("bob", "ops"), ("carol", "some"), ("dora", "reader")]
    assert Permissions(rules, grants).administrators() == {"alice", "bob"}
