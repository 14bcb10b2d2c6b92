"""The limit on open files of a server: raised at the start, with a warning if it stays too low."""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path

from tests.serve.support import ServerProcess, check_serves

_SERVE = """
import resource, runpy, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (700, 700))
sys.argv = ["lakebed", "serve", "--data", sys.argv[1], "--port", "0", "--http-port", "-1"]
runpy.run_module("lakebed.cli", run_name="__main__")
"""


def test_a_server_raises_its_limit_on_open_files(tmp_path: Path) -> None:
    """A soft limit that is lower than the hard one does not bound connections."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(900, hard), hard))
    try:
        with ServerProcess(tmp_path / "log") as server:
            assert resource.prlimit(server.pid, resource.RLIMIT_NOFILE) == (hard, hard)
            check_serves(server)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_limit_that_connections_can_reach_is_logged(tmp_path: Path) -> None:
    """The warning names the limit, what is needed, and the setting."""
    with subprocess.Popen(
        [sys.executable, "-c", _SERVE, str(tmp_path / "log")], stderr=subprocess.PIPE, text=True
    ) as server:
        try:
            assert server.stderr is not None
            line = next((line for line in server.stderr if "open files" in line), "")
        finally:
            server.kill()
    assert "limit=700 needed=2200" in line
    assert "connections_max" in line
