"""Whose a client's certificate is (mutual TLS).

gRPC tells a server one text of a certificate: its first subject alternative name, or its common
name if it has none, and not of which kind that is. HTTP does the same, so that a client has one
name on both ports. The form of the text tells the kind: what has a scheme is a URI, what has an `@`
an address of mail, and an IP address is one; everything else is a name (DNS, or the common name).
The setting `tls_principal` says which kind is taken, and `tls_principal_rules` what becomes of it.

HTTP knows the kind too, and refuses a text whose form belies it. docs/decisions/026 has why.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from typing import Any, Final

from lakebed.config import ServeConfig
from lakebed.config.principal_rules import map_principal, parse_principal_rules
from lakebed.errors import InvalidNameError, UnauthenticatedError
from lakebed.types import PrincipalName

_SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")
_DECLARED: Final = {"DNS": "name", "URI": "uri", "email": "email"}
"""The form that a subject alternative name of a kind must have."""
_BELIED: Final = "\0"
"""Before a text whose form belies its kind: no rule sees it."""
_CHARS_MAX: Final = 1024


class CertificateNames:
    """Maps what a certificate says to a principal. Any thread."""

    def __init__(self, config: ServeConfig) -> None:
        self._kind = config.tls_principal
        self._rules = parse_principal_rules("tls_principal_rules", config.tls_principal_rules)

    def principal(self, text: str) -> str:
        """Return the principal of a certificate's text, or raise `UnauthenticatedError`."""
        shown = repr(text[:200])
        if not text.isprintable() or len(text) > _CHARS_MAX or form_of(text) != self._kind:
            raise UnauthenticatedError(
                "the certificate has no name of the accepted kind",
                got=shown,
                tls_principal=self._kind,
            )
        mapped = map_principal(self._rules, text)
        try:
            if mapped is not None:
                return str(PrincipalName(mapped))
        except InvalidNameError:
            pass
        raise UnauthenticatedError("the certificate's name is not a principal's name", got=shown)


def form_of(text: str) -> str:
    """Return the kind of name that a text has the form of: `name`, `uri`, `email` or `ip`."""
    try:
        ipaddress.ip_address(text)
    except ValueError:
        if _SCHEME.match(text):
            return "uri"
        return "email" if "@" in text else "name"
    return "ip"


def name_of_certificate(certificate: Mapping[str, Any]) -> str:
    """Return the text of a certificate as `ssl` describes it; empty if there is none."""
    for kind, value in certificate.get("subjectAltName", ()):
        text = str(value)
        return text if _DECLARED.get(kind) == form_of(text) else f"{_BELIED}{kind}:{text}"
    for part in certificate.get("subject", ()):
        for name, value in part:
            if name == "commonName":
                return str(value)
    return ""
