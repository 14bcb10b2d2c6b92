"""Proof: whatever dies at whichever step, a derived table has each commit's rows once.

A process makes a table and commits to it; it dies at a failpoint. Another one commits everything
once more, as a job does that is run again, and sweeps what is left over.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import uuid
from pathlib import Path

import pyarrow as pa
import pytest

import lakebed
from lakebed.config import LakeConfig, LogConfig
from lakebed.host import failpoints
from lakebed.host.table_files import TableFiles
from lakebed.iceberg import derived_gc, derived_table
from lakebed.reports.derived import DerivedFile
from tests.proof.scale import in_turn, kept_on_failure

pytestmark = pytest.mark.proof

FILE = "tests/proof/test_derived_kills.py"
_DEFINED_BY = (derived_gc, derived_table)  # points exist once their modules are imported
POINTS = [
    name for name in failpoints.names() if name.startswith(("lake.derived.", "engine.derived."))
]
assert len(POINTS) >= 5, POINTS
COMMITS = 3
SETTINGS = LogConfig(lake=LakeConfig(grace_ms=0, snapshots_kept=1))


def life(folder: Path) -> None:
    """Make a table, commit to it, each commit in place of the last, and sweep."""
    with lakebed.open(folder, SETTINGS) as log:
        table = log.derived.create("t", pa.schema([("id", pa.int64())]), key=["id"], buckets=1)
        for number in range(COMMITS):
            found = log.derived.files("t")
            rows = pa.table([[number], [0]], schema=table.schema)
            place = f"{log.derived.place('t')}/{uuid.uuid4().hex}.parquet"
            done = TableFiles({}).write(place, table.schema, [rows])
            log.derived.commit(
                "t",
                writer="life",
                number=number,
                added=[DerivedFile(done.location, 0, "data", done.rows, done.bytes)],
                removed=[each.location for each in found.files if number == COMMITS - 1],
                expected=found.table.version,
            )
        log.lake.gc(now=True)


@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("action", in_turn("derived kills", ["kill", "error"]))
def test_a_table_has_each_commit_once_whatever_dies(
    tmp_path: Path, point: str, action: str
) -> None:
    folder = tmp_path / "log"
    with kept_on_failure(tmp_path, FILE, point):
        done = subprocess.run(
            [sys.executable, "-m", "tests.proof.test_derived_kills", str(folder)],
            cwd=Path(__file__).parents[2],
            env={**os.environ, failpoints.VARIABLE: f"{point}={action}"},
            capture_output=True,
            text=True,
            check=False,
        )
        # A sweep that meets an error goes on with the next file.
        ends = (-signal.SIGKILL,) if action == "kill" else (0, 1)
        assert done.returncode in ends, done.stderr
        life(folder)
        with lakebed.open(folder, SETTINGS) as log:
            rows = log.derived.iceberg("t").scan().to_arrow()
            assert rows.column("id").to_pylist() == [COMMITS - 1]
            assert log.derived.describe("t").writers == {"life": COMMITS - 1}


if __name__ == "__main__":
    life(Path(sys.argv[1]))
