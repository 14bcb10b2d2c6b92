"""Tokens, rules and grants on the command line."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

import lakebed
from lakebed.errors import UnauthenticatedError
from lakebed.state.permissions import Action
from tests.cli.engine import Shell
from tests.engine.support import inner

TOKEN = r"lkb_[0-9a-f]{16}_[A-Za-z0-9_-]{43}"
DAY_US = 86_400 * 1_000_000


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    return Shell(tmp_path / "data")


def created(shell: Shell, *arguments: str) -> dict[str, Any]:
    (found,) = shell.json("token", "create", *arguments)
    return found


def test_a_token_is_printed_alone_and_explained_on_stderr(shell: Shell) -> None:
    result = shell.run("token", "create", "alice", "--role", "admin")
    assert re.fullmatch(TOKEN + "\n", result.stdout)
    text = result.stdout.strip()
    assert f"token {text[4:20]} of alice, valid until 2" in result.stderr
    assert "not shown again" in result.stderr
    assert "no administrator" not in result.stderr
    assert text[21:] not in result.stderr
    with lakebed.open(shell.folder) as log:
        assert inner(log).access.authenticate(text).principal == "alice"
        assert inner(log).access.permissions().permits("alice", Action.ADMIN, "x")


def test_a_token_without_an_administrator_says_so(shell: Shell) -> None:
    hint = "the log has no administrator yet: lakebed token create NAME --role admin"
    assert f"hint: {hint}" in shell.run("token", "create", "alice").stderr
    assert created(shell, "alice")["warning"].startswith(hint)
    shell.run("access", "allow", "ops", "admin")
    assert "no administrator" not in shell.run("token", "create", "bob", "--role", "ops").stderr
    assert "no administrator" not in shell.run("token", "create", "eve").stderr
    assert "warning" not in created(shell, "eve")


def test_a_role_that_no_rule_speaks_of_is_pointed_out(shell: Shell) -> None:
    shell.run("token", "create", "root", "--role", "admin")
    hint = "no rule speaks of the role raeder yet, so it allows nothing"
    said = shell.run("token", "create", "eve", "--role", "raeder", "--role", "reader")
    assert re.fullmatch(TOKEN + "\n", said.stdout)
    assert said.stderr.splitlines()[2:] == [f"hint: {hint}"]
    assert created(shell, "eve", "--role", "raeder")["warning"] == hint
    said = shell.run("access", "grant", "bob", "raeder")
    assert (said.stdout, said.stderr) == ("bob has the role raeder\n", f"hint: {hint}\n")
    assert shell.json("access", "grant", "bob", "raeder") == [
        {"type": "granted", "principal": "bob", "role": "raeder", "warning": hint}
    ]
    shell.run("access", "allow", "raeder", "read")
    assert shell.run("access", "grant", "ann", "raeder").stderr == ""
    assert "warning" not in created(shell, "eve", "--role", "raeder")


def test_the_first_rule_or_grant_needs_an_administrator_or_force(shell: Shell) -> None:
    shell.run("topic", "create", "orders")
    for call in (("allow", "clerk", "read"), ("grant", "bob", "clerk")):
        error = shell.error("access", *call)
        assert error["code"] == "invalid_argument"
        assert "lakebed token create NAME --role admin" in error["message"]
    assert shell.json("access", "list") == []
    assert shell.text("access", "allow", "clerk", "read", "--force") == "clerk may read on *\n"
    shell.run("access", "forbid", "clerk", "read", "--force")
    shell.run("access", "grant", "bob", "reader", "--force")


@pytest.mark.parametrize(
    ("expires", "lasting_us"),
    [
        ("90d", 90 * DAY_US),
        ("12h", DAY_US // 2),
        ("30m", 1_800_000_000),
        ("5s", 5_000_000),
        ("never", None),
    ],
)
def test_how_long_a_token_is_valid(shell: Shell, expires: str, lasting_us: int | None) -> None:
    found = created(shell, "alice", "--expires", expires)
    if lasting_us is None:
        assert found["expires_us"] is None
        assert (
            "valid without end" in shell.run("token", "create", "bob", "--expires", "never").stderr
        )
    else:
        assert found["expires_us"] - found["created_us"] == lasting_us


@pytest.mark.parametrize("expires", ["", "0d", "90", "d", "1.5d", "-1d", "90 d", "9999999999d"])
def test_a_lifetime_that_means_nothing_is_refused(shell: Shell, expires: str) -> None:
    assert "--expires" in shell.usage("token", "create", "alice", "--expires", expires)
    assert not shell.folder.exists()


def test_a_lifetime_beyond_all_bounds_is_an_error(shell: Shell) -> None:
    error = shell.error("token", "create", "alice", "--expires", "999999999d")
    assert error["code"] == "invalid_argument"


def test_tokens_are_listed_without_their_secrets(shell: Shell) -> None:
    shell.run("topic", "create", "orders")
    assert shell.text("token", "list") == "no tokens\n"
    assert shell.json("token", "list") == []
    first = created(shell, "alice", "--role", "admin", "--role", "clerk")
    second = created(shell, "bob", "--expires", "never")
    assert first["roles"] == ["admin", "clerk"]
    shell.run("token", "revoke", second["id"])
    listed = shell.text("token", "list")
    assert re.search(rf"{first['id']} +alice +\S+Z +\S+Z +valid\n", listed)
    assert re.search(rf"{second['id']} +bob +\S+Z +never +revoked\n", listed)
    found = shell.json("token", "list")
    assert [(each["principal"], each["valid"]) for each in found] == [
        ("alice", True),
        ("bob", False),
    ]
    for made in (first, second):
        assert made["token"][21:] not in listed + json.dumps(found) + shell.text("stats", "--json")


def test_a_revoked_token_fits_no_more(shell: Shell) -> None:
    made = created(shell, "alice")
    assert shell.text("token", "revoke", made["id"]) == f"revoked {made['id']}\n"
    assert shell.json("token", "revoke", made["id"]) == [{"type": "revoked", "token": made["id"]}]
    with lakebed.open(shell.folder) as log, pytest.raises(UnauthenticatedError):
        inner(log).access.authenticate(made["token"])


def test_the_last_administrator_goes_only_by_force(shell: Shell) -> None:
    made = created(shell, "alice", "--role", "admin")
    for call in (("token", "revoke", made["id"]), ("access", "revoke", "alice", "admin")):
        assert "administrator" in shell.error(*call)["message"]
    shell.run("token", "revoke", made["id"], "--force")
    shell.run("access", "revoke", "alice", "admin", "--force")


def test_an_unknown_token_cannot_be_revoked(shell: Shell) -> None:
    created(shell, "alice")
    assert shell.error("token", "revoke", "0" * 16)["message"] == "the token does not exist"


def test_a_name_that_is_none_is_an_error_before_anything_is_changed(shell: Shell) -> None:
    assert shell.error("token", "create", "a b")["code"] == "invalid_name"
    assert shell.error("token", "create", "anonymous")["code"] == "invalid_name"
    assert shell.error("access", "grant", "alice", "no role")["code"] == "invalid_name"
    assert shell.error("access", "allow", "clerk", "read", "a/*")["code"] == "invalid_argument"
    assert shell.error("access", "allow", "admin", "read")["code"] == "invalid_argument"
    assert "read" in shell.usage("access", "allow", "clerk", "delete")
    assert shell.json("access", "list") == []


def test_only_a_token_is_made_where_there_is_no_log(shell: Shell) -> None:
    for call in (
        ("token", "list"),
        ("token", "revoke", "0" * 16),
        ("access", "list"),
        ("access", "allow", "clerk", "read"),
        ("access", "grant", "alice", "clerk"),
    ):
        assert shell.error(*call)["code"] == "not_a_log"
    assert not shell.folder.exists()


def test_rules_and_grants_are_made_listed_and_taken_away(shell: Shell) -> None:
    shell.run("topic", "create", "orders")
    assert "every client that reaches the server may do everything" in shell.text("access", "list")
    assert shell.json("access", "grant", "alice", "admin") == [
        {"type": "granted", "principal": "alice", "role": "admin"}
    ]
    assert shell.text("access", "allow", "clerk", "read", "orders*") == (
        "clerk may read on orders*\n"
    )
    assert shell.json("access", "allow", "clerk", "group") == [
        {"type": "allowed", "role": "clerk", "action": "group", "pattern": "*"}
    ]
    assert shell.text("access", "grant", "bob", "clerk") == "bob has the role clerk\n"
    listed = shell.text("access", "list")
    for row in (
        "alice +admin",
        "bob +clerk",
        r"clerk +read +orders\*",
        r"clerk +group +\*",
        r"reader +read +\*",
    ):
        assert re.search(rf"^{row}$", listed, re.M), row
    assert shell.json("access", "list") == [
        {"type": "grant", "principal": "alice", "role": "admin"},
        {"type": "grant", "principal": "bob", "role": "clerk"},
        {"type": "rule", "role": "clerk", "action": "group", "pattern": "*"},
        {"type": "rule", "role": "clerk", "action": "read", "pattern": "orders*"},
    ]
    assert "removed: clerk may group on *" in shell.text("access", "forbid", "clerk", "group")
    assert shell.json("access", "forbid", "clerk", "read", "orders*") == [
        {"type": "forbidden", "role": "clerk", "action": "read", "pattern": "orders*"}
    ]
    assert shell.text("access", "deny", "clerk", "read", "secret*") == (
        "clerk must not read on secret*\n"
    )
    assert re.search(r"^clerk +read +secret\*$", shell.text("access", "list"), re.M)
    assert shell.json("access", "list")[-1] == {
        "type": "denial",
        "role": "clerk",
        "action": "read",
        "pattern": "secret*",
    }
    assert shell.json("access", "lift", "clerk", "read", "secret*") == [
        {"type": "lifted", "role": "clerk", "action": "read", "pattern": "secret*"}
    ]
    assert shell.text("access", "revoke", "bob", "clerk") == "revoked clerk from bob\n"
    assert shell.json("access", "list") == [
        {"type": "grant", "principal": "alice", "role": "admin"}
    ]
    assert shell.error("access", "revoke", "bob", "clerk")["code"] == "invalid_argument"
    assert (
        "open the log to every client"
        in shell.error("access", "revoke", "alice", "admin")["message"]
    )
