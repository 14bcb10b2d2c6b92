"""Certificates that are replaced while a server runs, seen by real TLS clients."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import lakebed
from lakebed import Log, ServeConfig
from lakebed.client.config import ClientConfig
from lakebed.serve.renewal import LiveContext
from lakebed.serve.server import Server
from tests import forked
from tests.serve.certificates import Authority, Pair
from tests.waiting import PATIENCE_SECONDS, until


class Scene:
    """A server whose files can be replaced."""

    def __init__(self, folder: Path, *, mutual: bool = False) -> None:
        self.folder = folder
        self.authority = Authority(folder, "one")
        self.cert, self.key = str(folder / "live.pem"), str(folder / "live.key")
        self.ca = str(folder / "live.ca")
        self.install(self.authority.sign("server"))
        self.trust(self.authority)
        self.config = ServeConfig(
            port=0,
            http_port=0,
            tls_cert=self.cert,
            tls_key=self.key,
            tls_client_ca=self.ca if mutual else "",
            tls_reload_ms=100,
        )

    def install(self, pair: Pair) -> None:
        for source, target in ((pair.certificate, self.cert), (pair.key, self.key)):
            shutil.copyfile(source, f"{target}.new")
            os.replace(f"{target}.new", target)

    def trust(self, authority: Authority) -> None:
        shutil.copyfile(authority.certificate, f"{self.ca}.new")
        os.replace(f"{self.ca}.new", self.ca)


def print_of(path: str) -> str:
    return hashlib.sha256(ssl.PEM_cert_to_DER_cert(Path(path).read_text())).hexdigest()


def shown(port: int, *, alpn: bool = False) -> str:
    """Connect, and return the print of the certificate that the server shows; empty if refused."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    if alpn:
        context.set_alpn_protocols(["h2"])
    try:
        with (
            socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_SECONDS) as plain,
            context.wrap_socket(plain) as connection,
        ):
            return hashlib.sha256(connection.getpeercert(binary_form=True) or b"").hexdigest()
    except OSError:
        return ""


def test_a_handshake_uses_the_newest_context(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    prints = []
    live: LiveContext | None = None
    first = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    for name in ("one", "two", "three"):
        pair = authority.sign(name)
        context = first if live is None else ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(pair.certificate, pair.key)
        if live is None:
            live = LiveContext(first)
        else:
            live.replace(context)
        prints.append(print_of(pair.certificate))
        assert _handshake(first, authority.certificate) == prints[-1]
    assert len(set(prints)) == 3


def _handshake(server: ssl.SSLContext, ca: str) -> str:
    """Do a handshake in memory, and return the print of the certificate that the client sees."""
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = ssl.create_default_context(cafile=ca).wrap_bio(down, up, server_hostname="localhost")
    serving = server.wrap_bio(up, down, server_side=True)
    for _ in range(4):
        for side in (client, serving):
            with contextlib.suppress(ssl.SSLWantReadError):
                side.do_handshake()
    return hashlib.sha256(client.getpeercert(binary_form=True) or b"").hexdigest()


def test_both_ports_show_the_new_certificate_and_open_streams_go_on(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    client = ClientConfig(ca=scene.authority.certificate)
    with Server(Log.open(tmp_path / "log"), scene.config) as server:
        with lakebed.open(f"lakebed+tls://localhost:{server.port}", client) as log:
            log.create_topic("orders")
            with log.producer() as producer:
                producer.send("orders", b"before").result(PATIENCE_SECONDS)
                for number in range(3):
                    scene.install(scene.authority.sign(f"renewed-{number}", host="localhost"))
                    expected = print_of(scene.cert)
                    until(lambda: shown(server.http_port) == expected)  # noqa: B023  # at once
                    until(lambda: shown(server.port, alpn=True) == expected)  # noqa: B023
                    producer.send("orders", b"after").result(PATIENCE_SECONDS)
                    assert log.topics() == ["orders"]
            assert log.read("orders").num_rows == 4
        with lakebed.open(f"lakebed+tls://localhost:{server.port}", client) as log:
            assert log.read("orders").num_rows == 4


def test_files_that_do_not_fit_together_leave_the_old_ones(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    scene = Scene(tmp_path)
    before = print_of(scene.cert)
    with (
        caplog.at_level(logging.WARNING, "lakebed.serve"),
        Server(Log.open(tmp_path / "log"), scene.config) as server,
    ):
        Path(scene.key).write_text("no key")
        until(lambda: "the old ones stay" in caplog.text)
        assert shown(server.http_port) == shown(server.port, alpn=True) == before
        scene.install(scene.authority.sign("renewed"))
        expected = print_of(scene.cert)
        until(lambda: shown(server.http_port) == shown(server.port, alpn=True) == expected)


def test_new_authorities_of_clients_replace_the_old_ones(tmp_path: Path) -> None:
    scene = Scene(tmp_path, mutual=True)
    other = Authority(tmp_path, "two")
    old, new = scene.authority.sign("ann", host=None), other.sign("bob", host=None)

    def accepted(pair: Pair) -> tuple[bool, bool]:
        tls = ssl.create_default_context(cafile=scene.authority.certificate)
        tls.load_cert_chain(pair.certificate, pair.key)
        by_http = True
        try:
            with (
                socket.create_connection(("127.0.0.1", server.http_port), timeout=600) as plain,
                tls.wrap_socket(plain, server_hostname="localhost") as connection,
            ):
                connection.sendall(b"GET /health/live HTTP/1.1\r\nHost: localhost\r\n\r\n")
                by_http = connection.recv(15).startswith(b"HTTP/1.1 200")
        except OSError:
            by_http = False
        config = ClientConfig(
            ca=scene.authority.certificate, cert=pair.certificate, key=pair.key, retry_ms=0
        )
        try:
            with lakebed.open(f"lakebed+tls://localhost:{server.port}", config) as log:
                log.topics()
        except lakebed.LakebedError:
            return by_http, False
        return by_http, True

    with Server(Log.open(tmp_path / "log"), scene.config) as server:
        until(lambda: accepted(old) == (True, True))  # one attempt may be too slow
        assert accepted(new) == (False, False)
        scene.trust(other)
        until(lambda: accepted(new) == (True, True))
        assert accepted(old) == (False, False)


@pytest.fixture
def process(tmp_path: Path) -> Iterator[tuple[Scene, subprocess.Popen[str], int]]:
    scene = Scene(tmp_path)
    command = [sys.executable, "-m", "lakebed.cli", "serve", "--data", str(tmp_path / "log")]
    command += ["--port", "0", "--http-port", "0", "--tls-cert", scene.cert]
    command += ["--tls-key", scene.key, "--set", "tls_reload_ms=0"]
    command += ["--set", f"audit_file={tmp_path / 'audit.jsonl'}"]
    started = forked.Popen(command, stdout=subprocess.PIPE, text=True)
    assert started.stdout is not None
    line = started.stdout.readline()
    yield scene, started, int(line.strip().rpartition(":")[2])
    started.terminate()
    assert started.wait(PATIENCE_SECONDS) == 0
    started.stdout.close()


def test_sighup_takes_new_certificates(
    process: tuple[Scene, subprocess.Popen[str], int],
) -> None:
    scene, server, http_port = process
    scene.install(scene.authority.sign("renewed"))
    assert shown(http_port) != print_of(scene.cert)
    server.send_signal(signal.SIGHUP)
    until(lambda: shown(http_port) == print_of(scene.cert))
