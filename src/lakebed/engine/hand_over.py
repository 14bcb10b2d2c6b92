"""An operator's request to the owner of a log: hand it over.

    STORE/{log}/hand-over     JSON with the term of the owner that is asked

It is an object of the store, because the store is what every server of a log reaches. An owner
looks for it while it serves; a request for another term is an old one.
"""

from __future__ import annotations

import json
from typing import Final

from lakebed.chain.calls import Get, Procedure, Put
from lakebed.chain.driver import Driver
from lakebed.host.conditional import Versioned

REQUEST: Final = "hand-over"
_PATIENCE_SECONDS: Final = 5.0


def ask(term: int) -> Procedure[None]:
    """Ask the owner of a term to hand the log over."""
    yield Put(REQUEST, json.dumps({"term": term}).encode())


def is_asked(driver: Driver, term: int) -> bool:
    """Return True if the owner of a term is asked to hand the log over."""
    return driver.run(_read(term), patience_seconds=_PATIENCE_SECONDS)


def _read(term: int) -> Procedure[bool]:
    stored: Versioned | None = yield Get(REQUEST)
    try:
        return stored is not None and int(json.loads(stored.data)["term"]) == term
    except (ValueError, KeyError, TypeError):
        return False  # written by hand: it asks for nothing
