"""Bodies of HTTP requests: read up to a limit, and taken as JSON that means one thing only."""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import re
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Final, NoReturn

import numpy as np

from lakebed import limits
from lakebed.errors import InvalidArgumentError
from lakebed.serve.http_errors import Refused

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from starlette.requests import Request

STEP_BYTES: Final = 1024 * 1024
"""A body that does not say how long it is, is admitted in steps of this size."""
_BYTES_PER_SECOND: Final = 64 * 1024
"""The least rate of a body, beyond the time that every body has."""
_DRAIN_SECONDS: Final = 1.0
"""How long to go on reading a body that is refused, so that its sender can read the answer."""
_DIGITS_MAX: Final = 40
"""Digits of an integer: enough for every decimal."""
_COUNT_BYTES: Final = 128 * 1024
"""How much of a JSON text is looked at before other threads may run."""
_BEFORE_VALUES: Final = (b",", b"[", b"{")
"""Outside of its texts, a JSON text has at least as many of these as values, but for one."""
_SURROGATE: Final = re.compile(r"\\u[dD][89a-fA-F]")
_CLOSE: Final = {"Connection": "close"}


class GoneError(Exception):
    """The client has closed its connection; there is nobody to answer."""


def content_length(request: Request) -> int | None:
    """Return how long a body says it is; None if it comes in chunks."""
    if "transfer-encoding" in request.headers:
        return None
    header = request.headers.get("content-length", "0")
    if not header.isascii() or not header.isdigit() or len(header) > 18:
        raise Refused(400, "the content length is not a number", headers=_CLOSE)
    return int(header)


async def read_body(
    request: Request,
    bytes_max: int,
    timeout_seconds: float,
    admit: Callable[[int], Any],
    stack: ExitStack,
) -> bytes:
    """Read a body of at most `bytes_max`; `admit` is asked for every step beyond the first.

    It may take `timeout_seconds` in all, and longer if it is long and comes quickly enough.
    """
    began = time.monotonic()
    length = content_length(request)
    if length is not None and length > bytes_max:
        await _drain(request)
        raise _too_large(bytes_max)
    pieces: list[bytes] = []
    size, room = 0, STEP_BYTES if length is None else length
    more = True
    while more:
        allowed = timeout_seconds + size / _BYTES_PER_SECOND
        piece, more = await _receive(request, began + allowed - time.monotonic())
        size += len(piece)
        if size > bytes_max:
            if more:
                await _drain(request)
            raise _too_large(bytes_max)
        while size > room:
            stack.enter_context(admit(STEP_BYTES))
            room += STEP_BYTES
        pieces.append(piece)
    return b"".join(pieces)


async def _receive(request: Request, seconds: float) -> tuple[bytes, bool]:
    try:
        async with asyncio.timeout(seconds):
            message = await request.receive()
    except TimeoutError:
        raise Refused(408, "the rest of the body did not come in time", headers=_CLOSE) from None
    if message["type"] == "http.disconnect":
        raise GoneError
    return message.get("body", b""), message.get("more_body", False)


async def _drain(request: Request) -> None:
    """Throw away what comes for a moment: closing on unread bytes would take the answer along."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_DRAIN_SECONDS):
            while (await _receive(request, _DRAIN_SECONDS + 1))[1]:
                pass


def _too_large(bytes_max: int) -> Refused:
    return Refused(413, "the body is too large", headers=_CLOSE, bytes_max=bytes_max)


def check_json_type(request: Request) -> None:
    """Refuse a body that does not say that it is JSON."""
    header = request.headers.get("content-type", "")
    if header.partition(";")[0].strip().lower() != "application/json":
        raise Refused(415, "the body must be application/json", got=repr(header)[:200])


def parse(body: bytes) -> Any:
    """Return the value of a JSON text; what other readers may take otherwise is refused."""
    check_values(body)
    try:
        text = body.decode()
        value = _JSON.decode(text)
        if _SURROGATE.search(text):
            json.dumps(value, ensure_ascii=False).encode()  # raises at one that stands alone
    except RecursionError:
        raise InvalidArgumentError("the JSON is nested too deeply") from None
    except ValueError as error:
        raise InvalidArgumentError("the body is not JSON", why=str(error)[:200]) from None
    return value


def check_values(body: bytes) -> None:
    """Refuse a JSON text of too many values, before it becomes as many objects.

    The text is looked at in steps, so that other threads run between them, and no further than to
    the value that is one too many.
    """
    most = 0
    for start in range(0, len(body), _COUNT_BYTES):
        most += sum(body.count(before, start, start + _COUNT_BYTES) for before in _BEFORE_VALUES)
        if most > limits.JSON_VALUES_MAX:  # counted with those in texts
            _count_values(body)
            break


def _count_values(body: bytes) -> None:
    values, in_text = 0, False
    for piece in _pieces(body):
        plain = np.frombuffer(piece.replace(b"\\\\", b"__").replace(b'\\"', b"__"), np.uint8)
        inside = np.bitwise_xor.accumulate(plain == ord('"')) ^ in_text
        before = (plain == ord(",")) | (plain == ord("[")) | (plain == ord("{"))
        values += int(np.count_nonzero(before & ~inside))
        in_text = bool(inside[-1])
        if values > limits.JSON_VALUES_MAX:
            raise Refused(413, "the JSON has too many values", values_max=limits.JSON_VALUES_MAX)


def _pieces(body: bytes) -> Iterator[bytes]:
    """Return a JSON text in pieces that do not separate a backslash from what it escapes."""
    position = 0
    while position < len(body):
        piece = body[position : position + _COUNT_BYTES]
        if (len(piece) - len(piece.rstrip(b"\\"))) % 2:
            piece = body[position : position + _COUNT_BYTES + 1]
        yield piece
        position += len(piece)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        raise ValueError("an object has a name twice")
    return fields


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")


def _whole(digits: str) -> int:
    if len(digits) > _DIGITS_MAX:
        raise ValueError("a number has too many digits")
    return int(digits)


def _finite(digits: str) -> float | int:
    value = float(digits)
    if not math.isfinite(value):
        raise ValueError("a number is too large")
    # 1.0 is an integer, as JSON Schema has it; minus zero is not the integer 0.
    exact = value.is_integer() and 0 < abs(value) < 2**53
    return int(value) if exact or digits == "0.0" else value


_JSON: Final = json.JSONDecoder(
    object_pairs_hook=_object, parse_constant=_no_constant, parse_int=_whole, parse_float=_finite
)
