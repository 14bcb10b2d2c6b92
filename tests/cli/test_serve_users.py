"""A served log for those who try it first: groups, roles and mistakes on the command line."""

from __future__ import annotations

import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

import lakebed
from tests.cli.engine import Shell
from tests.cli.test_serve import SECONDS, Served, client_environment, served, shell


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Return a server that several tests use, each with a topic of its own."""
    with served(tmp_path_factory.mktemp("shared") / "log") as server:
        yield server


# Members of a group


def held(remote: Shell, group: str) -> dict[str, list[int]]:
    """Return the partitions of each member of a group."""
    (found,) = remote.json("group", "describe", group)
    return {
        each["member"]: [place["partition"] for place in each["partitions"]]
        for each in found["members"]
    }


def test_two_that_consume_for_a_group_share_it(shared: Served) -> None:
    """What is written while both live is read by one of them, and by no third afterwards."""
    remote = shell(shared.url)
    remote.text("topic", "create", "split", "--partitions", 2)
    with lakebed.open(shared.url) as log, log.consumer("pair", ["split"]) as mine:
        assert mine.poll(0).num_rows == 0
        assert [len(each) for each in held(remote, "pair").values()] == [2]
        other = remote.start("consume", "split", "--group", "pair", "--follow", "--max", 1)
        try:
            deadline = time.monotonic() + SECONDS
            while sorted(held(remote, "pair").values()) != [[0], [1]]:
                assert time.monotonic() < deadline
                mine.poll(20)
            for partition in (0, 1):
                log.append("split", b"%d" % partition, partition=partition)
            table = mine.poll(SECONDS * 1000)
            mine.commit()
            out, said = other.communicate(timeout=SECONDS)
        finally:
            other.kill()
            other.wait(SECONDS)
        assert (other.returncode, said) == (0, b"")
        seen = [out.decode().strip(), *(each.decode() for each in table["value"].to_pylist())]
        assert sorted(seen) == ["0", "1"]
    assert remote.values("split", "--group", "pair") == []


def test_partitions_are_not_named_to_a_group_that_has_members(shared: Served) -> None:
    remote = shell(shared.url)
    remote.text("topic", "create", "named", "--partitions", 2)
    remote.text("produce", "named", "--partition", 1, given="one\n")
    with lakebed.open(shared.url) as log, log.consumer("holders", ["named"]) as consumer:
        consumer.heartbeat()
        error = remote.error("consume", "named", "--group", "holders", "--partition", 1)
        assert (error["code"], error["facts"]["members"]) == ("group_not_empty", 1)
        said = remote.text("group", "describe", "holders")
        assert f"{consumer.member}  named/0, named/1\n" in said
        assert "members  1\n" in said
    assert remote.values("named", "--group", "holders", "--partition", 1) == ["one"]
    assert remote.values("named", "--group", "holders", "--partition", 1) == []


def test_a_member_that_gets_no_partition_ends(
    shared: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = sys.modules["lakebed.cli.consume"]  # `lakebed.cli.consume` is the command
    monkeypatch.setattr(module, "_SHARE_SECONDS", 0.2)
    remote = shell(shared.url)
    remote.text("topic", "create", "single")
    remote.text("produce", "single", given="one\n")
    with lakebed.open(shared.url) as log, log.consumer("crowd", ["single"]) as consumer:
        consumer.heartbeat()
        assert remote.values("single", "--group", "crowd") == []
        assert consumer.poll(SECONDS * 1000)["value"].to_pylist() == [b"one"]


# Addresses and settings


@pytest.mark.parametrize(
    ("target", "meant"),
    [
        ("localhost:4747", "lakebed://localhost:4747"),
        ("lakebed+tls:/localhost:4747", "lakebed+tls://localhost:4747"),
        ("lakebed:localhost:4747", "lakebed://localhost:4747"),
        ("[::1]:4747", "lakebed://[::1]:4747"),
    ],
)
def test_an_address_that_is_no_url_is_told_which_was_meant(target: str, meant: str) -> None:
    for command in (("topic", "list"), ("token", "create", "ann")):
        error = shell(target).error(*command)
        assert (error["code"], f"did you mean {meant}?" in error["message"]) == ("not_a_log", True)
    assert not Path(target).exists()


def test_a_port_that_is_taken_leaves_no_log_behind_and_says_what_to_do(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        log = shell(tmp_path / "log")
        said = log.run("serve", "--port", port, "--http-port", -1, code=1).stderr
        assert "error: the server cannot listen there: choose another --port" in said
        assert not log.folder.exists()
        lakebed.open(log.folder).close()
        said = log.run("serve", "--port", port, "--http-port", -1, code=1).stderr
        assert "why=Address already in use" in said
    lakebed.open(log.folder).close()  # it was released


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["--host", "no-such-host.invalid", "--insecure"], "the server cannot listen there"),
        (["--host", "0.0.0.0"], "an address that others can reach needs"),
        (["--tls-cert", "{}/none.pem", "--tls-key", "{}/none.key"], "cannot be read"),
        (["--tls-cert", "{}/text", "--tls-key", "{}/text"], "the certificates cannot be used"),
        (["--tls-cert", "{}/none.pem"], "tls_key must be given too"),
        (["--http-port", "{port}"], "choose another --http-port"),
        (["--set", "log_format=jsn"], "option=--set log_format"),
    ],
)
def test_a_start_that_fails_leaves_no_log_behind(
    tmp_path: Path, options: list[str], text: str
) -> None:
    (tmp_path / "text").write_text("no certificate")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        filled = [each.replace("{port}", str(port)).format(tmp_path) for each in options]
        log = shell(tmp_path / "log")
        assert text in log.run("serve", "--port", 0, *filled, code=1).stderr
    assert not log.folder.exists()


def test_a_setting_that_does_not_exist_is_answered_with_those_that_do(tmp_path: Path) -> None:
    log = shell(tmp_path / "log")
    said = " ".join(log.usage("serve", "--set", "prot=5").split())
    assert "unknown setting 'prot'; did you mean 'port'?" in said
    unknown = " ".join(log.usage("serve", "--set", "xyz=5").split())
    assert "unknown setting 'xyz'; known are host, port, http_port" in unknown
    assert "Invalid value for '--set': 'backups' is not NAME=VALUE" in log.usage(
        "serve", "--set", "backups"
    )
    assert not log.folder.exists()


@pytest.mark.parametrize(
    ("pair", "text"),
    [
        ("log_format=jsn", "log_format must be one of text | json option=--set log_format"),
        ("port=many", "port must be an integer option=--set port value='many'"),
        ("port=99999", "port must be an integer from 0 to 65535 option=--set port"),
        ("audit=yes", "audit must be true or false option=--set audit"),
    ],
)
def test_a_setting_that_is_refused_is_named_as_it_was_given(
    tmp_path: Path, pair: str, text: str
) -> None:
    said = shell(tmp_path / "log").run("serve", "--set", pair, code=1).stderr
    assert f"error: {text}" in said
    assert "LAKEBED_" not in said


def test_a_folder_that_is_served_already_is_an_error_that_says_where(shared: Served) -> None:
    said = shell(shared.folder).run("serve", "--port", 0, "--http-port", -1, code=1).stderr
    assert f"advice: a server owns it: connect to that by --data {shared.url}" in said


# Tokens and roles


def test_the_first_token_of_an_open_server_is_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though its making shuts out whoever made it, as everybody who has no token."""
    client_environment(monkeypatch)
    with served(tmp_path / "log") as server:
        remote = shell(server.url)
        for call in (("allow", "clerk", "read"), ("grant", "bob", "clerk")):
            assert "create an administrator first" in remote.error("access", *call)["message"]
        (made,) = remote.json("token", "create", "root", "--role", "admin", "--expires", "1d")
        assert remote.error("topic", "list")["code"] == "unauthenticated"
        assert made["expires_us"] - made["created_us"] == 86_400_000_000
        client_environment(monkeypatch, token=made["token"] + "\n")  # as out of a file
        remote.text("topic", "create", "orders")
        assert [each["id"] for each in remote.json("token", "list")] == [made["id"]]


def test_the_first_token_without_an_administrator_is_printed_with_a_hint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client_environment(monkeypatch)
    with served(tmp_path / "log") as server:
        remote = shell(server.url)
        said = remote.run("token", "create", "ann", "--role", "reader", "--expires", "never")
        assert "hint: the log has no administrator yet" in said.stderr
        assert "of ann, valid without end" in said.stderr
        client_environment(monkeypatch, token=said.stdout.strip())
        remote.text("topic", "list")


def test_a_writer_produces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without leave to read."""
    client_environment(monkeypatch)
    with lakebed.open(tmp_path / "log") as log:
        log.create_topic("raw")
        log.create_topic("typed", schema=pa.schema([("id", pa.int64())]))
        log.access.create_token("root", roles=["admin"])
        token = log.access.create_token("till", roles=["writer"])
    with served(tmp_path / "log") as server:
        remote = shell(server.url)
        client_environment(monkeypatch, token=str(token))
        assert "1 record written" in remote.text("produce", "raw", given="one\n")
        assert "1 record written" in remote.text("produce", "typed", given='{"id": 7}\n')
        assert remote.error("produce", "none", given="x\n")["code"] == "topic_not_found"
        assert remote.error("consume", "raw")["code"] == "access_denied"
        assert server.end() == 0
    assert shell(tmp_path / "log").values("typed") == [{"id": 7}]
