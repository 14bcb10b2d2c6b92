"""Proof: whichever step a process dies or fails at, what it was told stays true."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from lakebed.host import failpoints
from tests.proof.child import Child
from tests.proof.ledger import Ledger
from tests.proof.raft_script import RaftScript
from tests.proof.scale import in_turn, kept_on_failure, trials
from tests.proof.script import Script

_SCRIPTS: dict[str, type[Script]] = {"wal": Script, "raft": RaftScript}
"""Which life comes by the points of which package."""

_POINTS = [name for name in failpoints.names() if name.partition(".")[0] in _SCRIPTS]
"""Every point of these packages; `test_engine_failpoints.py` has those of the others."""


def _run(script: type[Script], folder: Path, action: str) -> tuple[int, Ledger]:
    """Live the scripted life with a failpoint armed; return how it ended and what was told."""
    ledger = Ledger()
    with Child(
        script.__module__,
        folder,
        take=ledger.take,
        errors=folder.with_suffix(".stderr"),
        environment={failpoints.VARIABLE: action},
    ) as child:
        code = child.wait()
        assert code in (0, -signal.SIGKILL), child.errors()
    return code, ledger


def _verify(script: type[Script], folder: Path, ledger: Ledger) -> None:
    """Reopen, compare with what was told, and go on: the log works, and keeps that too."""
    log = script.open(folder)
    try:
        ledger.adopt(log)
    finally:
        log.close()
    again = script(folder, lambda line: None)
    again.ledger = ledger
    again.run = 1
    again.live()


@pytest.mark.proof
@pytest.mark.parametrize("point", _POINTS)
def test_a_failpoint_breaks_no_promise(point: str, tmp_path: Path) -> None:
    """Killed or failing at the nth hit of each point, the log keeps what it said."""
    test = f"tests/proof/test_failpoints.py::test_a_failpoint_breaks_no_promise[{point}]"
    script = _SCRIPTS[point.partition(".")[0]]
    for nth in range(1, trials(1, 50) + 1):
        for action in in_turn(point, ("kill", "error")):
            folder = tmp_path / f"{action}-{nth}"
            with kept_on_failure(folder, test, f"{point}={action}@{nth}"):
                code, ledger = _run(script, folder, f"{point}={action}@{nth}")
                if action == "kill" and code == 0:
                    assert nth > 1, f"the script never comes by {point}"
                    return
                assert action == "kill" or code == 0, "the process died of an error"
                _verify(script, folder, ledger)
