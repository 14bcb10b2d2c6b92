"""How long a proof runs, from which seed, what it has done, and what is kept when it fails.

`make test` spends a few seconds on each proof: at least a tenth of its `short` count, at most all
of it, and as much of that as its `seconds` allow. The seed is the day's, so that runs of different
days try different things. A mutant is given the whole `short` count, whatever time it takes.
`make prove` runs the `long` count, in parts that stop when their time is up and continue where they
stopped (`tools/prove.py`).

One integer, `LAKEBED_SEED`, repeats any run; a failure names it, with the round in which it
happened, and keeps its data folder under `failures/`.

| variable | meaning |
|---|---|
| `LAKEBED_PROVE` | `1`: run the long counts; `short`: run the short counts whole |
| `LAKEBED_SEED` | the seed; the date as an ordinal unless it is set |
| `LAKEBED_ROUND` | run this one round of each proof |
| `LAKEBED_FAILURES` | where the data of a failure is kept, instead of `failures/` |
| `LAKEBED_PROVE_UNTIL` | seconds since 1970 at which a long proof stops between two rounds |
| `LAKEBED_PROVE_FOLDER` | where long proofs note how far they have come (`tests/proving.py`) |
"""

from __future__ import annotations

import datetime
import math
import os
import random
import shutil
import time
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from tests.proving import Note

T = TypeVar("T")

LONG = os.environ.get("LAKEBED_PROVE") == "1"
_WHOLE = os.environ.get("LAKEBED_PROVE") == "short"
SEED = int(os.environ.get("LAKEBED_SEED") or datetime.datetime.now(datetime.UTC).toordinal())
FAILURES = Path(os.environ.get("LAKEBED_FAILURES", Path(__file__).parents[2] / "failures"))
_UNTIL = float(os.environ.get("LAKEBED_PROVE_UNTIL", "inf"))
_FOLDER = os.environ.get("LAKEBED_PROVE_FOLDER")
_ROUND = os.environ.get("LAKEBED_ROUND")
_BUDGET = 0.6
"""The part of its seconds that a proof spends in `make test`."""
_current: list[int] = []
"""The round that is running, if any."""


def trials(short: int, long: int) -> int:
    """Return the number of trials of a proof that is not worth a budget."""
    return long if LONG else short


class Rounds:
    """The rounds of one proof: iterate over it, and draw from `rng(..., round)` in each.

    A round is one trial unless `count` says how many it was. Rounds end when the count of this
    kind of run is reached, or when the time is up. A proof that is split into several tests states
    its count as a whole, and into how many `shares` it is split.
    """

    def __init__(
        self, test: str, *, short: int, long: int, seconds: float, shares: int = 1
    ) -> None:
        self.test = test
        self.trials = 0
        """How many trials were made, those of earlier runs of a long proof included."""
        self._most = (long if LONG else short) // shares
        self._least = 1 if LONG else max(1, self._most // 10)
        self._until = _UNTIL if LONG else time.time() + (math.inf if _WHOLE else seconds * _BUDGET)
        self._counted: int | None = None
        self._note = Note(test, Path(_FOLDER)) if LONG and _FOLDER else None

    def count(self, trials: int) -> None:
        """State how many trials the current round has made so far."""
        self._counted = trials

    @property
    def wanted(self) -> int:
        """Return how many trials are left of the count; a round need not make more."""
        return max(1, self._most - self.trials)

    def __iter__(self) -> Iterator[int]:
        if _ROUND is not None:
            yield int(_ROUND)
            return
        try:
            yield from self._numbers()
        finally:
            _current.clear()

    def _numbers(self) -> Iterator[int]:
        number, self.trials = self._note.read() if self._note else (0, 0)
        made = 0
        while self._continues(made):
            self._counted = None
            _current[:] = [number]
            yield number
            number += 1
            trials = 1 if self._counted is None else self._counted
            made += trials
            self.trials += trials
            if self._note:
                self._note.write(number, self.trials, complete=self.trials >= self._most)

    def _continues(self, made: int) -> bool:
        if self.trials >= self._most:
            return False
        return made < self._least or time.time() < self._until


def in_turn(what: str, ways: Sequence[T]) -> Sequence[T]:
    """Return all ways of doing something in a long run, and one of them, by the day, in a short."""
    if LONG or _WHOLE:
        return ways
    return [ways[(SEED + zlib.crc32(what.encode())) % len(ways)]]


def rng(*what: object) -> random.Random:
    """Return a generator that depends on the seed and on what it is for."""
    return random.Random(f"{SEED}/" + "/".join(str(part) for part in what))


def repeat_with(test: str) -> str:
    """Return the command that repeats a test as it was run, or the round of it that is running."""
    prove = "LAKEBED_PROVE=1 " if LONG else ""
    only = f"LAKEBED_ROUND={_current[0]} " if _current else ""
    return f"{prove}LAKEBED_SEED={SEED} {only}.venv/bin/pytest '{test}'"


@contextmanager
def kept_on_failure(folder: Path, test: str, detail: object = "") -> Iterator[None]:
    """Keep a data folder if the body fails, and name the command that repeats the test."""
    try:
        yield
    except BaseException as error:
        FAILURES.mkdir(exist_ok=True)
        kept = (
            FAILURES / f"{test.rpartition('::')[2]}-{os.getpid()}-{abs(hash(str(detail))) % 10**8}"
        )
        if folder.exists():
            shutil.copytree(folder, kept, dirs_exist_ok=True)
        error.add_note(f"data kept in {kept}; repeat with: {repeat_with(test)}; detail: {detail}")
        raise
