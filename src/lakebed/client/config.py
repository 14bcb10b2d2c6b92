"""How a served log is reached: who is calling, whom to trust, how long to try."""

from __future__ import annotations

import os
from dataclasses import dataclass, field

from lakebed.config.checks import is_whole
from lakebed.errors import InvalidArgumentError


@dataclass(frozen=True)
class ClientConfig:
    """How a served log is reached. What is left out comes from the environment."""

    token: str | None = field(default=None, repr=False)
    """Who is calling: what `lakebed token create` gave out; else `LAKEBED_TOKEN`."""

    ca: str | None = None
    """File with the certificates that the server's is checked against, PEM; else `LAKEBED_CA`,
    else those of the system.
    """

    cert: str | None = None
    """File with the client's own certificate, PEM, for mutual TLS; else `LAKEBED_CERT`."""

    key: str | None = field(default=None, repr=False)
    """File with that certificate's key, PEM; else `LAKEBED_KEY`."""

    retry_ms: int = 30_000
    """How long opening and each call are repeated while the server cannot be reached."""

    def __post_init__(self) -> None:
        """Refuse what cannot be meant."""
        for name in ("token", "ca", "cert", "key"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, str) or not value.strip()):
                raise InvalidArgumentError(f"{name} must be text", setting=name)
        retry = self.retry_ms
        if not is_whole(retry, 0, 3_600_000):
            raise InvalidArgumentError("retry_ms must be from 0 to 3600000", got=repr(retry))

    def resolved(self) -> ClientConfig:
        """Return it with what the environment says about the rest."""
        return ClientConfig(
            # A file that holds a token ends with a newline, and no token has space in it.
            (self.token or os.environ.get("LAKEBED_TOKEN") or "").strip() or None,
            self.ca or os.environ.get("LAKEBED_CA") or None,
            self.cert or os.environ.get("LAKEBED_CERT") or None,
            self.key or os.environ.get("LAKEBED_KEY") or None,
            self.retry_ms,
        )
