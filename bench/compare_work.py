"""How a workload is run: every peer that can do it is opened, warmed up, and measured in rounds."""

from __future__ import annotations

import contextlib
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from bench.compare_results import Found, Line, Measure
from bench.servers import say_once

_PACKAGES = {"java": "default-jre-headless"}
"""Debian's packages whose name is not that of their program."""


@dataclass(frozen=True)
class Scale:
    """How much is done; every peer does the same."""

    name: str
    slot_seconds: float
    """That writes are measured in a round."""
    tail_seconds: float
    tail_rate: int
    """Single writes per second whose latency is measured."""
    writers: int
    replay_records: int
    batches: int
    """Small batches that are committed to a table in a round."""
    keys: int


SCALES = {
    "small": Scale("small", 0.1, 0.5, 100, 8, 10_000, 3, 2_000),
    "full": Scale("full", 1.5, 6.0, 250, 64, 200_000, 40, 200_000),
}

Opener = Callable[[Path, Scale], Any]
Measuring = Callable[[Any, Scale], dict[str, float]]


@dataclass(frozen=True)
class Entry:
    """A peer in a workload: how it is opened, what it needs, and whether it syncs."""

    name: str
    how: str
    open: Opener | None = None
    """None if it cannot do this work; `how` says why."""
    programs: tuple[str, ...] = ()
    modules: tuple[str, ...] = ()
    synced: bool = True
    against: str = "Lakebed"
    """The entry of Lakebed that it is compared with; empty for Lakebed itself."""
    optional: bool = True
    """Whether it can be left out by name; Lakebed's own first entries cannot."""
    limit: bool = False
    """Whether it is what the disk allows, and nothing that a user could pick."""

    def missing(self) -> str:
        """Return what is not installed and how to get it, if anything."""
        for each in self.programs:
            if shutil.which(each) is None:
                return f"{each} is not installed: apt-get install {_PACKAGES.get(each, each)}"
        for each in self.modules:
            if find_spec(each) is None:
                return f"the Python package {each} is not installed: pip install -e '.[bench]'"
        return ""


@dataclass(frozen=True)
class Workload:
    """One kind of work that peers are compared in."""

    name: str
    title: str
    """With names of the scale in braces."""
    measures: Sequence[Measure]
    entries: Sequence[Entry]
    measure: Measuring
    """Does the work once with what an entry has opened."""
    reference: str = ""


@dataclass(frozen=True)
class Plan:
    """What a run was asked for."""

    scale: Scale
    rounds: int
    peers: frozenset[str] | None
    """Those to measure beside Lakebed; None for all."""


def run(workload: Workload, folder: Path, plan: Plan, step: Callable[[str], object]) -> Found:
    """Measure every peer in every round, one after the other; stop whatever was started."""
    lines = [
        Line(each.name, each.how, each.synced, each.against, each.limit)
        for each in workload.entries
    ]
    title = workload.title.format_map(asdict(plan.scale))
    found = Found(workload.name, title, list(workload.measures), lines, workload.reference)
    with contextlib.ExitStack() as closing:
        opened: dict[str, Any] = {}
        for entry, line in zip(workload.entries, lines, strict=True):
            step(f"{workload.name}: {entry.name}, warming up")
            line.reason = _absence(entry, plan)
            if not line.reason:
                place = folder / re.sub(r"[^a-z]+", "-", entry.name.lower())
                with _failing(line):
                    peer = _warm(workload, entry, place, plan.scale, closing)
                    line.synced = getattr(peer, "durable", line.synced)  # its version decides
                    opened[entry.name] = peer
        for number in range(plan.rounds):
            for name, peer in opened.items():
                step(f"{workload.name}: {name}, round {number + 1}")
                line = found.line(name)
                if not line.reason:
                    with _failing(line):
                        _measured(workload, peer, line, plan.scale)
    return found


def steps(workload: Workload, rounds: int) -> int:
    """Count the steps of a run, for whoever shows how far it is."""
    return len(workload.entries) * (1 + rounds)


def _absence(entry: Entry, plan: Plan) -> str:
    """Return why an entry is not measured; nothing if it can be."""
    if entry.open is None:
        return entry.how
    if entry.optional and plan.peers is not None and entry.name not in plan.peers:
        return "left out by --peers"
    if reason := entry.missing():
        say_once(f"{entry.name} is left out: {reason}")
    return reason


@contextlib.contextmanager
def _failing(line: Line) -> Iterator[None]:
    """Let a run go on without a peer that fails, and have the table say so; Lakebed must not."""
    try:
        yield
    except Exception as error:
        if line.ours:
            raise
        said = str(error).partition("\n")[0]
        line.figures.clear()
        line.reason = f"it failed: {type(error).__name__}: {said}"
        say_once(f"{line.peer} is left out: {line.reason}")


def _warm(
    workload: Workload, entry: Entry, place: Path, scale: Scale, closing: contextlib.ExitStack
) -> Any:
    """Open a peer and have it do the work once, as long as in a round."""
    assert entry.open is not None
    place.mkdir(parents=True)
    peer = entry.open(place, scale)
    closing.callback(peer.close)
    workload.measure(peer, scale)
    _rest(peer)
    return peer


def _measured(workload: Workload, peer: Any, line: Line, scale: Scale) -> None:
    for name, value in workload.measure(peer, scale).items():
        line.figures.setdefault(name, []).append(value)
    _rest(peer)


def _rest(peer: Any) -> None:
    """Let a peer end what it does in the background, so that it does not disturb the next."""
    if hasattr(peer, "rest"):
        peer.rest()
