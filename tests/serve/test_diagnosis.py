"""A client that cannot get through says what is wrong, at once, if repeating would not mend it."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

import lakebed
from lakebed import ClientConfig, Log, ServeConfig
from lakebed.errors import InvalidArgumentError, ServerUnavailableError, TlsError
from lakebed.serve.server import Server
from tests.serve.certificates import Authority


class Scene(NamedTuple):
    """A server with TLS, one without, and who signs for whom."""

    secured: Server
    plain: Server
    authority: Authority
    folder: Path


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    folder = tmp_path_factory.mktemp("diagnosis")
    authority = Authority(folder)
    pair = authority.sign("server")
    config = ServeConfig(
        port=0,
        http_port=0,
        tls_cert=pair.certificate,
        tls_key=pair.key,
        tls_client_ca=authority.certificate,
    )
    with (
        Server(Log.open(folder / "a"), config) as secured,
        Server(Log.open(folder / "b"), ServeConfig(port=0, http_port=0)) as plain,
    ):
        yield Scene(secured, plain, authority, folder)


def refused(url: str, config: ClientConfig | None = None) -> TlsError:
    with pytest.raises(TlsError) as caught:
        lakebed.open(url, config)
    assert not caught.value.retriable
    return caught.value


def client(scene: Scene, name: str = "ann") -> ClientConfig:
    pair = scene.authority.sign(name, host=None)
    return ClientConfig(ca=scene.authority.certificate, cert=pair.certificate, key=pair.key)


def test_with_the_right_certificates_it_gets_through(scene: Scene) -> None:
    with lakebed.open(f"lakebed+tls://localhost:{scene.secured.port}", client(scene)) as log:
        assert log.topics() == []


def test_an_authority_that_is_not_known(scene: Scene) -> None:
    other = Authority(scene.folder, "other")
    url = f"lakebed+tls://localhost:{scene.secured.port}"
    error = refused(url, ClientConfig(ca=other.certificate))
    assert "certificate" in error.message and error.facts["ca"] == other.certificate


def test_a_name_that_is_not_in_the_certificate(scene: Scene) -> None:
    url = f"lakebed+tls://127.0.0.1:{scene.secured.port}"
    error = refused(url, client(scene))
    assert "127.0.0.1" in str(error.facts["reason"])


def test_tls_that_is_not_asked_for_or_not_there(scene: Scene) -> None:
    assert "lakebed+tls://" in refused(f"lakebed://localhost:{scene.secured.port}").message
    config = ClientConfig(ca=scene.authority.certificate)
    url = f"lakebed+tls://localhost:{scene.plain.port}"
    assert "use lakebed://" in refused(url, config).message


def test_the_port_of_http(scene: Scene) -> None:
    assert "HTTP" in refused(f"lakebed://localhost:{scene.plain.http_port}").message
    url = f"lakebed+tls://localhost:{scene.secured.http_port}"
    assert "HTTP" in refused(url, client(scene)).message


def test_a_certificate_of_the_client_that_is_missing(scene: Scene) -> None:
    url = f"lakebed+tls://localhost:{scene.secured.port}"
    error = refused(url, ClientConfig(ca=scene.authority.certificate))
    assert "LAKEBED_CERT" in error.message


def test_files_that_cannot_be_meant(scene: Scene, tmp_path: Path) -> None:
    (tmp_path / "text").write_text("no certificate")
    url = f"lakebed+tls://localhost:{scene.secured.port}"
    authority = scene.authority.certificate
    for config, told in (
        (ClientConfig(ca=str(tmp_path / "text")), "not PEM"),
        (ClientConfig(ca=str(tmp_path / "none")), "cannot be read"),
        (ClientConfig(ca=authority, cert=authority), "LAKEBED_CERT and LAKEBED_KEY"),
    ):
        with pytest.raises(InvalidArgumentError, match=told):
            lakebed.open(url, config)


def test_nobody_is_there() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with pytest.raises(ServerUnavailableError) as caught:
        lakebed.open(f"lakebed://127.0.0.1:{port}", ClientConfig(retry_ms=100))
    assert caught.value.retriable
