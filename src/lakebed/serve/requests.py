"""Requests before they are taken apart: how large they may be, and who may send a large one.

A byte of msgpack can become an object of 64 bytes or more. So each call has a largest request and
most items, and whether its caller may make such a call at all is looked at before a large one is
taken apart.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from lakebed.errors import ProtocolError
from lakebed.wire.protocol import pack, unpack_request

if TYPE_CHECKING:
    from lakebed.config import ServeConfig
    from lakebed.operations.description import Operation
    from lakebed.serve.guard import Guard, Principal

SMALL_REQUEST_BYTES: Final = 4 * 1024
"""A request up to this size is taken apart before it is known what it is about."""
_PLAIN_BYTES: Final = 64 * 1024
"""A request up to this size counts as it is."""
_PARSED_TIMES: Final = 32
_NOTHING: Final = pack({})


def check_unread(guard: Guard, principal: Principal, call: Operation, size: int) -> None:
    """Refuse a request by its size, or because its caller may do nothing of this kind at all."""
    if not call.request and size > len(_NOTHING):
        raise ProtocolError("the call takes no parameters", call=call.name, bytes=size)
    if size > call.bytes_max:
        raise ProtocolError(
            "a message is too large", call=call.name, bytes=size, bytes_max=call.bytes_max
        )
    actions = call.somewhere or (() if call.open else (call.need.action,))
    if size > SMALL_REQUEST_BYTES and actions:
        guard.check_somewhere(principal, call.name, *actions)


def unpack_call(call: Operation, body: Any) -> Any:
    """Take the request of a call apart; an empty one has no parameters."""
    return unpack_request(memoryview(body), call.items_max) if body.size else {}


def bytes_to_parse(size: int, config: ServeConfig) -> int:
    """Return what a request counts in bytes: a large one takes many times its size, taken apart."""
    if size <= _PLAIN_BYTES:
        return size
    return max(size, min(_PARSED_TIMES * size, config.principal_inflight_bytes_max // 2))
