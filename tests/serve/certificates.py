"""Certificates for tests: an authority, and whom it signs for."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

_SIGNS = x509.KeyUsage(
    digital_signature=True,
    content_commitment=False,
    key_encipherment=False,
    data_encipherment=False,
    key_agreement=False,
    key_cert_sign=True,
    crl_sign=True,
    encipher_only=False,
    decipher_only=False,
)


class Pair(NamedTuple):
    """A certificate and its key, as files."""

    certificate: str
    key: str


class Authority:
    """Signs certificates that are valid for an hour."""

    def __init__(self, folder: Path, name: str = "authority") -> None:
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _named(name)
        built = (
            _builder(self._name, self._name, self._key.public_key())
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .add_extension(_SIGNS, critical=True)
            .add_extension(
                x509.SubjectKeyIdentifier.from_public_key(self._key.public_key()), critical=False
            )
        )
        self.certificate = self._write(name, built)

    def sign(
        self,
        name: str,
        *,
        host: str | None = "localhost",
        names: Sequence[x509.GeneralName] = (),
    ) -> Pair:
        """Make a certificate for a name; one of a server is also for its host, or other names."""
        key = ec.generate_private_key(ec.SECP256R1())
        built = _builder(_named(name), self._name, key.public_key()).add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()),
            critical=False,
        )
        others = [*names] if names or host is None else [x509.DNSName(host)]
        if others:
            built = built.add_extension(x509.SubjectAlternativeName(others), critical=False)
        path = self._folder / f"{name}.key"
        path.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )
        return Pair(self._write(name, built), str(path))

    def _write(self, name: str, built: x509.CertificateBuilder) -> str:
        signed = built.sign(self._key, hashes.SHA256())
        path = self._folder / f"{name}.pem"
        path.write_bytes(signed.public_bytes(serialization.Encoding.PEM))
        return str(path)


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(minutes=5))
        .not_valid_after(now + datetime.timedelta(hours=1))
    )
