"""Access to a served log: tokens, rules and grants, kept in the log itself.

They bind whoever calls a server. Whoever can open the folder owns the log, and may do everything.

A token's text is `lkb_<id>_<secret>`: the id is 8 random bytes in hexadecimal, the secret 32 random
bytes in URL-safe Base64. The log keeps the SHA-256 of its own identity, the id and the secret, so a
token of another log never fits. A secret of 256 random bits needs no slow hash: it cannot be
guessed, however fast one tries.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
import secrets
from collections.abc import Callable, Collection
from typing import Any, Final
from uuid import UUID

from lakebed.config.checks import is_whole
from lakebed.engine.core import Core
from lakebed.errors import InvalidArgumentError, UnauthenticatedError
from lakebed.reports.access import EXPIRES_MS, DenialInfo, GrantInfo, RuleInfo, TokenInfo
from lakebed.state.commands import (
    Command,
    PutToken,
    RevokeToken,
    SetDenial,
    SetGrant,
    SetRule,
)
from lakebed.state.permissions import ADMIN, BUILT_IN, EVERYTHING, Action, Permissions, is_open
from lakebed.state.values import Token
from lakebed.types import PrincipalName, RoleName, Secret

_EXPIRES_MS_MAX: Final = 100 * 365 * 86_400_000
_TOKEN: Final = re.compile(r"lkb_([0-9a-f]{16})_([A-Za-z0-9_-]{43})", re.ASCII)
_TOKEN_CHARS: Final = 64
_PATTERN: Final = re.compile(r"[A-Za-z0-9._*?-]{1,128}", re.ASCII)


class Access:
    """The tokens, rules and grants of a log. Any thread."""

    def __init__(self, core: Core, submit: Callable[[Command], Any], log_id: UUID) -> None:
        self._core = core
        self._submit = submit
        self._log_id = log_id
        self._known: tuple[int, Permissions] | None = None
        self.callers_known = False
        """Whether callers are known by other means than this log's tokens; it is then not open."""

    @property
    def open(self) -> bool:
        """Whether the log has no token, rule or grant: everybody may then do everything."""
        return not self.callers_known and is_open(self._core.state)

    # Tokens

    def tokens(self) -> list[TokenInfo]:
        """List the tokens, oldest first; ended ones are listed for 90 more days."""
        now_us = self._core.clock.time_us()
        tokens = sorted(self._tokens(), key=lambda token: (token.created_us, token.id))
        return [_info(token, now_us) for token in tokens]

    def create_token(
        self,
        principal: str,
        *,
        expires_ms: int | None = EXPIRES_MS,
        roles: Collection[str] = (),
    ) -> Secret:
        """Create a token for a principal; return its text, which the log does not keep.

        Args:
            principal: name of the caller.
            expires_ms: lifetime; None for no end.
            roles: roles to grant to the principal.
        """
        name = str(PrincipalName(principal))
        if isinstance(roles, str):
            raise InvalidArgumentError("roles must be a list of names", got=repr(roles)[:200])
        wanted = [str(RoleName(role)) for role in roles]
        now_us = self._core.clock.time_us()
        expires_us = 0 if expires_ms is None else now_us + _check_ms(expires_ms) * 1000
        for role in wanted:
            self._submit(SetGrant(name, role, 1))
        token_id, secret = secrets.token_hex(8), secrets.token_bytes(32)
        text = base64.urlsafe_b64encode(secret).rstrip(b"=").decode()
        self._submit(PutToken(token_id, name, self._digest(token_id, text), now_us, expires_us))
        return Secret(f"lkb_{token_id}_{text}")

    def revoke_token(self, token_id: str, *, force: bool = False) -> None:
        """Revoke a token, effective at once.

        Args:
            token_id: the id that `tokens` lists.
            force: also revoke the last token of an administrator.
        """
        token = self._core.state.tokens.get(token_id) if isinstance(token_id, str) else None
        if token is None:
            raise InvalidArgumentError("the token does not exist", token=repr(token_id)[:200])
        now_us = self._core.clock.time_us()
        if token.valid_at(now_us) and not force:
            held = {token.id for token in self._tokens() if self._administers(token, now_us)}
            if held == {token.id}:
                raise InvalidArgumentError(
                    "this is the last valid token of an administrator, and access could not be "
                    "managed over the network without it; create another one first, or use "
                    "force",
                    token=token.id,
                    principal=token.principal,
                )
        self._submit(RevokeToken(token.id, now_us))

    def authenticate(self, text: str) -> Token:
        """Return the valid token whose text this is, or raise `UnauthenticatedError`."""
        valid = isinstance(text, str) and len(text) == _TOKEN_CHARS
        match = _TOKEN.fullmatch(text) if valid else None
        if match is None:
            raise UnauthenticatedError("this is not a token")
        token_id, secret = match.groups()
        token = self._core.state.tokens.get(token_id)
        digest = self._digest(token_id, secret)
        # Compared in any case, so that the time does not tell whether there is such an id.
        same = hmac.compare_digest(digest, bytes(32) if token is None else token.digest)
        if token is None or not same:
            raise UnauthenticatedError("unknown token", token=token_id)
        if token.revoked_us:
            raise UnauthenticatedError("the token was revoked", token=token_id)
        if not token.valid_at(self._core.clock.time_us()):
            raise UnauthenticatedError("the token has expired", token=token_id)
        return token

    # Rules and grants

    def rules(self) -> list[RuleInfo]:
        """List the rules, sorted; the roles admin, reader and writer need none."""
        return sorted(RuleInfo(*rule) for rule in list(self._core.state.rules))

    def allow(
        self, role: str, action: str, pattern: str = EVERYTHING, *, force: bool = False
    ) -> None:
        """Allow a role an action on the topics or groups whose names match a pattern.

        The first rule or grant closes a log that is open to all callers.

        Args:
            role: name of the role.
            action: `read`, `write`, `group`, `manage` or `admin`.
            pattern: `*` matches any characters, `?` one.
            force: also if that closes the log without an administrator.
        """
        rule = _check_rule(role, action, pattern)
        if not force:
            self._check_first([rule], [])
        self._submit(SetRule(*rule, 1))

    def forbid(
        self, role: str, action: str, pattern: str = EVERYTHING, *, force: bool = False
    ) -> None:
        """Remove a rule that `allow` created.

        Args:
            role: name of the role.
            action: action of the rule.
            pattern: pattern of the rule.
            force: also if that leaves no administrator, or opens the log.
        """
        rule = _check_rule(role, action, pattern)
        if rule not in self._core.state.rules:
            raise InvalidArgumentError(
                "the rule does not exist", role=role, action=rule[1], pattern=pattern
            )
        if not force:
            rest = [other for other in list(self._core.state.rules) if other != rule]
            self._check_change(rest, list(self._core.state.grants))
        self._submit(SetRule(*rule, 0))

    def denials(self) -> list[DenialInfo]:
        """List the denials, sorted."""
        return sorted(DenialInfo(*key) for key in list(self._core.state.denials))

    def deny(
        self, role: str, action: str, pattern: str = EVERYTHING, *, force: bool = False
    ) -> None:
        """Deny a role an action on names that match a pattern.

        A denial overrides every rule, also for holders of `admin`; the role `admin` itself cannot
        be denied anything.

        Args:
            role: name of the role.
            action: as in `allow`.
            pattern: as in `allow`.
            force: also if that closes an open log, or leaves no administrator.
        """
        denial = _check_denial(role, action, pattern)
        if not force:
            self._check_first([], [])
            state = self._core.state
            self._check_change(list(state.rules), list(state.grants), [*state.denials, denial])
        self._submit(SetDenial(*denial, 1))

    def lift(
        self, role: str, action: str, pattern: str = EVERYTHING, *, force: bool = False
    ) -> None:
        """Remove a denial that `deny` created; rules then apply again.

        Args:
            role: name of the role.
            action: action of the denial.
            pattern: pattern of the denial.
            force: also if that opens the log.
        """
        denial = _check_denial(role, action, pattern)
        state = self._core.state
        if denial not in state.denials:
            raise InvalidArgumentError(
                "the denial does not exist", role=role, action=denial[1], pattern=pattern
            )
        if not force:
            rest = [key for key in list(state.denials) if key != denial]
            self._check_change(list(state.rules), list(state.grants), rest)
        self._submit(SetDenial(*denial, 0))

    def grants(self) -> list[GrantInfo]:
        """List the roles of principals, sorted."""
        return sorted(GrantInfo(*grant) for grant in list(self._core.state.grants))

    def grant(self, principal: str, role: str, *, force: bool = False) -> None:
        """Grant a role to a principal. A role without rules allows nothing.

        The first rule or grant closes a log that is open to all callers.

        Args:
            principal: name of the caller.
            role: name of the role.
            force: also if that closes the log without an administrator.
        """
        grant = (str(PrincipalName(principal)), str(RoleName(role)))
        if not force:
            self._check_first([], [grant])
        self._submit(SetGrant(*grant, 1))

    def revoke(self, principal: str, role: str, *, force: bool = False) -> None:
        """Revoke a role of a principal.

        Args:
            principal: name of the caller.
            role: name of the role.
            force: also if that leaves no administrator, or opens the log.
        """
        grant = (str(PrincipalName(principal)), str(RoleName(role)))
        if grant not in self._core.state.grants:
            raise InvalidArgumentError(
                "the principal does not have this role", principal=principal, role=role
            )
        if not force:
            rest = [other for other in list(self._core.state.grants) if other != grant]
            self._check_change(list(self._core.state.rules), rest)
        self._submit(SetGrant(*grant, 0))

    # Asking

    def permissions(self) -> Permissions:
        """Return the rules and grants of this moment, arranged to be asked."""
        state, cached = self._core.state, self._known
        # Read before the rules: what changes meanwhile changes the number too, and is seen next.
        changes = state.numbers["access"]
        if cached is None or cached[0] != changes:
            cached = self._known = (changes, Permissions.of(state))
        return cached[1]

    # Inside

    def _tokens(self) -> list[Token]:
        return list(self._core.state.tokens.values())

    def _administers(self, token: Token, now_us: int) -> bool:
        named = self.permissions().permits_everywhere(token.principal, Action.ADMIN)
        return named and token.valid_at(now_us)

    def _check_first(
        self, rules: list[tuple[str, str, str]], grants: list[tuple[str, str]]
    ) -> None:
        """Refuse to close a log that is open to everybody while nobody could administer it."""
        if self.open and not Permissions(rules, grants).administrators():
            raise InvalidArgumentError(
                "the log is open to all callers; the first rule or grant closes it: create an "
                "administrator first (`lakebed token create NAME --role admin`), or use force"
            )

    def _check_change(
        self,
        rules: list[tuple[str, str, str]],
        grants: list[tuple[str, str]],
        denials: list[tuple[str, str, str]] | None = None,
    ) -> None:
        """Refuse to be left without administrators, or open to everybody, unasked."""
        denials = list(self._core.state.denials) if denials is None else denials
        if not (self._core.state.tokens or rules or grants or denials):
            raise InvalidArgumentError(
                "this would open the log to every client that can reach its server; use force "
                "if that is intended"
            )
        changed = Permissions(rules, grants, denials)
        if self.permissions().administrators() and not changed.administrators():
            raise InvalidArgumentError(
                "this would leave no administrator, so access could not be managed over the "
                "network; grant the role admin to another principal first, or use force"
            )

    def _digest(self, token_id: str, secret: str) -> bytes:
        return hashlib.sha256(self._log_id.bytes + token_id.encode() + secret.encode()).digest()


def _info(token: Token, now_us: int) -> TokenInfo:
    return TokenInfo(
        id=token.id,
        principal=token.principal,
        created_us=token.created_us,
        expires_us=token.expires_us or None,
        revoked_us=token.revoked_us or None,
        valid=token.valid_at(now_us),
    )


def _check_ms(expires_ms: object) -> int:
    if not is_whole(expires_ms, 1, _EXPIRES_MS_MAX):
        raise InvalidArgumentError(
            f"expires_ms must be an integer from 1 to {_EXPIRES_MS_MAX}, or None for no end",
            got=repr(expires_ms)[:200],
        )
    return expires_ms


def _check_rule(role: str, action: str, pattern: str) -> tuple[str, str, str]:
    name = str(RoleName(role))
    if name in BUILT_IN:
        raise InvalidArgumentError("this role is built in, and has no rules", role=name)
    return _check_target(name, action, pattern)


def _check_denial(role: str, action: str, pattern: str) -> tuple[str, str, str]:
    name = str(RoleName(role))
    if name == ADMIN:
        raise InvalidArgumentError(
            "the role admin may do everything; deny another role, and grant it", role=name
        )
    return _check_target(name, action, pattern)


def _check_target(name: str, action: str, pattern: str) -> tuple[str, str, str]:
    actions = [item.value for item in Action]
    value = action.value if isinstance(action, Action) else action
    if not isinstance(value, str) or value not in actions:
        raise InvalidArgumentError(
            "unknown action", action=repr(action)[:200], known=", ".join(actions)
        )
    if not isinstance(pattern, str) or _PATTERN.fullmatch(pattern) is None:
        raise InvalidArgumentError(
            "pattern must be 1 to 128 letters, digits, '.', '_', '-', '*' or '?'",
            pattern=repr(pattern)[:200],
        )
    return name, value, pattern
