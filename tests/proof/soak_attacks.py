"""Clients of the soak that misbehave, at a bounded rate and until the end.

    python -m tests.proof.soak_attacks KIND NAME PORT HTTP_PORT

A kind is a process that makes its attacks in turn: `anonymous` has no token, the others have the
token of a principal that may read and write a few topics. The report counts what came of each
attack: the code of the error, the status of the answer, or the exception of the client.
"""

from __future__ import annotations

import contextlib
import itertools
import random
import socket
import time
from collections import Counter, deque
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.flight as fl

import lakebed
from lakebed.client.config import ClientConfig
from lakebed.errors import LakebedError, ServerUnavailableError
from lakebed.wire.protocol import pack
from tests.proof.scale import SEED
from tests.proof.soak_process import Phases, parse_arguments, take_part
from tests.serve import hostile, raw_grpc
from tests.serve.http2 import Http2
from tests.serve.http_raw import call, connect, head
from tests.serve.inside import connection_of
from tests.serve.raw import Raw, error_of
from tests.serve.support import ServerProcess, raw_socket
from tests.waiting import until

MIB = 1 << 20
TOPIC, HEAVY = "target", "target-heavy"
"""What the attackers may read and write; the second one has a large answer."""
STREAMS_MAX = 40
"""Streams of one principal that the server of the soak allows."""
_PAUSE_SECONDS = 0.2
_PRODUCERS = 2_000
_RECORDS = f"/v1/topics/{TOPIC}/records"
_NULL = ["value", None, "large_string"]

Attack = Callable[[], str]


class Held:
    """Connections that are kept open, no more than so many: the oldest are closed for the next."""

    def __init__(self, most: int) -> None:
        self._connections: deque[contextlib.ExitStack] = deque()
        self._most = most

    def hold(self, connection: Any) -> None:
        """Keep a context manager open."""
        stack = contextlib.ExitStack()
        stack.enter_context(connection)
        self._connections.append(stack)
        while len(self._connections) > self._most:
            self._connections.popleft().close()


class Anonymous:
    """Attacks without a token."""

    def __init__(self, server: ServerProcess, _token: str) -> None:
        self._server = server
        self._held = Held(150)
        self._large = bytes(48 * MIB)

    def attacks(self) -> list[Attack]:
        """Return the attacks, to be made in turn."""
        return [self.silence, self.preface, self.silent_http, self.headers, self.large]

    def silence(self) -> str:
        """Connect ten times, and say nothing."""
        for _ in range(10):
            self._held.hold(raw_socket(self._server))
        return "held"

    def preface(self) -> str:
        """Connect ten times, and send the preface of HTTP/2."""
        for _ in range(10):
            self._held.hold(Http2(self._server))
        return "held"

    def silent_http(self) -> str:
        """Connect to HTTP ten times, and say nothing."""
        for _ in range(10):
            self._held.hold(connect(self._server))
        return "held"

    def headers(self) -> str:
        """Send the headers of 50 put streams, and nothing else."""
        with Http2(self._server) as connection:
            for _ in range(50):
                connection.begin("DoPut")
            connection.wait_for_ends(50)
        return "refused"

    def large(self) -> str:
        """Send a large request of one message."""
        with Raw(self._server) as raw:
            list(raw.client.do_action(fl.Action("hello", self._large)))
        return "taken"


class OverHttp:
    """Attacks over HTTP with a token."""

    def __init__(self, server: ServerProcess, token: str) -> None:
        self._server = server
        self._token = token
        self._bodies = Held(60)
        self._unread = Held(6)
        self._bomb = b'{"records": [' + b"{}," * (4 * MIB) + b"{}]}"
        self._nested = b'{"records": ' + b"[" * 200_000

    def attacks(self) -> list[Attack]:
        """Return the attacks, to be made in turn."""
        return [self.slow_body, self.unread, self.bomb, self.nested]

    def slow_body(self) -> str:
        """Begin five requests whose bodies do not come."""
        request = {"Content_Type": "application/json", "Content_Length": 1000}
        for _ in range(5):
            client = connect(self._server)
            client.sendall(head("POST", _RECORDS, self._token, **request) + b"{")
            self._bodies.hold(client)
        return "held"

    def unread(self) -> str:
        """Ask for a large answer, and do not read it."""
        client: socket.socket = connect(self._server, small_window=True)
        client.sendall(head("GET", f"/v1/topics/{HEAVY}/records", self._token))
        self._unread.hold(client)
        return "held"

    def bomb(self) -> str:
        """Send JSON of very many values."""
        return self._post(self._bomb)

    def nested(self) -> str:
        """Send JSON that is nested deeply, and does not end."""
        return self._post(self._nested)

    def _post(self, body: bytes) -> str:
        try:
            return str(call(self._server, "POST", _RECORDS, body, token=self._token)[0])
        except ConnectionError:  # the server need not read all of what it refuses
            return "closed"


class Data:
    """Arrow data and predicates that no well-behaved client sends."""

    def __init__(self, server: ServerProcess, token: str) -> None:
        self._server = server
        self._token = token
        self._options = fl.FlightCallOptions(
            headers=[(b"authorization", f"Bearer {token}".encode())]
        )
        self._random = random.Random(f"{SEED}/soak")
        self._views = _messages(hostile.views(pa.binary_view()))
        self._words = _messages(hostile.same_word(MIB // 2, 3_000, pa.binary()))
        self._honest = _messages(pa.array([b"v" * 100] * 50, pa.binary()))
        self._predicates = itertools.cycle(
            [
                ["equal", ["field", "key"], _NULL],
                ["cast", _NULL, "large_binary", True],
                ["is_in", _NULL, "string", ["a", None], True],
                ["and_kleene", ["field", "key"], _NULL],
                ["starts_with", ["field", "key"], b"\xff", False],
                ["equal", _NULL, ["value", None, "large_binary"]],
            ]
        )
        self._unread = Held(4)

    def attacks(self) -> list[Attack]:
        """Return the attacks, to be made in turn."""
        return [self.negative_views, self.shared_words, self.garbage, self.predicate, self.unread]

    def negative_views(self) -> str:
        """Send views of negative size."""
        return self._put(self._views)

    def shared_words(self) -> str:
        """Send half a megabyte that becomes 1.5 GB."""
        return self._put(self._words)

    def garbage(self) -> str:
        """Send a batch with a few changed bytes, which may be a valid one."""
        schema, batch = self._honest
        header = bytearray(batch.header)
        for _ in range(self._random.randint(1, 4)):
            header[self._random.randrange(len(header))] = self._random.randrange(256)
        return self._put([schema, raw_grpc.Message(bytes(header), batch.body)])

    def predicate(self) -> str:
        """Scan with a predicate that has a null of an odd type."""
        ticket = pack({"call": "scan", "topic": TOPIC, "where": next(self._predicates)})
        with Raw(self._server) as raw:
            raw.client.do_get(fl.Ticket(ticket), self._options).read_all()
        return "selected"

    def unread(self) -> str:
        """Ask for a large answer, and do not read it."""
        most = {"max_records": 1000, "max_bytes": 64 * MIB}
        ticket = pack({"call": "read", "topic": HEAVY, "partition": 0, "offset": 0, **most})
        raw = Raw(self._server)
        self._unread.hold(raw)
        raw.client.do_get(fl.Ticket(ticket), self._options)
        return "held"

    def _put(self, messages: list[raw_grpc.Message]) -> str:
        answers = raw_grpc.put(self._server, TOPIC, messages, token=self._token)
        answer = answers[0][1] if isinstance(answers, list) and answers else answers
        if isinstance(answer, LakebedError):
            return answer.code
        return type(answer).__name__ if isinstance(answer, Exception) else "taken"


def _messages(values: pa.Array) -> list[raw_grpc.Message]:
    keys = pa.array([b"k"] * len(values))
    return raw_grpc.messages(pa.record_batch([values, keys], names=["value", "key"]))


def _open(server: ServerProcess, token: str) -> lakebed.Log | None:
    """Open the log as a client that does not repeat calls; None if the server is too busy."""
    try:
        return lakebed.open(server.url, ClientConfig(token=token, retry_ms=0))
    except ServerUnavailableError:
        return None


class Tenant:
    """A principal that opens more than its share."""

    def __init__(self, server: ServerProcess, token: str) -> None:
        log = until(lambda: _open(server, token))
        assert log is not None
        self._log = log
        self._names = itertools.cycle(range(_PRODUCERS))

    def attacks(self) -> list[Attack]:
        """Return the attacks, to be made in turn."""
        return [self.streams, self.producers]

    def streams(self) -> str:
        """Open streams until no more are allowed, keep them for a second, close them."""
        ticket = {"call": "follow", "topic": TOPIC, "partition": 0, "offset": 0}
        with contextlib.ExitStack() as stack:
            for _ in range(STREAMS_MAX + 10):
                reader = connection_of(self._log).stream(ticket)
                stack.callback(reader.cancel)
                reader.read_chunk()
            time.sleep(1)
        return "opened"

    def producers(self) -> str:
        """Write one record under each of 20 producers."""
        for _ in range(20):
            with contextlib.closing(self._log.producer(f"p{next(self._names)}")) as producer:
                producer.send(TOPIC, b"v")
        return "opened"


KINDS: dict[str, type[Anonymous | OverHttp | Data | Tenant]] = {
    "anonymous": Anonymous,
    "http": OverHttp,
    "data": Data,
    "tenant": Tenant,
}


def attempt(attack: Attack) -> str:
    """Make an attack once; return what came of it."""
    try:
        return attack()
    except LakebedError as error:
        return error.code
    except fl.FlightUnavailableError:
        return "closed"
    except pa.ArrowException as error:
        return error_of(error).code if getattr(error, "extra_info", None) else type(error).__name__
    except (OSError, AssertionError) as error:
        return type(error).__name__


def work(attacks: list[Attack], phases: Phases) -> dict[str, Any]:
    """Make the attacks in turn from the beginning of the attack until the end."""
    outcomes: dict[str, Counter[str]] = {attack.__name__: Counter() for attack in attacks}
    time.sleep(max(0.0, phases.attack - time.time()))
    for attack in itertools.cycle(attacks):
        if phases.ended:
            break
        outcomes[attack.__name__][attempt(attack)] += 1
        time.sleep(_PAUSE_SECONDS)
    return outcomes


def main() -> None:
    """Take part in the soak."""
    arguments = parse_arguments()
    attacker = KINDS[arguments.kind](arguments.server, arguments.token)
    take_part(lambda phases: work(attacker.attacks(), phases))


if __name__ == "__main__":
    main()
