"""Commands and snapshots put together by hand, by the layout that the second reader knows."""

from __future__ import annotations

from typing import Any

import msgpack
from crc32c import crc32c

from lakebed.state import command_codec, image
from tests.second_log import COMMAND_HEAD, SNAPSHOT_HEAD, SNAPSHOT_TAIL


def entry_of(kind: int, envelope: bytes) -> bytes:
    """Return an entry that says it is a command of that kind, without bodies."""
    return COMMAND_HEAD.pack(command_codec.VERSION, kind, 0, len(envelope)) + envelope


def snapshot_of(document: object, version: int = image.VERSION) -> bytes:
    """Return a snapshot of a document, with the length and checksum that belong to it."""
    body: bytes = SNAPSHOT_HEAD.pack(image.MAGIC, version) + msgpack.packb(document)
    return body + SNAPSHOT_TAIL.pack(len(body), crc32c(body), image.MAGIC)


def document_of(snapshot: bytes) -> dict[str, Any]:
    """Return the document of a snapshot."""
    document: dict[str, Any] = msgpack.unpackb(snapshot[SNAPSHOT_HEAD.size : -SNAPSHOT_TAIL.size])
    return document
