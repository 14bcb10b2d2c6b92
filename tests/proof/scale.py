"""How long a proof runs, from which seed, and what is kept when it fails.

`make test` runs each proof at its short count, `make prove` at its long one (`LAKEBED_PROVE=1`).
One integer, `LAKEBED_SEED`, repeats any run; a failure names it and keeps its data folder under
`failures/`.
"""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

LONG = os.environ.get("LAKEBED_PROVE") == "1"
SEED = int(os.environ.get("LAKEBED_SEED", "1"))
FAILURES = Path(os.environ.get("LAKEBED_FAILURES", Path(__file__).parents[2] / "failures"))


def trials(short: int, long: int) -> int:
    """Give the number of trials for this run."""
    return long if LONG else short


def rng(*what: object) -> random.Random:
    """Give a generator that depends on the seed and on what it is for."""
    return random.Random(f"{SEED}/" + "/".join(str(each) for each in what))


def repeat_with(test: str) -> str:
    """Give the command that repeats a test as it was run."""
    prove = "LAKEBED_PROVE=1 " if LONG else ""
    return f"{prove}LAKEBED_SEED={SEED} .venv/bin/pytest {test}"


@contextmanager
def kept_on_failure(folder: Path, test: str, detail: object = "") -> Iterator[None]:
    """Keep a data folder aside if the body fails, and say how to repeat it."""
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
