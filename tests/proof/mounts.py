"""File systems of a test's own, in a private mount namespace.

What is mounted there is seen by nobody else and goes away with the processes in it, however they
end: the kernel unmounts it and gives the loop devices back.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
_TOOLS = ("unshare", "mount", "umount", "mkfs.ext4", "cp")
_UNSHARE = ("unshare", "--mount", "--propagation=private", "--pid", "--fork", "--kill-child")


def _missing() -> str:
    """Return what a private mount needs and this machine does not have; nothing if it has all."""
    if os.geteuid() != 0:
        return "needs root, to mount file systems"
    tools = [tool for tool in _TOOLS if shutil.which(tool) is None]
    if tools:
        return f"needs {', '.join(tools)}"
    if not Path("/dev/loop-control").exists():
        return "needs loop devices"
    if subprocess.run([*_UNSHARE, "true"], capture_output=True, check=False).returncode:
        return "needs a private mount namespace, which is not allowed here"
    return ""


_MISSING = _missing()
needs_mounts = pytest.mark.skipif(bool(_MISSING), reason=_MISSING)


def run_privately(module: str, *arguments: object) -> None:
    """Run a module in a private mount namespace; raise with its output if it fails."""
    done = subprocess.run(
        [*_UNSHARE, sys.executable, "-m", module, *map(str, arguments)],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{module} failed:\n{done.stdout}{done.stderr}"


def run(*command: object) -> None:
    """Run a tool; raise with what it says if it fails."""
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    assert done.returncode == 0, f"{command} failed: {done.stdout}{done.stderr}"


def make_image(path: Path, size_bytes: int) -> Path:
    """Make an image of an empty ext4 file system, as `mkfs.ext4` makes it by default."""
    with path.open("wb") as file:
        file.truncate(size_bytes)
    run("mkfs.ext4", "-q", "-F", path)
    return path


@contextmanager
def mounted(source: Path, on: Path, *options: str) -> Iterator[Path]:
    """Mount an image (or with options something else) on a folder, which is made."""
    on.mkdir(exist_ok=True)
    run("mount", *(options or ("-o", "loop")), source, on)
    try:
        yield on
    except BaseException:
        run("umount", "--lazy", on)  # what failed may still hold files open
        raise
    run("umount", on)


def quick_folder() -> str | None:
    """Return where images are quickest: in memory, if there is such a folder."""
    memory = "/dev/shm"
    return memory if os.access(memory, os.W_OK) else None
