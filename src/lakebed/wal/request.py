"""One frame before it is on disk: what the caller encoded, and how it learns what became of it."""

from __future__ import annotations

import _thread
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Final

from crc32c import crc32c

from lakebed import limits
from lakebed.errors import EntryTooLargeError, InvalidArgumentError
from lakebed.wal.frame import ENTRY, HEADER_BYTES

if TYPE_CHECKING:
    from typing_extensions import Buffer

_PADDING: Final = tuple(bytes(-length & 63) for length in range(64))
_JOIN_ABOVE: Final = 8
"""An entry in more parts than this has its small ones copied together."""
_JOIN_BYTES: Final = 4096
"""Parts smaller than this are copied together: cheaper than one more vector element each."""


_OPEN_SPAN: Final = 8 * limits.MIB
"""What an entry that still grows counts for in the queue: as much as it may grow to."""


class Waiter:
    """Somebody who waits until a frame is on disk, by a gate or by a future."""

    # Most waiters never change these; what is not set costs nothing to make.
    error: Exception | None = None
    future: Future[Any] | None = None
    answer: Callable[[], object] | None = None
    """What the future is told, once it is finished without an error; it may raise one."""
    done = False
    """The group is published; set before anyone is woken."""
    next: Waiter | None = None
    gate: _thread.LockType | None = None
    """Locked until it is finished; None if no thread waits for this one."""
    abandoned = False
    """The thread that waited at the gate is gone, so waking it means waking the next."""

    def make_gate(self) -> None:
        """Make it possible to wait for this one."""
        gate = _thread.allocate_lock()
        gate.acquire()
        self.gate = gate

    def join(self) -> None:
        """Wait until it is finished, in whatever way, and wake the next waiter of its group."""
        gate = self.gate
        if gate is None:
            raise AssertionError("the request has no gate to wait at")
        try:
            gate.acquire()
            self.pass_on()
        except BaseException:
            self.abandon()
            raise
        _unlock(gate)

    def abandon(self) -> None:
        """Stop waiting (Ctrl-C): a thread that comes to wake this one wakes the next instead."""
        self.abandoned = True
        if self.done:
            self.pass_on()

    def wake(self) -> None:
        """Wake the thread that waits for it; without one, the next that a thread waits for."""
        waiter: Waiter | None = self
        while waiter is not None:
            if waiter.gate is not None:
                _unlock(waiter.gate)
                if not waiter.abandoned:
                    return
            waiter = waiter.next

    def pass_on(self) -> None:
        """Wake the next waiter of the group, once."""
        following = self.next
        if following is not None:
            following.wake()
            self.next = None

    def settle(self) -> None:
        """Settle the future, if there is one."""
        future = self.future
        if future is not None and not future.done():
            try:
                if self.error is not None:
                    raise self.error
                answer = self.answer
                future.set_result(self.value() if answer is None else answer())
            except Exception as error:  # the waiting caller must receive any error
                future.set_exception(error)
        self.future = None

    def value(self) -> object:
        """Return the result of a future without a separate answer."""
        return None


class Request(Waiter):
    """A frame's content, encoded by the caller's thread.

    Index, parent and place are given by the committing one.
    """

    index = 0
    time_us = 0
    """Of the first in a group: when the group was first written."""
    content: object = None
    command: object = None
    """What the layer above has to apply once the entry is on disk, and `result` what came of it."""
    result: Any = None
    riders: Sequence[Waiter] = ()
    """Others who put something into the same entry."""

    def __init__(
        self, kind: int, parts: Sequence[Buffer], length: int, *, flags: int, term: int
    ) -> None:
        self.kind = kind
        self.flags = flags
        self.term = term
        self._fill(parts, length)

    def _fill(self, parts: Sequence[Buffer], length: int) -> None:
        checksum = 0
        for part in parts:
            checksum = crc32c(part, checksum)
        self.length = length
        self.checksum = checksum
        self.span = HEADER_BYTES + ((length + 63) & -64)
        self.parts: list[Buffer] = [*parts, _PADDING[length & 63]]

    def seal(self) -> None:
        """Settle the content; called by the leader before it writes, perhaps more than once."""

    def value(self) -> object:
        """Return the index."""
        return self.index


class OpenRequest(Request):
    """An entry that still grows while it waits for its turn, and is encoded when that comes.

    `encode` closes it for further additions and returns its payload. Until then its owner adds
    riders.
    """

    def __init__(self, encode: Callable[[], Sequence[Buffer]], *, term: int) -> None:
        super().__init__(ENTRY, (), 0, flags=0, term=term)
        self.span = _OPEN_SPAN
        self.riders = []
        self._encode: Callable[[], Sequence[Buffer]] | None = encode

    def seal(self) -> None:
        """Encode it, once."""
        if self._encode is not None:
            parts = self._encode()
            self._fill(parts, sum(memoryview(part).nbytes for part in parts))
            self._encode = None


def finish(group: list[Request]) -> None:
    """Wake the callers of a finished group. A second call does no harm.

    Two waiters are woken here, and each wakes the next but one. Waking all at once would have them
    all wake up only to queue for the interpreter's lock.
    """
    if len(group) == 1 and not group[0].riders:
        request = group[0]
        request.done = True
        if request.future is not None:
            request.settle()
        if request.gate is not None:
            request.wake()
        return
    waiters: list[Waiter] = []
    for request in group:
        waiters.append(request)
        for rider in request.riders:
            rider.error = request.error
            waiters.append(rider)
    for waiter, after in zip(waiters, waiters[2:], strict=False):
        waiter.next = after
    for waiter in waiters:
        waiter.done = True
        if waiter.future is not None:
            waiter.settle()
    for waiter in waiters[:2]:
        waiter.wake()


def _unlock(gate: _thread.LockType) -> None:
    """Unlock a gate that may have been unlocked before."""
    try:  # noqa: SIM105  # contextlib.suppress takes five times as long
        gate.release()
    except RuntimeError:
        pass


def entry_request(
    payload: Buffer | Sequence[Buffer], *, flags: int, term: int, bytes_max: int
) -> Request:
    """Encode an entry from one buffer or several, without joining large ones."""
    if isinstance(payload, bytes):
        parts: Sequence[Buffer] = (payload,)
        length = len(payload)
    else:
        parts, length = _parts(payload)
    if length > bytes_max:
        raise EntryTooLargeError("the entry is too large", bytes=length, bytes_max=bytes_max)
    return Request(ENTRY, parts, length, flags=flags, term=term)


def _parts(payload: Buffer | Sequence[Buffer]) -> tuple[Sequence[Buffer], int]:
    several = isinstance(payload, (list, tuple))
    buffers: Sequence[Buffer] = payload if several else (payload,)  # type: ignore[assignment]
    if len(buffers) > limits.ENTRY_PARTS_MAX:
        raise EntryTooLargeError(
            "the entry has too many parts", parts=len(buffers), parts_max=limits.ENTRY_PARTS_MAX
        )
    try:
        views = [memoryview(buffer).cast("B") for buffer in buffers]
    except TypeError as error:
        raise InvalidArgumentError(
            "an entry must be bytes, a contiguous buffer, or a list of them",
            got=type(payload).__name__,
        ) from error
    length = 0
    for view in views:
        length += len(view)
    return join_small(views) if len(views) > _JOIN_ABOVE else views, length


def join_small(buffers: Sequence[Buffer]) -> list[Buffer]:
    """Copy runs of small buffers together; leave large ones as they are."""
    parts: list[Buffer] = []
    small: list[Buffer] = []
    for buffer in buffers:
        if len(buffer) < _JOIN_BYTES:  # type: ignore[arg-type]
            small.append(buffer)
            continue
        if small:
            parts.append(b"".join(small))
            small.clear()
        parts.append(buffer)
    if small:
        parts.append(b"".join(small))
    return parts
