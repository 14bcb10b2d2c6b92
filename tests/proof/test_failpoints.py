"""Proof: whichever step a process dies or fails at, what it was told stays true."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from lakebed.host import failpoints
from tests.proof.child import Child
from tests.proof.ledger import Ledger
from tests.proof.scale import in_turn, kept_on_failure, trials
from tests.proof.script import Script

_POINTS = [name for name in failpoints.names() if name.startswith("wal.")]
"""Every point of the WAL; `test_engine_failpoints.py` has those of the other packages."""


def _run(folder: Path, action: str) -> tuple[int, Ledger]:
    """Live the scripted life with a failpoint armed; return how it ended and what was told."""
    ledger = Ledger()
    with Child(
        Script.__module__,
        folder,
        take=ledger.take,
        errors=folder.with_suffix(".stderr"),
        environment={failpoints.VARIABLE: action},
    ) as child:
        code = child.wait()
        assert code in (0, -signal.SIGKILL), child.errors()
    return code, ledger


def _verify(folder: Path, ledger: Ledger) -> None:
    """Reopen, compare with what was told, and go on: the log works, and keeps that too."""
    log = Script.open(folder)
    try:
        ledger.adopt(log)
    finally:
        log.close()
    again = Script(folder, lambda line: None)
    again.ledger = ledger
    again.run = 1
    again.live()


@pytest.mark.proof
@pytest.mark.parametrize("point", _POINTS)
def test_a_failpoint_breaks_no_promise(point: str, tmp_path: Path) -> None:
    """Killed or failing at the nth hit of each point, the log keeps what it said."""
    test = f"tests/proof/test_failpoints.py::test_a_failpoint_breaks_no_promise[{point}]"
    for nth in range(1, trials(1, 50) + 1):
        for action in in_turn(point, ("kill", "error")):
            folder = tmp_path / f"{action}-{nth}"
            with kept_on_failure(folder, test, f"{point}={action}@{nth}"):
                code, ledger = _run(folder, f"{point}={action}@{nth}")
                if action == "kill" and code == 0:
                    assert nth > 1, f"the script never comes by {point}"
                    return
                assert action == "kill" or code == 0, "the process died of an error"
                _verify(folder, ledger)
