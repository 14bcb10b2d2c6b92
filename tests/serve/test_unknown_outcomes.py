"""What may have been written: it is never said to be refused, and never takes another's place."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lakebed
from lakebed import ClientConfig, Log, ServeConfig
from lakebed.client.log import RemoteLog
from lakebed.engine.restore import restore
from lakebed.errors import LakebedError, UnknownOutcomeError
from lakebed.serve.server import Server
from lakebed.state.commands import ForgetProducer
from tests.engine.support import rows, submit
from tests.serve.inside import connection_of
from tests.serve.support import ServerProcess
from tests.waiting import until

CONFIG = {"http_port": -1, "stop_timeout_ms": 1000}


def serve(folder: Path, port: int = 0, **settings: Any) -> Server:
    return Server(Log.open(folder), ServeConfig(port=port, **{**CONFIG, **settings})).start()


class Wire:
    """A connection between client and server that loses answers, and is cut."""

    def __init__(self, to: int) -> None:
        self._to = to
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._deaf: set[socket.socket] = set()
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                far = socket.create_connection(("127.0.0.1", self._to))
                self._pairs.append((near, far))
                for way in ((near, far), (far, near)):
                    self._threads.append(threading.Thread(target=self._pipe, args=way, daemon=True))
                    self._threads[-1].start()

    def _pipe(self, one: socket.socket, other: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := one.recv(65_536):
                if one not in self._deaf:
                    other.sendall(data)

    def lose_answers(self) -> None:
        """Let nothing come back any more on the connections that are open."""
        self._deaf.update(far for _, far in self._pairs)

    def cut(self, *, refuse: bool = False) -> None:
        """End the client's side of those; with `refuse` there is no other connection either."""
        if refuse:
            self._listener.shutdown(socket.SHUT_RDWR)
            self._listener.close()
        for near, far in list(self._pairs):
            if far in self._deaf:
                with contextlib.suppress(OSError):
                    near.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """End everything."""
        for each in [self._listener, *(each for pair in self._pairs for each in pair)]:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(600)
        for each in [self._listener, *(each for pair in self._pairs for each in pair)]:
            each.close()

    def end(self) -> None:
        """End the server's side too."""
        for _, far in self._pairs:
            if far in self._deaf:
                with contextlib.suppress(OSError):
                    far.shutdown(socket.SHUT_RDWR)


def client(port: int, retry_ms: int = 20_000) -> RemoteLog:
    log = lakebed.open(f"lakebed://127.0.0.1:{port}", ClientConfig(retry_ms=retry_ms))
    assert isinstance(log, RemoteLog)
    return log


def test_a_sync_that_failed_does_not_swallow_the_next_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = serve(tmp_path / "log")
    log = client(server.port)
    log.create_topic("t")
    log.append("t", b"first")
    real, failures = os.fdatasync, iter([True])

    def failing(descriptor: int) -> None:
        if next(failures, False):
            raise OSError(5, "EIO")
        real(descriptor)

    monkeypatch.setattr(os, "fdatasync", failing)
    with pytest.raises(UnknownOutcomeError):
        log.append("t", b"doubtful")
    port = server.port
    server.stop()
    server = serve(tmp_path / "log", port)
    acks = [log.append("t", value).offset for value in (b"third", b"fourth")]
    held = rows(server.log, "t")
    assert [held[offset] for offset in acks] == [b"third", b"fourth"]
    assert held.count(b"doubtful") <= 1
    log.close()
    server.stop()


def test_a_lost_answer_and_a_server_that_is_full_then(tmp_path: Path) -> None:
    """The record is written; the stream on which it would be sent again is refused for a while."""
    server = serve(tmp_path / "log", connections_max=1)
    wire = Wire(server.port)
    log = client(wire.port)
    log.create_topic("t")
    log.append("t", b"first")
    wire.lose_answers()
    second = log.append_async("t", b"second")
    until(lambda: server.log.offsets("t")[0][1] == 2)
    wire.cut()
    wire.end()
    assert second.result(600).offset == 1
    assert log.append("t", b"third").offset == 2
    assert rows(server.log, "t") == [b"first", b"second", b"third"]
    log.close()
    wire.close()
    server.stop()


def test_a_lost_answer_and_nobody_there_any_more(tmp_path: Path) -> None:
    server = serve(tmp_path / "log")
    wire = Wire(server.port)
    log = client(wire.port, retry_ms=700)
    log.create_topic("t")
    log.append("t", b"first")
    wire.lose_answers()
    second = log.append_async("t", b"second")
    until(lambda: server.log.offsets("t")[0][1] == 2)
    wire.cut(refuse=True)
    with pytest.raises(UnknownOutcomeError):
        second.result(600)
    log.close()
    wire.close()
    server.stop()


def test_a_commit_whose_answer_is_lost_is_not_said_to_be_aborted(tmp_path: Path) -> None:
    server = serve(tmp_path / "log")
    wire = Wire(server.port)
    log = client(wire.port, retry_ms=700)
    log.create_topic("t")
    transaction = log.transaction("pay")
    transaction.append("t", b"paid once")
    connection, first = connection_of(log), iter([True])
    call = connection.call

    def cut_short(name: str, /, **request: Any) -> Any:
        if name == "commit_transaction" and next(first, False):
            wire.lose_answers()
            threading.Thread(target=cut_when_written, daemon=True).start()
        return call(name, **request)

    def cut_when_written() -> None:
        until(lambda: server.log.offsets("t")[0][1] == 1)
        wire.cut(refuse=True)

    connection.call = cut_short  # type: ignore[method-assign]
    with pytest.raises(UnknownOutcomeError):
        transaction.commit()
    assert transaction.outcome == "unknown"
    assert rows(server.log, "t") == [b"paid once"]
    log.close()
    wire.close()
    server.stop()


def test_a_producer_that_the_log_has_forgotten_is_replaced(tmp_path: Path) -> None:
    server = serve(tmp_path / "log")
    log = client(server.port)
    log.create_topic("t")
    log.append("t", b"0")
    for _ in range(2):
        (lane,) = log._writing._lanes.values()
        assert lane.identity is not None
        submit(server.log, ForgetProducer(*lane.identity))
        futures = [log.append_batch_async("t", [{"value": b"x"}] * 3) for _ in range(12)]
        assert [len(future.result(600)) for future in futures] == [3] * 12
    assert len(rows(server.log, "t")) == 1 + 2 * 36
    log.close()
    server.stop()


def test_clients_that_live_through_a_restore_do_not_meet(tmp_path: Path) -> None:
    """Ids handed out after the backup are not handed out again."""
    server = serve(tmp_path / "log")
    port = server.port
    one, other = client(port), client(port)
    one.create_topic("t")
    server.log.backup(tmp_path / "backup")
    one.append("t", b"gone with the disk")
    server.stop()
    restore(tmp_path / "backup", tmp_path / "restored")
    server = serve(tmp_path / "restored", port)
    for log, value in ((other, b"a"), (one, b"b"), (other, b"c"), (one, b"d")):
        log.append("t", value)
    assert rows(server.log, "t") == [b"a", b"b", b"c", b"d"]
    one.close()
    other.close()
    server.stop()


def test_a_producer_goes_on_over_a_new_field(tmp_path: Path) -> None:
    """Its batches of two versions of the schema do not overtake each other."""
    old = pa.schema([pa.field("n", pa.int64())])
    new = pa.schema([*old, pa.field("m", pa.int64())])
    server = serve(tmp_path / "log")
    log, administrator = client(server.port), client(server.port)
    for number in range(5):
        topic = f"t{number}"
        log.create_topic(topic, schema=old)
        with log.producer(linger_ms=0, batch_bytes=200) as producer:
            for n in range(60):
                producer.send(topic, {"n": n})
            administrator.alter_topic(topic, schema=new)
            log._topics.look(topic)
            for n in range(60, 120):
                producer.send(topic, {"n": n, "m": 1})
        assert [row["n"] for row in rows(server.log, topic)] == list(range(120))
    log.close()
    administrator.close()
    server.stop()


@contextlib.contextmanager
def stopped(server: ServerProcess) -> Iterator[None]:
    server.send(signal.SIGSTOP)
    try:
        yield
    finally:
        server.send(signal.SIGCONT)


def test_a_server_that_says_nothing_does_not_hold_a_client_for_ever(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "log") as server:
        log = server.open(retry_ms=500)
        log.create_topic("t")
        log.append("t", b"first")
        with stopped(server):
            future = log.append_async("t", b"second")
            with pytest.raises(LakebedError) as caught:
                future.result(600)
            assert isinstance(caught.value, UnknownOutcomeError)
        assert _eventually(lambda: log.append("t", b"third").offset) >= 1
        log.close()


def _eventually(call: Callable[[], int]) -> int:
    found: list[int] = []

    def tried() -> bool:
        with contextlib.suppress(LakebedError):
            found.append(call())
        return bool(found)

    until(tried)
    return found[0]
