"""Access of the embedded log: tokens, rules and grants that survive, and are checked."""

from __future__ import annotations

import logging
import pickle
import re
from pathlib import Path
from typing import Any

import pytest

from lakebed import Log
from lakebed.engine.audit import AUDIT_TOPIC
from lakebed.errors import (
    ClosedError,
    InvalidArgumentError,
    InvalidNameError,
    TopicNotFoundError,
    UnauthenticatedError,
)
from lakebed.host import ManualClock, SimDisk
from lakebed.reports.audit import AuditRecord
from lakebed.state.permissions import Action
from lakebed.types import Secret
from tests.engine.support import in_threads, inner, quiet, rows, state_of

DAY_MS = 86_400_000


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def disk() -> SimDisk:
    return SimDisk()


@pytest.fixture
def log(disk: SimDisk, clock: ManualClock) -> Log:
    return quiet(disk=disk, clock=clock)


def identified(log: Log, text: str) -> str:
    return inner(log).access.authenticate(text).principal


# Tokens


def test_a_token_tells_its_principal_and_looks_as_described(log: Log) -> None:
    text = log.access.create_token("alice")
    assert re.fullmatch(r"lkb_[0-9a-f]{16}_[A-Za-z0-9_-]{43}", text)
    assert identified(log, text) == "alice"
    (info,) = log.access.tokens()
    assert (info.principal, info.valid, info.revoked_us) == ("alice", True, None)
    assert info.expires_us == info.created_us + 90 * DAY_MS * 1000
    assert text.startswith(f"lkb_{info.id}_")


def test_two_tokens_are_never_the_same(log: Log) -> None:
    texts = {log.access.create_token("alice") for _ in range(20)}
    assert len(texts) == len({text[4:20] for text in texts}) == len({t[21:] for t in texts}) == 20


def test_a_token_expires_on_time(log: Log, clock: ManualClock) -> None:
    text = log.access.create_token("alice", expires_ms=1000)
    endless = log.access.create_token("bob", expires_ms=None)
    clock.advance(0.999)
    assert identified(log, text) == "alice"
    clock.advance(0.001)
    with pytest.raises(UnauthenticatedError, match="expired"):
        inner(log).access.authenticate(text)
    clock.advance(100 * 365 * 86_400)
    assert identified(log, endless) == "bob"
    valid = {each.principal: each.valid for each in log.access.tokens()}
    assert valid == {"alice": False, "bob": True}


def test_a_revoked_token_is_valid_no_more_and_the_log_stays_closed(log: Log) -> None:
    text = log.access.create_token("alice")
    assert not inner(log).access.open
    log.access.revoke_token(text[4:20])
    with pytest.raises(UnauthenticatedError, match="revoked"):
        inner(log).access.authenticate(text)
    assert not inner(log).access.open
    (info,) = log.access.tokens()
    assert info.revoked_us is not None
    assert not info.valid


def test_a_token_of_another_log_does_not_fit_even_under_the_same_id(log: Log) -> None:
    other = quiet()
    text = other.access.create_token("alice")
    mine = log.access.create_token("alice")
    for wrong in (text, mine[:21] + text[21:], text[:21] + mine[21:]):
        with pytest.raises(UnauthenticatedError, match="unknown token"):
            inner(log).access.authenticate(wrong)
    inner(log).parts.core.state.tokens[text[4:20]] = inner(other).parts.core.state.tokens[
        text[4:20]
    ]
    with pytest.raises(UnauthenticatedError, match="unknown token"):
        inner(log).access.authenticate(text)


def test_whatever_is_not_a_token_is_refused_without_being_repeated(log: Log) -> None:
    text = log.access.create_token("alice")
    secret = text[21:]
    flipped = secret[:-1] + ("A" if secret[-1] != "A" else "B")
    for wrong in (
        "",
        "lkb_",
        text[:-1],
        text[1:],
        text + "A",
        text + "\n",
        f" {text}",
        text.upper(),
        text.replace("lkb", "lkc"),
        text[:21] + flipped,
        text[:21] + "é" * 43,
        text[:-1] + "\ud800",
        "lkb_" + "\u0660" * 16 + text[20:],
        "x" * 10_000_000,
        "\0" * 64,
    ):
        with pytest.raises(UnauthenticatedError) as caught:
            inner(log).access.authenticate(wrong)
        shown = f"{caught.value} {caught.value!r} {caught.value.facts}"
        assert len(shown) < 500
        assert secret[:20] not in shown
    assert identified(log, text) == "alice"


@pytest.mark.parametrize("wrong", [None, 7, b"lkb_" + b"0" * 60, ["x"] * 64])
def test_what_is_not_even_text_is_no_token(log: Log, wrong: Any) -> None:
    with pytest.raises(UnauthenticatedError, match="not a token"):
        inner(log).access.authenticate(wrong)


def test_every_other_last_character_is_refused(log: Log) -> None:
    """Of its 6 bits only 4 count in the bytes; the text counts as a whole."""
    text = log.access.create_token("alice")
    letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
    accepted = []
    for letter in letters:
        try:
            inner(log).access.authenticate(text[:-1] + letter)
        except UnauthenticatedError:
            continue
        accepted.append(letter)
    assert accepted == [text[-1]]


@pytest.mark.parametrize("expires_ms", [0, -1, 1.5, True, "90d", 2**63])
def test_a_lifetime_out_of_bounds_is_refused(log: Log, expires_ms: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="expires_ms"):
        log.access.create_token("alice", expires_ms=expires_ms, roles=["admin"])
    assert inner(log).access.open


@pytest.mark.parametrize("name", ["", "a b", "../x", "é", "__x", "x" * 129, "anonymous", None, 7])
def test_a_principal_needs_a_name_of_its_own(log: Log, name: Any) -> None:
    for call in (
        lambda: log.access.create_token(name),
        lambda: log.access.grant(name, "reader"),
        lambda: log.access.revoke(name, "reader"),
    ):
        with pytest.raises(InvalidNameError):
            call()
    assert inner(log).access.open


def test_roles_of_a_token_are_given_or_nothing_is(log: Log) -> None:
    for roles in (["reader", "no role"], "reader"):
        with pytest.raises(InvalidArgumentError):
            log.access.create_token("alice", roles=roles)
    assert inner(log).access.open
    log.access.create_token("alice", roles=["reader", "writer"])
    assert [(each.principal, each.role) for each in log.access.grants()] == [
        ("alice", "reader"),
        ("alice", "writer"),
    ]


@pytest.mark.parametrize("token_id", ["", "0" * 16, "lkb_x", None, 5, "x" * 100_000])
def test_a_token_that_does_not_exist_cannot_be_revoked(log: Log, token_id: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="the token does not exist") as caught:
        log.access.revoke_token(token_id)
    assert len(str(caught.value)) < 500


def test_a_secret_is_shown_to_whoever_asks_and_by_nothing_else(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    with Log.open(tmp_path / "log") as log:
        text = log.access.create_token("alice", roles=["admin"])
        secret = str(text)[21:]
        log.checkpoint()
        shown = [repr(text), repr([text]), repr(log.access.tokens()), repr(log.access)]
        shown += [repr(log), repr(log.stats()), repr(log.parts.core.state), caplog.text]
    assert isinstance(text, Secret)
    assert repr(text) == "<secret>"
    assert f"{text}" == str(pickle.loads(pickle.dumps(text))) == text
    assert [each for each in shown if secret in each] == []
    files = [path for path in (tmp_path / "log").rglob("*") if path.is_file()]
    assert files
    assert [path for path in files if secret.encode() in path.read_bytes()] == []


# Rules and grants


def test_rules_and_grants_are_listed_as_they_were_made(log: Log) -> None:
    log.access.allow("clerk", "write", "orders*", force=True)
    log.access.allow("clerk", "read")
    log.access.allow("clerk", "read")
    log.access.grant("bob", "clerk")
    rules = [(each.role, each.action, each.pattern) for each in log.access.rules()]
    assert rules == [("clerk", "read", "*"), ("clerk", "write", "orders*")]
    permissions = inner(log).access.permissions()
    assert permissions.permits("bob", Action.WRITE, "orders.eu")
    assert not permissions.permits("bob", Action.WRITE, "payments")
    assert inner(log).access.permissions() is permissions


def test_a_change_counts_at_once(log: Log) -> None:
    log.access.create_token("root", roles=["admin"])
    log.access.grant("bob", "clerk")
    log.access.allow("clerk", "read", "orders")
    assert inner(log).access.permissions().permits("bob", Action.READ, "orders")
    log.access.forbid("clerk", "read", "orders")
    assert not inner(log).access.permissions().permits("bob", Action.READ, "orders")
    log.access.allow("clerk", "read", "orders")
    log.access.revoke("bob", "clerk")
    assert not inner(log).access.permissions().permits("bob", Action.READ, "orders")


@pytest.mark.parametrize(
    ("role", "action", "pattern"),
    [
        ("", "read", "*"),
        ("no role", "read", "*"),
        ("admin", "read", "*"),
        ("reader", "write", "*"),
        ("clerk", "", "*"),
        ("clerk", "READ", "*"),
        ("clerk", "delete", "*"),
        ("clerk", None, "*"),
        ("clerk", ["read"], "*"),
        ("clerk", "read", ""),
        ("clerk", "read", "[a-z]*"),
        ("clerk", "read", "orders/*"),
        ("clerk", "read", "é*"),
        ("clerk", "read", "*\n"),
        ("clerk", "read", "x" * 129),
        ("clerk", "read", None),
    ],
)
def test_a_rule_that_means_nothing_is_refused(
    log: Log, role: Any, action: Any, pattern: Any
) -> None:
    for call in (log.access.allow, log.access.forbid):
        with pytest.raises(InvalidArgumentError):
            call(role, action, pattern)
    assert inner(log).access.open


def test_what_is_not_there_cannot_be_taken_away(log: Log) -> None:
    with pytest.raises(InvalidArgumentError, match="the rule does not exist"):
        log.access.forbid("clerk", "read", "*")
    with pytest.raises(InvalidArgumentError, match="does not have this role"):
        log.access.revoke("bob", "clerk")


def test_nobody_locks_everybody_out_without_saying_so(log: Log) -> None:
    text = log.access.create_token("alice", roles=["admin"])
    other = log.access.create_token("alice")
    log.access.revoke_token(other[4:20])
    with pytest.raises(InvalidArgumentError, match="last valid token of an administrator"):
        log.access.revoke_token(text[4:20])
    with pytest.raises(InvalidArgumentError, match="no administrator"):
        log.access.revoke("alice", "admin")
    assert identified(log, text) == "alice"
    log.access.grant("bob", "admin")
    log.access.revoke("bob", "admin")
    log.access.revoke_token(text[4:20], force=True)
    log.access.revoke("alice", "admin", force=True)
    assert log.access.grants() == []


def test_the_rule_that_makes_administrators_is_guarded_too(log: Log) -> None:
    log.access.create_token("alice", roles=["ops"])
    log.access.allow("ops", "admin")
    with pytest.raises(InvalidArgumentError, match="no administrator"):
        log.access.forbid("ops", "admin")
    log.access.forbid("ops", "admin", force=True)
    assert log.access.rules() == []


def test_an_expired_token_of_an_administrator_is_none(log: Log, clock: ManualClock) -> None:
    log.access.create_token("alice", expires_ms=1000, roles=["admin"])
    text = log.access.create_token("alice")
    clock.advance(2)
    with pytest.raises(InvalidArgumentError, match="last valid token"):
        log.access.revoke_token(text[4:20])


def test_the_first_rule_or_grant_closes_an_open_log_only_with_an_administrator(log: Log) -> None:
    for rule in (("clerk", "read"), ("ops", "admin")):  # nobody has either role
        with pytest.raises(InvalidArgumentError, match="create an administrator first"):
            log.access.allow(*rule)
    with pytest.raises(InvalidArgumentError, match="create an administrator first"):
        log.access.grant("bob", "clerk")
    assert inner(log).access.open
    log.access.grant("root", "admin")
    log.access.allow("clerk", "read")
    log.access.grant("bob", "clerk")
    assert [each.principal for each in log.access.grants()] == ["bob", "root"]


@pytest.mark.parametrize("what", ["rule", "grant"])
def test_force_closes_an_open_log_without_an_administrator(log: Log, what: str) -> None:
    if what == "rule":
        log.access.allow("clerk", "read", force=True)
    else:
        log.access.grant("bob", "clerk", force=True)
    assert not inner(log).access.open


def test_a_log_is_not_opened_to_everybody_without_saying_so(log: Log) -> None:
    log.access.allow("clerk", "read", force=True)
    with pytest.raises(InvalidArgumentError, match="open the log to every client"):
        log.access.forbid("clerk", "read")
    log.access.grant("bob", "clerk")
    log.access.forbid("clerk", "read")
    with pytest.raises(InvalidArgumentError, match="open the log to every client"):
        log.access.revoke("bob", "clerk")
    log.access.revoke("bob", "clerk", force=True)
    assert inner(log).access.open


# What survives


@pytest.mark.parametrize("checkpoints", [0, 1, 2])
def test_tokens_rules_and_grants_survive_by_snapshot_and_by_replay(
    disk: SimDisk, clock: ManualClock, checkpoints: int
) -> None:
    log = quiet(disk=disk, clock=clock)
    text = log.access.create_token("alice", roles=["admin"])
    gone = log.access.create_token("bob")
    log.access.allow("clerk", "read", "orders*")
    log.access.allow("clerk", "write", "orders*")
    for _ in range(checkpoints):
        log.checkpoint()
    log.access.revoke_token(gone[4:20])
    log.access.forbid("clerk", "write", "orders*")
    log.access.grant("bob", "clerk")
    before = state_of(log)
    listed = (log.access.tokens(), log.access.rules(), log.access.grants())
    log.close()
    log = quiet(disk=disk, clock=clock)
    assert state_of(log) == before
    assert (log.access.tokens(), log.access.rules(), log.access.grants()) == listed
    assert identified(log, text) == "alice"
    with pytest.raises(UnauthenticatedError, match="revoked"):
        inner(log).access.authenticate(gone)
    assert inner(log).access.permissions().permits("bob", Action.READ, "orders")
    assert not inner(log).access.permissions().permits("bob", Action.WRITE, "orders")


def test_a_closed_log_changes_nothing(log: Log, disk: SimDisk, clock: ManualClock) -> None:
    log.close()
    with pytest.raises(ClosedError):
        log.access.create_token("alice")
    with quiet(disk=disk, clock=clock) as again:
        assert again.access.tokens() == []


def test_many_threads_may_ask_and_change(tmp_path: Path) -> None:
    with Log.open(tmp_path / "log") as log:
        text = log.access.create_token("alice", roles=["admin"])

        def work(number: int) -> None:
            for turn in range(20):
                log.access.allow(f"role{number}", "read", f"t{turn}*")
                log.access.grant(f"p{number}", f"role{number}")
                allowed = (
                    inner(log).access.permissions().permits(f"p{number}", Action.READ, f"t{turn}")
                )
                assert allowed
                assert identified(log, text) == "alice"
                log.access.revoke(f"p{number}", f"role{number}")
                assert not inner(log).access.permissions().permits(f"p{number}", Action.READ, "t0")

        assert in_threads(4, work) == [None] * 4
        assert len(log.access.rules()) == 80


# The audit


RECORD = AuditRecord(
    1_700_000_000_000_000, "alice", "0" * 16, "peer", "call", ("a", "b"), "denied", "because"
)


def test_the_audit_is_a_topic_that_is_made_when_it_is_needed(log: Log) -> None:
    log.create_topic("orders", 2)
    with pytest.raises((TopicNotFoundError, InvalidNameError)):
        log.read(AUDIT_TOPIC)
    inner(log).audit.append([RECORD, RECORD._replace(names=())])
    inner(log).audit.append([RECORD])
    first, second, third = rows(log, AUDIT_TOPIC)
    assert first == third
    assert first["time"].timestamp() == 1_700_000_000
    assert {**first, "time": 0} == {**RECORD._asdict(), "time": 0, "names": ["a", "b"]}
    assert second["names"] == []
    info = log.describe_topic(AUDIT_TOPIC)
    assert (len(info.partitions), info.config["retention_ms"]) == (1, 90 * DAY_MS)
    assert log.topics() == ["orders"]
    assert (log.stats().topics, log.stats().partitions) == (1, 2)


def test_the_audit_goes_on_after_a_restart_and_keeps_its_settings(
    disk: SimDisk, clock: ManualClock
) -> None:
    log = quiet(disk=disk, clock=clock)
    inner(log).audit.append([RECORD])
    log.alter_topic(AUDIT_TOPIC, {"retention_ms": 5 * DAY_MS})
    log.checkpoint()
    log.close()
    log = quiet(disk=disk, clock=clock)
    inner(log).audit.append([RECORD])
    assert len(rows(log, AUDIT_TOPIC)) == 2
    assert log.describe_topic(AUDIT_TOPIC).config["retention_ms"] == 5 * DAY_MS
    log.purge_topic(AUDIT_TOPIC)
    assert rows(log, AUDIT_TOPIC) == []
    log.delete_topic(AUDIT_TOPIC)
    inner(log).audit.append([RECORD])
    assert len(rows(log, AUDIT_TOPIC)) == 1


def test_old_records_of_the_audit_are_retained_away(disk: SimDisk, clock: ManualClock) -> None:
    log = quiet(disk=disk, clock=clock)
    inner(log).audit.append([RECORD])
    log.checkpoint()
    clock.advance(91 * 86_400)
    log.retain()
    assert rows(log, AUDIT_TOPIC) == []


def test_two_threads_that_write_the_first_record_make_one_topic(tmp_path: Path) -> None:
    with Log.open(tmp_path / "log") as log:
        assert in_threads(8, lambda _: log.audit.append([RECORD])) == [None] * 8
        assert len(rows(log, AUDIT_TOPIC)) == 8


@pytest.mark.parametrize("name", ["__audit", "__x", "__"])
def test_nobody_makes_a_topic_of_the_logs_own(log: Log, name: str) -> None:
    for call in (log.create_topic, log.get_or_create_topic):
        with pytest.raises(InvalidNameError):
            call(name)
        assert name not in inner(log).parts.core.state.names
