"""Runs the long proofs in parts that end within the hour and continue where they stopped.

    python -m tools.prove [PART ...] [--seed N] [--minutes N] [--again]

Without a part all of them run, one after the other. How far a part has come for a seed is kept in
`.prove/`; a part that is complete is not run again unless `--again` is given. Each run adds a row
to the table at the end of `docs/track-record.md`.
"""

from __future__ import annotations

import argparse
import datetime
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

from tests.proving import Progress, notes

ROOT = Path(__file__).parents[1]
NOTES = ROOT / ".prove"
RECORD = ROOT / "docs" / "track-record.md"
HEADING = "## Long runs"

PARTS = {
    "kill": [
        "tests/proof/test_kill.py",
        "tests/proof/test_engine_kill.py",
        "tests/proof/test_kill_then_power_cut.py",
        "tests/serve/test_kills.py",
    ],
    "failpoints": ["tests/proof/test_failpoints.py", "tests/proof/test_engine_failpoints.py"],
    "power": ["tests/proof/test_power_cut_ext4.py", "tests/proof/test_power_cut_model.py"],
    "engine-power": ["tests/proof/test_engine_power_cut.py"],
    "disk": ["tests/proof/test_failing_disk.py", "tests/proof/test_engine_failing_disk.py"],
    "damage": [
        "tests/proof/test_damage.py",
        "tests/proof/test_damaged_files.py",
        "tests/proof/test_engine_damage.py",
        "tests/wal/test_salvage_any_damage.py",
    ],
    "fuzz": [
        "tests/proof/test_fuzz.py",
        "tests/proof/test_engine_fuzz.py",
        "tests/proof/test_wire_fuzz.py",
    ],
    "model": [
        "tests/proof/test_model.py",
        "tests/proof/test_engine_model.py",
    ],
    "chain": [
        "tests/chain/test_schedules.py",
        "tests/proof/test_chain_kills.py",
        "tests/serve/test_failover.py",
    ],
    "lake": ["tests/proof/test_lake_kills.py", "tests/proof/test_derived_kills.py"],
    "server": ["tests/proof/test_server_load.py"],
    "soak": ["tests/proof/test_soak.py"],
    "spark": [
        "tests/proof/test_spark_kills.py",
        "tests/proof/test_jobs_killed.py",
        "tests/proof/test_pipeline_kills.py",
        "tests/foreign/test_lake.py",
        "tests/spark",
        "tests/cli/test_pipeline.py",
        "tests/demo",
        "tests/test_documents.py",
    ],
    "mutants": ["tests/proof/test_mutants.py"],
}
"""The files of each part; `rest` is every other proof."""
REST = "rest"


def files_of(part: str) -> list[str]:
    """Return the arguments for pytest that choose a part."""
    if part != REST:
        return PARTS[part]
    taken = [path for paths in PARTS.values() for path in paths]
    return ["tests", *(f"--ignore={path}" for path in taken)]


def run(part: str, seed: int, minutes: float) -> int:
    """Run a part until it is complete or its time is up; return pytest's exit code."""
    folder = NOTES / part / str(seed)
    folder.mkdir(parents=True, exist_ok=True)
    started = time.time()
    environment = {
        **os.environ,
        "LAKEBED_PROVE": "1",
        "LAKEBED_SEED": str(seed),
        "LAKEBED_PROVE_FOLDER": str(folder),
        "LAKEBED_PROVE_UNTIL": str(started + minutes * 60),
    }
    command = [sys.executable, "-m", "pytest", "-q", "-n", "2", "--timeout=0"]
    command += ["-m", "proof or prove", *files_of(part)]
    print(f"{part}, seed {seed}, at most {minutes:g} minutes", flush=True)
    code = subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode
    nothing_left = 5
    summary = row(part, seed, notes(folder), (time.time() - started) / 60, code)
    append(summary)
    for report in sorted(folder.glob("*.txt")):
        print(report.read_text(encoding="utf8"))
    print(summary, flush=True)
    return 0 if code == nothing_left else code


def row(part: str, seed: int, found: list[Progress], minutes: float, code: int) -> str:
    """Return the row of the track record for a run."""
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True
    ).stdout.strip()
    failed = sum(note.failed for note in found)
    complete = sum(note.complete for note in found)
    ended = "failed" if code not in (0, 5) else f"{complete} of {len(found)} tests complete"
    day = datetime.datetime.now(datetime.UTC).date()
    trials = sum(note.trials for note in found)
    return (
        f"| {day} | {commit or 'unknown'} | {part} | {seed} | {trials:,} | {len(found)} "
        f"| {failed} | {minutes:.0f} | {ended} |"
    )


def append(summary: str) -> None:
    """Add a row to the table of long runs, which ends the page."""
    text = RECORD.read_text(encoding="utf8").rstrip("\n")
    if HEADING not in text:
        raise SystemExit(f"{RECORD.name} has no table under {HEADING!r}")
    RECORD.write_text(f"{text}\n{summary}\n", encoding="utf8")


def main() -> None:
    """Run the parts that are named, or all."""
    parser = argparse.ArgumentParser(description="Run the long proofs, part by part.")
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"{', '.join([*PARTS, REST])}")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=55, help="the most a part may take")
    parser.add_argument("--again", action="store_true", help="start from the beginning")
    options = parser.parse_args()
    known = [*PARTS, REST]
    unknown = [part for part in options.parts if part not in known]
    if unknown:
        parser.error(f"unknown part {unknown[0]!r}; choose from {', '.join(known)}")
    codes = []
    for part in options.parts or known:
        if options.again:
            shutil.rmtree(NOTES / part / str(options.seed), ignore_errors=True)
        codes.append(run(part, options.seed, options.minutes))
    sys.exit(max(codes))


if __name__ == "__main__":
    main()
