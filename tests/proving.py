"""Lets a long run of proofs stop when its time is up, and continue later where it stopped.

`tools/prove.py` names a folder (`LAKEBED_PROVE_FOLDER`) and an end (`LAKEBED_PROVE_UNTIL`). Every
test has a note there: how far its rounds have come, if it has rounds (`tests/proof/scale.py`), and
whether it is complete. A test that is complete is left out of the next run; one that would start
after the end is skipped.
"""

from __future__ import annotations

import json
import os
import re
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import pytest


@dataclass
class Progress:
    """What a note says of a test."""

    test: str
    round: int = 0
    """The next round."""
    trials: int = 0
    """The trials before it."""
    complete: bool = False
    failed: bool = False


class Note:
    """The file that says how far a test has come."""

    def __init__(self, test: str, folder: Path) -> None:
        name = re.sub(r"[^\w.-]+", "-", test.removeprefix("tests/"))
        self._test = test
        self._path = folder / f"{name[:200]}.json"

    def read(self) -> tuple[int, int]:
        """Return the next round and the trials before it."""
        progress = self.progress()
        return (progress.round, progress.trials) if progress else (0, 0)

    def progress(self) -> Progress | None:
        """Return what the note says, or None if there is none."""
        if not self._path.exists():
            return None
        return Progress(**json.loads(self._path.read_text(encoding="utf8")))

    def write(self, number: int, trials: int, *, complete: bool) -> None:
        """Note the next round and the trials before it."""
        self.save(Progress(self._test, number, trials, complete))

    def save(self, progress: Progress) -> None:
        """Replace the note; a run that is killed leaves a whole one."""
        temporary = self._path.with_suffix(f".{os.getpid()}.tmp")
        temporary.write_text(json.dumps(asdict(progress)), encoding="utf8")
        temporary.replace(self._path)


def notes(folder: Path) -> list[Progress]:
    """Return every note of a folder."""
    found = sorted(folder.glob("*.json"))
    return [Progress(**json.loads(path.read_text(encoding="utf8"))) for path in found]


class Proving:
    """Keeps the notes of a run, in the process that runs the tests."""

    def __init__(self, folder: Path, until: float) -> None:
        self._folder = folder
        self._until = until

    def pytest_collection_modifyitems(
        self, config: pytest.Config, items: list[pytest.Item]
    ) -> None:
        """Leave out what is complete."""
        complete = {note.test for note in notes(self._folder) if note.complete and not note.failed}
        left = [item for item in items if item.nodeid not in complete]
        config.hook.pytest_deselected(items=[item for item in items if item.nodeid in complete])
        items[:] = left

    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        """Skip what would start after the end."""
        if time.time() > self._until:
            pytest.skip("the time of this part is up: the next run continues here")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note that a test is complete, unless its rounds are not."""
        if report.when != "call" or report.skipped:
            return
        test = report.nodeid.partition("@")[0]
        note = Note(test, self._folder)
        progress = note.progress() or Progress(test, trials=1, complete=True)
        progress.failed = report.failed
        note.save(progress)


def pytest_configure(config: pytest.Config) -> None:
    """Keep notes if a folder for them is named."""
    folder = os.environ.get("LAKEBED_PROVE_FOLDER")
    runs_tests = "PYTEST_XDIST_WORKER" in os.environ or not config.getoption("numprocesses", None)
    if folder and runs_tests:
        until = float(os.environ.get("LAKEBED_PROVE_UNTIL", "inf"))
        config.pluginmanager.register(Proving(Path(folder), until))
