"""Tokens, rules and grants of a log, awaited."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from functools import partial
from typing import Any

from lakebed.api.parts import AccessApi
from lakebed.reports.access import EXPIRES_MS, DenialInfo, GrantInfo, RuleInfo, TokenInfo
from lakebed.state.permissions import EVERYTHING
from lakebed.types import Secret

Run = Callable[..., Awaitable[Any]]
"""Calls something in a thread."""


class AsyncAccess:
    """The tokens, rules and grants of a log. Any task; see `Access`."""

    def __init__(self, access: AccessApi, run: Run) -> None:
        self._access = access
        self._run = run

    async def tokens(self) -> list[TokenInfo]:
        """List the tokens, the oldest first; those that ended are listed for 90 more days."""
        found: list[TokenInfo] = await self._run(self._access.tokens)
        return found

    async def create_token(
        self,
        principal: str,
        *,
        expires_ms: int | None = EXPIRES_MS,
        roles: Collection[str] = (),
    ) -> Secret:
        """Make a token for a principal, which gets the roles too; return its text, this once."""
        create = partial(self._access.create_token, expires_ms=expires_ms, roles=roles)
        secret: Secret = await self._run(create, principal)
        return secret

    async def revoke_token(self, token_id: str, *, force: bool = False) -> None:
        """Let a token be valid no more, from now on."""
        await self._run(partial(self._access.revoke_token, token_id, force=force))

    async def rules(self) -> list[RuleInfo]:
        """List the rules, sorted."""
        found: list[RuleInfo] = await self._run(self._access.rules)
        return found

    async def allow(
        self, role: str, action: str, pattern: str = EVERYTHING, *, force: bool = False
    ) -> None:
        """Let a role do an action on the topics or groups whose names the pattern fits."""
        await self._run(partial(self._access.allow, role, action, pattern, force=force))

    async def forbid(
        self, role: str, action: str, pattern: str = EVERYTHING, *, force: bool = False
    ) -> None:
        """Take a rule away that `allow` made."""
        await self._run(partial(self._access.forbid, role, action, pattern, force=force))

    async def denials(self) -> list[DenialInfo]:
        """List the denials, sorted."""
        denials: list[DenialInfo] = await self._run(self._access.denials)
        return denials

    async def deny(
        self, role: str, action: str, pattern: str = EVERYTHING, *, force: bool = False
    ) -> None:
        """Refuse those that have a role an action on names that the pattern fits."""
        await self._run(partial(self._access.deny, role, action, pattern, force=force))

    async def lift(
        self, role: str, action: str, pattern: str = EVERYTHING, *, force: bool = False
    ) -> None:
        """Remove a denial that `deny` made."""
        await self._run(partial(self._access.lift, role, action, pattern, force=force))

    async def grants(self) -> list[GrantInfo]:
        """List who has which role, sorted."""
        found: list[GrantInfo] = await self._run(self._access.grants)
        return found

    async def grant(self, principal: str, role: str, *, force: bool = False) -> None:
        """Let a principal have a role."""
        await self._run(partial(self._access.grant, principal, role, force=force))

    async def revoke(self, principal: str, role: str, *, force: bool = False) -> None:
        """Take a role from a principal."""
        await self._run(partial(self._access.revoke, principal, role, force=force))
