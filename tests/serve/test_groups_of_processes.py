"""Consumer groups whose members are processes: killed, paused, added, and nothing is left out."""

from __future__ import annotations

import contextlib
import json
import math
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from lakebed import Log
from tests import forked
from tests.serve.support import ServerProcess
from tests.waiting import PATIENCE_SECONDS, until

ROOT = Path(__file__).parents[2]
PARTITIONS = 4
SESSION_MS = 1500
"""Short, so that a member that is silent is soon noticed."""


class Event(NamedTuple):
    """What a member told."""

    at: float
    what: str
    rest: list[Any]


class Member:
    """A member in a process of its own, and everything that it told."""

    def __init__(self, server: ServerProcess, mode: str) -> None:
        arguments = (server.url, "group", mode, str(SESSION_MS))
        self.process = forked.Popen(
            [sys.executable, "-m", "tests.serve.group_member", *arguments],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.events: list[Event] = []
        self.paused_at = math.inf
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            at, what, *rest = json.loads(line)
            self.events.append(Event(at, what, rest))

    def said(self, what: str) -> list[Event]:
        """Return what it told of a kind."""
        return [event for event in list(self.events) if event.what == what]

    def done(self) -> list[str]:
        """Return the values that it processed."""
        return [value for event in self.said("done") for value in event.rest[0]]

    def end(self) -> None:
        """Kill it, and hear the last of it."""
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(signal.SIGCONT)
        self.process.kill()
        self.process.wait(PATIENCE_SECONDS)
        self._thread.join(PATIENCE_SECONDS)
        assert self.process.stdout is not None
        self.process.stdout.close()


class Scene:
    """A server, a topic that is written to, and members that come and go."""

    def __init__(self, server: ServerProcess, log: Log, mode: str) -> None:
        self.server = server
        self.log = log
        self.mode = mode
        self.members: list[Member] = []
        self.written: list[str] = []

    def join(self) -> Member:
        """Add a member, and wait until it has its share."""
        member = Member(self.server, self.mode)
        self.members.append(member)
        until(lambda: member.said("assign"), "the member gets no partition")
        return member

    def write(self, count: int = 40) -> None:
        """Write to every partition."""
        for _ in range(count):
            text = str(len(self.written))
            self.log.append("events", text.encode(), partition=len(self.written) % PARTITIONS)
            self.written.append(text)

    def settle(self, done: Callable[[], set[str]]) -> None:
        """Wait until everything that was written is done."""
        until(lambda: done() >= set(self.written), "not everything is processed")


def _play(scene: Scene, done: Callable[[], set[str]]) -> None:
    """Let members be added, killed and paused while there is something to do."""
    scene.join()
    second = scene.join()
    scene.write()
    scene.settle(done)
    third = scene.join()
    scene.write()
    second.process.kill()  # its partitions are free when its session is over
    scene.write()
    scene.settle(done)
    third.process.send_signal(signal.SIGSTOP)
    third.paused_at = time.monotonic()
    scene.write()
    until(lambda: len(scene.log.describe_group("group").members) == 1, "it is not expelled")
    scene.settle(done)
    third.process.send_signal(signal.SIGCONT)
    until(lambda: third.said("fenced"), "it is not fenced")
    until(lambda: len(third.said("joined")) >= 2, "it does not join again")
    scene.write()
    scene.settle(done)


@pytest.mark.parametrize("mode", ["plain", "copy"])
def test_members_that_come_and_go_process_every_record(tmp_path: Path, mode: str) -> None:
    """At least once by commits, exactly once by transactions; nobody works on what is another's."""
    with (
        ServerProcess(tmp_path / "log", toml="[lake]\niceberg = false\n") as server,
        server.open() as log,
    ):
        log.create_topic("events", PARTITIONS)
        log.create_topic("copies")
        scene = Scene(server, log, mode)

        def done() -> set[str]:
            if mode == "copy":
                return set(_copies(log))
            return {value for member in scene.members for value in member.done()}

        try:
            _play(scene, done)
        finally:
            for member in scene.members:
                member.end()
        failed = [event for member in scene.members for event in member.said("failed")]
        assert not failed
        if mode == "copy":
            assert Counter(_copies(log)) == Counter(scene.written)
        _check_owners(scene.members)


def _copies(log: Log) -> list[str]:
    table = log.read("copies", max_records=100_000)
    return [value.decode() for value in table.column("value").to_pylist()]


def _check_owners(members: list[Member]) -> None:
    """No partition has two owners that are alive at a time, by their own accounts.

    A member has a partition from when it was told so until it is told otherwise, or was fenced;
    what is paused or dead for longer than its session has nothing, though it cannot know.
    """
    spans = [span for member in members for span in _spans(member)]
    for index, (partition, begin, end, who) in enumerate(spans):
        for other, its_begin, its_end, whose in spans[:index]:
            apart = begin >= its_end or its_begin >= end
            assert other != partition or who == whose or apart, (partition, spans)


def _spans(member: Member) -> list[tuple[int, float, float, int]]:
    """Return partition, begin, end and member of each time that a member had a partition.

    A partition that was not given up ends with the last thing that the member is known to have
    done before it was killed, or paused for longer than its session.
    """
    spans: list[tuple[int, float, float, int]] = []
    open_since: dict[int, float] = {}
    alive = 0.0
    for event in member.events:
        if event.what in ("revoke", "fenced"):
            for partition in event.rest[0] if event.rest else list(open_since):
                end = event.at if event.what == "revoke" else min(alive, member.paused_at)
                spans.append((partition, open_since.pop(partition), end, id(member)))
        elif event.what == "assign":
            for partition in event.rest[0]:
                open_since[partition] = event.at
        alive = event.at
    return spans + [(each, since, alive, id(member)) for each, since in open_since.items()]
