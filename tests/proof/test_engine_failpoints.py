"""Proof: whichever step a log's process dies or fails at, both properties hold."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from lakebed import Log
from lakebed.host import failpoints
from tests.proof.engine_child import ForkedChild
from tests.proof.engine_ledger import Ledger
from tests.proof.engine_writer import SCRIPT
from tests.proof.scale import SEED, in_turn, kept_on_failure, trials

NOT_MET = {
    "wal.repair.kept": "a tail is repaired only after a torn write; tests/proof/test_failpoints.py",
    "wal.repair.cut": "as above",
    "wal.repair.synced": "as above",
}
"""Points that the scripted life of a log does not come by, and why."""

_OF_THE_LAKE = ("lake.table.", "lake.fetched.", "host.store.", "engine.tier.", "engine.removal.")
"""Points of tables and object store, which `test_lake_kills.py` has."""

_OF_BACKUPS = ("engine.backup.", "engine.restore.")
"""Points of backups, which `tests/engine/test_backup_failures.py` has."""

_OF_DERIVED_TABLES = ("lake.derived.", "engine.derived.")
"""Points of derived tables, which `test_derived_kills.py` has."""

_OF_THE_STORE = ("catalog.", "chain.", "ship.", "host.conditional.")
"""Points of a log in a store, which `test_chain_kills.py` and `test_lake_kills.py` have."""

_ELSEWHERE = (
    "test.",
    "spark.",
    *_OF_THE_LAKE,
    *_OF_BACKUPS,
    *_OF_DERIVED_TABLES,
    *_OF_THE_STORE,
)
_POINTS = [name for name in failpoints.names() if not name.startswith(_ELSEWHERE)]


def _run(folder: Path, run: int, action: str, ledger: Ledger) -> int:
    """Live the scripted life with a failpoint armed; return how it ended."""
    errors = folder.with_suffix(".stderr")
    with ForkedChild(
        folder, run, SEED, "script", take=ledger.take, errors=errors, failpoint=action
    ) as child:
        code = child.wait()
        assert code in (0, -signal.SIGKILL), child.errors()
    return code


def _verify(folder: Path, ledger: Ledger) -> None:
    """Reopen and compare; go on with the log, which works, and compare again."""
    with Log.open(folder, SCRIPT, threaded=False) as log:
        ledger.adopt(log)
        log.verify()
        log.checkpoint()
        ledger.check(log)


@pytest.mark.proof
@pytest.mark.parametrize("point", [each for each in _POINTS if each not in NOT_MET])
def test_a_failpoint_breaks_no_promise_of_a_log(point: str, tmp_path: Path) -> None:
    """Killed or failing at the nth hit of each point, a log keeps what it said."""
    file = "tests/proof/test_engine_failpoints.py"
    test = f"{file}::test_a_failpoint_breaks_no_promise_of_a_log[{point}]"
    for nth in range(1, trials(1, 50) + 1):
        for action in in_turn(point, ("kill", "error")):
            folder = tmp_path / f"{action}-{nth}"
            with kept_on_failure(folder, test, f"{point}={action}@{nth}"):
                ledger = Ledger()
                code = _run(folder, 0, f"{point}={action}@{nth}", ledger)
                if action == "kill" and code == 0:
                    assert nth > 1, f"the script never comes by {point}"
                    return
                assert action == "kill" or code == 0, "the process died of an error"
                _verify(folder, ledger)


@pytest.mark.proof
def test_the_points_that_are_not_met_exist() -> None:
    """The list of exceptions names nothing that is gone."""
    assert set(NOT_MET) <= set(_POINTS)
