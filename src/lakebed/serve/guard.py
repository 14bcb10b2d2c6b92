"""Who is calling, and may they: every call of the server goes through here.

A caller is whoever its token says: one of the log, or one of an issuer that the settings name
(`oidc.py`). Without a token it is whoever its certificate says (mutual TLS). A log
that has no token, rule or grant at all knows nobody: callers are then `anonymous` and may do
everything. From the first of them on, whatever no rule allows is refused.

Nothing is remembered about a caller between calls: token, expiry, revocation, rules and grants are
looked up each time, so that a change counts at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from lakebed.config import ServeConfig
from lakebed.errors import AccessDeniedError, UnauthenticatedError
from lakebed.host import Clock, SystemClock
from lakebed.operations.description import Need
from lakebed.operations.table import OPERATIONS
from lakebed.reports.audit import AuditRecord
from lakebed.serve.access_log import CallFacts
from lakebed.serve.audit import Auditor
from lakebed.serve.audit_file import AuditFile
from lakebed.serve.certificates import CertificateNames
from lakebed.serve.logs import mask_tokens
from lakebed.state.permissions import Action, Permissions
from lakebed.types import ANONYMOUS, is_internal

if TYPE_CHECKING:
    from lakebed.engine.log import EmbeddedLog
    from lakebed.serve.jwks import KeySet
    from lakebed.serve.oidc import Verifier

__all__ = ["Action", "Guard", "Need", "Principal"]

_OWN_TOKEN: Final = "lkb_"  # noqa: S105  # what it begins with is no secret
"""What the text of the log's own tokens begins with."""
_NAMES_MAX: Final = 20
_TEXT_MAX: Final = 200
"""How much of what a caller sent goes into the audit."""


class Principal(NamedTuple):
    """Who is calling."""

    name: str
    token: str
    """The id of its token; empty if it has shown none."""
    peer: str
    """Where it calls from."""
    roles: tuple[str, ...] = ()
    """Roles that its token brings, beside those that the log grants."""
    facts: CallFacts | None = None
    """What the access log says of this call; None without one."""


class Guard:
    """Authentication, authorisation and audit of a served log. Any thread."""

    def __init__(
        self,
        log: EmbeddedLog,
        config: ServeConfig,
        *,
        clock: Clock | None = None,
        for_own_processes: bool = False,
    ) -> None:
        """Guard a log; `for_own_processes` if nobody but this program's own should be calling.

        Those show the token of their environment, which may be meant for another log: one that
        knows nobody does not look at it.
        """
        self._for_own_processes = for_own_processes
        self._access = log.access
        self._clock = SystemClock() if clock is None else clock
        self._certificates = CertificateNames(config)
        self._logs_access = config.access_log
        self.audit_file = AuditFile(config.audit_file) if config.audit_file else None
        appends = [log.audit.append] if config.audit else []
        if self.audit_file is not None:
            appends.insert(0, self.audit_file.append)  # it never raises
        self._auditor = Auditor(_each_of(appends), self._clock) if appends else None
        self._verifier: Verifier | None = None
        if config.oidc_issuer:
            from lakebed.serve.oidc import Verifier

            self._verifier = Verifier(config)
            self._access.callers_known = True

    def authenticate(
        self, token: str | None, *, certificate: str = "", peer: str = ""
    ) -> Principal:
        """Return who is calling, or raise `UnauthenticatedError`.

        A token that is shown has to be valid, whatever else would do without it.
        """
        principal = self._identify(token, certificate, peer)
        return principal._replace(facts=CallFacts()) if self._logs_access else principal

    def _identify(self, token: str | None, certificate: str, peer: str) -> Principal:
        try:
            if token is not None and not (self._for_own_processes and self._access.open):
                if self._verifier is not None and not token.startswith(_OWN_TOKEN):
                    identity = self._verifier.verify(token)
                    return Principal(identity.principal, identity.token, peer, identity.roles)
                principal = self._access.authenticate(token)
                return Principal(principal.principal, principal.id, peer)
            if certificate:
                return Principal(self._certificates.principal(certificate), "", peer)
            if self._access.open:
                return Principal(ANONYMOUS, "", peer)
            raise UnauthenticatedError("the call has no token")
        except UnauthenticatedError as error:
            token_id = str(error.facts.get("token", ""))
            self._note(Principal("", token_id, peer), "authenticate", (), "unauthenticated", error)
            raise

    def check(self, principal: Principal, call: str, need: Need, names: Sequence[str] = ()) -> None:
        """Let a call pass, or raise `AccessDeniedError`: the one place where this is decided.

        A call on topics or groups that names none is taken as one on all of them.
        """
        if principal.facts is not None:
            principal.facts.name(names)
        if self._access.open:
            refused = _open_refused(call, need, names)
        else:
            refused = _refuse(self._permissions(principal), principal.name, call, need, names)
        if refused is None:
            return
        error = AccessDeniedError(
            "not allowed",
            principal=principal.name,
            call=call,
            action=need.action.value,
            **{need.on: refused} if refused else {"on": f"every {need.on}"},
        )
        self._note(principal, call, names, "denied", error)
        raise error

    def check_somewhere(self, principal: Principal, call: str, *actions: Action) -> None:
        """Let a call pass if its caller may do one of these actions on anything at all."""
        if self.permits_somewhere(principal, *actions):
            return
        error = AccessDeniedError(
            "not allowed",
            principal=principal.name,
            call=call,
            action=" or ".join(action.value for action in actions),
        )
        self._note(principal, call, (), "denied", error)
        raise error

    def administers(self, principal: Principal) -> bool:
        """Return True if a principal administers the log, as every caller of an open log does."""
        return self._access.open or self._permissions(principal).permits_everywhere(
            principal.name, Action.ADMIN
        )

    def permits_somewhere(self, principal: Principal, *actions: Action) -> bool:
        """Return True if a principal may do one of these actions on some name."""
        permissions = self._permissions(principal)
        return self._access.open or any(
            permissions.permits_somewhere(principal.name, action) for action in actions
        )

    def permits(self, principal: Principal, need: Need, name: str) -> bool:
        """Return whether a principal may do something on a name; nothing is audited."""
        if self._access.open:
            return _open_refused("", need, (name,)) is None
        return _refuse(self._permissions(principal), principal.name, "", need, (name,)) is None

    def _permissions(self, principal: Principal) -> Permissions:
        """Return the permissions of this moment, with the roles that the caller's token brings."""
        return self._access.permissions().with_roles(principal.name, principal.roles)

    def did(
        self,
        principal: Principal,
        call: str,
        names: Sequence[str] = (),
        *,
        outcome: str = "done",
        reason: str = "",
    ) -> None:
        """Put an administrative act on record."""
        if self._auditor is not None:
            self._auditor.act(self._record(principal, call, names, outcome, reason))

    @property
    def issuer_keys(self) -> KeySet | None:
        """The keys of the issuer of tokens, if there is one."""
        return None if self._verifier is None else self._verifier.keys

    @property
    def audit_lost(self) -> int:
        """How many records of the audit could not be written."""
        return 0 if self._auditor is None else self._auditor.lost

    def flush(self, timeout_seconds: float = 10.0) -> bool:
        """Wait until the audit is written so far; return whether it is."""
        return self._auditor is None or self._auditor.flush(timeout_seconds)

    def close(self, timeout_seconds: float = 10.0) -> None:
        """Write what is left of the audit; to be called before the log is closed."""
        if self._verifier is not None:
            self._verifier.close()
            self._access.callers_known = False
        if self._auditor is not None:
            self._auditor.close(timeout_seconds)

    def _note(
        self,
        principal: Principal,
        call: str,
        names: Sequence[str],
        outcome: str,
        error: UnauthenticatedError | AccessDeniedError,
    ) -> None:
        if self._auditor is not None:
            reason = error.message if outcome == "unauthenticated" else str(error)
            self._auditor.refusal(self._record(principal, call, names, outcome, reason))

    def _record(
        self, principal: Principal, call: str, names: Sequence[str], outcome: str, reason: str
    ) -> AuditRecord:
        shown = [_cut(str(name)) for name in names[:_NAMES_MAX]]
        if len(names) > _NAMES_MAX:
            shown.append(f"... and {len(names) - _NAMES_MAX} more")
        return AuditRecord(
            time=self._clock.time_us(),
            principal=_cut(principal.name),
            token=_cut(principal.token),
            peer=_cut(principal.peer),
            call=mask_tokens(_cut(call)),
            names=tuple(map(mask_tokens, shown)),
            outcome=outcome,
            reason=mask_tokens(_cut(reason, 2 * _TEXT_MAX)),
        )


def _refuse(
    permissions: Permissions, principal: str, call: str, need: Need, names: Sequence[str]
) -> str | None:
    """Return the first name that is refused, empty for all of them; None if everything may pass."""
    if need.on == "log" or not names:
        everywhere = permissions.permits_everywhere(principal, need.action)
        return None if everywhere else ""
    for name in names:
        if need.on == "topic" and is_internal(name):
            administers = permissions.permits_everywhere(principal, Action.ADMIN)
            if not (administers and _internal_allowed(call, need)):
                return _cut(name)
        elif not permissions.permits(principal, need.action, name):
            return _cut(name)
    return None


def _open_refused(call: str, need: Need, names: Sequence[str]) -> str | None:
    """Return the first name that is refused even while everybody may do everything."""
    for name in names if need.on == "topic" else ():
        if is_internal(name) and not _internal_allowed(call, need):
            return _cut(name)
    return None


def _internal_allowed(call: str, need: Need) -> bool:
    """Return whether administrators may do this to a topic of the log's own."""
    if need.action is Action.READ:
        return True
    operation = OPERATIONS.get(call)
    return operation is not None and operation.on_internal_topics


def _each_of(
    appends: Sequence[Callable[[Sequence[AuditRecord]], None]],
) -> Callable[[Sequence[AuditRecord]], None]:
    def append(records: Sequence[AuditRecord]) -> None:
        for one in appends:
            one(records)

    return append


def _cut(text: str, most: int = _TEXT_MAX) -> str:
    """Return a text as the audit and error messages show it: short, and valid Unicode."""
    plain = text.encode("utf8", "replace").decode()
    return plain if len(plain) <= most else f"{plain[:most]}..."
