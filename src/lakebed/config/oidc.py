"""Settings of tokens that an OpenID Connect issuer signs, and what they must fulfil."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import urlsplit

from lakebed.config.checks import refuse
from lakebed.config.principal_rules import parse_principal_rules

OIDC_ALGORITHMS: Final = (
    *("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"),
    *("ES256", "ES384", "ES512", "EdDSA"),
)
"""Signatures that need the issuer's private key. `none` and the HMACs (`HS256`) are never taken."""

_TEXTS: Final = (
    *("oidc_issuer", "oidc_audience", "oidc_jwks", "oidc_algorithms"),
    *("oidc_principal_claim", "oidc_principal_rules", "oidc_roles_claim"),
)


def check_oidc(config: Any) -> None:
    """Raise if the settings of an issuer are incomplete, or not safe."""
    for name in _TEXTS:
        value = getattr(config, name)
        if not isinstance(value, str) or not value.isprintable():
            refuse(name, value, "text")
    _check_roles(config.oidc_roles)
    parse_principal_rules("oidc_principal_rules", config.oidc_principal_rules)
    if not oidc_algorithms(config.oidc_algorithms):
        refuse(
            "oidc_algorithms",
            config.oidc_algorithms,
            "some of " + ", ".join(OIDC_ALGORITHMS) + ", with commas between them",
        )
    if not config.oidc_issuer:
        for name in ("oidc_audience", "oidc_jwks", "oidc_roles_claim"):
            if getattr(config, name):
                refuse("oidc_issuer", "", f"given too: {name} belongs to an issuer")
        return
    for name in ("oidc_audience", "oidc_jwks", "oidc_principal_claim"):
        if not getattr(config, name):
            refuse(name, "", "given too: oidc_issuer needs it")
    if bool(config.oidc_roles_claim) != bool(config.oidc_roles):
        missing = "oidc_roles" if config.oidc_roles_claim else "oidc_roles_claim"
        refuse(missing, getattr(config, missing), "given too: a claim and its mapping to roles")
    if "://" in config.oidc_jwks and not _is_safe_url(config.oidc_jwks):
        refuse(
            "oidc_jwks",
            config.oidc_jwks,
            "an https:// URL (http:// on a loopback address), or the path of a file",
        )


def oidc_algorithms(text: str) -> frozenset[str]:
    """Return the algorithms that a setting lists; empty if one of them is not allowed."""
    names = frozenset(name.strip() for name in text.split(","))
    return names if names <= frozenset(OIDC_ALGORITHMS) else frozenset()


def is_loopback_url(url: str) -> bool:
    """Return True if a URL's host is an address of this machine alone."""
    host = urlsplit(url).hostname or ""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _is_safe_url(url: str) -> bool:
    try:
        parts = urlsplit(url)
        if not parts.hostname or parts.username is not None or parts.fragment:
            return False
        return parts.scheme == "https" or (parts.scheme == "http" and is_loopback_url(url))
    except ValueError:
        return False


def _check_roles(roles: object) -> None:
    texts = isinstance(roles, Mapping) and all(
        isinstance(text, str) and text for pair in roles.items() for text in pair
    )
    if not texts:
        refuse("oidc_roles", roles, "a table of a claim's values and the roles they stand for")
