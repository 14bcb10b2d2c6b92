"""Denials: what those that have a role must not do, whatever else allows it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import lakebed
from lakebed import Log, ServeConfig
from lakebed.client.config import ClientConfig
from lakebed.errors import AccessDeniedError, InvalidArgumentError
from lakebed.serve.server import Server
from lakebed.state import image
from lakebed.state.permissions import Action, Permissions
from tests.state.forms import document_of, snapshot_of
from tests.state.test_commands import some_state


def test_a_denial_wins_over_every_role_that_allows() -> None:
    rules = [("clerk", "read", "*"), ("auditor", "read", "secret.*")]
    grants = [("ann", "clerk"), ("ann", "auditor"), ("ann", "admin"), ("bob", "clerk")]
    denials = [("auditor", "read", "secret.pay*")]
    asked = Permissions(rules, grants, denials)
    assert not asked.permits("ann", Action.READ, "secret.pay")
    assert asked.permits("ann", Action.READ, "secret.plans")
    assert asked.permits("ann", Action.WRITE, "secret.pay")
    assert asked.permits("bob", Action.READ, "secret.pay")
    assert asked.permits("ann", Action.ADMIN, "secret.pay")


def test_what_names_nothing_is_refused_by_any_denial_of_its_action() -> None:
    grants = [("ann", "reader"), ("ann", "guest"), ("bob", "reader")]
    asked = Permissions([], grants, [("guest", "read", "secret*")])
    assert not asked.permits_everywhere("ann", Action.READ)
    assert asked.permits_everywhere("ann", Action.GROUP)
    assert asked.permits_somewhere("ann", Action.READ)
    assert asked.permits_everywhere("bob", Action.READ)
    asked = Permissions([], grants, [("guest", "read", "*")])
    assert not asked.permits_somewhere("ann", Action.READ)


def test_a_denial_counts_for_roles_that_a_token_brings() -> None:
    asked = Permissions([], [("ann", "reader")], [("guest", "read", "*")])
    assert asked.permits("ann", Action.READ, "orders")
    assert not asked.with_roles("ann", ["guest"]).permits("ann", Action.READ, "orders")
    assert asked.with_roles("bob", ["reader"]).permits("bob", Action.READ, "orders")
    assert not asked.permits("bob", Action.READ, "orders")


def test_a_snapshot_of_the_third_version_has_no_denials() -> None:
    state = some_state()
    document = document_of(image.encode_state(state))
    assert document.pop("denials") == [["clerk", "read", "secret*"]]
    state.denials = {}
    assert image.decode_state(snapshot_of(document, version=3), "it") == state


@pytest.mark.parametrize("checkpoints", [0, 1])
def test_denials_survive_by_snapshot_and_by_replay(tmp_path: Path, checkpoints: int) -> None:
    with Log.open(tmp_path / "log") as log:
        log.access.create_token("root", roles=["admin"])
        log.access.deny("reader", "read", "secret*")
        log.access.deny("clerk", "write")
        log.access.lift("clerk", "write")
        for _ in range(checkpoints):
            log.checkpoint()
    with Log.open(tmp_path / "log") as log:
        (denial,) = log.access.denials()
        assert (denial.role, denial.action, denial.pattern) == ("reader", "read", "secret*")


def test_denials_that_lock_out_or_open_a_log_need_force(tmp_path: Path) -> None:
    with Log.open(tmp_path / "log") as log:
        with pytest.raises(InvalidArgumentError, match="create an administrator first"):
            log.access.deny("clerk", "read")
        log.access.deny("clerk", "read", force=True)
        assert not log.access.open
        with pytest.raises(InvalidArgumentError, match="open the log to every client"):
            log.access.lift("clerk", "read")
        log.access.create_token("root", roles=["admin", "ops"])
        with pytest.raises(InvalidArgumentError, match="no administrator"):
            log.access.deny("ops", "admin")
        log.access.deny("ops", "admin", force=True)
        assert not log.access.permissions().administrators()
        log.access.lift("ops", "admin")
        with pytest.raises(InvalidArgumentError, match="the denial does not exist"):
            log.access.lift("ops", "admin")


@pytest.mark.parametrize(
    ("role", "action", "pattern"),
    [("admin", "read", "*"), ("a b", "read", "*"), ("clerk", "fly", "*"), ("clerk", "read", "[a]")],
)
def test_denials_that_cannot_be(tmp_path: Path, role: str, action: str, pattern: str) -> None:
    with Log.open(tmp_path / "log") as log:
        log.access.create_token("root", roles=["admin"])
        with pytest.raises(InvalidArgumentError):
            log.access.deny(role, action, pattern)
        assert log.access.denials() == []


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    config = ServeConfig(port=0, http_port=-1)
    with Server(Log.open(tmp_path / "log"), config) as running:
        yield running


def test_a_served_log_denies_from_the_next_call_on(server: Server) -> None:
    root = str(server.log.access.create_token("root", roles=["admin"]))
    ann = str(server.log.access.create_token("ann", roles=["reader"]))
    for topic in ("orders", "secret"):
        server.log.create_topic(topic)
    with (
        lakebed.open(server.url, ClientConfig(token=root)) as admin,
        lakebed.open(server.url, ClientConfig(token=ann)) as log,
    ):
        assert log.read("secret").num_rows == 0
        admin.access.deny("reader", "read", "secret*")
        with pytest.raises(AccessDeniedError):
            log.read("secret")
        assert log.read("orders").num_rows == 0
        assert log.topics() == ["orders"]
        with pytest.raises(AccessDeniedError):
            log.access.lift("reader", "read", "secret*")
        assert [denial.pattern for denial in admin.access.denials()] == ["secret*"]
        admin.access.lift("reader", "read", "secret*")
        assert log.topics() == ["orders", "secret"]
