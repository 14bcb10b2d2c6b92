"""Callers that are not known: what they cost a server before they are refused."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.flight as fl
import pytest

from lakebed import Log
from lakebed.errors import LakebedError, ProtocolError, UnauthenticatedError
from lakebed.wire.protocol import unpack_error
from tests.serve.http2 import Http2, is_ended
from tests.serve.raw import Raw, error_of
from tests.serve.support import ServerProcess, check_serves, raw_socket
from tests.waiting import until

MIB = 1 << 20
BYTES_MAX = 64 * 1024
TOO_MANY = "too many bytes before a call was authenticated"
TOML = "[lake]\niceberg = false\n"


class Known(ServerProcess):
    """A server of a log that knows its callers."""

    token = ""

    def make_token(self) -> None:
        """Make the log and the token of its administrator, before the first start."""
        with Log.open(self.folder) as log:
            log.create_topic("good")
            self.token = str(log.access.create_token("root", roles=["admin"]))

    @property
    def threads(self) -> int:
        """How many threads the process has."""
        return len(list(Path(f"/proc/{self.pid}/task").iterdir()))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Known]:
    """Run a server of a log that knows its callers, with small limits."""
    settings = (
        f"flight_unauthenticated_bytes_max={BYTES_MAX}",
        "flight_unauthenticated_ms=30000",
        "flight_address_connections_max=60",
    )
    running = Known(tmp_path_factory.mktemp("unknown") / "log", *settings, toml=TOML)
    running.make_token()
    with running:
        yield running


@pytest.fixture(autouse=True)
def serves(server: Known) -> Iterator[None]:
    """See that a client that behaves is served afterwards."""
    yield
    check_serves(server, token=server.token)
    assert "unforeseen" not in server.said
    assert "a defect" not in server.said


@pytest.mark.parametrize("method", ["DoPut", "DoExchange", "Handshake"])
def test_a_stream_without_a_token_holds_no_thread(server: Known, method: str) -> None:
    """It is refused by its headers; no message of it is waited for."""
    before = server.threads
    with Http2(server) as connection:
        for _ in range(250):
            connection.begin(method)
        connection.wait_for_ends(250)
        until(lambda: server.threads < before + 60, "threads wait for callers that are not known")
        with server.open(token=server.token) as log:
            assert log.topics()


def _options(token: str) -> fl.FlightCallOptions:
    return fl.FlightCallOptions(headers=[(b"authorization", b"Bearer " + token.encode())])


LARGE: dict[str, Callable[[fl.FlightClient, bytes], object]] = {
    "DoAction": lambda client, data: list(client.do_action(fl.Action("hello", data))),
    "DoGet": lambda client, data: client.do_get(fl.Ticket(data)).read_all(),
    "GetFlightInfo": lambda client, data: client.get_flight_info(
        fl.FlightDescriptor.for_command(data)
    ),
    "ListFlights": lambda client, data: list(client.list_flights(data)),
}


@pytest.mark.parametrize("method", LARGE)
def test_a_large_request_without_a_token_is_cut_off(server: Known, method: str) -> None:
    """The connection is closed before the request is whole; a busy server may need a few."""

    def is_cut_off() -> bool:
        with Raw(server) as raw, pytest.raises(fl.FlightError) as caught:
            LARGE[method](raw.client, bytes(200 * MIB))
        return isinstance(caught.value, fl.FlightUnavailableError)

    until(is_cut_off)
    assert TOO_MANY in server.said


@pytest.mark.parametrize("method", ["DoAction", "DoGet", "GetFlightInfo"])
def test_a_caller_that_is_not_known_may_send_few_bytes(server: Known, method: str) -> None:
    """The rest of its request is not waited for."""
    with Http2(server) as connection:
        stream = connection.begin(method)
        connection.send(stream, b"\x00\x7f\xff\xff\xff" + bytes(BYTES_MAX - 10))
        assert connection.ended()
    until(lambda: TOO_MANY in server.said)


def test_a_first_request_of_a_known_caller_is_served_up_to_the_limit(server: Known) -> None:
    """What is below the limit needs no smaller call before it."""
    body = bytes(BYTES_MAX // 2)
    with Raw(server) as raw, pytest.raises(fl.FlightError) as caught:
        list(raw.client.do_action(fl.Action("hello", body), _options(server.token)))
    assert isinstance(error_of(caught.value), ProtocolError)


def test_a_connection_that_says_nothing_is_closed_and_that_of_a_known_caller_is_kept(
    tmp_path: Path,
) -> None:
    """Also one that has sent a preface, which gRPC itself would keep."""
    server = Known(tmp_path / "log", "flight_unauthenticated_ms=2000", toml=TOML)
    server.make_token()
    with server, Raw(server) as raw:
        before = set(_connections(server))
        options = _options(server.token)
        list(raw.client.do_action(fl.Action("hello", b""), options))
        kept = set(_connections(server)) - before
        assert kept
        with Http2(server) as unknown, raw_socket(server) as silent:
            assert unknown.ended()
            assert is_ended(silent)
        list(raw.client.do_action(fl.Action("hello", b""), options))
        assert kept <= set(_connections(server))
        until(lambda: "no call was authenticated in time" in server.said)


def _connections(server: ServerProcess) -> list[str]:
    """Return the sockets of a server's process."""
    links = Path(f"/proc/{server.pid}/fd").iterdir()
    found = []
    for link in links:
        with contextlib.suppress(OSError):
            found.append(str(link.readlink()))
    return [target for target in found if target.startswith("socket:")]


def test_connections_of_one_address_are_limited(server: Known) -> None:
    """The newest beyond the limit are closed, and not those of known callers."""
    with Raw(server) as raw, contextlib.ExitStack() as stack:
        options = _options(server.token)
        list(raw.client.do_action(fl.Action("hello", b""), options))
        for _ in range(120):
            stack.enter_context(Http2(server))
        until(lambda: "too many connections of one address" in server.said)
        until(lambda: len(_connections(server)) < 80)
        list(raw.client.do_action(fl.Action("hello", b""), options))


# Methods that are not offered


def _made(raw: Raw, method: str, options: fl.FlightCallOptions) -> LakebedError | str:
    descriptor = fl.FlightDescriptor.for_path("good")
    try:
        if method == "schema":
            raw.client.get_schema(descriptor, options)
        elif method == "exchange":
            writer, reader = raw.client.do_exchange(descriptor, options)
            with contextlib.suppress(pa.ArrowException):
                writer.done_writing()
            reader.read_chunk()
        else:
            raw.client.authenticate_basic_token("root", "secret", options)
    except (pa.ArrowException, OSError) as error:
        if method == "schema":
            return str(error)  # of this one the client keeps the text alone
        return error_of(error)
    raise AssertionError("the method was offered")


@pytest.mark.parametrize("method", ["schema", "exchange", "handshake"])
def test_a_method_that_is_not_offered_is_refused_by_an_error_that_says_so(
    server: Known, method: str
) -> None:
    """Without a token it is refused for want of it; neither shows a traceback."""
    with Raw(server) as raw:
        unknown = fl.FlightCallOptions()
        # A handshake has a header of that name already, so it has no token.
        known = unknown if method == "handshake" else _options(server.token)
        answers = [_made(raw, method, options) for options in (unknown, known)]
    if method == "schema":
        assert "token" in str(answers[0])
        assert "does not offer this method" in str(answers[1])
        assert "Traceback" not in f"{answers}"
    elif method == "exchange":
        assert isinstance(answers[0], UnauthenticatedError)
        assert isinstance(answers[1], ProtocolError)
    else:
        assert all(isinstance(answer, UnauthenticatedError) for answer in answers)


def test_two_tokens_are_none(server: Known) -> None:
    """A call with two authorization headers is refused, whichever is valid."""
    header = (b"authorization", b"Bearer " + server.token.encode())
    options = fl.FlightCallOptions(headers=[header, header])
    with Raw(server) as raw, pytest.raises(fl.FlightUnauthenticatedError) as caught:
        list(raw.client.do_action(fl.Action("hello", b""), options))
    assert isinstance(unpack_error(caught.value.extra_info), UnauthenticatedError)


@pytest.mark.parametrize("method", ["DoPut", "DoExchange"])
def test_a_header_that_is_no_ascii_is_refused_without_a_line_in_the_log(
    server: Known, method: str
) -> None:
    """pyarrow refuses it before the server is asked; its answer names no file of this machine."""
    said, threads = server.said, server.threads
    with Http2(server) as connection:
        for _ in range(100):
            connection.begin(method, token="é")
        answers = connection.wait_for_ends(100)
    assert b"ascii" in answers
    assert str(Path(pa.__file__).parent).encode() not in answers
    assert len(answers) < 100 * 1500
    assert server.said == said
    until(lambda: server.threads < threads + 60, "threads wait for callers that are not known")
