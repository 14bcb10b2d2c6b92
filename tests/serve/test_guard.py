"""The guard: who is calling, may they, and what of it is on record."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from lakebed import Log, ServeConfig
from lakebed.engine.audit import AUDIT_TOPIC
from lakebed.errors import AccessDeniedError, ClosedError, UnauthenticatedError
from lakebed.host import ManualClock
from lakebed.reports.audit import AuditRecord
from lakebed.serve import audit
from lakebed.serve.audit import Auditor
from lakebed.serve.guard import Action, Guard, Need, Principal
from tests.engine.support import in_threads, inner, rows
from tests.waiting import until

PEER = "ipv4:127.0.0.1:5555"
READ = Need(Action.READ, "topic")
WRITE = Need(Action.WRITE, "topic")
MANAGE = Need(Action.MANAGE, "topic")
ADMINISTER = Need(Action.ADMIN, "log")
BUILT_IN = {
    "admin": set(Action),
    "reader": {Action.READ, Action.GROUP},
    "writer": {Action.WRITE},
    "unheard-of": set(),
}


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    with Log.open(tmp_path / "log") as opened:
        yield opened


@pytest.fixture
def guard(log: Log) -> Iterator[Guard]:
    made = Guard(inner(log), ServeConfig())
    yield made
    made.close()


def called(guard: Guard, log: Log, name: str, *roles: str) -> Principal:
    """Make a principal with roles, and have it call."""
    text = log.access.create_token(name, roles=roles)
    return guard.authenticate(text, peer=PEER)


def allowed(guard: Guard, principal: Principal, need: Need, *names: str, call: str = "c") -> bool:
    try:
        guard.check(principal, call, need, names)
    except AccessDeniedError:
        return False
    return True


def recorded(guard: Guard, log: Log) -> list[dict[str, Any]]:
    assert guard.flush()
    return rows(log, AUDIT_TOPIC)


# Who is calling


def test_a_log_that_knows_nobody_lets_everybody_in_as_anonymous(guard: Guard, log: Log) -> None:
    principal = guard.authenticate(None, peer=PEER)
    assert principal == Principal("anonymous", "", PEER)
    for action in Action:
        for on in ("topic", "group", "log"):
            guard.check(principal, "call", Need(action, on), ["orders"])
            assert guard.permits(principal, Need(action, on), "orders")


@pytest.mark.parametrize("what", ["token", "rule", "grant"])
def test_from_the_first_token_rule_or_grant_on_nobody_is_anonymous(
    guard: Guard, log: Log, what: str
) -> None:
    before = guard.authenticate(None)
    if what == "token":
        log.access.create_token("alice")
    elif what == "rule":
        log.access.allow("clerk", "read", force=True)
    else:
        log.access.grant("alice", "clerk", force=True)
    with pytest.raises(UnauthenticatedError, match="no token"):
        guard.authenticate(None)
    for action in Action:
        assert not allowed(guard, before, Need(action, "topic"), "orders")
        assert not guard.permits(before, Need(action, "topic"), "orders")


def test_a_token_names_its_principal(guard: Guard, log: Log) -> None:
    text = log.access.create_token("alice")
    assert guard.authenticate(text, peer=PEER) == Principal("alice", text[4:20], PEER)


def test_a_token_comes_before_the_certificate_and_a_bad_one_is_not_made_good_by_it(
    guard: Guard, log: Log
) -> None:
    text = log.access.create_token("alice")
    assert guard.authenticate(text, certificate="bob").name == "alice"
    for bad in ("", text[:-1], "rubbish"):
        with pytest.raises(UnauthenticatedError):
            guard.authenticate(bad, certificate="bob")


def test_of_a_log_that_knows_nobody_own_processes_may_show_the_token_of_another(log: Log) -> None:
    other = f"lkb_{'0' * 16}_{'A' * 43}"
    guard = Guard(inner(log), ServeConfig(), for_own_processes=True)
    assert guard.authenticate(other).name == "anonymous"
    log.access.create_token("root", roles=["admin"])
    with pytest.raises(UnauthenticatedError):
        guard.authenticate(other)


def test_a_bad_token_does_not_make_anybody_anonymous(guard: Guard, log: Log) -> None:
    with pytest.raises(UnauthenticatedError):
        guard.authenticate("lkb_rubbish")
    assert inner(log).access.open


def test_a_certificate_names_its_principal(guard: Guard, log: Log) -> None:
    assert guard.authenticate(None, certificate="alice", peer=PEER) == Principal("alice", "", PEER)
    log.access.grant("alice", "reader", force=True)
    alice = guard.authenticate(None, certificate="alice")
    assert allowed(guard, alice, READ, "orders")
    assert not allowed(guard, alice, WRITE, "orders")
    bob = guard.authenticate(None, certificate="bob")
    assert not allowed(guard, bob, READ, "orders")


@pytest.mark.parametrize("name", ["a b", "é", "CN=alice", "anonymous", "x" * 500, "a\nb"])
def test_a_certificate_without_a_principals_name_is_refused(guard: Guard, name: str) -> None:
    with pytest.raises(UnauthenticatedError, match="certificate"):
        guard.authenticate(None, certificate=name)


def test_revocation_and_expiry_count_at_once(tmp_path: Path) -> None:
    clock = ManualClock()
    with Log.open(tmp_path / "log", clock=clock) as log:
        guard = Guard(log, ServeConfig())
        revoked = log.access.create_token("alice")
        expired = log.access.create_token("bob", expires_ms=1000)
        assert guard.authenticate(revoked).name == "alice"
        assert guard.authenticate(expired).name == "bob"
        log.access.revoke_token(revoked[4:20])
        clock.advance(1)
        for text in (revoked, expired):
            with pytest.raises(UnauthenticatedError):
                guard.authenticate(text)
        guard.close()


# May they


@pytest.mark.parametrize("role", BUILT_IN)
@pytest.mark.parametrize("action", Action)
@pytest.mark.parametrize("on", ["topic", "group", "log"])
def test_every_action_and_every_built_in_role(
    guard: Guard, log: Log, role: str, action: Action, on: str
) -> None:
    principal = called(guard, log, "alice", role)
    need, expected = Need(action, on), action in BUILT_IN[role]
    assert allowed(guard, principal, need, "orders", "payments") is expected
    assert allowed(guard, principal, need) is expected
    assert guard.permits(principal, need, "orders") is expected


def test_every_name_has_to_be_allowed(guard: Guard, log: Log) -> None:
    log.access.allow("clerk", "read", "orders*", force=True)
    clerk = called(guard, log, "bob", "clerk")
    assert allowed(guard, clerk, READ, "orders", "orders.eu")
    with pytest.raises(AccessDeniedError) as caught:
        guard.check(clerk, "read", READ, ["orders", "payments", "invoices"])
    assert str(caught.value) == ("not allowed principal=bob call=read action=read topic=payments")
    assert guard.permits(clerk, READ, "orders")
    assert not guard.permits(clerk, READ, "payments")


def test_what_has_no_name_needs_the_pattern_for_everything(guard: Guard, log: Log) -> None:
    log.access.allow("most", "read", "*s", force=True)
    log.access.allow("all", "read", "*")
    most, everything = called(guard, log, "bob", "most"), called(guard, log, "carol", "all")
    for need, names in ((Need(Action.READ, "log"), ["orders"]), (READ, [])):
        assert not allowed(guard, most, need, *names)
        assert allowed(guard, everything, need, *names)


def test_a_rule_for_names_holds_for_topics_and_groups(guard: Guard, log: Log) -> None:
    log.access.allow("clerk", "group", "billing*", force=True)
    clerk = called(guard, log, "bob", "clerk")
    need = Need(Action.GROUP, "group")
    assert allowed(guard, clerk, need, "billing-eu")
    assert not allowed(guard, clerk, need, "audit")


def test_a_change_of_rules_counts_for_the_next_call(guard: Guard, log: Log) -> None:
    bob = called(guard, log, "bob")
    assert not allowed(guard, bob, READ, "orders")
    log.access.grant("bob", "reader")
    assert allowed(guard, bob, READ, "orders")
    log.access.revoke("bob", "reader")
    assert not allowed(guard, bob, READ, "orders")


@pytest.mark.parametrize("closed", [False, True])
def test_the_logs_own_topics_are_for_administrators_and_written_by_nobody(
    guard: Guard, log: Log, closed: bool
) -> None:
    if closed:
        admin = called(guard, log, "root", "admin")
        log.access.allow("all", "read")
        log.access.allow("all", "manage")
        log.access.allow("all", "write")
        other = called(guard, log, "bob", "all")
        for need in (READ, WRITE, MANAGE):
            assert allowed(guard, other, need, "orders")
            assert not allowed(guard, other, need, AUDIT_TOPIC, call="purge_topic")
            assert not guard.permits(other, need, AUDIT_TOPIC)
    else:
        admin = guard.authenticate(None)
    assert allowed(guard, admin, READ, AUDIT_TOPIC, "orders")
    assert guard.permits(admin, READ, AUDIT_TOPIC)
    assert not allowed(guard, admin, WRITE, AUDIT_TOPIC)
    assert not allowed(guard, admin, WRITE, "orders", AUDIT_TOPIC)
    manage = {
        call: allowed(guard, admin, MANAGE, AUDIT_TOPIC, call=call)
        for call in ("alter_topic", "purge_topic", "delete_topic", "create_topic", "add_partitions")
    }
    assert [call for call, passed in manage.items() if passed] == ["alter_topic", "purge_topic"]


@pytest.mark.parametrize("name", ["", "é", "a/b", "x" * 1_000_000, "\ud800", "\0"])
def test_names_that_nothing_has_are_asked_for_in_vain(guard: Guard, log: Log, name: str) -> None:
    log.access.allow("clerk", "read", "orders*", force=True)
    clerk = called(guard, log, "bob", "clerk")
    with pytest.raises(AccessDeniedError) as caught:
        guard.check(clerk, "read", READ, [name])
    assert len(str(caught.value)) < 500
    (record,) = recorded(guard, log)
    assert len(record["names"][0]) < 300


# The audit


def test_refusals_and_acts_are_on_record(guard: Guard, log: Log) -> None:
    admin = called(guard, log, "root", "admin")
    guard.did(admin, "create_topic", ["orders"])
    guard.did(admin, "delete_topic", ["orders"], outcome="failed", reason="there is no such topic")
    bob = called(guard, log, "bob", "reader")
    guard.check(bob, "read", READ, ["orders"])
    assert not allowed(guard, bob, WRITE, "orders", call="append")
    found = [{**each, "time": None} for each in recorded(guard, log)]
    common = {"time": None, "peer": PEER, "reason": ""}
    assert found == [
        {
            **common,
            "principal": "root",
            "token": admin.token,
            "call": "create_topic",
            "names": ["orders"],
            "outcome": "done",
        },
        {
            **common,
            "principal": "root",
            "token": admin.token,
            "call": "delete_topic",
            "names": ["orders"],
            "outcome": "failed",
            "reason": "there is no such topic",
        },
        {
            **common,
            "principal": "bob",
            "token": bob.token,
            "call": "append",
            "names": ["orders"],
            "outcome": "denied",
            "reason": "not allowed principal=bob call=append action=write topic=orders",
        },
    ]


def test_a_failed_authentication_is_on_record_without_the_secret(
    guard: Guard, log: Log, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    text = log.access.create_token("alice")
    log.access.revoke_token(text[4:20])
    wrong = [text, text[:-1] + "é", "lkb_0000000000000000_" + text[21:], "x" * 5000]
    for token in wrong:
        with pytest.raises(UnauthenticatedError):
            guard.authenticate(token, peer=PEER)
    found = recorded(guard, log)
    assert [(each["outcome"], each["principal"]) for each in found] == [("unauthenticated", "")] * 4
    assert [each["token"] for each in found] == [text[4:20], "", "0" * 16, ""]
    assert [each["reason"] for each in found] == [
        "the token was revoked",
        "this is not a token",
        "unknown token",
        "this is not a token",
    ]
    assert text[21:] not in f"{found} {caplog.text} {guard!r}"


def test_nothing_is_on_record_where_nothing_happened_or_nobody_wants_it(log: Log) -> None:
    quiet = Guard(inner(log), ServeConfig(audit=False))
    guard = Guard(inner(log), ServeConfig())
    admin = called(guard, log, "root", "admin")
    guard.check(admin, "read", READ, ["orders"])
    assert not guard.permits(Principal("bob", "", ""), READ, "orders")
    quiet.did(admin, "create_topic", ["orders"])
    assert not allowed(quiet, Principal("bob", "", ""), READ, "orders")
    assert guard.flush()
    assert quiet.flush()
    assert AUDIT_TOPIC not in inner(log).parts.core.state.names
    quiet.close()
    guard.close()


def test_a_record_is_short_whatever_was_called(guard: Guard, log: Log) -> None:
    admin = called(guard, log, "root", "admin")
    names = [f"{number}" * 1000 for number in range(1000)]
    guard.did(admin._replace(peer="p" * 10_000), "c" * 10_000, names, reason="r" * 10_000)
    (record,) = recorded(guard, log)
    assert len(record["names"]) == 21
    assert record["names"][-1] == "... and 980 more"
    assert len(str(record)) < 10_000


def refused_often(guard: Guard, principal: Principal, times: int, call: str = "append") -> None:
    for number in range(times):
        peer = f"ipv4:10.0.0.1:{number}"  # another port, the same caller
        assert not allowed(guard, principal._replace(peer=peer), WRITE, "orders", call=call)


def test_many_refusals_of_one_caller_are_counted(log: Log) -> None:
    clock = ManualClock()
    guard = Guard(inner(log), ServeConfig(), clock=clock)
    bob = called(guard, log, "bob", "reader")
    refused_often(guard, bob, 500)
    refused_often(guard, bob, 3, call="other")
    found = recorded(guard, log)
    assert len(found) == 10 + 3 + 1
    (summary,) = [each for each in found if each["reason"].startswith("and ")]
    assert summary["reason"].startswith("and 490 more, the last: not allowed principal=bob")
    assert (summary["principal"], summary["call"]) == ("bob", "append")
    clock.advance(1)
    refused_often(guard, bob, 1)
    assert len(recorded(guard, log)) == 15
    guard.close()


def test_what_was_only_counted_is_recorded_when_the_second_is_over(log: Log) -> None:
    guard = Guard(inner(log), ServeConfig())
    bob = called(guard, log, "bob", "reader")
    refused_often(guard, bob, 40)
    until(lambda: AUDIT_TOPIC in inner(log).parts.core.state.names)
    until(lambda: any(each["reason"].startswith("and ") for each in rows(log, AUDIT_TOPIC)))
    guard.close()


def test_many_callers_together_do_not_fill_the_disk(log: Log) -> None:
    clock = ManualClock()
    guard = Guard(inner(log), ServeConfig(), clock=clock)
    log.access.create_token("root", roles=["admin"])
    for number in range(5_000):
        with pytest.raises(UnauthenticatedError):
            guard.authenticate("rubbish", peer=f"ipv6:[2001:db8::{number:x}]:7")
    found = recorded(guard, log)
    assert len(found) == audit.REFUSALS_PER_SECOND_IN_ALL + 1
    assert found[-1]["reason"] == "and 4900 more, of several callers"
    assert found[-1]["peer"] == ""
    clock.advance(1)
    with pytest.raises(UnauthenticatedError):
        guard.authenticate("rubbish", peer="ipv4:10.0.0.1:7")
    assert recorded(guard, log)[-1]["peer"] == "ipv4:10.0.0.1:7"
    guard.close()


def test_closing_the_guard_writes_what_is_left(tmp_path: Path) -> None:
    with Log.open(tmp_path / "log") as log:
        guard = Guard(log, ServeConfig())
        bob = called(guard, log, "bob", "reader")
        refused_often(guard, bob, 15)
        guard.did(bob, "create_topic", ["orders"])
        guard.close()
        assert guard.audit_lost == 0
        assert len(rows(log, AUDIT_TOPIC)) == 12
        guard.did(bob, "create_topic", ["late"])
        assert guard.audit_lost == 1
        guard.close()


def test_a_log_that_takes_nothing_fails_no_call_and_the_loss_is_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log = Log.open(tmp_path / "log")
    guard = Guard(log, ServeConfig())
    admin = called(guard, log, "root", "admin")
    log.close()
    for _ in range(3):
        guard.did(admin, "create_topic", ["orders"])
    assert guard.flush()
    assert guard.audit_lost == 3
    guard.close()
    assert "records of the audit are lost lost=" in caplog.text
    assert "lost=3 reason=the log is closed" in caplog.text


def test_a_log_that_is_slow_delays_nobody_and_the_queue_is_bounded() -> None:
    going_on, begun = threading.Event(), threading.Event()
    written: list[AuditRecord] = []

    def append(records: Sequence[AuditRecord]) -> None:
        begun.set()
        going_on.wait()
        written.extend(records)

    auditor = Auditor(append, ManualClock())
    record = AuditRecord(0, "a", "", "", "c", (), "done", "")
    auditor.act(record)
    assert begun.wait(600)
    for _ in range(audit._QUEUE_MAX + 7):
        auditor.act(record)
    assert auditor.lost == 7
    assert not auditor.flush(0.0)
    going_on.set()
    assert auditor.flush(30)
    assert len(written) == audit._QUEUE_MAX + 1
    auditor.close(30)


def test_a_log_that_never_answers_does_not_hold_up_the_end() -> None:
    going_on = threading.Event()

    def append(records: Sequence[AuditRecord]) -> None:
        going_on.wait()
        raise ClosedError("the log is closed")

    auditor = Auditor(append, ManualClock())
    auditor.act(AuditRecord(0, "a", "", "", "c", (), "done", ""))
    auditor.close(0.01)
    going_on.set()
    until(lambda: auditor.lost == 1)


def test_a_defect_does_not_end_the_audit(caplog: pytest.LogCaptureFixture) -> None:
    written: list[AuditRecord] = []

    def append(records: Sequence[AuditRecord]) -> None:
        if not written:
            written.append(records[0])
            raise ZeroDivisionError
        written.extend(records)

    auditor = Auditor(append, ManualClock())
    for number in range(2):
        auditor.act(AuditRecord(number, "a", "", "", "c", (), "done", ""))
        assert auditor.flush(30)
    auditor.close(30)
    assert [each.time for each in written] == [0, 1]
    assert auditor.lost == 1
    assert "ZeroDivisionError" in caplog.text


def test_many_threads_are_checked_at_once(guard: Guard, log: Log) -> None:
    log.access.allow("clerk", "read", "orders*", force=True)
    clerk = called(guard, log, "bob", "clerk")
    text = log.access.create_token("alice")

    def work(number: int) -> None:
        for _ in range(50):
            assert allowed(guard, clerk, READ, f"orders{number}")
            assert not allowed(guard, clerk, READ, "payments", call=f"c{number}")
            assert guard.authenticate(text).name == "alice"

    assert in_threads(4, work) == [None] * 4
    assert {each["outcome"] for each in recorded(guard, log)} == {"denied"}
