"""Addresses of servers: those that a URL names, and one that was meant where a folder is named."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import urlsplit

from lakebed.errors import InvalidArgumentError, NotALogError

SCHEMES: Final = {"lakebed": "grpc+tcp", "lakebed+tls": "grpc+tls"}
UNIX: Final = "lakebed+unix"
"""The scheme of a log that is served to one user's processes only, by a Unix socket."""
PORT: Final = 4747
ADDRESSES_MAX: Final = 16

_ADDRESS: Final = re.compile(
    r"(?:(lakebed(?:\+tls)?):/*)?"
    r"((?:[A-Za-z0-9.-]+|\[[0-9A-Fa-f:]+\]):[0-9]{1,5}"
    r"(?:,(?:[A-Za-z0-9.-]+|\[[0-9A-Fa-f:]+\]):[0-9]{1,5})*)"
)
"""Hosts and ports, and before them what is left of a URL in which a slash is missing."""


class Address(NamedTuple):
    """One server that a URL names."""

    url: str
    location: str
    """The same as Flight writes it."""
    port: int
    """0 for a Unix socket."""
    tls: bool


def parse_addresses(url: str) -> tuple[Address, ...]:
    """Return the servers that a URL names, in its order, without duplicates.

    Raises `InvalidArgumentError` for anything but `lakebed://HOST:PORT,...`, the same by TLS, or
    `lakebed+unix://` and a path.
    """
    scheme, separator, rest = url.partition("://")
    if not separator or scheme == UNIX or "," not in rest:
        return (_parse(url),)
    names = rest.rstrip("/").split(",")
    if not all(names):
        raise InvalidArgumentError("a URL names a server between any two commas", url=url)
    if len(names) > ADDRESSES_MAX:
        raise InvalidArgumentError(
            "a URL names too many servers", servers=len(names), servers_max=ADDRESSES_MAX
        )
    parsed = [_parse(f"{scheme}://{name}") for name in names]
    return tuple({address.location: address for address in parsed}.values())


def _parse(url: str) -> Address:
    try:
        parts = urlsplit(url)
        port = parts.port or PORT
    except ValueError as error:
        raise InvalidArgumentError("not a log's URL", url=url, reason=str(error)) from error
    if parts.scheme == UNIX:
        if parts.netloc or not parts.path.startswith("/") or parts.query or parts.fragment:
            raise InvalidArgumentError("must be lakebed+unix:// and an absolute path", url=url)
        return Address(url, f"grpc+unix://{parts.path}", 0, False)
    scheme = SCHEMES.get(parts.scheme)
    if scheme is None:
        raise InvalidArgumentError(
            "the URL of a served log must be lakebed://HOST:PORT or lakebed+tls://HOST:PORT",
            scheme=parts.scheme,
        )
    if parts.username is not None or parts.password is not None:
        raise InvalidArgumentError(
            "a URL must not contain a token: use LAKEBED_TOKEN or ClientConfig"
        )
    if not parts.hostname or parts.path not in ("", "/") or parts.query or parts.fragment:
        raise InvalidArgumentError("the URL of a served log must have a host and a port", url=url)
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return Address(url, f"{scheme}://{host}:{port}", port, scheme == "grpc+tls")


def url_of(target: str | os.PathLike[str]) -> str:
    """Return the URL that a path looks like which was perhaps meant to be one; else nothing."""
    match = _ADDRESS.fullmatch(os.fspath(target))
    return "" if match is None else f"{match[1] or 'lakebed'}://{match[2]}"


def check_no_address(target: str | os.PathLike[str]) -> None:
    """Refuse to make a folder whose name looks like the address of a server."""
    url = url_of(target)
    if url and not Path(target).exists():
        raise NotALogError(
            f"there is no log in this folder: did you mean {url}?", path=os.fspath(target)
        )
