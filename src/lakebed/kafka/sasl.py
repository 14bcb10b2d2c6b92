"""SASL: a client shows a token of the log, or of the issuer that the settings name.

PLAIN carries it as the password, beside any user name; OAUTHBEARER carries it as it is. SCRAM is
not possible: the log keeps a digest of a token and not what SCRAM needs.
"""

from __future__ import annotations

import re
from typing import Final

MECHANISMS: Final = ("PLAIN", "OAUTHBEARER")
_BEARER: Final = re.compile(rb"(?:^|\x01)auth=Bearer ([^\x01]+)\x01", re.IGNORECASE)
_TOKEN_BYTES_MAX: Final = 16 * 1024


def token_of(mechanism: str, message: bytes) -> str:
    """Return the token of a client's message; empty if there is none, which is never valid."""
    if len(message) > _TOKEN_BYTES_MAX:
        return ""
    if mechanism == "PLAIN":
        parts = message.split(b"\0")
        token = parts[2] if len(parts) == 3 else b""
    else:
        match = _BEARER.search(message)
        token = b"" if match is None else match.group(1).strip()
    return token.decode("utf8", "replace")
