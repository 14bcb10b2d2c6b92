"""What `lakebed serve` sets in its process, so that calls do not wait long for the interpreter."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

_SERVE = """
import gc, os, runpy, signal, sys
import click
echo = click.echo

def note(text, *args, **options):
    echo(f"{sys.getswitchinterval()} {gc.get_freeze_count()}")
    os.kill(os.getpid(), signal.SIGTERM)

click.echo = note
sys.argv = ["lakebed", "serve", "--data", sys.argv[1], "--port", "0", "--http-port", "-1"]
runpy.run_module("lakebed.cli", run_name="__main__")
"""


def test_threads_take_turns_quickly_and_collections_leave_out_what_is_loaded(
    tmp_path: Path,
) -> None:
    """At Python's 5 ms, and with collections of everything, one busy call delays all others."""
    command = [sys.executable, "-c", _SERVE, str(tmp_path / "log")]
    ended = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    seconds, frozen = ended.stdout.split()[:2]
    assert float(seconds) <= 0.001
    assert int(frozen) > 10_000
