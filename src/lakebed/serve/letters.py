"""What became of records, on its way from the committing thread to the WebSockets."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lakebed.api.acks import Ack
    from lakebed.serve.record_socket import RecordSocket


class Letters:
    """Answers on their way to the connections of one event loop, many at a time."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._letters: deque[tuple[RecordSocket, Slot, Any]] = deque()
        self._called = False

    def put(self, socket: RecordSocket, slot: Slot, answer: Any) -> None:
        """Have a connection told what came of a record. Any thread."""
        self._letters.append((socket, slot, answer))
        if not self._called:
            self._called = True
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits
                self._loop.call_soon_threadsafe(self._deliver)

    def _deliver(self) -> None:
        self._called = False  # before looking: what is put from here on rings again
        for _ in range(len(self._letters)):
            socket, slot, answer = self._letters.popleft()
            slot.answer = answer
            try:
                socket.go_on()
            except Exception as error:  # the letters behind it are for others
                socket.fail(error)


class Slot:
    """A message that waits for its answer; the log tells it what came of the record."""

    __slots__ = ("_letters", "_socket", "answer")

    def __init__(self, socket: RecordSocket, letters: Letters) -> None:
        self._socket = socket
        self._letters = letters
        self.answer: Any = None

    def done(self) -> bool:
        """Return False: it is told once."""
        return False

    def set_result(self, ack: Ack) -> None:
        """Take where the record is. Called by the committing thread."""
        self._letters.put(self._socket, self, ack)

    def set_exception(self, error: BaseException) -> None:
        """Take why it was refused. Called by the committing thread."""
        self._letters.put(self._socket, self, error)
