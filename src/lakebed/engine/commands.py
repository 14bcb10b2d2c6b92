"""Commands in flight into the WAL: encoded, committed, answered."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

from lakebed.engine.core import Prepared
from lakebed.errors import LakebedError
from lakebed.state.command_codec import encode
from lakebed.state.commands import Command
from lakebed.topic.memtable import Body
from lakebed.wal import Wal
from lakebed.wal.request import Request


class Commands:
    """Writes commands to the WAL. Any thread."""

    def __init__(self, wal: Wal) -> None:
        self._wal = wal

    def submit(self, command: Command, bodies: Sequence[Body] = ()) -> Any:
        """Write a command; return its result when it is durable and applied."""
        request = self.request(command, bodies)
        self._wal.commits.call(request)
        return outcome(request)

    def submit_async(
        self, command: Command, bodies: Sequence[Body], answer: Callable[[Any], Any]
    ) -> Future[Any]:
        """Write a command; the future receives what `answer` makes of its result."""
        request = self.request(command, bodies)
        future = request.future = running_future()
        request.answer = lambda: answer(outcome(request))
        self._wal.commits.post(request)
        return future

    def request(self, command: Command, bodies: Sequence[Body]) -> Request:
        """Prepare the entry of a command."""
        payload = encode(command, [body.raw() for body in bodies])
        return self._wal.request(payload, Prepared(command, bodies))


def outcome(request: Request) -> Any:
    """Return the result of a request that is finished, or raise its rejection."""
    if isinstance(request.result, LakebedError):
        raise request.result
    return request.result


def running_future() -> Future[Any]:
    """Return a future that cannot be cancelled any more."""
    future: Future[Any] = Future()
    future.set_running_or_notify_cancel()
    return future
