"""Tokens of an OpenID Connect issuer (JWT), verified and mapped to a principal and its roles.

A token is accepted if its signature fits a key of the issuer's JWKS, by an algorithm of the allowed
ones that the key is for; if issuer and audience are those of the settings; and if it is valid now,
but for `oidc_leeway_ms`. Nothing of a token is used before all of that is checked, except the names
of its key and algorithm.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from lakebed.config import ServeConfig
from lakebed.config.oidc import oidc_algorithms
from lakebed.config.principal_rules import map_principal, parse_principal_rules
from lakebed.errors import InvalidNameError, PackageMissingError, UnauthenticatedError
from lakebed.types import PrincipalName, RoleName

_TOKEN_CHARS_MAX: Final = 8 * 1024
_CLAIM_CHARS_MAX: Final = 1024
_UNREADABLE: Final = (ValueError, TypeError, OverflowError, RecursionError)
"""What parsing a token may raise besides the library's own errors."""
_ROLES_MAX: Final = 1_000
"""Values of the roles claim that are looked at."""


class Identity(NamedTuple):
    """Who a token speaks for."""

    principal: str
    roles: tuple[str, ...]
    token: str
    """The token's id (`jti`), for the audit; empty if it has none."""


class Verifier:
    """Verifies the tokens of one issuer. Any thread; no call waits for the network."""

    def __init__(self, config: ServeConfig) -> None:
        try:
            import jwt
            from jwt.algorithms import has_crypto
        except ImportError as error:
            raise _missing("PyJWT") from error
        if not has_crypto:
            raise _missing("cryptography")
        from lakebed.serve.jwks import KeySet

        self._jwt = jwt
        self._config = config
        self._algorithms = oidc_algorithms(config.oidc_algorithms)
        self._rules = parse_principal_rules("oidc_principal_rules", config.oidc_principal_rules)
        self._roles = {value: str(RoleName(role)) for value, role in config.oidc_roles.items()}
        self.keys = KeySet(
            config.oidc_jwks,
            refresh_seconds=config.oidc_refresh_ms / 1000,
            stale_seconds=config.oidc_stale_ms / 1000,
        )
        self.keys.start()

    def verify(self, text: str) -> Identity:
        """Return who a token speaks for, or raise `UnauthenticatedError`.

        Raises `ServerUnavailableError` while the issuer's keys are not there.
        """
        claims = self._claims(text)
        name = _claim(claims, self._config.oidc_principal_claim)
        if not isinstance(name, str) or not name or len(name) > _CLAIM_CHARS_MAX:
            raise UnauthenticatedError(
                "the token has no claim that names a principal",
                claim=self._config.oidc_principal_claim,
            )
        token_id = claims.get("jti")
        return Identity(
            self._principal(name),
            self._roles_of(claims),
            token_id if isinstance(token_id, str) and token_id.isprintable() else "",
        )

    def close(self) -> None:
        """Stop loading keys."""
        self.keys.close()

    def _claims(self, text: str) -> dict[str, Any]:
        jwt = self._jwt
        if len(text) > _TOKEN_CHARS_MAX:
            raise UnauthenticatedError("the token is too long")
        try:
            header = jwt.get_unverified_header(text)
        except (jwt.PyJWTError, *_UNREADABLE) as error:
            raise UnauthenticatedError("this is not a token") from error
        algorithm, key_id = header.get("alg"), header.get("kid")
        if not isinstance(algorithm, str) or algorithm not in self._algorithms:
            raise UnauthenticatedError("the token is signed by an algorithm that is not allowed")
        if "crit" in header or not isinstance(key_id, str | None):
            raise UnauthenticatedError("the token's header is not understood")
        key = self.keys.find(key_id, algorithm)
        try:
            claims: dict[str, Any] = jwt.decode(
                text,
                key.key,
                algorithms=[algorithm],
                audience=self._config.oidc_audience,
                issuer=self._config.oidc_issuer,
                leeway=self._config.oidc_leeway_ms / 1000,
                options={"require": ["exp", "iss", "aud"]},
            )
        except (jwt.PyJWTError, *_UNREADABLE) as error:
            raise UnauthenticatedError(self._reason(error)) from error
        return claims

    def _reason(self, error: Exception) -> str:
        jwt = self._jwt
        claims = {
            jwt.ExpiredSignatureError: "the token has expired",
            jwt.ImmatureSignatureError: "the token is not valid yet",
            jwt.InvalidAudienceError: "the token is for another audience",
            jwt.InvalidIssuerError: "the token is of another issuer",
            jwt.InvalidSignatureError: "the token's signature does not fit",
            jwt.MissingRequiredClaimError: "the token lacks exp, iss or aud",
        }
        return claims.get(type(error), "the token cannot be verified")

    def _principal(self, name: str) -> str:
        mapped = map_principal(self._rules, name)
        try:
            if mapped is not None:
                return str(PrincipalName(mapped))
        except InvalidNameError:
            pass
        raise UnauthenticatedError(
            "the token's claim is not the name of a principal; see oidc_principal_rules",
            claim=self._config.oidc_principal_claim,
            got=repr(name)[:200],
        )

    def _roles_of(self, claims: dict[str, Any]) -> tuple[str, ...]:
        if not self._config.oidc_roles_claim:
            return ()
        values = _claim(claims, self._config.oidc_roles_claim)
        if isinstance(values, str):
            values = values.split()  # as OAuth writes scopes
        if not isinstance(values, list):
            return ()
        texts = [value for value in values[:_ROLES_MAX] if isinstance(value, str)]
        return tuple(sorted({self._roles[text] for text in texts if text in self._roles}))


def _claim(claims: dict[str, Any], path: str) -> Any:
    """Return a claim by its name, or by the path to it, whose parts have dots between them."""
    if path in claims:
        return claims[path]
    value: Any = claims
    for part in path.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    return value


def _missing(package: str) -> PackageMissingError:
    return PackageMissingError(
        "Lakebed is installed without the extra 'oidc', which the setting oidc_issuer needs; "
        "install it: pip install '.[oidc]' in a clone of the repository",
        missing=package,
    )
