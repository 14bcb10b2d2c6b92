"""Clients of the soak that behave: they write, read and report what was acknowledged.

    python -m tests.proof.soak_clients KIND NAME PORT HTTP_PORT

Every record has the value `NAME/NUMBER`, with numbers from 0 on. The report says how many numbers
were used, which calls were refused (their records must not exist) and which have an unknown outcome
(their records may exist, once). Each client has a steady, modest rate, so that what is measured is
how it is served and not how much it asks for.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import lakebed
from lakebed.errors import LakebedError, RejectedError
from tests.proof.soak_process import Arguments, Phases, parse_arguments, take_part
from tests.serve.http_raw import call

TOPICS = ("orders", "payments", "events")
"""What the clients write to; no other client writes there."""
GROUP = "billing"
DOCUMENTED = frozenset({"quota_exceeded", "overloaded"})
"""Refusals that a client has to expect on a server with limits."""
_PARTITIONS = 3


class RefusedError(Exception):
    """A call over HTTP was refused, and wrote nothing."""

    def __init__(self, code: str) -> None:
        super().__init__(code)
        self.code = code


class Client:
    """One client: a loop of calls with a pause between them, and what came of them."""

    def __init__(self, arguments: Arguments) -> None:
        self._server = arguments.server
        self._token = arguments.token
        self._name = arguments.name
        self._next = 0
        self._producer: lakebed.Producer | None = None
        self._refused: list[int] = []
        self._unknown: list[int] = []
        self._errors: Counter[str] = Counter()
        self._seconds: dict[bool, list[float]] = {False: [], True: []}
        self._read = 0
        self.log = self._server.open(token=self._token)

    def repeat(self, phases: Phases, call: Callable[[], None], pause_seconds: float) -> None:
        """Make a call again and again until the end; note how long each took."""
        while not phases.ended:
            attacked, began = phases.attacked, time.perf_counter()
            call()
            self._seconds[attacked].append(time.perf_counter() - began)
            time.sleep(pause_seconds)

    def report(self) -> dict[str, Any]:
        """Return what came of everything."""
        return {
            "name": self._name,
            "numbers": self._next,
            "refused": self._refused,
            "unknown": self._unknown,
            "errors": self._errors,
            "read": self._read,
            "before": self._seconds[False],
            "during": self._seconds[True],
        }

    def _write(self, count: int, write: Callable[[Sequence[str]], object]) -> None:
        """Write so many records in one call; note what came of it."""
        numbers = range(self._next, self._next + count)
        self._next += count
        try:
            write([f"{self._name}/{number}" for number in numbers])
        except (RejectedError, RefusedError) as error:
            self._errors[error.code] += 1
            self._refused.extend(numbers)
        except (LakebedError, OSError) as error:
            self._errors[getattr(error, "code", type(error).__name__)] += 1
            self._unknown.extend(numbers)

    # What the kinds of clients do

    def append(self) -> None:
        """Append one record with a key."""
        self._write(1, lambda texts: self.log.append("orders", texts[0].encode(), texts[0]))

    def append_batch(self) -> None:
        """Append a batch of 100 records with keys."""

        def write(texts: Sequence[str]) -> None:
            rows = [{"value": text.encode(), "key": text.encode()} for text in texts]
            self.log.append_batch("payments", rows)

        self._write(100, write)

    def transact(self) -> None:
        """Write to two topics in one transaction."""

        def write(texts: Sequence[str]) -> None:
            with self.log.transaction() as transaction:
                for number, text in enumerate(texts):
                    topic = ("orders", "payments")[number % 2]
                    transaction.append(topic, text.encode(), text)

        self._write(6, write)

    def produce(self) -> None:
        """Send 20 records under a producer and wait for them."""
        self._write(20, self._send)

    def _send(self, texts: Sequence[str]) -> None:
        if self._producer is None:
            self._producer = self.log.producer(self._name)
        try:
            for text in texts:
                self._producer.send("events", text.encode(), text)
            self._producer.flush()
        except LakebedError:
            producer, self._producer = self._producer, None
            with contextlib.suppress(LakebedError):  # it raises the same error again
                producer.close()
            raise

    def use_http(self) -> None:
        """Write three records over HTTP, then read some."""
        self._write(3, self._post)
        partition = self._next // 3 % _PARTITIONS
        status, body = self._call(
            "GET", f"/v1/topics/events/records?partition={partition}&max_records=10"
        )
        if status == 200:
            self._read += len(json.loads(body)["records"])
        else:
            self._errors[json.loads(body)["code"]] += 1

    def _post(self, texts: Sequence[str]) -> None:
        records = [{"value": text, "key": text} for text in texts]
        status, body = self._call("POST", "/v1/topics/events/records", {"records": records})
        if status != 200:
            raise RefusedError(json.loads(body)["code"])

    def _call(self, method: str, path: str, body: Any = None) -> tuple[int, bytes]:
        return call(self._server, method, path, body, token=self._token)

    def consume(self, phases: Phases) -> None:
        """Be a member of a group until the end; commit what was read."""
        with contextlib.closing(self.log.consumer(GROUP, ["orders"])) as consumer:
            while not phases.ended:
                try:
                    self._read += consumer.poll(500).num_rows
                    consumer.commit()
                except LakebedError as error:
                    self._errors[error.code] += 1
                    consumer.rewind()


def work(client: Client, kind: str, phases: Phases) -> dict[str, Any]:
    """Do what clients of a kind do until the end; return the report."""
    if kind == "consumer":
        client.consume(phases)
    else:
        call, pause_seconds = {
            "single": (client.append, 0.02),
            "batch": (client.append_batch, 0.1),
            "transaction": (client.transact, 0.1),
            "producer": (client.produce, 0.1),
            "http": (client.use_http, 0.1),
        }[kind]
        client.repeat(phases, call, pause_seconds)
    return client.report()


def main() -> None:
    """Take part in the soak."""
    arguments = parse_arguments()
    client = Client(arguments)
    take_part(lambda phases: work(client, arguments.kind, phases))


if __name__ == "__main__":
    main()
