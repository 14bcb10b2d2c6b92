"""Write, get killed, reopen: every acknowledged entry is there.

A child process appends from eight threads and reports each acknowledgement; this process kills it
without warning, three times, and then compares what was acknowledged with what the log holds. Run
it with `make demo`.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

from lakebed.wal import Wal, WalConfig

WRITERS = 8
LIVES = 3
SECONDS = 1.0
CONFIG = WalConfig(file_bytes=4 * 1024 * 1024)


def write(folder: str) -> None:
    """Append for ever, and report each entry that was acknowledged."""
    log = Wal.open(folder, CONFIG)

    def run(name: int) -> None:
        number = 0
        while True:
            number += 1
            payload = b"writer %d of process %d, entry %d" % (name, os.getpid(), number)
            index = log.append(payload)
            os.write(1, b"%d %s\n" % (index, payload))

    for name in range(WRITERS):
        threading.Thread(target=run, args=(name,)).start()


def let_it_write_and_kill_it(folder: Path, acknowledged: dict[int, bytes]) -> int:
    """Start a writer, collect what it reports, kill it; give the number of reports."""
    child = subprocess.Popen([sys.executable, __file__, str(folder)], stdout=subprocess.PIPE)  # noqa: S603
    assert child.stdout is not None
    killer = threading.Timer(SECONDS, child.send_signal, [signal.SIGKILL])
    first = child.stdout.readline()
    killer.start()
    reports = [first, *child.stdout]
    child.wait()
    for line in reports:
        if line.endswith(b"\n"):
            index, _, payload = line.rstrip(b"\n").partition(b" ")
            acknowledged[int(index)] = payload
    return len(reports)


def main() -> int:
    """Run the demo and say what was found; 0 if nothing is missing."""
    console = Console()
    folder = Path(tempfile.mkdtemp(prefix="lakebed-demo-")) / "log"
    acknowledged: dict[int, bytes] = {}
    table = Table("life", "acknowledged", "then", "found after reopening", "recovery")
    try:
        with console.status("writing and killing…"):
            for life in range(1, LIVES + 1):
                count = let_it_write_and_kill_it(folder, acknowledged)
                started = time.perf_counter()
                with Wal.open(folder, CONFIG) as log:
                    took = f"{(time.perf_counter() - started) * 1000:.0f} ms"
                    found = f"1 to {log.last_index:,}"
                table.add_row(str(life), f"{count:,} entries", "killed (SIGKILL)", found, took)
        with Wal.open(folder, CONFIG) as log:
            held = {entry.index: bytes(entry.payload) for entry in log.entries()}
        console.print(table)
        missing = [index for index, payload in acknowledged.items() if held.get(index) != payload]
        console.print(
            f"{len(acknowledged):,} entries acknowledged, "
            f"{len(acknowledged) - len(missing):,} of them found with the same bytes, "
            f"{len(missing)} missing"
        )
        return 1 if missing else 0
    finally:
        shutil.rmtree(folder.parent)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        write(sys.argv[1])
    else:
        sys.exit(main())
