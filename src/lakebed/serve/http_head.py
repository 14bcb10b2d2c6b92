"""Heads of HTTP requests that two readers could take differently: refused."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from lakebed.serve.http_errors import Refused

_SINGLE: Final = (b"authorization", b"origin", b"host")
"""Headers of which a request has one at most."""


def head_fault(names: Iterable[bytes]) -> Refused | None:
    """Return why a request with headers of these names, in lower case, is refused; None if not."""
    headers = list(names)
    for name in _SINGLE:
        if headers.count(name) > 1:
            return _refusal("a header is there twice", header=name.decode())
    if b"transfer-encoding" in headers and b"content-length" in headers:
        return _refusal("a request has either a content length or a transfer encoding")
    return None


def _refusal(message: str, **facts: object) -> Refused:
    return Refused(400, message, headers={"Connection": "close"}, **facts)
