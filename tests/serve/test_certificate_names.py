"""Mutual TLS: which name of a certificate is its principal's, on Flight and on HTTP."""

from __future__ import annotations

import ipaddress
import ssl
from collections.abc import Sequence
from pathlib import Path

import pytest
from cryptography import x509

import lakebed
from lakebed import Log, ServeConfig
from lakebed.client.config import ClientConfig
from lakebed.errors import InvalidArgumentError, UnauthenticatedError
from lakebed.serve.certificates import CertificateNames, form_of, name_of_certificate
from lakebed.serve.server import Server
from tests.serve.certificates import Authority
from tests.serve.over_http import Served

DNS, URI, MAIL = x509.DNSName, x509.UniformResourceIdentifier, x509.RFC822Name
SPIFFE = r"RULE:^spiffe:\/\/corp\/(?:ns\/)?([a-z-]+)$/$1/"
CASES: list[tuple[dict[str, str], Sequence[x509.GeneralName], str]] = [
    ({}, [], "common"),
    ({}, [DNS("svc.corp"), URI("spiffe://corp/other")], "svc.corp"),
    ({}, [URI("spiffe://corp/ann")], ""),
    ({}, [MAIL("ann@corp.example"), DNS("svc")], ""),
    ({}, [x509.IPAddress(ipaddress.ip_address("10.0.0.1"))], ""),
    ({"tls_principal_rules": r"RULE:^([a-z]+)\.corp$/$1/"}, [DNS("svc.corp")], "svc"),
    ({"tls_principal_rules": r"RULE:^([a-z]+)\.corp$/$1/"}, [DNS("svc.corp.example")], ""),
    ({"tls_principal": "uri", "tls_principal_rules": SPIFFE}, [URI("spiffe://corp/ann")], "ann"),
    ({"tls_principal": "uri", "tls_principal_rules": SPIFFE}, [URI("spiffe://evil/ann")], ""),
    ({"tls_principal": "uri", "tls_principal_rules": SPIFFE}, [DNS("ann")], ""),
    (
        {"tls_principal": "email", "tls_principal_rules": r"RULE:^([^@]+)@corp\.example$/$1/L"},
        [MAIL("Ann@corp.example")],
        "ann",
    ),
]


def asked_by_flight(server: Server, config: ClientConfig) -> bool:
    try:
        with lakebed.open(f"lakebed+tls://localhost:{server.port}", config) as log:
            log.topics()
    except UnauthenticatedError:
        return False
    return True


@pytest.mark.parametrize(("settings", "names", "principal"), CASES)
def test_a_certificate_has_one_principal_on_both_ports_or_none(
    tmp_path: Path, settings: dict[str, str], names: Sequence[x509.GeneralName], principal: str
) -> None:
    authority = Authority(tmp_path)
    pair, client = authority.sign("server"), authority.sign("common", host=None, names=names)
    config = ServeConfig(
        port=0,
        http_port=0,
        tls_cert=pair.certificate,
        tls_key=pair.key,
        tls_client_ca=authority.certificate,
        **settings,  # type: ignore[arg-type]  # texts, all of them
    )
    tls = ssl.create_default_context(cafile=authority.certificate)
    tls.load_cert_chain(client.certificate, client.key)
    flight = ClientConfig(ca=authority.certificate, cert=client.certificate, key=client.key)
    with Server(Log.open(tmp_path / "log"), config) as server:
        server.log.create_topic("orders")
        served = Served(server.log, server, None, tls)  # type: ignore[arg-type]
        assert asked_by_flight(server, flight) is bool(principal)
        answer = served.send("GET", "/v1/topics/orders/records")
        assert answer.status == (200 if principal else 401)
        # From now on callers are told apart: only this principal reads.
        server.log.access.grant(principal or "nobody", "reader", force=True)
        assert served.send("GET", "/v1/topics/orders/records").status == answer.status
        if principal:
            with lakebed.open(f"lakebed+tls://localhost:{server.port}", flight) as log:
                assert log.read("orders").num_rows == 0


@pytest.mark.parametrize(
    ("text", "form"),
    [
        ("svc.corp", "name"),
        ("ann", "name"),
        ("10.0.0.1", "ip"),
        ("::1", "ip"),
        ("ann@corp", "email"),
        ("spiffe://corp/ann", "uri"),
        ("urn:ann", "uri"),
        ("", "name"),
    ],
)
def test_the_form_of_a_text_tells_its_kind(text: str, form: str) -> None:
    assert form_of(text) == form


@pytest.mark.parametrize(
    ("kind", "text"),
    [("URI", "admin"), ("email", "admin"), ("DNS", "a@b"), ("IP Address", "10.0.0.1"), ("x", "y")],
)
def test_http_refuses_a_text_whose_form_belies_its_kind(kind: str, text: str) -> None:
    name = name_of_certificate({"subjectAltName": ((kind, text),)})
    for config in (ServeConfig(), ServeConfig(tls_principal="uri", tls_principal_rules="DEFAULT")):
        with pytest.raises(UnauthenticatedError):
            CertificateNames(config).principal(name)


@pytest.mark.parametrize(
    ("setting", "value"),
    [("tls_principal", "any"), ("tls_principal", ""), ("tls_principal_rules", "RULE:(/a/")],
)
def test_settings_that_mean_nothing_are_refused(setting: str, value: str) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        ServeConfig(**{setting: value})  # type: ignore[arg-type]
    assert caught.value.facts["setting"] == setting
