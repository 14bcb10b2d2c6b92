"""Who may do what: actions, the roles that every log has, and rules looked up by principal.

A principal has roles (grants); a role may do an action on the names that a pattern fits (rules).
Nothing else allows anything: what no rule allows is refused. An action allows itself alone, except
that the role `admin` may do everything.

A denial says what those that have a role must not do, whichever of their roles allows it: denials
win. What names nothing is about every name, so any denial of its action refuses it.
"""

from __future__ import annotations

import copy
import enum
import fnmatch
import re
from collections.abc import Collection, Iterable
from typing import Final

from lakebed.state.image import State

EVERYTHING: Final = "*"
"""The pattern that fits every name, and the only one that fits what has no name."""

ADMIN: Final = "admin"
"""The role that may do everything."""


class Action(enum.Enum):
    """What a call does, as rules speak of it."""

    READ = "read"
    """Read records and what describes them."""
    WRITE = "write"
    """Append records."""
    GROUP = "group"
    """Join consumer groups; commit and reset their offsets, delete them."""
    MANAGE = "manage"
    """Make, change, purge and delete topics."""
    ADMIN = "admin"
    """Tokens, rules, grants, and the log as a whole."""


BUILT_IN: Final[dict[str, frozenset[Action]]] = {
    ADMIN: frozenset(Action),
    "reader": frozenset([Action.READ, Action.GROUP]),
    "writer": frozenset([Action.WRITE]),
}
"""Roles that need no rules; what they may do, they may do on every name."""


class Permissions:
    """Rules, grants and denials of a state at one time, arranged to be asked. It never changes."""

    def __init__(
        self,
        rules: Iterable[tuple[str, str, str]],
        grants: Iterable[tuple[str, str]],
        denials: Iterable[tuple[str, str, str]] = (),
    ):
        self._patterns: dict[tuple[str, str], list[re.Pattern[str]]] = {}
        self._denials: dict[tuple[str, str], list[re.Pattern[str]]] = {}
        self._everywhere = {
            (role, action.value) for role, actions in BUILT_IN.items() for action in actions
        }
        for role, action, pattern in rules:
            if pattern == EVERYTHING:
                self._everywhere.add((role, action))
            else:
                self._patterns.setdefault((role, action), []).append(_compile(pattern))
        for role, action, pattern in denials:
            self._denials.setdefault((role, action), []).append(_compile(pattern))
        self._roles: dict[str, list[str]] = {}
        for principal, role in grants:
            self._roles.setdefault(principal, []).append(role)

    @classmethod
    def of(cls, state: State) -> Permissions:
        """Take the rules and grants of a state, which may be changing."""
        return cls(list(state.rules), list(state.grants), list(state.denials))

    def with_roles(self, principal: str, roles: Collection[str]) -> Permissions:
        """Return these permissions for a principal that has further roles for now."""
        if not roles:
            return self
        more = [role for role in roles if role not in self._roles.get(principal, ())]
        if not more:
            return self
        extended = copy.copy(self)
        extended._roles = {**self._roles, principal: [*self._roles.get(principal, ()), *more]}
        return extended

    def permits(self, principal: str, action: Action, name: str) -> bool:
        """Return whether a principal may do an action on a name."""
        keys = [(role, action.value) for role in self._roles.get(principal, ())]
        if self._denials and any(_fits(self._denials.get(key, ()), name) for key in keys):
            return False
        return not self._everywhere.isdisjoint(keys) or any(
            _fits(self._patterns.get(key, ()), name) for key in keys
        )

    def permits_everywhere(self, principal: str, action: Action) -> bool:
        """Return whether a principal may do an action on every name, and on what has none."""
        keys = {(role, action.value) for role in self._roles.get(principal, ())}
        return self._denials.keys().isdisjoint(keys) and not self._everywhere.isdisjoint(keys)

    def permits_somewhere(self, principal: str, action: Action) -> bool:
        """Return whether there is any name on which a principal may do an action.

        A denial counts only if it is for every name.
        """
        keys = [(role, action.value) for role in self._roles.get(principal, ())]
        if any(_EVERYTHING in self._denials.get(key, ()) for key in keys):
            return False
        return any(key in self._everywhere or key in self._patterns for key in keys)

    def administrators(self) -> set[str]:
        """Return the principals that may look after access itself."""
        return {
            principal
            for principal in self._roles
            if self.permits_everywhere(principal, Action.ADMIN)
        }


def is_open(state: State) -> bool:
    """Return whether a log knows nobody yet, so that everybody may do everything.

    A token counts even when it is revoked: revoking the last one opens nothing.
    """
    return not (state.tokens or state.rules or state.grants or state.denials)


def _compile(pattern: str) -> re.Pattern[str]:
    return re.compile(fnmatch.translate(pattern))


def _fits(patterns: Iterable[re.Pattern[str]], name: str) -> bool:
    return any(pattern.fullmatch(name) for pattern in patterns)


_EVERYTHING: Final = _compile(EVERYTHING)
