"""Writes requirements/*.txt: the versions of constraints.txt with the hashes of all their files.

    .venv/bin/python -m tools.lock

`pip install --require-hashes` then installs nothing else, on any platform and Python version. What
the extra `dev` needs is in dev.txt, the rest of constraints.txt (the extra `bench`) in bench.txt.
The hashes come from the index that pip is set up with; its address is not written. It runs in an
environment that `make setup` has created: what needs what is read from the installed packages.
"""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import (
    InvalidSdistFilename,
    InvalidWheelFilename,
    canonicalize_name,
    parse_sdist_filename,
    parse_wheel_filename,
)
from packaging.version import Version

from tools.environment import ROOT

HEAD = (
    "# Written by `make constraints`: versions of constraints.txt, and hashes of all their files.\n"
)
ALWAYS = ("pip", "setuptools")
"""What an environment has before anything else is installed."""


def pins() -> dict[str, str]:
    """Return the versions of constraints.txt by name."""
    lines = (ROOT / "constraints.txt").read_text(encoding="utf8").splitlines()
    pairs = (line.split("==") for line in lines if "==" in line and not line.startswith("#"))
    return {canonicalize_name(name): version for name, version in pairs}


def needed(extra: str) -> set[str]:
    """Return the names of everything that an extra of Lakebed needs."""
    reached: set[tuple[str, str]] = set()
    names: set[str] = {canonicalize_name(name) for name in ALWAYS}
    waiting = [("lakebed", ""), ("lakebed", extra)]
    while waiting:
        name, wanted = waiting.pop()
        if (name, wanted) in reached:
            continue
        reached.add((name, wanted))
        names.add(canonicalize_name(name))
        for requirement in map(Requirement, listed(name)):
            if requirement.marker is None or requirement.marker.evaluate({"extra": wanted}):
                extras = ["", *requirement.extras]
                waiting += [(canonicalize_name(requirement.name), each) for each in extras]
    return names - {"lakebed"}


def listed(name: str) -> list[str]:
    """Return what a package says that it requires."""
    if name == "lakebed":  # as it is here, and not as it was when it was installed
        project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf8"))["project"]
        extras = project["optional-dependencies"].items()
        return [
            *project["dependencies"],
            *(f'{text}; extra == "{extra}"' for extra, texts in extras for text in texts),
        ]
    try:
        return requires(name) or []
    except PackageNotFoundError:
        return []  # of another Python version or platform: nothing here needs it


def hashes(names: dict[str, str]) -> Iterator[tuple[str, list[str]]]:
    """Return the hashes of all files of each version, as pip's own index has them."""
    from pip._internal.commands import create_command
    from pip._internal.index.collector import parse_links
    from pip._internal.models.link import Link

    command: Any = create_command("download")
    options, _ = command.parse_args(["anything"])
    with command.main_context():
        collector = command._build_package_finder(
            options, command.get_default_session(options)
        )._link_collector
        for name, version in sorted(names.items()):
            digests: set[str] = set()
            for url in collector.search_scope.get_index_urls_locations(name):
                page = collector.fetch_response(Link(url))
                for link in parse_links(page) if page is not None else ():
                    if link.hash_name == "sha256" and _version(link.filename) == Version(version):
                        digests.add(str(link.hash))
            if not digests:
                sys.exit(f"the index has no hashes of {name} {version}")
            yield name, sorted(digests)


def _version(filename: str) -> Version | None:
    try:
        if filename.endswith(".whl"):
            return parse_wheel_filename(filename)[1]
        return parse_sdist_filename(filename)[1]
    except (InvalidWheelFilename, InvalidSdistFilename):
        return None


def write(path: Path, names: dict[str, str], digests: dict[str, list[str]]) -> None:
    """Write one file."""
    entries = [
        " \\\n    ".join(
            [f"{name}=={names[name]}", *(f"--hash=sha256:{each}" for each in digests[name])]
        )
        for name in sorted(names)
    ]
    path.parent.mkdir(exist_ok=True)
    path.write_text(HEAD + "\n".join(entries) + "\n", encoding="utf8")
    print(f"{path.relative_to(ROOT)}: {len(names)} packages")


def main() -> None:
    """Write the files."""
    pinned = pins()
    digests = dict(hashes(pinned))
    wanted = needed("dev")
    missing = wanted - pinned.keys()
    if missing:
        sys.exit(f"constraints.txt lacks {', '.join(sorted(missing))}: run `make constraints`")
    parts = {"dev": pinned.keys() & wanted, "bench": pinned.keys() - wanted}
    for extra, names in parts.items():
        write(
            ROOT / "requirements" / f"{extra}.txt", {name: pinned[name] for name in names}, digests
        )


if __name__ == "__main__":
    main()
