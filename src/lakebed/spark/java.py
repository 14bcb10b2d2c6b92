"""Finds the Java that Spark uses, and checks its version."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
from pathlib import Path
from typing import Final

from lakebed.errors import JavaMissingError

JAVA_MIN: Final = 17
"""Spark 4 runs on this version of Java and newer ones."""

_VERSION: Final = re.compile(r'version "(?:1\.)?(\d+)')
_SPARK: Final = re.compile(rb"org\.apache\.spark|/spark-(?:submit|class)")
"""In the command line of a Spark program: its script, or the Java class that the script runs.

`spark` alone is not enough: it may be in the path of a Python environment.
"""
_SECONDS: Final = 120
"""How long Java may take to print its version: seconds, on a machine with nothing to spare."""


def check_java() -> int:
    """Return the version of the Java that Spark will use, or raise `JavaMissingError`."""
    program = _program()
    if program is None:
        raise JavaMissingError("Spark needs Java, which was not found", needed=f"{JAVA_MIN}+")
    version = _version(program)
    if version is None:
        raise JavaMissingError("Java does not say which version it is", java=program)
    if version < JAVA_MIN:
        raise JavaMissingError(
            "Java is too old for Spark", java=program, version=version, needed=f"{JAVA_MIN}+"
        )
    return version


def _program() -> str | None:
    """Return the program that Spark's own scripts would start."""
    home = os.environ.get("JAVA_HOME")
    if not home:
        return shutil.which("java")
    program = Path(home) / "bin" / "java"
    if not program.is_file():
        raise JavaMissingError("JAVA_HOME does not contain Java", JAVA_HOME=home)
    return str(program)


def _version(program: str) -> int | None:
    try:
        said = subprocess.run(  # noqa: S603  # the Java of this machine, as Spark would start it
            [program, "-version"], capture_output=True, text=True, timeout=_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise JavaMissingError("Java cannot be started", java=program, reason=error) from error
    match = _VERSION.search(said.stderr + said.stdout)
    return int(match[1]) if match else None


def end_children() -> None:
    """Kill the Spark programs that this process has started, where the system lists them."""
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            if parent == os.getpid() and _SPARK.search((entry / "cmdline").read_bytes()):
                os.kill(int(entry.name), signal.SIGKILL)
