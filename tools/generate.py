"""Writes the methods of `lakebed.client` and `lakebed.aio` that only pass a call on.

    python -m tools.generate          write client/_stubs.py and aio/_stubs.py
    python -m tools.generate --check  only report whether they are up to date

Which methods there are, and how each is called, is stated in `operations/table.py`; signature and
docstring come from the class in `api/` that declares the method. A method that the class in
`client/` or `aio/` defines itself is not generated. `tests/test_generated.py` fails when a file is
stale.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

from lakebed.operations.description import Owner
from tools.stubs import SOURCE, Subject, aio_class, client_class, module

SUBJECTS: Final = (
    Subject(
        Owner.ACCESS,
        "lakebed.api.parts:AccessApi",
        "lakebed.client.access:RemoteAccess",
        "lakebed.aio.access:AsyncAccess",
    ),
    Subject(
        Owner.LAKE,
        "lakebed.api.parts:LakeApi",
        "lakebed.client.lake:RemoteLake",
        "lakebed.aio.lake:AsyncLake",
    ),
    Subject(
        Owner.DERIVED,
        "lakebed.api.parts:DerivedApi",
        "lakebed.client.derived:RemoteDerived",
        "lakebed.aio.derived:AsyncDerived",
    ),
    Subject(
        Owner.TABLE,
        "lakebed.api.table:Table",
        remote="",
        awaited="lakebed.aio.table:AsyncTable",
    ),
    Subject(
        Owner.LOG,
        "lakebed.api.log:Log",
        "lakebed.client.log:RemoteLog",
        "lakebed.aio.log:AsyncLog",
    ),
)


def client_stubs() -> str:
    """Return the module of the client."""
    title = "Methods of a served log that make one call each."
    return formatted(module(title, [client_class(each) for each in SUBJECTS if each.remote]))


def aio_stubs() -> str:
    """Return the module for asyncio."""
    title = "Methods that run one method of a log in a thread each."
    return formatted(module(title, [aio_class(each) for each in SUBJECTS if each.awaited]))


FILES: Final[dict[Path, Callable[[], str]]] = {
    SOURCE / "lakebed" / "client" / "_stubs.py": client_stubs,
    SOURCE / "lakebed" / "aio" / "_stubs.py": aio_stubs,
}


def formatted(text: str) -> str:
    """Return a module as the linter wants it."""
    ruff = str(Path(sys.executable).with_name("ruff"))
    name = ["--stdin-filename", str(SOURCE / "lakebed" / "_stubs.py"), "-"]
    for command in (["check", "--fix", "--quiet", "--select", "I"], ["format", "--quiet"]):
        done = subprocess.run(
            [ruff, *command, *name], input=text, capture_output=True, text=True, check=True
        )
        text = done.stdout
    return text


def main() -> int:
    """Write the files, or check them; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tools.generate", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing")
    check = parser.parse_args().check
    stale = [path for path, make in FILES.items() if not is_current(path, make())]
    for path in stale:
        if not check:
            path.write_text(FILES[path](), encoding="utf8")
        verb = "is stale: run `python -m tools.generate`" if check else "written"
        sys.stdout.write(f"{path.relative_to(SOURCE.parent)}: {verb}\n")
    return 1 if stale and check else 0


def is_current(path: Path, text: str) -> bool:
    """Return whether a file has this text."""
    return path.exists() and path.read_text(encoding="utf8") == text


if __name__ == "__main__":
    sys.exit(main())
