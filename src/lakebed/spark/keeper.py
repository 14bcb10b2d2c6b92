"""A process that serves a folder to Spark while nobody else has it open.

Started by `serving.py`. It ends, and releases the folder, when nobody has called for a while, or at
SIGTERM; whoever needs the folder afterwards opens it, or starts the next keeper.
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
"""How long it stays when nobody calls."""


def keep(folder: str) -> None:
    """Serve a folder until nobody has called for a while."""
    ending = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ending.set())
    server = Server(EmbeddedLog.open(folder), LOCAL, for_own_processes=True).start()
    _fall_silent()
    try:
        while not ending.wait(1.0) and server.idle_seconds() < IDLE_SECONDS:
            pass
    finally:
        server.stop()


def _fall_silent() -> None:
    """Report nothing more: whoever started this does not read it any more."""
    with Path(os.devnull).open("wb") as nothing:
        os.dup2(nothing.fileno(), 2)


if __name__ == "__main__":
    try:
        keep(sys.argv[1])
    except LakebedError as error:
        sys.exit(f"{error.code}: {error}")
