"""Every call and stream of a server, made over the wire by every kind of caller.

What each caller may do is written here once more, by hand, and compared with what the server does.
A call or a stream that is not in these tables fails the test.
"""

from __future__ import annotations

import contextlib
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.flight as fl
import pytest

from lakebed import Log, ServeConfig
from lakebed.errors import (
    AccessDeniedError,
    InvalidArgumentError,
    LakebedError,
    ProtocolError,
    UnauthenticatedError,
)
from lakebed.operations.routes import STREAMS
from lakebed.operations.table import OPERATIONS
from lakebed.serve.callers import OFFERED
from lakebed.serve.server import Server
from lakebed.wire.protocol import pack, unpack, unpack_error
from tests.serve.inside import flush_audit

TARGETS = ("apple", "berry")
"""Each request is made for both of these topics, or groups, of which one fits the pattern `a*`."""

# What each call needs, and a request for it. Of `{}` stands the topic or the group.
ANYONE, LOG = "anyone", "the log"
WRITER, MEMBER = "a writer", "a writer or member"
SOMEWHERE = {WRITER: {"write"}, MEMBER: {"write", "group"}}
"""Who may do one of these on some name may make a call that names nothing yet."""
REQUESTS: dict[str, tuple[str, dict[str, Any]]] = {
    "hello": (ANYONE, {}),
    "wake": (ANYONE, {"waiter": "nobody"}),
    "topics": (ANYONE, {}),
    "create_topic": ("manage", {"name": "{}"}),
    "get_or_create_topic": ("manage", {"name": "{}"}),
    "describe_topic": ("read", {"name": "{}"}),
    "topic": ("write", {"name": "{}"}),
    "alter_topic": ("manage", {"name": "{}", "config": {"segment_ms": 100_000}}),
    "add_partitions": ("manage", {"name": "{}", "partitions": 2}),
    "purge_topic": ("manage", {"name": "{}-gone"}),
    "delete_topic": ("manage", {"name": "{}-gone"}),
    "offsets": ("read", {"topic": "{}"}),
    "offset_for_time": ("read", {"topic": "{}", "partition": 0, "timestamp": 0}),
    "plan": ("read", {"topic": "{}"}),
    "register_producer": (WRITER, {}),
    "forget_producer": (ANYONE, {"producer": 1_000_000, "epoch": 1}),
    "begin_transaction": (MEMBER, {"timeout_ms": 10}),
    "commit_transaction": (
        "group",
        {"producer": 1_000_000, "epoch": 1, "offsets": [("{}", "", 1, 0, 0)]},
    ),
    "commit_together": (
        "group",
        {
            "name": "job",
            "number": 1,
            "keep_ms": 1000,
            "transactions": [(1_000_000, 1)],
            "offsets": [("{}", "", 1, 0, 0)],
        },
    ),
    "committed_number": (ANYONE, {"name": "job"}),
    "abort_transaction": (ANYONE, {"producer": 1_000_000, "epoch": 1}),
    "join": (
        "group",
        {"group": "{}", "topics": ["apple"], "session_seconds": 1, "strategy": "sticky"},
    ),
    "heartbeat": ("group", {"group": "{}", "member": "x", "held": []}),
    "leave": ("group", {"group": "{}", "member": "x"}),
    "commit": ("group", {"group": "{}", "member": "x", "offsets": [("apple", 0, 0)]}),
    "commit_offsets": ("group", {"group": "{}", "offsets": [("apple", 0, 0)]}),
    "committed": ("group", {"group": "{}"}),
    "groups": (ANYONE, {}),
    "describe_group": ("group", {"name": "{}"}),
    "reset_group": ("group", {"name": "{}-gone", "offsets": [("apple", 0, 0)]}),
    "delete_group": ("group", {"name": "{}-gone"}),
    "checkpoint": (LOG, {}),
    "retain": (LOG, {"topic": "{}"}),
    "plan_compaction": (LOG, {"topic": "{}", "force": False}),
    "rewrite_segments": (
        LOG,
        {"topic": "{}", "partition": 0, "segments": [1], "survivors": b""},
    ),
    "verify": (LOG, {"topic": "{}"}),
    "segments": (LOG, {"topic": "{}", "partition": 0}),
    "verify_segment": (LOG, {"topic": "{}", "partition": 0, "segment": 1}),
    "backup": (LOG, {"name": "{}"}),
    "stats": (LOG, {}),
    "tick": (LOG, {}),
    "lake_sync": (LOG, {"topic": "{}"}),
    "lake_gc": (LOG, {"now": False}),
    "lake_tables": (LOG, {}),
    "lake_describe": ("read", {"topic": "{}"}),
    "lake_history": ("read", {"topic": "{}"}),
    "lake_stats": (LOG, {}),
    "derived_tables": (ANYONE, {}),
    "derived_describe": ("read", {"name": "{}"}),
    "derived_files": ("read", {"name": "{}"}),
    "derived_create": (
        "manage",
        {"name": "{}", "schema": pa.schema([]), "kind": "append", "key": [], "buckets": 0},
    ),
    "derived_evolve": ("manage", {"name": "{}", "schema": pa.schema([])}),
    "derived_restore": ("manage", {"name": "{}"}),
    "derived_drop": ("manage", {"name": "{}"}),
    "derived_commit": (
        "write",
        {"name": "{}", "writer": "w", "number": 0, "added": [], "removed": [], "expected": 0},
    ),
    "tokens": (LOG, {}),
    "create_token": (LOG, {"principal": "made", "expires_ms": 60_000, "roles": []}),
    "revoke_token": (LOG, {"token_id": "0" * 16, "force": False}),
    "rules": (LOG, {}),
    "allow": (LOG, {"role": "made", "action": "read", "pattern": "made", "force": False}),
    "forbid": (LOG, {"role": "made", "action": "read", "pattern": "made", "force": False}),
    "denials": (LOG, {}),
    "deny": (LOG, {"role": "made", "action": "read", "pattern": "made", "force": False}),
    "lift": (LOG, {"role": "made", "action": "read", "pattern": "made", "force": False}),
    "grants": (LOG, {}),
    "grant": (LOG, {"principal": "made", "role": "made", "force": False}),
    "revoke": (LOG, {"principal": "made", "role": "made", "force": False}),
}
READS_TOO = dict.fromkeys(
    ["commit_transaction", "commit_together", "join", "commit", "commit_offsets", "reset_group"],
    "apple",
)
"""Calls on groups that name this topic, which their callers need to read as well."""
_PLACE = {"topic": "{}", "partition": 0, "offset": 0}
TICKETS: dict[str, tuple[str, dict[str, Any]]] = {
    "put": ("write", {}),
    "read": ("read", {**_PLACE, "max_records": 10, "max_bytes": 1000}),
    "range": ("read", _PLACE),
    "follow": ("read", _PLACE),
    "fetch": ("read", {"places": [("{}", 0, 0)], "max_records": 10, "max_bytes": 1000}),
    "scan": ("read", {"topic": "{}"}),
    "record": ("read", {"topic": "{}", "key": b"k"}),
    "latest": ("read", {"topic": "{}"}),
    "as_of": ("read", {"topic": "{}", "offset": 0}),
}

_METHOD = fl.FlightMethod
NOT_OFFERED = "not offered"
METHODS: dict[fl.FlightMethod, str] = {
    _METHOD.LIST_FLIGHTS: ANYONE,
    _METHOD.LIST_ACTIONS: ANYONE,
    _METHOD.GET_FLIGHT_INFO: "read",
    _METHOD.GET_SCHEMA: NOT_OFFERED,
    _METHOD.DO_EXCHANGE: NOT_OFFERED,
    _METHOD.HANDSHAKE: NOT_OFFERED,
}
"""The methods of Flight beside those that carry the calls and streams above."""

CALLERS: dict[str, dict[str, str]] = {
    # what each may do, and on which names
    "nobody": {},
    "reader": {"read": "", "group": ""},
    "writer": {"write": ""},
    "manager": {"manage": ""},
    "grouper": {"group": ""},
    "partial": {"read": "a", "write": "a", "group": "a", "manage": "a"},
    "admin": {"read": "", "write": "", "group": "", "manage": "", LOG: ""},
}
"""An empty text stands for every name, any other one for the names that begin with it."""
ROLES = ("reader", "writer", "admin")
"""Those that every log has; the others are made by rules."""


def _may(caller: str, need: str, target: str) -> bool:
    if need == ANYONE:
        return True
    if need in SOMEWHERE:
        return not CALLERS[caller].keys().isdisjoint(SOMEWHERE[need])
    prefix = CALLERS[caller].get(need)
    return prefix is not None and target.startswith(prefix)


def _may_read(caller: str, name: str) -> bool:
    return name not in READS_TOO or _may(caller, "read", READS_TOO[name])


def _filled(value: Any, target: str) -> Any:
    if isinstance(value, str):
        return value.replace("{}", target)
    if isinstance(value, list | tuple):
        return [_filled(each, target) for each in value]
    if isinstance(value, dict):
        return {name: _filled(each, target) for name, each in value.items()}
    return value


class _Handshake(fl.ClientAuthHandler):  # type: ignore[misc]
    """Takes part in a handshake."""

    def authenticate(self, outgoing: Any, _incoming: Any) -> None:
        """Send a word."""
        outgoing.write(b"hello")

    def get_token(self) -> bytes:
        """Return what goes with each call."""
        return b""


class Caller:
    """Makes calls of the protocol, with a token or without one."""

    def __init__(self, server: Server, token: str | None) -> None:
        self.client = fl.connect(f"grpc://127.0.0.1:{server.port}")
        headers = [] if token is None else [(b"authorization", b"Bearer " + token.encode())]
        self.options = fl.FlightCallOptions(headers=headers, timeout=600)

    def call(self, name: str, request: dict[str, Any]) -> Any:
        """Make a call; return its reply, or the error that it gave."""
        try:
            (reply,) = self.client.do_action(fl.Action(name, pack(request)), self.options)
            return unpack(reply.body.to_pybytes())
        except pa.ArrowException as error:
            return _error(error)

    def stream(self, name: str, ticket: dict[str, Any], target: str) -> Any:
        """Begin a stream and take the first of it; return the error, if there is one."""
        try:
            if name == "put":
                return self._put(target)
            reader = self.client.do_get(fl.Ticket(pack({"call": name, **ticket})), self.options)
            try:
                reader.read_chunk()
            except StopIteration:
                return None
            reader.cancel()
        except pa.ArrowException as error:
            return _error(error)

    def method(self, method: fl.FlightMethod, target: str) -> Any:
        """Use a method of Flight; return the error, or nothing."""
        descriptor = fl.FlightDescriptor.for_path(target)
        try:
            if method is _METHOD.LIST_FLIGHTS:
                list(self.client.list_flights(options=self.options))
            elif method is _METHOD.LIST_ACTIONS:
                list(self.client.list_actions(self.options))
            elif method is _METHOD.GET_FLIGHT_INFO:
                self.client.get_flight_info(descriptor, self.options)
            elif method is _METHOD.GET_SCHEMA:
                self.client.get_schema(descriptor, self.options)
            elif method is _METHOD.DO_EXCHANGE:
                self._exchange(descriptor)
            else:
                self.client.authenticate(_Handshake(), self.options)
        except (pa.ArrowException, OSError) as error:
            texts = (_METHOD.GET_SCHEMA, _METHOD.HANDSHAKE)  # their details may not arrive
            return str(error) if method in texts else _error(error)

    def _exchange(self, descriptor: Any) -> None:
        writer, reader = self.client.do_exchange(descriptor, self.options)
        with contextlib.suppress(pa.ArrowException):  # the end of the stream tells more
            writer.done_writing()
        reader.read_chunk()

    def _put(self, topic: str) -> Any:
        batch = pa.record_batch({"value": pa.array([b"v"], pa.binary())})
        descriptor = fl.FlightDescriptor.for_path(topic)
        writer, reader = self.client.do_put(descriptor, batch.schema, self.options)
        answer = None
        try:
            writer.write_batch(batch)
            writer.done_writing()
            acks = reader.read()
            answer = None if acks is None else unpack(acks.to_pybytes())[0][1]
        finally:
            writer.close()
        return answer

    def close(self) -> None:
        """End the connection."""
        self.client.close()


def _error(error: BaseException) -> LakebedError:
    info = getattr(error, "extra_info", None)
    assert info, f"the server failed: {error}"
    return unpack_error(info)


class Served(NamedTuple):
    """A server, and the tokens of those who call it."""

    server: Server
    tokens: dict[str, str]


def _serve(folder: Path) -> Server:
    log = Log.open(folder)
    for topic in TARGETS:
        log.create_topic(topic)
        log.append(topic, b"v", b"k")
        log.commit_offsets(topic, {(topic, 0): 1})
    return Server(log, ServeConfig(port=0, http_port=-1, stop_timeout_ms=1000)).start()


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Serve a log that knows its callers."""
    server = _serve(tmp_path_factory.mktemp("matrix") / "log")
    access = server.log.access
    tokens: dict[str, str] = {}
    tokens["admin"] = str(access.create_token("admin", roles=["admin"]))
    for caller, powers in CALLERS.items():
        if caller != "admin":
            for action, prefix in powers.items() if caller not in ROLES else ():
                access.allow(caller, action, f"{prefix}*")
            roles = [] if caller == "nobody" else [caller]
            tokens[caller] = str(access.create_token(caller, roles=roles))
    with server:
        yield Served(server, tokens)


def test_every_call_and_every_stream_has_a_row() -> None:
    """What is added to the server has to be added here, with who may do it."""
    assert set(REQUESTS) == set(OPERATIONS)
    assert set(TICKETS) == set(STREAMS)
    assert set(READS_TOO) == {name for name, call in OPERATIONS.items() if call.topics is not None}
    assert all(
        need in (ANYONE, LOG, *SOMEWHERE, *CALLERS["admin"]) for need, _ in REQUESTS.values()
    )


def _rows() -> Iterator[tuple[str, str, dict[str, Any], str, bool]]:
    """Return each request for each target: its name, need, parameters, target, whether a stream."""
    for target in TARGETS:
        for name, (need, request) in REQUESTS.items():
            yield name, need, _filled(request, target), target, False
        for name, (need, ticket) in TICKETS.items():
            yield name, need, _filled(ticket, target), target, True


def _made(caller: Caller, name: str, given: dict[str, Any], target: str, stream: bool) -> Any:
    return caller.stream(name, given, target) if stream else caller.call(name, given)


@pytest.mark.parametrize("who", CALLERS)
def test_a_caller_may_do_what_its_roles_allow_and_nothing_else(served: Served, who: str) -> None:
    """Allowed is what the tables say; the rest is denied, whatever it is about, and audited."""
    caller = Caller(served.server, served.tokens[who])
    flush_audit(served.server)
    before = _audited(served.server.log, who)
    denied: Counter[str] = Counter()
    for name, need, given, target, stream in _rows():
        got = _made(caller, name, given, target, stream)
        assert not isinstance(got, UnauthenticatedError), (name, got)
        allowed = _may(who, need, target) and _may_read(who, name)
        assert allowed is not isinstance(got, AccessDeniedError), (who, name, target, got)
        denied[name] += not allowed
    caller.close()
    flush_audit(served.server)
    recorded = _audited(served.server.log, who)
    recorded.subtract(before)
    # When many are refused at once, some are only counted, and not by whom.
    assert recorded.total() == denied.total()
    assert all(recorded[name] <= denied[name] for name in recorded if name)


def _audited(log: Log, who: str) -> Counter[str]:
    """Count the refusals of a caller that are on record, by call."""
    found: Counter[str] = Counter()
    for row in _audit(log):
        if row["principal"] in (who, "") and row["outcome"] == "denied":
            more = re.match(r"and (\d+) more", row["reason"])
            found[row["call"]] += int(more[1]) if more else 1
    return found


def _audit(log: Log) -> list[dict[str, Any]]:
    try:
        return [row["value"] for row in log.read("__audit", max_records=100_000).to_pylist()]
    except LakebedError:
        return []  # nothing was refused yet


@pytest.mark.parametrize("token", [None, "", "lkb_0123456789abcdef_" + "x" * 43, "none"])
def test_nobody_comes_in_without_a_valid_token(served: Served, token: str | None) -> None:
    """Every call and stream is refused as such, and a refusal is on record."""
    caller = Caller(served.server, token)
    for name, _, given, target, stream in _rows():
        got = _made(caller, name, given, target, stream)
        assert isinstance(got, UnauthenticatedError), (name, got)
    caller.close()
    flush_audit(served.server)
    assert any(row["outcome"] == "unauthenticated" for row in _audit(served.server.log))


def test_every_method_has_a_row() -> None:
    """A method that Flight adds has to be added here, with who may use it."""
    carriers = {_METHOD.DO_ACTION, _METHOD.DO_GET, _METHOD.DO_PUT}
    assert set(METHODS) | carriers == set(_METHOD) - {_METHOD.INVALID}
    offered = {method for method, need in METHODS.items() if need != NOT_OFFERED}
    assert offered | carriers == OFFERED


@pytest.mark.parametrize("who", [*CALLERS, "", "none"])
@pytest.mark.parametrize("method", METHODS, ids=lambda method: str(method.name).lower())
def test_a_method_is_for_those_that_it_is_offered_to(
    served: Served, who: str, method: fl.FlightMethod
) -> None:
    """A caller that is not known is refused as such, also by what is not offered to anyone."""
    token = served.tokens.get(who, who or None)
    for target in TARGETS:
        caller = Caller(served.server, token)
        got = caller.method(method, target)
        caller.close()
        if isinstance(got, str):  # of this method the client may keep the text alone
            assert "Traceback" not in got
            assert ("token" if who not in CALLERS else "does not offer this method") in got
        elif who not in CALLERS:
            assert isinstance(got, UnauthenticatedError), got
        elif METHODS[method] == NOT_OFFERED:
            assert isinstance(got, ProtocolError), got
        else:
            allowed = _may(who, METHODS[method], target)
            assert allowed is not isinstance(got, AccessDeniedError), got
            assert got is None or not allowed


def test_a_token_with_another_secret_is_none(served: Served) -> None:
    """Who knows the id of a token, which is no secret, does not have the token."""
    caller = Caller(served.server, served.tokens["admin"][: len("lkb_") + 17] + "A" * 43)
    assert isinstance(caller.call("hello", {}), UnauthenticatedError)
    caller.close()


def test_everybody_may_do_everything_while_a_log_has_no_rules(tmp_path: Path) -> None:
    """Nobody is known, so nobody is refused; the topics of the log's own are still out of reach."""
    server = _serve(tmp_path / "log")
    with server:
        caller = Caller(server, None)
        for name, _, given, target, stream in _rows():
            if name in ("create_token", "allow", "grant"):
                continue  # the first of them closes the log to everybody
            got = _made(caller, name, given, target, stream)
            refused = isinstance(got, AccessDeniedError | UnauthenticatedError)
            assert not refused, (name, got)
        assert isinstance(caller.call("topic", {"name": "__audit"}), AccessDeniedError)
        assert isinstance(caller.stream("put", {}, "__audit"), AccessDeniedError)
        caller.close()


def test_a_list_shows_only_what_its_reader_may_see(served: Served) -> None:
    """Names are told to those who may read them."""
    for who, seen in (("nobody", []), ("writer", []), ("partial", ["apple"])):
        caller = Caller(served.server, served.tokens[who])
        assert [name for name in caller.call("topics", {}) if name in TARGETS] == seen, who
        assert [name for name in caller.call("groups", {}) if name in TARGETS] == seen, who
        flights = [info.descriptor.path[0].decode() for info in _flights(caller)]
        assert [name for name in flights if name in TARGETS] == seen, who
        caller.close()


def _flights(caller: Caller) -> list[Any]:
    return list(caller.client.list_flights(options=caller.options))


def test_a_member_of_a_group_needs_the_group_also_to_fetch(served: Served) -> None:
    """A fetch that speaks for a member is a heartbeat, and is let through as one."""
    for who, allowed in (("reader", True), ("partial", True), ("readonly", False)):
        token = served.tokens.get(who)
        if token is None:
            served.server.log.access.allow(who, "read", "*")
            token = str(served.server.log.access.create_token(who, roles=[who]))
        caller = Caller(served.server, token)
        ticket = {**_filled(TICKETS["fetch"][1], "apple"), "group": "apple", "member": "x"}
        got = caller.stream("fetch", ticket, "apple")
        assert isinstance(got, LakebedError)
        assert allowed is not isinstance(got, AccessDeniedError), (who, got)
        caller.close()


def test_a_group_shows_only_topics_that_its_reader_may_read(served: Served) -> None:
    """Who may use a group learns nothing of the topics of others in it."""
    log = served.server.log
    log.commit_offsets("both", {("apple", 0): 1, ("berry", 0): 1})
    log.access.allow("partial", "group", "both")
    for who, seen in (("grouper", set()), ("partial", {"apple"}), ("reader", {"apple", "berry"})):
        caller = Caller(served.server, served.tokens[who])
        info = caller.call("describe_group", {"name": "both"})
        assert {each.topic for each in info.partitions} == seen, who
        assert {each[0] for each in caller.call("committed", {"group": "both"})} == seen, who
        caller.close()


def test_offsets_of_a_transaction_need_their_topics_by_number(served: Served) -> None:
    """A topic that does not exist is left to the log, which says so or nothing."""
    log = served.server.log
    numbers = {name: log.describe_topic(name).id for name in TARGETS}
    caller = Caller(served.server, served.tokens["partial"])
    for number, denied in ((numbers["apple"], False), (numbers["berry"], True), (10**6, False)):
        request = {"producer": 10**6, "epoch": 1, "offsets": [("apple", "", number, 0, 0)]}
        got = caller.call("commit_transaction", request)
        assert isinstance(got, LakebedError)
        assert isinstance(got, AccessDeniedError) is denied, got
    caller.close()


@pytest.mark.parametrize(
    ("name", "request_"),
    [
        ("begin_transaction", {"timeout_ms": 0}),
        ("begin_transaction", {"timeout_ms": -1}),
        ("begin_transaction", {"timeout_ms": 86_400_001}),
        ("begin_transaction", {"timeout_ms": 2**63}),
        ("join", {"session_seconds": 0}),
        ("join", {"session_seconds": 86_401}),
        ("join", {"session_seconds": float("nan")}),
        ("join", {"session_seconds": float("inf")}),
    ],
)
def test_times_are_within_their_bounds(served: Served, name: str, request_: dict[str, Any]) -> None:
    """A client's library checks them too, and is not the only one that can call."""
    caller = Caller(served.server, served.tokens["admin"])
    got = caller.call(name, {**_filled(REQUESTS[name][1], "apple"), **request_})
    assert isinstance(got, InvalidArgumentError), got
    caller.close()


def test_calls_are_listed_to_those_who_are_known(served: Served) -> None:
    """ListActions is a call like any other."""
    caller = Caller(served.server, served.tokens["nobody"])
    assert {each.type for each in caller.client.list_actions(caller.options)} == set(OPERATIONS)
    caller.close()
    stranger = Caller(served.server, None)
    with pytest.raises(fl.FlightUnauthenticatedError) as caught:
        list(stranger.client.list_actions(stranger.options))
    assert isinstance(_error(caught.value), UnauthenticatedError)
    stranger.close()


def test_a_flight_is_described_to_its_readers_only(served: Served) -> None:
    """GetFlightInfo is a call like any other."""
    for who, allowed in (("reader", True), ("writer", False), ("nobody", False)):
        caller = Caller(served.server, served.tokens[who])
        descriptor = fl.FlightDescriptor.for_path("berry")
        look = caller.client.get_flight_info
        if allowed:
            look(descriptor, caller.options)
        else:
            with pytest.raises(pa.ArrowException, match="not allowed"):
                look(descriptor, caller.options)
        caller.close()
