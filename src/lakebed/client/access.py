"""Tokens, roles and rules of a served log."""

from __future__ import annotations

from collections.abc import Collection

from lakebed.client.connection import Connection
from lakebed.reports.access import EXPIRES_MS, DenialInfo, GrantInfo, RuleInfo, TokenInfo
from lakebed.state.permissions import EVERYTHING
from lakebed.types import Secret


class RemoteAccess:
    """The tokens, rules and grants of a served log. Any thread; see `Access`."""

    def __init__(self, connection: Connection) -> None:
        self._call = connection.call

    def tokens(self) -> list[TokenInfo]:
        """List the tokens, the oldest first."""
        return list(self._call("tokens"))

    def create_token(
        self,
        principal: str,
        *,
        expires_ms: int | None = EXPIRES_MS,
        roles: Collection[str] = (),
    ) -> Secret:
        """Make a token for a principal, which gets the roles too; return its text, this once."""
        given = roles if isinstance(roles, str) else list(roles)
        return Secret(
            self._call("create_token", principal=principal, expires_ms=expires_ms, roles=given)
        )

    def revoke_token(self, token_id: str, *, force: bool = False) -> None:
        """Let a token be valid no more, from now on."""
        self._call("revoke_token", token_id=token_id, force=force)

    def rules(self) -> list[RuleInfo]:
        """List the rules, sorted."""
        return list(self._call("rules"))

    def allow(
        self, role: str, action: str, pattern: str = EVERYTHING, *, force: bool = False
    ) -> None:
        """Let a role do an action on the topics or groups whose names the pattern fits."""
        self._call("allow", role=role, action=action, pattern=pattern, force=force)

    def forbid(
        self, role: str, action: str, pattern: str = EVERYTHING, *, force: bool = False
    ) -> None:
        """Take a rule away that `allow` made."""
        self._call("forbid", role=role, action=action, pattern=pattern, force=force)

    def denials(self) -> list[DenialInfo]:
        """List the denials, sorted."""
        return list(self._call("denials"))

    def deny(
        self, role: str, action: str, pattern: str = EVERYTHING, *, force: bool = False
    ) -> None:
        """Refuse those that have a role an action on names that the pattern fits."""
        self._call("deny", role=role, action=action, pattern=pattern, force=force)

    def lift(
        self, role: str, action: str, pattern: str = EVERYTHING, *, force: bool = False
    ) -> None:
        """Remove a denial that `deny` made."""
        self._call("lift", role=role, action=action, pattern=pattern, force=force)

    def grants(self) -> list[GrantInfo]:
        """List who has which role, sorted."""
        return list(self._call("grants"))

    def grant(self, principal: str, role: str, *, force: bool = False) -> None:
        """Let a principal have a role."""
        self._call("grant", principal=principal, role=role, force=force)

    def revoke(self, principal: str, role: str, *, force: bool = False) -> None:
        """Take a role from a principal."""
        self._call("revoke", principal=principal, role=role, force=force)
