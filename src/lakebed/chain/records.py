"""The two objects that change: the base, and the lease. Both are JSON with a checksum.

| object | field | meaning |
|---|---|---|
| `base` | `slot`, `digest` | everything up to this slot is in the snapshot |
| | `index`, `term` | the last entry of the snapshot |
| | `snapshot`, `snapshot_bytes`, `snapshot_checksum` | the state; empty before the first |
| | `terms` | the first index of each term, in order: two logs agree up to the first that differs |
| | `removed` | slots up to here are removed, except fences |
| | `reserve` | the same fields of the base before, whose slots still exist; or null |
| `lease` | `owner`, `address`, `term`, `state`, `counter` | who serves the log, and where |
| both | `nonce` | makes the bytes of each write unique: versions are digests of the bytes |

The base only moves to a higher slot. Safety rests on slots and base alone; the lease is a hint.
"""

from __future__ import annotations

import enum
import json
import os
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

from crc32c import crc32c

from lakebed.chain.slot import NO_DIGEST
from lakebed.errors import CorruptionError, FormatTooNewError

BASE: Final = "base"
LEASE: Final = "lease"
_FORMAT: Final = 1


def new_nonce() -> bytes:
    """Return 16 bytes that no other writer has."""
    return os.urandom(16)


@dataclass(frozen=True)
class Base:
    """The newest snapshot in the store, and the slot that it includes."""

    slot: int = 0
    digest: bytes = NO_DIGEST
    index: int = 0
    term: int = 0
    snapshot: str = ""
    snapshot_bytes: int = 0
    snapshot_checksum: int = 0
    removed: int = 0
    terms: tuple[tuple[int, int], ...] = ()
    reserve: Base | None = None


class LeaseState(enum.Enum):
    """What the owner in the lease is doing."""

    CLAIMING = "claiming"
    SERVING = "serving"
    RELEASED = "released"


@dataclass(frozen=True)
class Lease:
    """Who owns the log, as far as it has said so."""

    owner: str
    address: str = ""
    term: int = 0
    state: LeaseState = LeaseState.CLAIMING
    counter: int = 0


def encode_base(base: Base, nonce: bytes) -> bytes:
    """Return the object of a base."""
    reserve = base.reserve
    values = _base_values(base)
    values["reserve"] = None if reserve is None else _base_values(reserve)
    return _encode({**values, "nonce": nonce.hex()})


def decode_base(data: bytes) -> Base:
    """Read a base; raise `CorruptionError` if it was changed by hand or damaged."""
    values = _decode(BASE, data)
    try:
        reserve = values.pop("reserve")
        base = _base(values)
        return base if reserve is None else replace(base, reserve=_base(reserve))
    except (KeyError, TypeError, ValueError) as error:
        raise CorruptionError("the base of the log lacks a field", name=BASE) from error


def encode_lease(lease: Lease, nonce: bytes) -> bytes:
    """Return the object of a lease."""
    return _encode({**asdict(lease), "state": lease.state.value, "nonce": nonce.hex()})


def decode_lease(data: bytes) -> Lease:
    """Read a lease; raise `CorruptionError` if it was changed by hand or damaged."""
    values = _decode(LEASE, data)
    try:
        return Lease(
            owner=str(values["owner"]),
            address=str(values["address"]),
            term=int(values["term"]),
            state=LeaseState(values["state"]),
            counter=int(values["counter"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise CorruptionError("the lease of the log lacks a field", name=LEASE) from error


def _base_values(base: Base) -> dict[str, Any]:
    return {**asdict(replace(base, reserve=None)), "digest": base.digest.hex()}


def _base(values: dict[str, Any]) -> Base:
    digest = bytes.fromhex(values["digest"])
    if len(digest) != len(NO_DIGEST):
        raise ValueError("digest")
    return Base(
        slot=int(values["slot"]),
        digest=digest,
        index=int(values["index"]),
        term=int(values["term"]),
        snapshot=str(values["snapshot"]),
        snapshot_bytes=int(values["snapshot_bytes"]),
        snapshot_checksum=int(values["snapshot_checksum"]),
        removed=int(values["removed"]),
        terms=tuple((int(term), int(first)) for term, first in values["terms"]),
    )


def _encode(values: dict[str, Any]) -> bytes:
    text = json.dumps({"format": _FORMAT, **values}, sort_keys=True)
    return json.dumps({"crc32c": f"{crc32c(text.encode()):08x}", "body": text}).encode()


def _decode(name: str, data: bytes) -> dict[str, Any]:
    try:
        outer = json.loads(data)
        text = outer["body"]
        matches = outer["crc32c"] == f"{crc32c(text.encode()):08x}"
        values: dict[str, Any] = json.loads(text)
        version = values.pop("format")
        values.pop("nonce")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CorruptionError("an object of the log is not what was written", name=name) from error
    if not matches:
        raise CorruptionError("an object of the log does not have its checksum", name=name)
    if version != _FORMAT:
        raise FormatTooNewError(
            "an object of the log has a newer format", name=name, format=version
        )
    return values
