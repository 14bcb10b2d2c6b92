"""Proof: whenever a process dies, its tables show what its log has, and no file is missing or left.

After each life: the log is opened and synced; every acknowledged record is there once; each table
shows exactly the records in segments; every byte of every segment is right; and after a removal
exactly the files are there that something refers to.
"""

from __future__ import annotations

import json
import shutil
import signal
from pathlib import Path

import pytest

from lakebed import Log, LogConfig
from lakebed.host import failpoints
from lakebed.reports.lake import SnapshotInfo
from tests.proof import lake_writer
from tests.proof.engine_child import ForkedChild
from tests.proof.lake_ledger import LakeLedger, check_files, check_tables
from tests.proof.scale import LONG, SEED, Rounds, in_turn, kept_on_failure, rng, trials
from tests.s3 import Server, options, s3

__all__ = ["s3"]

FILE = "tests/proof/test_lake_kills.py"
_FAMILIES = (
    "catalog.",
    "lake.",
    "host.store.",
    "engine.tier.",
    "engine.removal.",
    "engine.checkpoint.",
    "engine.cleanup.",
    "engine.retention.",
)
_STORED = ("host.store.", "engine.tier.", "lake.fetched.")
"""Points that only a log with a store comes by."""
_LOCAL = ("engine.removal.segment_removed",)
"""Points that only a log without one comes by."""
_SHIPPED = ("catalog.",)
"""Points that only a log comes by whose entries are in the store as well."""
_ELSEWHERE = "lake.derived."
"""Points of derived tables, which `test_derived_kills.py` has."""
_POINTS = [
    name
    for name in failpoints.names()
    if name.startswith(_FAMILIES) and not name.startswith(_ELSEWHERE)
]


def _kinds(point: str) -> list[str]:
    """Return the kinds of lake that come by a point; in the short form, one of them."""
    if point.startswith(_STORED):
        return ["file"]
    if point.startswith(_LOCAL):
        return ["local"]
    if point.startswith(_SHIPPED):
        return ["shipped"]
    return ["file", "local"] if LONG else ["file" if len(point) % 2 else "local"]


def _settings(kind: str, folder: Path) -> str:
    store = folder / "store"
    if kind != "local":
        store.mkdir(parents=True, exist_ok=True)
    location = "" if kind == "local" else f"file://{store}"
    return json.dumps({"store": location, "options": {}, "ships": kind == "shipped"})


def _live(folder: Path, given: str, ledger: LakeLedger, failpoint: str) -> int:
    """Live the scripted life with a failpoint armed; return how it ended."""
    errors = folder / "stderr"
    folder.mkdir(parents=True, exist_ok=True)
    with ForkedChild(
        folder / "log",
        given,
        0,
        "script",
        take=ledger.take,
        errors=errors,
        failpoint=failpoint,
        module=lake_writer.__name__,
    ) as child:
        code = child.wait()
        assert code in (0, -signal.SIGKILL), child.errors()
    return code


def _check(folder: Path, given: str, ledger: LakeLedger) -> None:
    """Open the log, and compare everything; one that is in the store, on another machine too."""
    ledger.deleted("gone")
    config = lake_writer.settings(given)
    history = _compare(folder / "log", config, ledger)
    if config.ships:
        assert _compare(folder / "other", config, ledger) == history


def _compare(folder: Path, config: LogConfig, ledger: LakeLedger) -> dict[str, list[SnapshotInfo]]:
    """Open the log, and compare everything; return the snapshots of each table."""
    with Log.open(folder, config, threaded=False) as log:
        assert not log.lake.sync().failures
        log.verify()
        ledger.check_records(log)
        check_tables(log)
        log.lake.gc(now=True)
        check_files(log)
        log.verify()
        return {topic: log.lake.history(topic) for topic in log.topics()}


@pytest.mark.proof
@pytest.mark.parametrize("point", _POINTS)
def test_a_kill_at_any_step_leaves_tables_that_agree_with_the_log(
    point: str, tmp_path: Path
) -> None:
    """Killed at the nth hit of each point, whatever it was doing."""
    test = f"{FILE}::test_a_kill_at_any_step_leaves_tables_that_agree_with_the_log[{point}]"
    for kind in in_turn(point, _kinds(point)):
        for nth in range(1, trials(1, 10) + 1):
            folder = tmp_path / f"{kind}-{nth}"
            given = _settings(kind, folder)
            with kept_on_failure(folder, test, f"{point}=kill@{nth} {kind}"):
                ledger = LakeLedger()
                code = _live(folder, given, ledger, f"{point}=kill@{nth}")
                if code == 0:
                    assert nth > 1, f"the script never comes by {point}"
                    break
                _check(folder, given, ledger)


@pytest.mark.proof
@pytest.mark.parametrize("kind", ["file", "local"])
@pytest.mark.parametrize("nth", range(1, trials(1, 10) + 1))
def test_an_error_at_every_step_is_typed_and_made_good(kind: str, nth: int, tmp_path: Path) -> None:
    """Each point fails once, in one life; every failure is typed, and the life goes on."""
    test = f"{FILE}::test_an_error_at_every_step_is_typed_and_made_good[{nth}-{kind}]"
    given = _settings(kind, tmp_path)
    with kept_on_failure(tmp_path, test):
        ledger = LakeLedger()
        armed = ";".join(f"{point}=error@{nth}" for point in _POINTS)
        assert _live(tmp_path / "life", given, ledger, armed) == 0
        assert len(ledger.failures) > 3
        _check(tmp_path / "life", given, ledger)


@pytest.mark.prove
@pytest.mark.parametrize("point", _POINTS)
def test_an_error_at_any_step_is_typed_and_made_good(point: str, tmp_path: Path) -> None:
    """One failure alone, at each point."""
    test = f"{FILE}::test_an_error_at_any_step_is_typed_and_made_good[{point}]"
    for kind in _kinds(point):
        for nth in (1, 2, 5):
            folder = tmp_path / f"{kind}-{nth}"
            given = _settings(kind, folder)
            with kept_on_failure(folder, test, f"{point}=error@{nth} {kind}"):
                ledger = LakeLedger()
                assert _live(folder, given, ledger, f"{point}=error@{nth}") == 0
                _check(folder, given, ledger)


@pytest.mark.proof
@pytest.mark.parametrize(
    "point",
    [
        "host.store.uploaded",
        "engine.tier.placed",
        "engine.tier.moved",
        "lake.table.prepared",
        "lake.table.swapped",
        "engine.removal.file_removed",
    ]
    if LONG
    else ["engine.tier.placed"],
)
def test_a_kill_leaves_a_bucket_that_agrees_with_the_log(
    point: str, s3: Server, tmp_path: Path
) -> None:
    """The same with a bucket of S3."""
    store = f"s3://{s3.bucket()}/lake"
    given = json.dumps({"store": store, "options": options(s3.url)})
    ledger = LakeLedger()
    assert _live(tmp_path, given, ledger, f"{point}=kill@2") == -signal.SIGKILL
    _check(tmp_path, given, ledger)


@pytest.mark.proof
@pytest.mark.parametrize("kind", ["file", "local"])
def test_a_kill_at_any_moment_leaves_tables_that_agree_with_the_log(
    kind: str, tmp_path: Path
) -> None:
    """The log's own threads are at work; the process is killed at random, and goes on later."""
    test = f"{FILE}::test_a_kill_at_any_moment_leaves_tables_that_agree_with_the_log[{kind}]"
    chosen = rng("lake kill", kind)
    given = _settings(kind, tmp_path)
    ledger, folder = LakeLedger(), tmp_path / "life-0"
    for run in Rounds(test, short=10, long=500, shares=2, seconds=3):
        if run % 3 == 0:
            shutil.rmtree(folder, ignore_errors=True)
            shutil.rmtree(tmp_path / "store", ignore_errors=True)
            given = _settings(kind, tmp_path)
            ledger, folder = LakeLedger(), tmp_path / f"life-{run}"
            folder.mkdir()
        seconds = chosen.uniform(0.05, 1.0)
        with kept_on_failure(tmp_path, test, f"run {run} {seconds:.3f} s, seed {SEED}"):
            with ForkedChild(
                folder / "log",
                given,
                run,
                "write",
                take=ledger.take,
                errors=folder / "stderr",
                module=lake_writer.__name__,
            ) as child:
                child.listen_for(seconds)
                assert child.kill() == -signal.SIGKILL, child.errors()
            _check(folder, given, ledger)
