"""A process that started a sidecar for a folder ends without a warning and leaves it running."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from lakebed import Log
from lakebed.host import OsDisk
from lakebed.wal.folder import Layout, living_owner
from tests.waiting import until

_START = """
import sys
from pathlib import Path
from lakebed.spark.serving import url_of
print(url_of(Path(sys.argv[1])))
"""


def test_a_sidecar_that_outlives_its_process_is_not_reported(tmp_path: Path) -> None:
    folder = tmp_path / "log"
    with Log.open(folder) as log:
        log.create_topic("a")
    warned = ["-W", "always::ResourceWarning"]
    done = subprocess.run(
        [sys.executable, *warned, "-c", _START, str(folder)],
        capture_output=True,
        text=True,
        check=False,
    )
    owner = living_owner(OsDisk(), Layout(folder))
    assert owner is not None, done.stderr
    os.kill(int(str(owner["pid"])), signal.SIGTERM)
    until(lambda: living_owner(OsDisk(), Layout(folder)) is None, "the sidecar ends")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("lakebed+unix://")
    assert "still running" not in done.stderr
