"""Requests that are large: refused before they are taken apart, by what alone decides."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgpack
import pyarrow as pa
import pyarrow.flight as fl
import pytest

from lakebed import Log, ServeConfig
from lakebed.errors import AccessDeniedError, LakebedError, ProtocolError
from lakebed.operations.description import MESSAGE_BYTES_MAX
from lakebed.operations.table import OPERATIONS
from lakebed.serve.requests import SMALL_REQUEST_BYTES, bytes_to_parse
from lakebed.serve.server import Server
from lakebed.wire import protocol
from lakebed.wire.protocol import pack, unpack_request
from tests.serve.test_matrix import REQUESTS, Caller, _filled

KIB = 1024


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, dict[str, str]]]:
    """Serve a log that knows an administrator, a reader and a caller without any role."""
    log = Log.open(tmp_path_factory.mktemp("requests") / "log")
    log.create_topic("a")
    roles: dict[str, list[str]] = {"root": ["admin"], "reader": ["reader"], "nobody": []}
    tokens = {name: str(log.access.create_token(name, roles=each)) for name, each in roles.items()}
    config = ServeConfig(port=0, http_port=-1, stop_timeout_ms=1000)
    with Server(log, config).start() as server:
        yield server, tokens


def _call(server: Server, token: str, name: str, body: bytes) -> Any:
    caller = Caller(server, token)
    try:
        (reply,) = caller.client.do_action(fl.Action(name, body), caller.options)
        return protocol.unpack(reply.body.to_pybytes())
    except pa.ArrowException as error:
        info = getattr(error, "extra_info", None)
        assert info, error
        return protocol.unpack_error(info)
    finally:
        caller.close()


NOTHING = sorted(name for name, call in OPERATIONS.items() if not call.request)


@pytest.mark.parametrize("name", NOTHING)
def test_a_call_that_takes_nothing_refuses_a_body(
    served: tuple[Server, dict[str, str]], name: str
) -> None:
    server, tokens = served
    got = _call(server, tokens["root"], name, pack({"a": {}}))
    assert isinstance(got, ProtocolError)
    assert "takes no parameters" in str(got)
    for body in (b"", pack({})):
        assert not isinstance(_call(server, tokens["root"], name, body), LakebedError)


def test_who_may_do_nothing_of_a_kind_has_no_large_request_taken_apart(
    served: tuple[Server, dict[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every call that needs a role: the refusal comes before the request is looked at."""
    server, tokens = served
    unpacked: list[str] = []

    def unpack_call(call: Any, _body: Any) -> Any:
        unpacked.append(call.name)
        return {}

    monkeypatch.setattr("lakebed.serve.flight.unpack_call", unpack_call)
    garbage = b"\xc1" * (SMALL_REQUEST_BYTES + 1)
    for name, call in OPERATIONS.items():
        if call.request and (call.somewhere or not call.open):
            got = _call(server, tokens["nobody"], name, garbage)
            assert isinstance(got, AccessDeniedError), name
    assert not unpacked


def test_a_large_ticket_is_taken_apart_for_readers_alone(
    served: tuple[Server, dict[str, str]],
) -> None:
    server, tokens = served
    for who, kind in (("nobody", AccessDeniedError), ("reader", ProtocolError)):
        caller = Caller(server, tokens[who])
        with pytest.raises(pa.ArrowException) as caught:
            garbage = b"\xc1" * (SMALL_REQUEST_BYTES + 1)
            caller.client.do_get(fl.Ticket(garbage), caller.options).read_all()
        assert isinstance(protocol.unpack_error(caught.value.extra_info), kind)
        caller.close()


@pytest.mark.parametrize("name", sorted(OPERATIONS))
def test_each_call_has_a_largest_request(served: tuple[Server, dict[str, str]], name: str) -> None:
    server, tokens = served
    call = OPERATIONS[name]
    assert call.bytes_max <= MESSAGE_BYTES_MAX
    if call.request:
        got = _call(server, tokens["root"], name, b"\xc1" * (call.bytes_max + 1))
        assert isinstance(got, ProtocolError)
        assert got.facts["bytes_max"] == call.bytes_max
    request = pack(_filled(REQUESTS[name][1], "apple"))
    assert len(request) <= call.bytes_max
    unpack_request(request, call.items_max)


def test_a_list_or_map_has_so_many_items() -> None:
    for value in ([0] * 11, dict.fromkeys(range(11)), {"a": [[], [0] * 11]}):
        packed = msgpack.packb(value)
        assert unpack_request(packed, 11)
        with pytest.raises(ProtocolError):
            unpack_request(packed, 10)


def test_a_large_request_counts_as_what_it_becomes() -> None:
    """But never so much that it would have to be alone."""
    config = ServeConfig()
    assert bytes_to_parse(60 * KIB, config) == 60 * KIB
    assert bytes_to_parse(100 * KIB, config) == 3200 * KIB
    assert bytes_to_parse(16 << 20, config) == config.principal_inflight_bytes_max // 2
    small = ServeConfig(principal_inflight_bytes_max=64 * KIB)
    assert bytes_to_parse(100 * KIB, small) == 100 * KIB
