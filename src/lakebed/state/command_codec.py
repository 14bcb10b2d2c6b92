"""The form of commands: each is the payload of an entry.

    version u8 | kind u8 | reserved u16 | envelope length u32 | envelope, msgpack | zeros to 64 |
    body 0 | zeros to 64 | body 1 | ...

Numbers of the head are little endian. The envelope is a msgpack array of the command's fields in
order: integers, text, bytes and arrays of these. Bodies are Arrow IPC messages of one record
batch each; the envelope's parts say how long each is. Everything that a command needs to be applied
comes with it: times and names are chosen by whoever writes it, ids and offsets follow from the
state. Bodies begin at multiples of 64 bytes, so that Arrow's buffers can be used where they lie.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from msgspec import msgpack

from lakebed.errors import CorruptionError, FormatTooNewError
from lakebed.state.commands import Command, parts_of
from lakebed.state.values import Part

if TYPE_CHECKING:
    from typing_extensions import Buffer


VERSION: Final = 1

_HEAD: Final = struct.Struct("<BBHI")

_PADDING: Final = tuple(bytes(-length & 63) for length in range(64))

KINDS: Final = {kind.kind: kind for kind in Command.__subclasses__()}
"""Every command, by its number."""

_DECODERS: Final = {kind_id: msgpack.Decoder(kind) for kind_id, kind in KINDS.items()}


def _plain(value: Any) -> Any:
    """Return a checked name as the text that it is."""
    if isinstance(value, str):
        return str(value)
    raise TypeError(f"{type(value).__name__} has no form in an entry")


encode_values: Final = msgpack.Encoder(enc_hook=_plain).encode
"""Return values as msgpack, in its shortest form."""


def encode(command: Command, bodies: Sequence[Buffer] = ()) -> list[Buffer]:
    """Return a command as the parts of an entry's payload; bodies are not copied."""
    envelope = encode_values(command)
    head = _HEAD.pack(VERSION, command.kind, 0, len(envelope))
    parts: list[Buffer] = [head + envelope + _PADDING[(len(head) + len(envelope)) & 63]]
    for body in bodies:
        parts.append(body)
        padding = _PADDING[memoryview(body).nbytes & 63]
        if padding:
            parts.append(padding)
    return parts


def decode(payload: memoryview) -> tuple[Command, list[memoryview]]:
    """Return the command of an entry and its bodies, which are views."""
    if len(payload) < _HEAD.size:
        raise CorruptionError("an entry is too short for a command", bytes=len(payload))
    version, kind_id, _, length = _HEAD.unpack_from(payload)
    if version > VERSION:
        raise FormatTooNewError("a command was written by a newer version", version=version)
    decoder = _DECODERS.get(kind_id)
    if version != VERSION or decoder is None or _HEAD.size + length > len(payload):
        raise CorruptionError("an entry is not a command", version=version, kind=kind_id)
    try:
        command = decoder.decode(payload[_HEAD.size : _HEAD.size + length])
        command.check()
    except (ValueError, RecursionError) as error:
        raise CorruptionError(
            "a command cannot be read", kind=KINDS[kind_id].__name__, cause=error
        ) from error
    start = (_HEAD.size + length + 63) & -64
    return command, _bodies(payload, start, parts_of(command))


def _bodies(payload: memoryview, start: int, parts: tuple[Part, ...]) -> list[memoryview]:
    bodies = []
    for part in parts:
        end = start + part.body_bytes
        if end > len(payload):
            raise CorruptionError(
                "an entry is shorter than its parts", bytes=len(payload), needed=end
            )
        bodies.append(payload[start:end])
        start = (end + 63) & -64
    return bodies
