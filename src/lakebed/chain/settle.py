"""Conditional writes whose outcome is certain: after anything but *done*, look.

| the object has | meaning |
|---|---|
| the same bytes | done: it was this write, now or in an earlier attempt |
| nothing, or still what was to be replaced | repeat the same write; the first may still arrive |
| anything else | refused |

"Refused" by the store is looked at too: S3 answers 409 to a creation that conflicts with another
one in flight, and then nothing may have been written at all.
"""

from __future__ import annotations

from lakebed.chain.calls import Get, Pause, Procedure, PutIf, PutNew
from lakebed.host.conditional import Outcome, Versioned


def create(name: str, data: bytes) -> Procedure[bytes | None]:
    """Create an object; return None once it has these bytes, else the bytes that it has."""
    attempt = 0
    while True:
        outcome = yield PutNew(name, data)
        if outcome is Outcome.DONE:
            return None
        there: Versioned | None = yield Get(name)
        if there is not None:
            return None if there.data == data else there.data
        attempt += 1
        yield Pause(attempt)


def replace(name: str, data: bytes, version: str) -> Procedure[Versioned | None]:
    """Replace an object; return None once it has these bytes, else what it is instead.

    An object that is gone is returned with the given version and no bytes.
    """
    attempt = 0
    while True:
        outcome = yield PutIf(name, data, version)
        if outcome is Outcome.DONE:
            return None
        there: Versioned | None = yield Get(name)
        if there is None:
            return Versioned(b"", version)
        if there.data == data:
            return None
        if there.version != version:
            return there
        attempt += 1
        yield Pause(attempt)
