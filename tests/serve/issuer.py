"""An issuer of tokens for tests: keys, a JWKS over real HTTP, and the tokens it signs."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm

NAME = "https://issuer.example"
AUDIENCE = "lakebed"


class Issuer:
    """Signs tokens; `serve` offers its keys, and can be told to misbehave."""

    def __init__(self) -> None:
        self.keys: dict[str, tuple[str, Any]] = {}
        self.fetches = 0
        self.status = 200
        self.body: bytes | None = None
        """Sent instead of the keys."""
        self.location = ""
        self._server: ThreadingHTTPServer | None = None
        self._port = 0
        self.add("first")

    def add(self, key_id: str, algorithm: str = "ES256") -> None:
        """Make a key."""
        key: Any
        if algorithm.startswith(("RS", "PS")):
            key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        elif algorithm == "EdDSA":
            key = ed25519.Ed25519PrivateKey.generate()
        else:
            key = ec.generate_private_key(ec.SECP256R1())
        self.keys[key_id] = (algorithm, key)

    def document(self) -> dict[str, Any]:
        """The JWKS."""
        listed = []
        for key_id, (algorithm, key) in self.keys.items():
            kind: Any = {"R": RSAAlgorithm, "P": RSAAlgorithm, "E": ECAlgorithm}[algorithm[0]]
            kind = OKPAlgorithm if algorithm == "EdDSA" else kind
            values = json.loads(kind.to_jwk(key.public_key()))
            listed.append({**values, "kid": key_id, "alg": algorithm, "use": "sig"})
        return {"keys": listed}

    def claims(self, subject: str = "ann", **more: Any) -> dict[str, Any]:
        now = int(time.time())
        made = {"iss": NAME, "aud": AUDIENCE, "sub": subject, "exp": now + 3600, "iat": now}
        return {name: value for name, value in {**made, **more}.items() if value is not None}

    def token(
        self, subject: str = "ann", key_id: str = "first", headers: Any = None, **claims: Any
    ) -> str:
        """Sign a token; a claim that is None is left out."""
        algorithm, key = self.keys[key_id]
        made = self.claims(subject, **claims)
        return jwt.encode(made, key, algorithm=algorithm, headers=headers or {"kid": key_id})

    def forge(self, header: dict[str, Any], secret: bytes | None, **claims: Any) -> str:
        """Make a token without a key of the issuer: unsigned, or by HMAC with some secret."""
        parts = [_base64(json.dumps(part).encode()) for part in (header, self.claims(**claims))]
        signed = ".".join(parts).encode()
        signature = b"" if secret is None else hmac.digest(secret, signed, hashlib.sha256)
        return f"{signed.decode()}.{_base64(signature)}"

    # Over HTTP

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}/keys"

    def start(self) -> Issuer:
        issuer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                issuer.fetches += 1
                body = issuer.body
                body = json.dumps(issuer.document()).encode() if body is None else body
                self.send_response(issuer.status)
                if issuer.location:
                    self.send_header("Location", issuer.location)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", self._port), Handler)
        self._port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()
        return self

    def stop(self) -> None:
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None


def _base64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()
