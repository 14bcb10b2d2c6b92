"""Tokens, rules, denials and grants as they are listed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

EXPIRES_MS: Final = 90 * 86_400_000
"""How long a token is valid if nothing is said."""


@dataclass(frozen=True)
class TokenInfo:
    """A token as it is listed: everything but its secret, which is not stored."""

    id: str
    principal: str
    created_us: int
    expires_us: int | None
    revoked_us: int | None
    valid: bool


@dataclass(frozen=True, order=True)
class RuleInfo:
    """A role may do an action on the names that a pattern fits."""

    role: str
    action: str
    pattern: str


@dataclass(frozen=True, order=True)
class DenialInfo:
    """A role must not do an action on the names that a pattern fits, whatever allows it."""

    role: str
    action: str
    pattern: str


@dataclass(frozen=True, order=True)
class GrantInfo:
    """A principal has a role."""

    principal: str
    role: str
