"""A client that cannot get through says what is wrong, at once, if repeating would not mend it."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import lakebed
import lakebed.aio
from lakebed import ClientConfig, Log, ServeConfig
from lakebed.client import connection
from lakebed.client.diagnosis import diagnosis
from lakebed.errors import (
    InvalidArgumentError,
    ServerUnavailableError,
    TlsError,
    UnauthenticatedError,
)
from lakebed.serve.server import Server
from tests.serve.certificates import Authority
from tests.waiting import until


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


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port: int = taken.getsockname()[1]
        return port


def test_nobody_is_there() -> None:
    port = free_port()
    with pytest.raises(ServerUnavailableError) as caught:
        lakebed.open(f"lakebed://127.0.0.1:{port}", ClientConfig(retry_ms=100))
    assert caught.value.retriable


# A server that comes later

PATIENT = ClientConfig(retry_ms=600_000)


def open_topics(url: str) -> list[str]:
    with lakebed.open(url, PATIENT) as log:
        return log.topics()


def open_topics_with_asyncio(url: str) -> list[str]:
    async def main() -> list[str]:
        async with lakebed.aio.open(url, PATIENT) as log:
            return await log.topics()

    return asyncio.run(main())


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What clients found when they looked for a mistake; they look every two seconds."""
    found: list[Any] = []

    def look(*args: Any) -> Any:
        found.append(diagnosis(*args))
        return found[-1]

    monkeypatch.setattr(connection, "diagnosis", look)
    return found


@pytest.fixture
def thread() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as pool:
        yield pool


def await_looks(looks: list[Any], count: int, opening: Future[Any]) -> None:
    """Wait until a client has looked so often, which fails if it gives up before."""
    until(lambda: len(looks) >= count or opening.done())
    assert not opening.done(), opening.exception()


@pytest.mark.parametrize("open_there", [open_topics, open_topics_with_asyncio])
def test_a_writer_may_start_while_its_server_restarts(
    open_there: Callable[[str], list[str]],
    looks: list[Any],
    thread: ThreadPoolExecutor,
    tmp_path: Path,
) -> None:
    port = free_port()
    opening = thread.submit(open_there, f"lakebed://127.0.0.1:{port}")
    await_looks(looks, 4, opening)  # six seconds, which was too long once
    log = Log.open(tmp_path)
    log.create_topic("t")
    with Server(log, ServeConfig(port=port, http_port=-1)):
        assert opening.result(60) == ["t"]
    assert set(looks) == {None}


def test_a_mistake_that_shows_later_is_told_then(
    scene: Scene, looks: list[Any], thread: ThreadPoolExecutor, tmp_path: Path
) -> None:
    port = free_port()
    opening = thread.submit(open_topics, f"lakebed://127.0.0.1:{port}")
    await_looks(looks, 1, opening)
    pair = scene.authority.sign("later")
    config = ServeConfig(port=port, http_port=-1, tls_cert=pair.certificate, tls_key=pair.key)
    with Server(Log.open(tmp_path), config):
        assert isinstance(opening.exception(60), TlsError)


def test_a_wrong_token_is_told_at_once(tmp_path: Path, looks: list[Any]) -> None:
    log = Log.open(tmp_path)
    log.access.create_token("ann", roles=["admin"])
    with (
        Server(log, ServeConfig(port=0, http_port=-1)) as server,
        pytest.raises(UnauthenticatedError),
    ):
        lakebed.open(server.url, ClientConfig(token="wrong", retry_ms=600_000))
    assert looks == []


def test_a_cancelled_opening_ends_its_thread() -> None:
    async def main() -> None:
        opening = asyncio.ensure_future(_entered(f"lakebed://127.0.0.1:{free_port()}"))
        await asyncio.sleep(0)
        while not any(each.name.startswith("lakebed-aio") for each in threading.enumerate()):
            await asyncio.sleep(0.01)
        opening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await opening

    asyncio.run(main())
    until(lambda: not any(each.name.startswith("lakebed-aio") for each in threading.enumerate()))


async def _entered(url: str) -> None:
    async with lakebed.aio.open(url, PATIENT):
        pass
