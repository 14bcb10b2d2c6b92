"""Heads of HTTP requests that two readers could take differently: refused."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from lakebed.serve.http_errors import Refused

_SINGLE: Final = (b"authorization", b"origin", b"host")
"""Headers of which a request has one at most."""


def head_fault(names: Iterable[bytes]) -> Refused | None:
    """Return why a request with headers of these names, in lower case, is refused; None if not."""
    given = list(names)
    for name in _SINGLE:
        if given.count(name) > 1:
            return _refused("a header is there twice", header=name.decode())
    if b"transfer-encoding" in given and b"content-length" in given:
        return _refused("a request has either a content length or a transfer encoding")
    return None


def _refused(message: str, **facts: object) -> Refused:
    return Refused(400, message, headers={"Connection": "close"}, **facts)
