"""What an audit says about one call."""

from __future__ import annotations

from typing import NamedTuple


class AuditRecord(NamedTuple):
    """Who called what, from where, and what became of it."""

    time: int
    """Microseconds since 1970, UTC."""
    principal: str
    """Empty if unknown."""
    token: str
    """The token's id, never its secret; empty if there was none."""
    peer: str
    call: str
    names: tuple[str, ...]
    """The topics, groups, principals or roles it was about."""
    outcome: str
    """`done`, `failed`, `denied` or `unauthenticated`."""
    reason: str
