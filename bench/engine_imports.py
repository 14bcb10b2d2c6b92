"""What a program pays before its first call: CPU time, memory and modules of an import."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from typing import Final

from bench.report import Rows

_PROGRAM: Final = """
import json, sys, time
begun = time.process_time()
{code}
spent = time.process_time() - begun
modules = len(sys.modules)
import re
# Not from getrusage, which counts the parent's memory before this program was executed.
peak = int(re.search("VmHWM:\\s+(\\d+) kB", open("/proc/self/status").read())[1]) * 1024
print(json.dumps([spent * 1000, peak / 1e6, modules]))
"""
_CASES: Final = (
    ("import lakebed", "import lakebed", 300),
    ("import of the client", "import lakebed.client.log", None),
    ("import of the engine", "import lakebed.engine.log", None),
)


def imports(options: argparse.Namespace, rows: Rows) -> None:
    """Import parts of the package, each in a new interpreter."""
    for work, code, target_ms in _CASES:
        rounds = [_measure(code) for _ in range(options.rounds)]
        cpu_ms, memory_mb, modules = (list(values) for values in zip(*rounds, strict=True))
        rows.figure(work, "CPU time", cpu_ms, "ms", target_ms, at_most=True)
        rows.figure(work, "memory at its peak", memory_mb, "MB")
        rows.figure(work, "modules loaded", modules, "")


def _measure(code: str) -> list[float]:
    """Return CPU time in milliseconds, memory in megabytes, and the number of modules."""
    program = _PROGRAM.format(code=code)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    values: list[float] = json.loads(done.stdout)
    return values
