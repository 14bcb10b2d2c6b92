"""What a procedure of the chain asks for: calls of a conditional store, and pauses.

A procedure is a generator. It yields one call at a time and is sent the result:

| call | result |
|---|---|
| `Get` | `Versioned`, or None if the object does not exist |
| `PutNew`, `PutIf` | `Outcome` |
| `Put`, `Delete` | None; it is repeated until it is done |
| `PutAll` | None; the objects are written side by side |
| `Pause` | None, after about that time |

Dropping a procedure between two calls is what a crash does to it, and is always safe.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, NamedTuple, TypeAlias, TypeVar

T = TypeVar("T")


class Get(NamedTuple):
    """Read an object."""

    name: str


class PutNew(NamedTuple):
    """Create an object if none has the name; one attempt."""

    name: str
    data: bytes


class PutIf(NamedTuple):
    """Replace an object if it has the version; one attempt."""

    name: str
    data: bytes
    version: str


class Put(NamedTuple):
    """Write an object under a name that is used once."""

    name: str
    data: bytes


class PutAll(NamedTuple):
    """Write several objects under names that are used once."""

    objects: tuple[tuple[str, bytes], ...]


class Delete(NamedTuple):
    """Remove an object."""

    name: str


class Pause(NamedTuple):
    """Wait before the next attempt; `attempt` counts from 1."""

    attempt: int


Call: TypeAlias = Get | PutNew | PutIf | Put | PutAll | Delete | Pause
Procedure: TypeAlias = Generator[Call, Any, T]
