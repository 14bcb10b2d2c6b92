"""Types what a page shows into a shell, in an empty folder, and gives what came out."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.cli.test_docs import MASKS
from tests.documents.forking import fork_server
from tests.documents.pages import Block
from tests.waiting import PATIENCE_SECONDS

_END = "\x1e"

_FURTHER = [
    (r"\bpid=\d+ host=\S+", "pid=PID host=HOST"),
    (r"\btook +[\d.]+ s\b", "took SECONDS"),
    (r"\b\d+ ms\b", "TIME"),
    (r"(?m)^[\w.-]+: batch \S+, \d+ records read, lag \S+\n", ""),  # said if it takes long
    (r"(?m)^([\w.-]+ +\d+ +\d+ +)\d+( +\d+  \S)", r"\1RATE\2"),  # a flow: records per second
    (r"\b(replay|import)-[0-9a-f]{16}\b", r"\1-ID"),
]
"""What differs from run to run in pages beside that of the command line."""


@dataclass(frozen=True)
class Step:
    """Something that is typed in, or a program that is run, and what the page shows of it."""

    command: str
    shown: str
    where: str


def masked(text: str) -> str:
    """Leave out what is another one each time: times, ids, sizes, processes."""
    for pattern, instead in _FURTHER + MASKS:
        text = re.sub(pattern, instead, text)
    return text.strip()


def steps_of(block: Block, scripts: Path) -> Iterable[Step]:
    """Return the steps of a block: its commands, or its program, which is put among the scripts."""
    if block.language == "console":
        for piece in re.split(r"^\$ ", block.text, flags=re.MULTILINE)[1:]:
            command, _, shown = _continued(piece).partition("\n")
            yield Step(command, shown, block.id)
    elif block.saved_as is not None:
        script = scripts / f"{block.line}-{block.saved_as}"
        script.write_text(block.text)
        yield Step(f"cp {script} {block.saved_as}", "", block.id)
    elif block.language == "python":
        script = scripts / f"{block.line}.py"
        script.write_text(block.text)
        yield Step(f"python {script}", block.output or "", block.id)


def _continued(piece: str) -> str:
    """Return a command that goes on behind a backslash in one line."""
    return re.sub(r"\\\n(?:> )?\s*", "", piece)


def typed(steps: list[Step], folder: Path, timeout_seconds: float = PATIENCE_SECONDS) -> list[str]:
    """Run steps in one shell, one after the other; return what each of them put out.

    A server is started in the background, on ports of its own, and ended with the shell.
    """
    ports = _free_ports()
    commands = "\n".join(f"{_served(each.command, ports)}\n{_BETWEEN}" for each in steps)
    done = subprocess.run(
        ["bash", "-c", f"{_BEFORE}\n{commands}"],
        cwd=folder,
        env=environment(folder),
        timeout=timeout_seconds,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    shown = done.stdout
    for port, real in zip(_PORTS, ports, strict=True):
        shown = shown.replace(f":{real}", f":{port}")
    outputs = shown.split(_END)
    assert len(outputs) == len(steps) + 1, shown
    return outputs[:-1]


_PORTS = (4747, 4748)
_BETWEEN = r"{ said=$?; printf '\036'; (exit $said); }"
_BEFORE = """\
served=
stop() { [ -z "$served" ] || { kill $served; wait $served; } 2>/dev/null; served=; }
trap 'stop; kill $(jobs -p) 2>/dev/null' EXIT
await() { until [ -s .served ] || ! kill -0 $served 2>/dev/null; do sleep 0.05; done; }
"""


def _served(command: str, ports: tuple[int, int]) -> str:
    """Return a command as it is typed in: `lakebed serve` goes into the background."""
    for port, real in zip(_PORTS, ports, strict=True):
        command = command.replace(f":{port}", f":{real}")
    told = command.endswith("&") or "--help" in command
    if told or not command.startswith("lakebed serve "):
        return command
    into = f"--port {ports[0]} --http-port {ports[1]} >.served 2>.served.log"
    shown = "cat .served; [ -s .served ] || cat .served.log"
    return f"stop; rm -f .served; {command} {into} & served=$!; await; {shown}"


def _free_ports() -> tuple[int, int]:
    with socket.socket() as one, socket.socket() as other:
        one.bind(("127.0.0.1", 0))
        other.bind(("127.0.0.1", 0))
        return one.getsockname()[1], other.getsockname()[1]


def environment(folder: Path) -> dict[str, str]:
    """Return the environment of a user who has activated the project's own."""
    ours = {name: text for name, text in os.environ.items() if not name.startswith("LAKEBED_")}
    path = f"{fork_server().commands}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    return {**ours, "PATH": path, "HOME": str(folder)}


def check(
    blocks: Iterable[Block],
    folder: Path,
    timeout_seconds: float = PATIENCE_SECONDS,
    before: Sequence[str] = (),
    ignoring: str = r"(?!)",
) -> None:
    """Run blocks in one shell in a folder, and compare what each step shows with the page.

    What is given as `before` is typed in first, and its output is of no interest. Neither is what
    the expression `ignoring` matches of any output.
    """
    scripts = folder / "scripts"
    scripts.mkdir()
    place = folder / "here"
    place.mkdir()
    (place / ".venv").symlink_to(Path(sys.executable).parent.parent)
    steps = [Step(each, "", "before") for each in before]
    steps += [step for block in blocks for step in steps_of(block, scripts)]
    outputs = typed(steps, place, timeout_seconds)
    for step, output in list(zip(steps, outputs, strict=True))[len(before) :]:
        left = re.sub(ignoring, "", output, flags=re.MULTILINE)
        assert masked(left) == masked(step.shown), f"{step.where}: {step.command}\n{output}"
