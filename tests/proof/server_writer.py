"""A process that writes to a served log until it is killed, and reports what it does.

    python -m tests.proof.server_writer URL NAME SEED

Reports are lines of JSON (see `tests.serve.writers`). It never gives up on a server that is gone.
"""

from __future__ import annotations

import json
import os
import random
import sys
import threading
from typing import Any

import lakebed
from lakebed.client.config import ClientConfig
from tests.serve.writers import Writer

THREADS = 2
_guard = threading.Lock()


def tell(event: list[Any]) -> None:
    """Report an event in one write, which a kill cannot cut."""
    data = (json.dumps(event) + "\n").encode()
    with _guard:
        done = os.write(1, data)
        while done < len(data):  # a full pipe takes some of a long line
            done += os.write(1, data[done:])


def _write(log: lakebed.Log, name: str, seed: str) -> None:
    writer = Writer(log, name, tell, random.Random(f"{seed}/{name}"))
    while True:
        writer.step()


def main() -> None:
    """Write in several threads."""
    url, name, seed = sys.argv[1:]
    log = lakebed.open(url, ClientConfig(retry_ms=600_000))
    threads = [
        threading.Thread(target=_write, args=(log, f"{name}.{each}", seed), daemon=True)
        for each in range(THREADS)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    os._exit(1)  # a writer failed in an unforeseen way, and its traceback says how


if __name__ == "__main__":
    main()
