"""Try the README's two commands as on a fresh machine: nothing of ours is there but a clone.

Clones the repository (its last commit) into an empty folder, with an empty home and no caches, runs
`make demo` and `make test` there, and checks what they leave and say. Run it before a release:

    python3 tools/fresh_machine.py [--demo-only] [--keep]
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
KEPT = re.compile(r"PATH|LANG|LC_\w+|TERM|JAVA_HOME|PYTHON|(PIP_(?!CACHE)\w+)|\w+_(proxy|PROXY)")
"""What a fresh machine has in its environment: where programs and packages are found."""
NUMBER = re.compile(r"[\d,.]+")


def environment(home: Path) -> dict[str, str]:
    """Return the environment of somebody who has just logged in for the first time."""
    kept = {name: value for name, value in os.environ.items() if KEPT.fullmatch(name)}
    venv = str(ROOT / ".venv")
    path = [each for each in kept["PATH"].split(os.pathsep) if not each.startswith(venv)]
    return {
        **kept,
        "PATH": os.pathsep.join(path),
        "HOME": str(home),
        "PIP_NO_CACHE_DIR": "1",
    }


def run(target: str, clone: Path, home: Path) -> tuple[str, float]:
    """Run a target of make, show what it says, and return it with the seconds that it took."""
    begun, said = time.monotonic(), []
    with subprocess.Popen(
        ["make", target],
        cwd=clone,
        env=environment(home),
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            sys.stdout.write(line)
            sys.stdout.flush()
            said.append(line)
    if process.returncode:
        sys.exit(f"make {target} failed with exit code {process.returncode}")
    return "".join(said), time.monotonic() - begun


def check_demo(said: str, clone: Path) -> None:
    """Compare the output of the demonstration with the page, except for the figures."""
    shown = shown_demo(clone)
    begun = re.search(r"^1\. ", said, re.MULTILINE)
    if begun is None or shape(said[begun.start() :]) != shape(shown):
        sys.exit(f"make demo does not print what docs/getting-started.md shows:\n{shown}")
    (name,) = re.findall(r"^Report: (.+)$", said, re.MULTILINE)
    report = clone / name
    if "All checks passed" not in report.read_text(encoding="utf8"):
        sys.exit(f"{report} is not the report of a demonstration that went well")


def shown_demo(root: Path) -> str:
    """Return the output of the demonstration as docs/getting-started.md shows it."""
    page = (root / "docs" / "getting-started.md").read_text(encoding="utf8")
    return page.partition("$ make demo\n")[2].partition("```")[0]


def shape(text: str) -> list[str]:
    """Return the lines without figures, and without the width of columns."""
    return [" ".join(NUMBER.sub("0", line).split()) for line in text.splitlines()]


def main() -> None:
    """Clone, run both commands, check, and say how long they took."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--demo-only", action="store_true", help="leave `make test` out")
    parser.add_argument("--keep", action="store_true", help="do not remove the clone")
    options = parser.parse_args()
    place = Path(tempfile.mkdtemp(prefix="lakebed-fresh-"))
    clone, home = place / "lakebed", place / "home"
    try:
        home.mkdir()
        subprocess.run(["git", "clone", "--quiet", str(ROOT), str(clone)], check=True)
        said, seconds = run("demo", clone, home)
        check_demo(said, clone)
        took = [f"make demo {seconds:.0f} s, with setting up"]
        if not options.demo_only:
            said, seconds = run("test", clone, home)
            took.append(f"make test {seconds:.0f} s: {said.splitlines()[-1].strip('= ')}")
        left = sorted(path.name for path in home.iterdir())
        sys.stdout.write(f"as on a fresh machine: {'; '.join(took)}\n")
        sys.stdout.write(f"left in the home folder: {', '.join(left) or 'nothing'}\n")
    finally:
        if options.keep:
            sys.stdout.write(f"kept: {place}\n")
        else:
            shutil.rmtree(place)


if __name__ == "__main__":
    main()
