"""What commands on access control change: tokens, rules, grants, denials."""

from __future__ import annotations

from typing import Any

from lakebed import limits
from lakebed.errors import (
    InvalidArgumentError,
)
from lakebed.state import commands
from lakebed.state.decision import (
    GONE,
    Change,
    Decision,
    check_room,
)
from lakebed.state.image import State
from lakebed.state.values import Token


def put_token(state: State, command: commands.PutToken) -> Decision:
    """Add a token, or replace it."""
    if command.id in state.tokens:
        raise InvalidArgumentError("the token exists", token=command.id)
    kept_from_us = command.created_us - limits.TOKEN_KEPT_US
    old = [token.id for token in state.tokens.values() if 0 < token.end_us() < kept_from_us]
    check_room("tokens", len(state.tokens) - len(old), limits.TOKENS_MAX)
    changes: list[Change] = [(state.tokens, token_id, GONE) for token_id in old]
    token = Token(
        command.id,
        command.principal,
        command.digest,
        command.created_us,
        command.expires_us,
        revoked_us=0,
    )
    changes.append((state.tokens, token.id, token))
    return Decision(None, changes)


def revoke_token(state: State, command: commands.RevokeToken) -> Decision:
    """Revoke a token."""
    token = state.tokens.get(command.id)
    if token is None:
        raise InvalidArgumentError("the token does not exist", token=command.id)
    if token.revoked_us:
        return Decision(None, [])
    # At least 1: 0 would mean that it was not revoked.
    revoked = token._replace(revoked_us=max(1, command.time_us))
    return Decision(None, [(state.tokens, token.id, revoked)])


def set_rule(state: State, command: commands.SetRule) -> Decision:
    """Set or remove a rule."""
    key = (command.role, command.action, command.pattern)
    return _set_access(state, state.rules, key, command.present, "rules", limits.RULES_MAX)


def set_grant(state: State, command: commands.SetGrant) -> Decision:
    """Set or remove a grant."""
    key = (command.principal, command.role)
    return _set_access(state, state.grants, key, command.present, "grants", limits.GRANTS_MAX)


def set_denial(state: State, command: commands.SetDenial) -> Decision:
    """Set or remove a denial."""
    key = (command.role, command.action, command.pattern)
    return _set_access(state, state.denials, key, command.present, "denials", limits.RULES_MAX)


def _set_access(
    state: State, target: dict[Any, bool], key: Any, present: int, what: str, most: int
) -> Decision:
    if (key in target) == bool(present):
        return Decision(False, [])
    if present:
        check_room(what, len(target), most)
    # The number last: whoever finds it unchanged has seen nothing of the change.
    changes = [
        (target, key, True if present else GONE),
        (state.numbers, "access", state.numbers["access"] + 1),
    ]
    return Decision(True, changes)
