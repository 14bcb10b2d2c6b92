"""A read replica in a process: notes when it shows which records.

    python -m bench.follower URL TOPIC DELAY_SECONDS

Prints a line once it follows; at the end of its input, a JSON list of pairs: the monotonic seconds
of an answer, and the offset behind its last record.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from unittest import mock

import lakebed
from bench.stores import delayed
from lakebed import LakeConfig, LogConfig


def main() -> None:
    """Follow a log until the input ends."""
    url, topic, delay = sys.argv[1], sys.argv[2], float(sys.argv[3])
    ending = threading.Event()

    def wait() -> None:
        sys.stdin.read()
        ending.set()

    threading.Thread(target=wait, daemon=True).start()
    shown: list[tuple[float, int]] = []
    config = LogConfig(lake=LakeConfig(store=url, iceberg=False))
    with (
        mock.patch("lakebed.engine.ownership.open_conditional", delayed(delay)),
        lakebed.open(url, config, replica=True) as log,
    ):
        offset = log.offsets(topic)[0][1]
        shown.append((time.monotonic(), offset))
        print("following", flush=True)
        while not ending.is_set():
            found = log.read(topic, offset=offset, wait_ms=200, columns=["offset"])
            if found.num_rows:
                offset += found.num_rows
                shown.append((time.monotonic(), offset))
    print(json.dumps(shown), flush=True)


if __name__ == "__main__":
    main()
