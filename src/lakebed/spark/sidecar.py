"""A process that serves a folder to Spark while no other process has it open.

Started by `serving.py`. It ends, and releases the folder, after a while without calls or at
SIGTERM; the next user of the folder opens it, or starts another sidecar.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import Path
from typing import Final

from lakebed.engine.log import EmbeddedLog
from lakebed.errors import LakebedError
from lakebed.serve.server import Server
from lakebed.spark.serving import LOCAL

IDLE_SECONDS: Final = 30.0
"""How long it stays without calls."""


def serve(folder: str) -> None:
    """Serve a folder until there have been no calls for `IDLE_SECONDS`, or SIGTERM."""
    ending = threading.Event()
    for signal_number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(signal_number, lambda *_: ending.set())
    server = Server(EmbeddedLog.open(folder), LOCAL, for_own_processes=True).start()
    _fall_silent()
    try:
        while not ending.wait(1.0) and server.idle_seconds() < IDLE_SECONDS:
            pass
    finally:
        server.stop()


def _fall_silent() -> None:
    """Discard standard error: the process that started this one has stopped reading it."""
    with Path(os.devnull).open("wb") as nothing:
        os.dup2(nothing.fileno(), 2)


if __name__ == "__main__":
    try:
        serve(sys.argv[1])
    except LakebedError as error:
        sys.exit(f"{error.code}: {error}")
