"""A served log in a process that was forked: refused there with a typed error, unharmed here."""

from __future__ import annotations

import asyncio
import gc
import multiprocessing
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import lakebed
from lakebed.aio import open as open_async
from lakebed.client.config import ClientConfig
from lakebed.client.log import RemoteLog
from lakebed.errors import ClosedError
from tests.serve.support import ServerProcess
from tests.waiting import until


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("forks") / "log") as running:
        with running.open() as log:
            log.create_topic("a", 1)
        yield running


@pytest.fixture
def log(server: ServerProcess) -> Iterator[RemoteLog]:
    with server.open() as opened:
        assert isinstance(opened, RemoteLog)
        opened.append("a", b"before")
        yield opened


def code_of_child(work: Callable[[], object]) -> int:
    """Fork, do something in the child, and return its exit code; a child that hangs fails."""
    child = os.fork()
    if child == 0:
        try:
            work()
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
    try:
        status = until(lambda: _ended(child), "the forked process ends", pause_seconds=0.02)
    except BaseException:
        os.kill(child, signal.SIGKILL)
        raise
    assert status is not None
    return os.waitstatus_to_exitcode(status[1])


def _ended(child: int) -> tuple[int, int] | None:
    found = os.waitpid(child, os.WNOHANG)
    return found if found[0] else None


def refused(call: Callable[[], object]) -> None:
    """Check that a call is refused as it should be."""
    with pytest.raises(ClosedError, match="open the log again"):
        call()


@pytest.fixture
def used(log: RemoteLog) -> dict[str, Any]:
    """Everything that a client can have open, each in use."""
    producer = log.producer("p", linger_ms=0)
    producer.send("a", b"sent").result()
    consumer = log.consumer("g", ["a"])
    consumer.poll(1000)
    transaction = log.transaction()
    transaction.append("a", b"in a transaction")
    return {
        "producer": producer,
        "consumer": consumer,
        "transaction": transaction,
        "table": log.table("a"),
    }


CALLS: dict[str, Callable[[RemoteLog, dict[str, Any]], object]] = {
    "append": lambda log, _: log.append("a", b"child"),
    "append_async": lambda log, _: log.append_async("a", b"child").result(),
    "append_batch": lambda log, _: log.append_batch("a", [{"value": b"child"}]),
    "read": lambda log, _: log.read("a"),
    "read, waiting": lambda log, _: log.read("a", offset="latest", wait_ms=None),
    "topics": lambda log, _: log.topics(),
    "create_topic": lambda log, _: log.create_topic("child"),
    "producer": lambda log, _: log.producer("q"),
    "send": lambda _, used: used["producer"].send("a", b"child"),
    "flush": lambda _, used: used["producer"].flush(),
    "consumer": lambda log, _: log.consumer("g", ["a"]),
    "poll": lambda _, used: used["consumer"].poll(1000),
    "commit of a consumer": lambda _, used: used["consumer"].commit(),
    "transaction": lambda log, _: log.transaction(),
    "append of a transaction": lambda _, used: used["transaction"].append("a", b"child"),
    "commit": lambda _, used: used["transaction"].commit(),
    "abort": lambda _, used: used["transaction"].abort(),
    "scan": lambda _, used: used["table"].scan().read_all(),
    "tokens": lambda log, _: log.access.tokens(),
}


def test_every_call_of_a_forked_process_is_refused_and_its_parent_goes_on(
    log: RemoteLog, used: dict[str, Any]
) -> None:
    before = log.offsets("a")

    def child() -> None:
        for call in CALLS.values():
            refused(lambda call=call: call(log, used))  # type: ignore[misc]

    assert code_of_child(child) == 0
    assert log.offsets("a") == before
    assert "child" not in log.topics()
    assert used["producer"].send("a", b"parent").result().offset == before[0][1]
    used["transaction"].commit()
    assert used["consumer"].poll(60_000).num_rows > 0
    used["consumer"].commit()
    used["consumer"].close()
    used["producer"].close()


def test_locks_that_a_thread_held_at_the_fork_do_not_hold_up_the_child(
    log: RemoteLog, used: dict[str, Any]
) -> None:
    writing, transaction = log._writing, used["transaction"]
    lane = next(iter(writing._lanes.values()))
    guards = [log._connection._guard, writing._lanes_guard, lane._guard, lane._sending]
    guards += [log._reading.waiting._guard, used["producer"]._guard, transaction._guard]
    held, go_on = threading.Event(), threading.Event()

    def hold() -> None:
        for guard in guards:
            guard.acquire()
        held.set()
        go_on.wait()
        for guard in guards:
            guard.release()

    def child() -> None:
        for call in CALLS.values():
            refused(lambda call=call: call(log, used))  # type: ignore[misc]

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait()
    try:
        assert code_of_child(child) == 0
    finally:
        go_on.set()
        thread.join()
    transaction.abort()


@pytest.mark.parametrize("ending", ["close", "collect", "exit", "leave it"])
def test_a_forked_process_ends(log: RemoteLog, used: dict[str, Any], ending: str) -> None:
    def child() -> None:
        if ending == "close":
            for opened in (used["producer"], used["consumer"], used["transaction"], log):
                opened.close()
                opened.close()
            assert log._closed
        if ending == "collect":
            used.clear()
            for name in list(log.__dict__):
                del log.__dict__[name]
            gc.collect()
        if ending == "exit":
            os.execv(sys.executable, [sys.executable, "-c", "pass"])

    assert code_of_child(child) == 0
    assert log.append("a", b"after").offset > 0
    if used:
        used["transaction"].commit()


def test_a_process_of_multiprocessing_is_refused(log: RemoteLog) -> None:
    context = multiprocessing.get_context("fork")
    process = context.Process(target=refused, args=(lambda: log.append("a", b"child"),))
    process.start()
    until(lambda: process.exitcode is not None, "the process ends", pause_seconds=0.02)
    assert process.exitcode == 0


def test_a_log_that_is_opened_in_a_forked_process_is_refused_while_the_parent_has_one(
    server: ServerProcess, log: RemoteLog
) -> None:
    config = ClientConfig(retry_ms=60_000)
    assert code_of_child(lambda: refused(lambda: lakebed.open(server.url, config))) == 0
    assert log.append("a", b"after").offset > 0


def test_the_asyncio_client_is_refused_in_a_forked_process(server: ServerProcess) -> None:
    async def use(log: Any, producer: Any, consumer: Any, transaction: Any) -> None:
        calls: list[Callable[[], Any]] = [
            lambda: log.append("a", b"child"),
            lambda: log.append_batch("a", [{"value": b"child"}]),
            lambda: log.read("a"),
            lambda: log.read("a", offset="latest", wait_ms=None),
            lambda: log.topics(),
            lambda: log.producer("r"),
            lambda: consumer.poll(1000),
            lambda: consumer.commit(),
            lambda: transaction.append("a", b"child"),
            lambda: transaction.commit(),
        ]
        for call in calls:
            with pytest.raises(ClosedError, match="open the log again"):
                await call()
        with pytest.raises(ClosedError, match="open the log again"):
            producer.send("a", b"child")
        for opened in (producer, consumer, log):
            await opened.close()

    def in_another_loop(*opened: Any) -> None:
        asyncio.events._set_running_loop(None)
        asyncio.run(use(*opened))

    async def parent() -> None:
        async with open_async(server.url, ClientConfig(retry_ms=60_000)) as log:
            await log.append("a", b"before")
            producer = await log.producer("async")
            await producer.send("a", b"sent")
            consumer = await log.consumer("async", ["a"])
            await consumer.poll(1000)
            transaction = await log.transaction()
            await transaction.append("a", b"in a transaction")
            before = await log.offsets("a")
            opened = (log, producer, consumer, transaction)
            assert code_of_child(lambda: in_another_loop(*opened)) == 0
            assert await log.offsets("a") == before
            await transaction.commit()
            await consumer.close()
            await producer.close()

    asyncio.run(parent())
