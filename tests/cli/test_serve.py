"""`lakebed serve` as a program, and commands over its URL: alike, in good order, and guarded."""

from __future__ import annotations

import contextlib
import json
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.flight as fl
import pytest

import lakebed
from lakebed import ClientConfig, errors
from lakebed.cli import data
from tests.cli.engine import Shell
from tests.serve.certificates import Authority

SECONDS = 600
"""More than anything here takes, unless it hangs."""


class Served:
    """A running `lakebed serve`."""

    def __init__(self, folder: Path, *options: object, port: int = 0) -> None:
        self.folder = folder
        self.process = Shell(folder).start("serve", "--port", port, "--http-port", -1, *options)
        self._lines: list[str] = []
        self._said = threading.Condition()
        assert self.process.stdout is not None
        self.line = self.process.stdout.readline().decode()
        threading.Thread(target=self._listen, daemon=True).start()

    @property
    def url(self) -> str:
        """Where it is served, as it says itself."""
        assert self.line, self.errors()
        return self.line.split(" at ")[1].strip()

    @property
    def port(self) -> int:
        """The port it listens on."""
        return int(self.url.rpartition(":")[2])

    def _listen(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            with self._said:
                self._lines.append(line.decode())
                self._said.notify_all()

    def says(self, text: str) -> str:
        """Wait for a line on stderr with this in it, and return it."""
        with self._said:
            found = self._said.wait_for(
                lambda: next((line for line in self._lines if text in line), None), SECONDS
            )
        assert found is not None, self._lines
        return found

    def errors(self) -> str:
        """Return what a process that has ended wrote to stderr."""
        self.process.wait(SECONDS)
        self.says("")
        return "".join(self._lines)

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Send a signal, and return the exit code."""
        self.process.send_signal(number)
        return self.process.wait(SECONDS)


@contextlib.contextmanager
def served(folder: Path, *options: object, port: int = 0) -> Iterator[Served]:
    server = Served(folder, *options, port=port)
    try:
        yield server
    finally:
        server.process.kill()
        server.process.wait(SECONDS)
        for stream in (server.process.stdout, server.process.stderr):
            if stream is not None:
                stream.close()


def shell(target: Path | str) -> Shell:
    return Shell(target)  # type: ignore[arg-type]  # a URL is given where a folder would be


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Return a server that several tests use, each with a topic of its own."""
    with served(tmp_path_factory.mktemp("shared") / "log") as server:
        yield server


# Commands over a URL


COMMANDS: list[tuple[str, ...]] = [
    ("topic", "create", "orders", "--partitions", "2"),
    ("topic", "list"),
    ("produce", "orders", "--key-separator", ":"),
    ("topic", "describe", "orders"),
    ("topic", "alter", "orders", "--config", "retention_ms=86400000"),
    ("consume", "orders"),
    ("consume", "orders", "--group", "billing", "--max", "2"),
    ("group", "list"),
    ("group", "describe", "billing"),
    ("group", "reset", "billing", "--topic", "orders", "--to", "earliest"),
    ("checkpoint",),
    ("lake", "sync", "orders"),
    ("lake", "tables"),
    ("lake", "describe", "orders"),
    ("lake", "history", "orders"),
    ("lake", "gc"),
    ("retain",),
    ("stats",),
    ("top", "--once", "--interval", "0.05"),
    ("access", "list"),
    ("token", "list"),
    ("group", "delete", "billing", "--yes"),
    ("topic", "purge", "orders", "--yes"),
    ("topic", "delete", "orders", "--yes"),
]
LINES = "a:1\nb:2\nc:3\nd:4\n"


def shapes(lines: list[dict[str, Any]]) -> list[tuple[str, ...]]:
    """Return the names in each line; the audit's own topic is not in an embedded log."""
    own = [each for each in lines if each.get("topic") != "__audit"]
    return [tuple(sorted(each)) for each in own]


def test_every_command_says_over_a_url_what_it_says_of_a_folder(tmp_path: Path) -> None:
    embedded = shell(tmp_path / "embedded")
    with served(tmp_path / "served") as server:
        remote = shell(server.url)
        for command in COMMANDS:
            given = LINES if command[0] == "produce" else None
            here, there = (each.json(*command, given=given) for each in (embedded, remote))
            assert shapes(here) == shapes(there), command
            if command[0] == "consume":
                assert [(each["key"], each["value"]) for each in here] == [
                    (each["key"], each["value"]) for each in there
                ]
        assert remote.json("topic", "list") == []


def test_the_folder_of_a_server_can_be_named_instead_of_its_url(shared: Served) -> None:
    shell(shared.folder).text("topic", "create", "orders")
    shell(shared.url).text("produce", "orders", given="one\ntwo\n")
    assert shell(shared.folder).values("orders") == ["one", "two"]


def test_a_follower_sees_what_another_process_produces(shared: Served) -> None:
    remote = shell(shared.url)
    remote.text("topic", "create", "followed")
    follower = remote.start("consume", "followed", "--follow", "--max", 3)
    for text in ("one", "two", "three"):
        remote.text("produce", "followed", given=f"{text}\n")
    out, said = follower.communicate(timeout=SECONDS)
    assert (out.decode().split(), said, follower.returncode) == (["one", "two", "three"], b"", 0)


@pytest.mark.parametrize(
    "command",
    [
        ("doctor", "--data"),
        ("config", "--data"),
        ("serve", "--data"),
        ("restore", "somewhere", "--data"),
        ("wal", "inspect"),
        ("wal", "verify"),
    ],
    ids=" ".join,
)
def test_commands_that_need_the_folder_refuse_a_url(
    tmp_path: Path, command: tuple[str, ...]
) -> None:
    assert "folder" in shell(tmp_path).usage(*command, "lakebed://127.0.0.1:1")
    assert not list(Path().glob("lakebed:*"))


# Errors


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look for a server for a moment only."""
    monkeypatch.setattr(data, "_CONNECT_MS", 300)


@pytest.mark.usefixtures("impatient")
def test_a_server_that_is_not_there_is_an_error_like_others() -> None:
    with socket.create_server(("127.0.0.1", 0)) as unused:
        port = unused.getsockname()[1]
    missing = shell(f"lakebed://127.0.0.1:{port}")
    found = missing.error("topic", "list")
    assert (found["code"], found["retriable"]) == ("server_unavailable", True)
    said = missing.run("topic", "list", code=1).stderr
    assert said.startswith("error: the server does not answer")
    assert "\nadvice: " in said


@pytest.mark.parametrize(
    ("url", "text"),
    [
        ("http://127.0.0.1:1", "lakebed://HOST:PORT"),
        ("lakebed://127.0.0.1:99999", "not a log's URL"),
        ("lakebed://lkb_x@127.0.0.1:1", "LAKEBED_TOKEN"),
        ("lakebed://127.0.0.1:1/orders", "a host and a port"),
    ],
)
def test_a_url_that_is_none_is_told_so(url: str, text: str) -> None:
    assert text in shell(url).run("topic", "list", code=1).stderr


def test_a_port_that_is_taken_is_an_error(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with served(tmp_path / "log", port=port) as server:
            assert (server.line, server.process.wait(SECONDS)) == ("", 1)
            assert "error: the server cannot listen there" in server.errors()
            assert "=Address already in use" in server.errors()
            assert "E0000" not in server.errors()  # gRPC's own way to say it
    with lakebed.open(tmp_path / "log") as log:  # it was released
        assert log.topics() == []


def test_a_backup_of_a_served_log_has_a_name_and_goes_to_the_servers_folder(
    tmp_path: Path, shared: Served
) -> None:
    error = shell(shared.url).error("backup", "monday")
    assert "start the server with `--set backups=DIR`" in error["message"]
    with served(tmp_path / "log", "--set", f"backups={tmp_path / 'saved'}") as server:
        remote = shell(server.url)
        for path in (tmp_path / "monday", "../monday", "a/b"):
            error = remote.error("backup", path)
            assert error["code"] == "invalid_name"
            assert "a plain name" in error["message"]
        assert remote.error("backup", "..")["code"] == "invalid_name"
        remote.text("backup", "monday")
    assert (tmp_path / "saved" / "monday" / "backup.json").exists()
    assert not (tmp_path / "monday").exists()


def test_a_folder_that_is_served_already_is_an_error(shared: Served) -> None:
    with served(shared.folder) as second:
        assert (second.line, second.process.wait(SECONDS)) == ("", 1)
        assert "(code: locked)" in second.errors()
    assert shell(shared.url).run("topic", "list").exit_code == 0


def test_settings_that_do_not_exist_are_refused_before_anything_is_served(tmp_path: Path) -> None:
    assert "unknown setting 'colour'" in shell(tmp_path / "log").usage(
        "serve", "--set", "colour=red"
    )


# The end


def test_a_signal_stops_in_good_order_and_nothing_is_lost(tmp_path: Path) -> None:
    with served(tmp_path / "log") as server:
        assert server.line == f"serving {tmp_path / 'log'} at {server.url}\n"
        with lakebed.open(server.url) as log:
            log.create_topic("orders")
            log.append_batch("orders", [b"%d" % number for number in range(1000)])
            assert server.end() == 0
        assert "stopping\n" in server.errors()
    with lakebed.open(tmp_path / "log") as log:
        assert log.stats().memtable_records == 0  # the last checkpoint has everything
        assert log.offsets("orders") == {0: (0, 1000)}


def test_everything_on_stderr_is_json_if_asked_for(tmp_path: Path) -> None:
    """Also when clients are refused and when it stops."""
    pair = Authority(tmp_path).sign("server")
    tls = ["--tls-cert", pair.certificate, "--tls-key", pair.key]
    with lakebed.open(tmp_path / "log") as log:
        log.access.create_token("ann", roles=["admin"])
    with served(tmp_path / "log", "--host", "localhost", "--log-format", "json", *tls) as server:
        url = f"lakebed+tls://localhost:{server.port}"
        refused = ClientConfig(ca=str(tmp_path / "authority.pem"), retry_ms=1000)
        with pytest.raises(errors.UnauthenticatedError):
            lakebed.open(url, refused)
        with pytest.raises(errors.LakebedError):  # it does not trust that certificate
            lakebed.open(url, ClientConfig(ca=pair.certificate, retry_ms=200))
        with pytest.raises(errors.LakebedError):
            lakebed.open(url.replace("+tls", ""), ClientConfig(retry_ms=200))
        assert server.end() == 0
        said = [json.loads(line)["message"] for line in server.errors().splitlines()]
    assert "a call was refused: the call has no token" in said
    assert said[-2:] == ["stopping", f"stopped: log={tmp_path / 'log'}"]


def test_a_second_signal_ends_a_server_that_is_held_up(tmp_path: Path) -> None:
    with served(tmp_path / "log") as server:
        shell(server.url).text("topic", "create", "orders")
        client = fl.connect(server.url.replace("lakebed", "grpc"))
        rows = pa.record_batch({"value": pa.array([b"acknowledged"])})
        writer, answers = client.do_put(fl.FlightDescriptor.for_path("orders"), rows.schema)
        writer.write_batch(rows)
        assert answers.read() is not None
        # This client keeps its stream open, whatever the server says: stopping waits for it.
        server.process.send_signal(signal.SIGTERM)
        server.says("stopping")
        with pytest.raises(subprocess.TimeoutExpired):
            server.process.wait(0.5)
        assert server.end() == 128 + signal.SIGTERM
        with contextlib.suppress(pa.ArrowException):
            writer.close()
    assert shell(tmp_path / "log").values("orders") == ["acknowledged"]


def test_clients_go_on_after_a_server_was_killed_and_started_again(tmp_path: Path) -> None:
    with served(tmp_path / "log") as first:
        log = lakebed.open(first.url, ClientConfig(retry_ms=SECONDS * 1000))
        log.create_topic("orders")
        acks = [log.append("orders", b"before")]
        assert first.end(signal.SIGKILL) == -signal.SIGKILL
        meanwhile = log.append_async("orders", b"meanwhile")
        with log, served(tmp_path / "log", port=first.port) as second:
            acks += [meanwhile.result(SECONDS), log.append("orders", b"after")]
            assert [ack.offset for ack in acks] == [0, 1, 2]
            assert shell(second.url).values("orders") == ["before", "meanwhile", "after"]
            assert second.end() == 0


# Tokens and TLS


def client_environment(monkeypatch: pytest.MonkeyPatch, **values: str | None) -> None:
    for name in ("TOKEN", "CA", "CERT", "KEY"):
        value = values.get(name.lower())
        if value is None:
            monkeypatch.delenv(f"LAKEBED_{name}", raising=False)
        else:
            monkeypatch.setenv(f"LAKEBED_{name}", value)


def tls_options(authority: Authority) -> list[str]:
    pair = authority.sign("server")
    return ["--host", "localhost", "--tls-cert", pair.certificate, "--tls-key", pair.key]


@pytest.mark.usefixtures("impatient")
def test_tokens_over_tls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    authority = Authority(tmp_path)
    with lakebed.open(tmp_path / "log") as log:
        good = log.access.create_token("ann", roles=["admin"])
        reader = log.access.create_token("bob", roles=["reader"])
        expired = log.access.create_token("ann", expires_ms=1)
        revoked = log.access.create_token("eve", roles=["admin"])
        (number,) = [each.id for each in log.access.tokens() if each.principal == "eve"]
    with lakebed.open(tmp_path / "other") as log:
        foreign = log.access.create_token("ann", roles=["admin"])
    with served(tmp_path / "log", *tls_options(authority)) as server:
        assert server.url == f"lakebed+tls://localhost:{server.port}"
        remote = shell(server.url)

        def code(token: str | None, ca: str = authority.certificate) -> str:
            client_environment(monkeypatch, token=token, ca=ca)
            return str(remote.error("topic", "list")["code"])

        client_environment(monkeypatch, token=str(good), ca=authority.certificate)
        remote.text("topic", "create", "orders")
        remote.text("produce", "orders", given="secret\n")
        assert remote.values("orders") == ["secret"]
        remote.text("token", "revoke", number)
        for token in (None, "lkb_nonsense", str(expired), str(revoked), str(foreign)):
            assert code(token) == "unauthenticated", token
        stranger = Authority(tmp_path, "stranger")
        assert code(str(good), stranger.certificate) == "tls"
        client_environment(monkeypatch, token=str(good))
        plain = shell(server.url.replace("+tls", ""))
        assert plain.error("topic", "list")["code"] == "tls"
        client_environment(monkeypatch, token=str(reader), ca=authority.certificate)
        assert remote.values("orders") == ["secret"]
        found = remote.error("topic", "delete", "orders", "--yes")
        assert (found["code"], found["facts"]["principal"]) == ("access_denied", "bob")
        assert server.end() == 0
        assert str(good) not in server.errors()


@pytest.mark.usefixtures("impatient")
def test_a_certificate_says_who_calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    authority, stranger = Authority(tmp_path), Authority(tmp_path, "stranger")
    with lakebed.open(tmp_path / "log") as log:
        log.access.grant("till-7", "admin")
    options = [*tls_options(authority), "--tls-client-ca", authority.certificate]
    known, unknown = authority.sign("till-7", host=None), stranger.sign("till-8", host=None)
    with served(tmp_path / "log", *options) as server:
        remote = shell(server.url)
        ca = authority.certificate
        client_environment(monkeypatch, ca=ca, cert=known.certificate, key=known.key)
        remote.text("topic", "create", "orders")
        with lakebed.open(server.url) as log:
            assert getattr(log, "principal") == "till-7"  # noqa: B009  # a served log's alone
        client_environment(monkeypatch, ca=ca)
        assert remote.error("topic", "list")["code"] == "tls"
        client_environment(monkeypatch, ca=ca, cert=unknown.certificate, key=unknown.key)
        assert remote.error("topic", "list")["code"] in ("tls", "server_unavailable")


@pytest.mark.parametrize("field", ["ca", "cert"])
def test_a_file_of_tls_that_is_not_there_is_told_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, field: str
) -> None:
    missing = str(tmp_path / "none.pem")
    client_environment(monkeypatch, **{field: missing, "key": missing})
    found = shell("lakebed+tls://localhost:1").error("topic", "list")
    assert (found["code"], found["facts"]["file"]) == ("invalid_argument", missing)


def test_others_are_served_with_tls_and_tokens_or_when_asked_to(tmp_path: Path) -> None:
    """Also with TLS alone, or tokens alone, it is refused."""
    pair = Authority(tmp_path).sign("server")
    tls = ["--tls-cert", pair.certificate, "--tls-key", pair.key]
    refused = shell(tmp_path / "log").run("serve", "--host", "0.0.0.0", "--port", 0, code=1)
    assert "TLS (tls_cert and tls_key) and a token or a rule" in refused.stderr
    refused = shell(tmp_path / "log").run("serve", "--host", "0.0.0.0", "--port", 0, *tls, code=1)
    assert "needs a token or a rule" in refused.stderr
    with lakebed.open(tmp_path / "log") as log:
        log.access.create_token("ann", roles=["admin"])
    refused = shell(tmp_path / "log").run("serve", "--host", "0.0.0.0", "--port", 0, code=1)
    assert "needs TLS" in refused.stderr
    with served(tmp_path / "log", "--host", "0.0.0.0", "--insecure") as server:
        assert "anyone who reaches this address" in server.says("anyone")
        with pytest.raises(errors.UnauthenticatedError):
            lakebed.open(f"lakebed://127.0.0.1:{server.port}", ClientConfig(retry_ms=1000))
