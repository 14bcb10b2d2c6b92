"""Tokens of an OpenID Connect issuer: which are taken, for whom, and what keys are used."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

import lakebed
from lakebed import Log, ServeConfig
from lakebed.client.config import ClientConfig
from lakebed.engine.audit import AUDIT_TOPIC
from lakebed.errors import (
    AccessDeniedError,
    InvalidArgumentError,
    ServerUnavailableError,
    UnauthenticatedError,
)
from lakebed.host import ManualClock
from lakebed.serve import jwks
from lakebed.serve.guard import Action, Guard, Need
from lakebed.serve.jwks import KeySet
from lakebed.serve.oidc import Verifier
from lakebed.serve.server import Server
from tests.engine.support import rows
from tests.serve.issuer import AUDIENCE, NAME, Issuer
from tests.serve.over_http import Served
from tests.waiting import until

READ = Need(Action.READ, "topic")


@pytest.fixture
def issuer() -> Iterator[Issuer]:
    made = Issuer().start()
    yield made
    made.stop()


def settings(source: str, **more: Any) -> ServeConfig:
    given: dict[str, Any] = {
        "port": 0,
        "http_port": 0,
        "oidc_issuer": NAME,
        "oidc_audience": AUDIENCE,
        "oidc_jwks": source,
        "oidc_refresh_ms": 1_000,
        **more,
    }
    return ServeConfig(**given)


@contextlib.contextmanager
def verifying(source: str, **more: Any) -> Iterator[Verifier]:
    verifier = Verifier(settings(source, **more))
    try:
        yield verifier
    finally:
        verifier.close()


def refused(verifier: Verifier, token: str) -> str:
    with pytest.raises(UnauthenticatedError) as caught:
        verifier.verify(token)
    assert token not in str(caught.value)
    return caught.value.message


# What a token has to be


def test_a_token_of_the_issuer_names_its_principal(issuer: Issuer) -> None:
    with verifying(issuer.url) as verifier:
        assert verifier.verify(issuer.token("ann", jti="t-1")) == ("ann", (), "t-1")


@pytest.mark.parametrize("algorithm", ["RS256", "PS256", "ES256", "EdDSA"])
def test_keys_of_every_kind(issuer: Issuer, algorithm: str) -> None:
    issuer.add("other", algorithm)
    with verifying(issuer.url, oidc_algorithms="RS256,PS256,ES256,EdDSA") as verifier:
        assert verifier.verify(issuer.token("ann", "other")).principal == "ann"


def test_keys_from_a_file(issuer: Issuer, tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    path.write_text(json.dumps(issuer.document()))
    with verifying(str(path)) as verifier:
        assert verifier.verify(issuer.token("ann")).principal == "ann"
        issuer.add("second")
        path.write_text(json.dumps(issuer.document()))
        until(lambda: _is_taken(verifier, issuer.token("ann", "second")))


@pytest.mark.parametrize(
    ("claims", "why"),
    [
        ({"exp": 1}, "the token has expired"),
        ({"exp": int(time.time()) - 31}, "the token has expired"),
        ({"exp": None}, "the token lacks exp, iss or aud"),
        ({"nbf": int(time.time()) + 3600}, "the token is not valid yet"),
        ({"aud": "another"}, "the token is for another audience"),
        ({"aud": ["another", "third"]}, "the token is for another audience"),
        ({"aud": None}, "the token lacks exp, iss or aud"),
        ({"iss": "https://issuer.example.org"}, "the token is of another issuer"),
        ({"iss": None}, "the token lacks exp, iss or aud"),
        ({"sub": None}, "the token has no claim that names a principal"),
        ({"sub": ""}, "the token has no claim that names a principal"),
    ],
)
def test_tokens_that_are_not_valid_here_and_now(
    issuer: Issuer, claims: dict[str, Any], why: str
) -> None:
    with verifying(issuer.url) as verifier:
        assert refused(verifier, issuer.token(**{"subject": "ann", **claims})) == why


def test_clocks_may_differ_by_the_leeway_and_the_audience_may_be_one_of_several(
    issuer: Issuer,
) -> None:
    with verifying(issuer.url, oidc_leeway_ms=600_000) as verifier:
        late = issuer.token("ann", exp=int(time.time()) - 60, nbf=int(time.time()) - 120)
        assert verifier.verify(late).principal == "ann"
        early = issuer.token("ann", nbf=int(time.time()) + 60, aud=["another", AUDIENCE])
        assert verifier.verify(early).principal == "ann"


@pytest.mark.parametrize("algorithm", ["none", "None", "HS256", "RS512", "", None, ["ES256"]])
def test_an_algorithm_that_is_not_allowed_is_refused_whatever_the_signature(
    issuer: Issuer, algorithm: Any
) -> None:
    with verifying(issuer.url) as verifier:
        forged = issuer.forge({"alg": algorithm, "typ": "JWT", "kid": "first"}, None)
        assert "not allowed" in refused(verifier, forged) or algorithm is None


def test_the_public_key_is_no_secret_to_sign_with(issuer: Issuer) -> None:
    """Algorithm confusion: an HMAC by the text of the public key, which everybody has."""
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    issuer.add("rsa", "RS256")
    public = issuer.keys["rsa"][1].public_key()
    pem = public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    with verifying(issuer.url) as verifier:
        for secret in (pem, pem.strip(), json.dumps(issuer.document()).encode()):
            refused(verifier, issuer.forge({"alg": "HS256", "kid": "rsa"}, secret))


def test_a_key_verifies_by_its_own_algorithm_alone(issuer: Issuer) -> None:
    issuer.add("rsa", "RS256")
    issuer.keys["named-ps"] = ("PS256", issuer.keys["rsa"][1])
    with verifying(issuer.url, oidc_algorithms="RS256,PS256,ES256") as verifier:
        crossed = issuer.token("ann", "named-ps", headers={"kid": "rsa"})
        assert refused(verifier, crossed) == "the issuer does not have this key for the algorithm"


def test_a_signature_of_another_key_is_refused(issuer: Issuer) -> None:
    other = Issuer()
    with verifying(issuer.url) as verifier:
        assert refused(verifier, other.token("ann")) == "the token's signature does not fit"
        head, claims, _ = issuer.token("ann").split(".")
        _, _, signature = issuer.token("bob").split(".")
        assert refused(verifier, f"{head}.{claims}.{signature}").startswith("the token's signature")


def test_a_token_that_names_no_key_needs_the_only_one(issuer: Issuer) -> None:
    with verifying(issuer.url) as verifier:
        assert verifier.verify(issuer.token("ann", headers={"typ": "JWT"})).principal == "ann"
    issuer.add("second")
    with verifying(issuer.url) as verifier:
        nameless = issuer.token("ann", headers={"typ": "JWT"})
        assert refused(verifier, nameless) == "the token does not name its key"


@pytest.mark.parametrize(
    "token",
    [
        "",
        ".",
        "..",
        "a.b.c",
        "eyJ.eyJ.",
        "é",
        "x" * 9_000,
        "bnVsbA.bnVsbA.bnVsbA",
        "W1tb" * 1_500 + ".e30.e30",
    ],
)
def test_what_is_no_token_is_refused(issuer: Issuer, token: str) -> None:
    with verifying(issuer.url) as verifier, pytest.raises(UnauthenticatedError):
        verifier.verify(token)


def test_headers_that_have_to_be_understood_are_refused(issuer: Issuer) -> None:
    with verifying(issuer.url) as verifier:
        headers = {"kid": "first", "crit": ["b64"], "b64": True}
        with pytest.raises(UnauthenticatedError):
            verifier.verify(issuer.token("ann", headers=headers))


# Whom it speaks for


def test_rules_make_a_principals_name_of_a_claim(issuer: Issuer) -> None:
    rules = r"RULE:^([^@]+)@corp\.example$/oidc-$1/L"
    given = {"oidc_principal_claim": "profile.email", "oidc_principal_rules": rules}
    with verifying(issuer.url, **given) as verifier:
        token = issuer.token("x", profile={"email": "Ann.Lee@corp.example"})
        assert verifier.verify(token).principal == "oidc-ann.lee"
        other = issuer.token("x", profile={"email": "ann@corp.example.org"})
        assert "oidc_principal_rules" in refused(verifier, other)
        assert "names a principal" in refused(verifier, issuer.token("x", profile="ann"))


@pytest.mark.parametrize("name", ["anonymous", "a b", "a/b", "é", "x" * 129])
def test_a_claim_that_is_no_principals_name_is_refused(issuer: Issuer, name: str) -> None:
    with verifying(issuer.url) as verifier:
        assert "not the name of a principal" in refused(verifier, issuer.token(name))


@pytest.mark.parametrize(
    ("values", "roles"),
    [
        (["lake.admins", "lake.readers", "unheard-of"], ("admin", "reader")),
        ("lake.readers openid", ("reader",)),
        (["admin", "reader"], ()),
        (None, ()),
        ({"lake.admins": True}, ()),
        ([["lake.admins"], 7], ()),
    ],
)
def test_only_mapped_values_of_the_claim_are_roles(
    issuer: Issuer, values: Any, roles: tuple[str, ...]
) -> None:
    mapping = {"lake.admins": "admin", "lake.readers": "reader"}
    given = {"oidc_roles_claim": "realm_access.roles", "oidc_roles": mapping}
    with verifying(issuer.url, **given) as verifier:
        token = issuer.token("ann", realm_access={"roles": values})
        assert verifier.verify(token).roles == roles


# Keys


def _is_taken(verifier: Verifier, token: str) -> bool:
    try:
        verifier.verify(token)
    except (ServerUnavailableError, UnauthenticatedError):
        return False
    return True


def test_a_new_key_is_fetched_when_a_token_names_it_and_an_old_one_is_forgotten(
    issuer: Issuer,
) -> None:
    with verifying(issuer.url) as verifier:
        old = issuer.token("ann")
        assert verifier.verify(old).principal == "ann"
        issuer.add("second")
        until(lambda: _is_taken(verifier, issuer.token("ann", "second")))
        del issuer.keys["first"]
        until(lambda: not _is_taken(verifier, old))


def test_tokens_that_name_unknown_keys_cause_few_fetches(issuer: Issuer) -> None:
    with verifying(issuer.url, oidc_refresh_ms=86_400_000) as verifier:
        begun = issuer.fetches
        for number in range(200):
            with pytest.raises(UnauthenticatedError):
                verifier.verify(issuer.token("ann", headers={"kid": f"k{number}"}))
        assert issuer.fetches == begun == 1


def test_the_fetch_that_an_unknown_key_causes_is_answered_by_a_retriable_error(
    issuer: Issuer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jwks, "_PAUSE_SECONDS", 0.0)
    with verifying(issuer.url, oidc_refresh_ms=86_400_000) as verifier:
        issuer.add("second")
        with pytest.raises(ServerUnavailableError) as caught:
            verifier.verify(issuer.token("ann", "second"))
        assert caught.value.retriable
        until(lambda: _is_taken(verifier, issuer.token("ann", "second")))


def test_keys_outlive_an_issuer_that_is_down_for_as_long_as_they_may(issuer: Issuer) -> None:
    clock = ManualClock()
    keys = KeySet(issuer.url, refresh_seconds=1.0, stale_seconds=100.0, clock=clock)
    keys.start()
    try:
        issuer.stop()
        until(lambda: keys.failures >= 2)
        clock.advance(100.0)
        assert keys.find("first", "ES256").id == "first"
        clock.advance(0.001)
        with pytest.raises(ServerUnavailableError):
            keys.find("first", "ES256")
    finally:
        keys.close()


def test_an_issuer_that_is_down_at_the_start_is_asked_again(issuer: Issuer) -> None:
    issuer.stop()
    with verifying(issuer.url) as verifier:
        with pytest.raises(ServerUnavailableError):
            verifier.verify(issuer.token("ann"))
        issuer.start()
        until(lambda: _is_taken(verifier, issuer.token("ann")))


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (500, None),
        (200, b"x" * (2 * 1024 * 1024)),
        (200, b"no JSON"),
        (200, b"[]"),
        (200, b'{"keys": []}'),
        (200, json.dumps({"keys": [{"kty": "oct", "k": "c2VjcmV0", "kid": "first"}]}).encode()),
    ],
)
def test_an_answer_that_is_no_key_set_changes_nothing(
    issuer: Issuer, status: int, body: bytes | None
) -> None:
    with verifying(issuer.url) as verifier:
        issuer.status, issuer.body = status, body
        until(lambda: verifier.keys.failures)
        assert verifier.verify(issuer.token("ann")).principal == "ann"


def test_redirects_are_not_followed(issuer: Issuer) -> None:
    other = Issuer().start()
    try:
        issuer.status, issuer.location = 302, other.url
        with verifying(issuer.url) as verifier:
            assert verifier.keys.failures == 1
            assert other.fetches == 0
    finally:
        other.stop()


def test_weak_private_and_symmetric_keys_are_left_out(issuer: Issuer) -> None:
    from cryptography.hazmat.primitives.asymmetric import ec, rsa
    from jwt.algorithms import ECAlgorithm, RSAAlgorithm

    weak = rsa.generate_private_key(public_exponent=65537, key_size=1024)
    listed = [
        {**json.loads(RSAAlgorithm.to_jwk(weak.public_key())), "kid": "weak"},
        {**json.loads(ECAlgorithm.to_jwk(ec.generate_private_key(ec.SECP256R1()))), "kid": "d"},
        {"kty": "oct", "k": "c2VjcmV0", "kid": "oct"},
        {**issuer.document()["keys"][0], "kid": "enc", "use": "enc"},
        "text",
        *issuer.document()["keys"],
    ]
    keys = jwks.parse_keys(json.dumps({"keys": listed}).encode())
    assert [key.id for key in keys] == ["first"]


# Settings


@pytest.mark.parametrize(
    ("setting", "given"),
    [
        ("oidc_jwks", {"oidc_jwks": "http://issuer.example/keys"}),
        ("oidc_jwks", {"oidc_jwks": "ftp://127.0.0.1/keys"}),
        ("oidc_jwks", {"oidc_jwks": "https://user:secret@issuer.example/keys"}),
        ("oidc_jwks", {"oidc_jwks": ""}),
        ("oidc_audience", {"oidc_audience": ""}),
        ("oidc_issuer", {"oidc_issuer": ""}),
        ("oidc_algorithms", {"oidc_algorithms": "none"}),
        ("oidc_algorithms", {"oidc_algorithms": "ES256,HS256"}),
        ("oidc_algorithms", {"oidc_algorithms": ""}),
        ("oidc_principal_claim", {"oidc_principal_claim": ""}),
        ("oidc_principal_rules", {"oidc_principal_rules": "RULE:([/x/"}),
        ("oidc_principal_rules", {"oidc_principal_rules": "RULE:a/$1/"}),
        ("oidc_principal_rules", {"oidc_principal_rules": "LET:a/b/"}),
        ("oidc_roles", {"oidc_roles_claim": "roles"}),
        ("oidc_roles_claim", {"oidc_roles": {"a": "admin"}}),
        ("oidc_roles", {"oidc_roles_claim": "roles", "oidc_roles": {"a": 7}}),
        ("oidc_leeway_ms", {"oidc_leeway_ms": 600_001}),
        ("oidc_refresh_ms", {"oidc_refresh_ms": 999}),
        ("oidc_stale_ms", {"oidc_stale_ms": 0}),
    ],
)
def test_settings_that_are_not_safe_or_not_complete_are_refused(
    setting: str, given: dict[str, Any]
) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        settings("https://issuer.example/keys", **{"oidc_jwks": "https://a.example/", **given})
    assert caught.value.facts["setting"] == setting


def test_a_file_of_keys_that_cannot_be_read_is_refused_at_the_start(tmp_path: Path) -> None:
    for text in (None, "no keys"):
        path = tmp_path / "keys.json"
        if text is not None:
            path.write_text(text)
        with pytest.raises(InvalidArgumentError) as caught:
            Verifier(settings(str(path)))
        assert caught.value.facts["oidc_jwks"] == str(path)


# A server


@pytest.fixture
def server(tmp_path: Path, issuer: Issuer) -> Iterator[Server]:
    mapping = {"lake-admins": "admin", "lake-writers": "writer"}
    config = settings(issuer.url, oidc_roles_claim="groups", oidc_roles=mapping)
    with Server(Log.open(tmp_path / "log"), config) as running:
        yield running


def test_a_log_without_tokens_is_not_open_once_there_is_an_issuer(
    server: Server, issuer: Issuer
) -> None:
    served = Served(server.log, server, None)  # type: ignore[arg-type]  # not looked at
    assert served.send("GET", "/v1/topics").code == "unauthenticated"
    with pytest.raises(UnauthenticatedError), lakebed.open(server.url, ClientConfig()) as log:
        log.topics()
    token = issuer.token("ann", groups=["lake-admins"])
    with lakebed.open(server.url, ClientConfig(token=token)) as log:
        log.create_topic("orders")
        assert log.topics() == ["orders"]


def test_the_issuers_tokens_and_the_logs_own_work_on_flight_http_and_websocket(
    server: Server, issuer: Issuer
) -> None:
    own = str(server.log.access.create_token("root", roles=["admin"]))
    server.log.create_topic("orders")
    served = Served(server.log, server, None)  # type: ignore[arg-type]
    writer = issuer.token("ann", groups=["lake-writers"])
    for token in (own, writer):
        bearer = {"Authorization": f"Bearer {token}"}
        with lakebed.open(server.url, ClientConfig(token=token)) as log:
            log.append("orders", b"by flight")
        body = json.dumps({"records": [{"value": "by http"}]}).encode()
        headers = {**bearer, "Content-Type": "application/json"}
        assert served.send("POST", "/v1/topics/orders/records", body, headers).status == 200
        url = f"ws://127.0.0.1:{server.http_port}/v1/topics/orders/writer"
        with connect(url, additional_headers=bearer) as socket:
            socket.send(json.dumps({"value": "by websocket"}))
            assert "offset" in json.loads(socket.recv())
    with (
        lakebed.open(server.url, ClientConfig(token=writer)) as log,
        pytest.raises(AccessDeniedError),
    ):
        log.read("orders")
    expired = issuer.token("ann", exp=1, groups=["lake-admins"])
    bearer = {"Authorization": f"Bearer {expired}"}
    assert served.send("GET", "/v1/topics", None, bearer).code == "unauthenticated"
    with pytest.raises(InvalidStatus), connect(url, additional_headers=bearer):
        pass
    with pytest.raises(UnauthenticatedError), lakebed.open(server.url, ClientConfig(token=expired)):
        pass


def test_grants_of_the_log_count_for_principals_of_the_issuer(
    server: Server, issuer: Issuer
) -> None:
    server.log.create_topic("orders")
    token = issuer.token("ann")
    with lakebed.open(server.url, ClientConfig(token=token)) as log:
        with pytest.raises(AccessDeniedError):
            log.read("orders")
        server.log.access.grant("ann", "reader", force=True)
        assert log.read("orders").num_rows == 0


def test_refusals_of_the_issuers_tokens_are_audited_without_the_token(
    tmp_path: Path, issuer: Issuer
) -> None:
    with Log.open(tmp_path / "log") as log:
        guard = Guard(log, settings(issuer.url))
        expired = issuer.token("ann", exp=1)
        with pytest.raises(UnauthenticatedError):
            guard.authenticate(expired)
        denied = guard.authenticate(issuer.token("ann", jti="t-7"))
        with pytest.raises(AccessDeniedError):
            guard.check(denied, "read", READ, ["orders"])
        assert guard.flush()
        first, second = rows(log, AUDIT_TOPIC)
        guard.close()
    assert (first["outcome"], first["reason"]) == ("unauthenticated", "the token has expired")
    assert (second["principal"], second["token"]) == ("ann", "t-7")
    assert expired not in json.dumps([first, second], default=str)
