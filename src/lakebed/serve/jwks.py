"""The public keys of an issuer of tokens (a JWKS): fetched in the background, and kept.

Callers never wait for a fetch: some of them run in the server's event loop. A token whose key is
not known starts a fetch, at most one in `_PAUSE_SECONDS`, and is answered with an error that
clients retry. Keys that cannot be fetched again are used for `stale_seconds` more.
"""

from __future__ import annotations

import json
import logging
import ssl
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import jwt

from lakebed.config.oidc import is_loopback_url
from lakebed.errors import InvalidArgumentError, ServerUnavailableError, UnauthenticatedError
from lakebed.host import Clock, OsDisk, SystemClock, read_file

_log = logging.getLogger("lakebed.serve")

_FETCH_SECONDS: Final = 10.0
"""The longest time that a fetch takes, from the connection to the last byte."""
_BYTES_MAX: Final = 1024 * 1024
_KEYS_MAX: Final = 100
_PAUSE_SECONDS: Final = 10.0
"""The shortest time between fetches that callers cause."""
_RSA_BITS_MIN: Final = 2048
_RSA: Final = frozenset(["RS256", "RS384", "RS512", "PS256", "PS384", "PS512"])
_CURVES: Final = {"P-256": "ES256", "P-384": "ES384", "P-521": "ES512"}


class VerificationKey(NamedTuple):
    """A public key, and the algorithms that it may verify."""

    id: str
    algorithms: frozenset[str]
    key: Any


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Follows no redirect: it could lead to another host, or away from TLS."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        """Leave the answer as it is, which is then an error."""


def fetch(url: str) -> bytes:
    """Return the body of a URL, within bounds of time and size.

    Raises `OSError` if it cannot be had, and `ValueError` if it is too large.
    """
    handlers: list[urllib.request.BaseHandler] = [
        _NoRedirect(),
        urllib.request.HTTPSHandler(context=ssl.create_default_context()),
    ]
    if is_loopback_url(url):
        handlers.append(urllib.request.ProxyHandler({}))
    opener = urllib.request.build_opener(*handlers)
    deadline = time.monotonic() + _FETCH_SECONDS
    body = bytearray()
    with _open(opener, url) as answer:
        while part := answer.read1(64 * 1024):
            body += part
            if len(body) > _BYTES_MAX:
                raise ValueError(f"the key set is larger than {_BYTES_MAX} bytes")
            if time.monotonic() > deadline:
                raise TimeoutError(f"the key set took longer than {_FETCH_SECONDS} s")
    return bytes(body)


def _open(opener: urllib.request.OpenerDirector, url: str) -> Any:
    try:
        return opener.open(url, timeout=_FETCH_SECONDS)
    except urllib.error.HTTPError as error:
        error.close()  # it holds the connection
        raise


def parse_keys(data: bytes) -> list[VerificationKey]:
    """Return the keys of a JWKS that can verify signatures; others are left out.

    Raises `ValueError` if it is not a JWKS, or has no such key.
    """
    document = json.loads(data)
    listed = document.get("keys") if isinstance(document, dict) else None
    if not isinstance(listed, list) or len(listed) > _KEYS_MAX:
        raise ValueError(f"a key set is an object with a list of up to {_KEYS_MAX} keys")
    keys = [key for key in map(_key, listed) if key is not None]
    if not keys:
        raise ValueError("the key set has no public key that can verify signatures")
    return keys


def _key(values: object) -> VerificationKey | None:
    if not isinstance(values, dict) or values.get("use", "sig") != "sig" or "d" in values:
        return None
    kind, curve = values.get("kty"), values.get("crv")
    if kind == "RSA":
        usable = _RSA
    elif kind == "EC" and curve in _CURVES:
        usable = frozenset([_CURVES[curve]])
    elif kind == "OKP" and curve == "Ed25519":
        usable = frozenset(["EdDSA"])
    else:
        return None  # symmetric keys among them: whoever verifies with one could sign
    stated = values.get("alg")
    algorithms = usable if stated is None else usable & {stated}
    key_id = values.get("kid", "")
    if not algorithms or not isinstance(key_id, str):
        return None
    try:
        key = jwt.PyJWK(values, algorithm=min(algorithms)).key
    except (jwt.PyJWTError, ValueError, TypeError, KeyError):
        return None
    if kind == "RSA" and key.key_size < _RSA_BITS_MIN:
        return None
    return VerificationKey(key_id, algorithms, key)


def loader_of(source: str) -> Callable[[], bytes]:
    """Return what reads a JWKS from a URL or from a file."""
    if "://" in source:
        return lambda: fetch(source)
    return lambda: read_file(OsDisk(), Path(source))


class KeySet:
    """The keys of an issuer as last loaded. Any thread may ask; one thread loads."""

    def __init__(
        self,
        source: str,
        *,
        refresh_seconds: float,
        stale_seconds: float,
        clock: Clock | None = None,
    ) -> None:
        self._source = source
        self._load = loader_of(source)
        self._refresh_seconds = refresh_seconds
        self._stale_seconds = stale_seconds
        self._pause_seconds = min(_PAUSE_SECONDS, refresh_seconds)
        self._clock = SystemClock() if clock is None else clock
        self._changed = threading.Condition()
        self._keys: Mapping[str, list[VerificationKey]] = {}
        self._loaded_at: float | None = None
        self._tried_at: float | None = None
        self._asked = False
        self._closing = False
        self._thread: threading.Thread | None = None
        self.failures = 0
        """How often the keys could not be loaded."""

    def start(self) -> None:
        """Load the keys, and from now on again and again.

        A file that cannot be read is an `InvalidArgumentError`; an issuer that does not answer is
        asked again later.
        """
        problem = self._refresh()
        if problem is not None and "://" not in self._source:
            raise InvalidArgumentError(
                "the keys of the issuer cannot be read", oidc_jwks=self._source, why=str(problem)
            )
        self._thread = threading.Thread(target=self._run, name="lakebed-jwks", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Load no more."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()

    def find(self, key_id: str | None, algorithm: str) -> VerificationKey:
        """Return the key with an id; without one, the only key for the algorithm.

        Raises `UnauthenticatedError` if there is no such key, `ServerUnavailableError` while it may
        be among those that are being loaded.
        """
        now = self._clock.monotonic()
        with self._changed:
            if self._loaded_at is None or now - self._loaded_at > self._stale_seconds:
                self._ask(now)
                raise ServerUnavailableError("the keys of the issuer of tokens are not available")
            keys = self._matching(key_id, algorithm)
            if len(keys) == 1:
                return keys[0]
            if key_id is None:
                raise UnauthenticatedError("the token does not name its key")
            if key_id not in self._keys and self._ask(now):
                raise ServerUnavailableError(
                    "the key of this token is not known; the issuer's keys are being loaded"
                )
        raise UnauthenticatedError("the issuer does not have this key for the algorithm")

    def _matching(self, key_id: str | None, algorithm: str) -> list[VerificationKey]:
        if key_id is not None:
            candidates = self._keys.get(key_id, [])
        else:
            candidates = [key for keys in self._keys.values() for key in keys]
        return [key for key in candidates if algorithm in key.algorithms]

    def _ask(self, now: float) -> bool:
        """Have the keys loaded soon, unless they were just now; return True if they will be."""
        if not self._asked and self._tried_at is not None:
            self._asked = now - self._tried_at >= self._pause_seconds
            self._changed.notify_all()
        return self._asked

    def _run(self) -> None:
        while True:
            with self._changed:
                old = self._loaded_at is None or self._tried_at != self._loaded_at
                seconds = self._pause_seconds if old else self._refresh_seconds
                self._changed.wait_for(lambda: self._asked or self._closing, seconds)
                if self._closing:
                    return
            self._refresh()

    def _refresh(self) -> Exception | None:
        """Load the keys; return why they could not be."""
        problem: Exception | None = None
        by_id: dict[str, list[VerificationKey]] = {}
        try:
            for key in parse_keys(self._load()):
                by_id.setdefault(key.id, []).append(key)
        except Exception as error:  # whatever the issuer sends must not end the thread
            problem = error
        with self._changed:
            now = self._tried_at = self._clock.monotonic()
            self._asked = False
            if problem is None:
                self._keys, self._loaded_at = by_id, now
            else:
                self.failures += 1
        if problem is not None:
            _log.warning("the issuer's keys could not be loaded: %s", problem)
        return problem
