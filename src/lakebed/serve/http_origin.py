"""Which web pages may speak to the server: a browser carries their requests without asking anybody.

A page of another place is told by its `Origin`. One whose name was made to mean this machine (DNS
rebinding) has an origin that equals the `Host`, both of its own choice; so a log on which everybody
may do everything is served under names that nobody else can give away.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from lakebed.errors import InvalidArgumentError

if TYPE_CHECKING:
    from lakebed.config import ServeConfig

_LOOKS: Final = frozenset(["GET", "HEAD", "OPTIONS"])
"""Methods that change nothing; of these, a browser shows a page of another place no answer."""
_HOST: Final = re.compile(r"(\[[^\]]*\]|[^:]*)(?::\d*)?")
_SHOWN_MAX: Final = 200


def check_origin(
    headers: Mapping[str, str], method: str, config: ServeConfig, *, is_open: bool
) -> None:
    """Refuse what a page of another place asks for; `is_open` tells that nobody needs a token.

    The method of a WebSocket is `CONNECT`: it writes.
    """
    host, origin = headers.get("host", ""), headers.get("origin")
    # Over TLS, the client has made sure of the name.
    if is_open and not config.tls_cert and not _any_host(config) and not _is_ours(host, config):
        raise InvalidArgumentError(
            "a log without tokens is served only under names of its host: use localhost,"
            " the setting `host`, or a token",
            host=host[:_SHOWN_MAX],
        )
    if origin is None or method in _LOOKS:
        return
    origin_host = origin.partition("://")[2]
    allowed = not is_open or bool(config.tls_cert) or _is_ours(origin_host, config)
    if origin_host.lower() != host.lower() or not allowed:
        raise InvalidArgumentError(
            "a page from another origin may not write", origin=origin[:_SHOWN_MAX]
        )


def _is_ours(host: str, config: ServeConfig) -> bool:
    """Return whether a host, with a port or without, is this machine or the one that is set."""
    match = _HOST.fullmatch(host)
    name = "" if match is None else match[1].strip("[]").lower()
    if name in ("localhost", config.host.lower()):
        return True
    address = _address(name)
    return address is not None and address.is_loopback


def _any_host(config: ServeConfig) -> bool:
    """Return whether the server is meant for everybody, under whatever name."""
    address = _address(config.host)
    return config.insecure and address is not None and address.is_unspecified


def _address(name: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(name)
    except ValueError:
        return None
