"""The code is laid out as docs/ARCHITECTURE.md says, and offers the names the docs name."""

from __future__ import annotations

import ast
import importlib
import pkgutil
import re
import subprocess
import sys
from pathlib import Path

import lakebed
from lakebed import errors
from tests.public_names import PUBLIC_NAMES

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "lakebed"
ARCHITECTURE = (ROOT / "docs" / "ARCHITECTURE.md").read_text(encoding="utf8")

LAYERS = re.findall(r"^\| `([a-z_]+)/?` \| built", ARCHITECTURE, re.MULTILINE)
"""The layers that are built, top to bottom: a layer imports only from those above it."""


def module_layer(path: Path) -> str:
    relative = path.relative_to(SOURCE)
    return relative.parts[0].removesuffix(".py")


def imported_layers(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf8"))):
        names = []
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        found |= {name.split(".")[1] for name in names if name.startswith("lakebed.")}
    return found


def test_every_layer_in_the_docs_exists_and_every_layer_is_in_the_docs() -> None:
    there = {
        path.name.removesuffix(".py") for path in SOURCE.iterdir() if path.suffix in ("", ".py")
    }
    there -= {"__init__", "__pycache__"}
    assert len(LAYERS) >= 14
    assert set(LAYERS) == there


LATE = {("api/log.py", "engine")}
"""Imports from below, when they are needed: `Log.open` opens a folder, and is not the engine."""


def test_a_layer_imports_only_from_those_above_it() -> None:
    wrong = []
    for path in sorted(SOURCE.rglob("*.py")):
        own = module_layer(path)
        last = LAYERS[-1] if own == "__init__" else own
        allowed = {own, *LAYERS[: LAYERS.index(last) + 1]}
        name = path.relative_to(SOURCE).as_posix()
        wrong += [(name, layer) for layer in imported_layers(path) - allowed]
    assert set(wrong) == LATE


def test_client_engine_and_server_do_not_know_each_other() -> None:
    for path in sorted((SOURCE / "client").rglob("*.py")):
        not_its_own = {"engine", "iceberg", "lake", "serve", "wal"}
        assert not not_its_own & imported_layers(path), path
    for path in sorted((SOURCE / "engine").rglob("*.py")):
        assert "client" not in imported_layers(path), path


NOT_DOORS = ("def open(", "async def open(")
"""Definitions of methods, and of `lakebed.open`."""


def test_only_host_opens_files() -> None:
    """The disk has one door, so that a test can stand in it."""
    doors = re.compile(
        r"\bos\.(open|read|write|pwrite|fsync|fdatasync|rename|unlink)\(|(?<![.\w])open\("
    )
    for path in sorted(SOURCE.rglob("*.py")):
        if "host" not in path.parts:
            for line in path.read_text(encoding="utf8").splitlines():
                opens = doors.search(line) and not line.lstrip().startswith(NOT_DOORS)
                assert not opens, (path, line)


def test_each_stateful_package_has_a_design_page() -> None:
    pages = {path.parent.name for path in SOURCE.glob("*/DESIGN.md")}
    assert pages == {"wal", "chain", "state", "topic", "lake", "iceberg", "engine"}
    for package in pages:
        page = (SOURCE / package / "DESIGN.md").read_text(encoding="utf8")
        for part in ("Purpose", "Format", "Invariants", "Write order", "Recovery", "Why not"):
            assert f"\n## {part}" in page, (package, part)
        assert f"({SOURCE.name}/{package}/DESIGN.md)" in ARCHITECTURE.replace("../src/", "")


def test_the_public_names_are_the_pinned_ones() -> None:
    packages = {"", ".aio", ".errors", ".spark", ".wal"}
    assert set(PUBLIC_NAMES) == {f"lakebed{package}" for package in packages}
    for module_name, names in PUBLIC_NAMES.items():
        module = importlib.import_module(module_name)
        if module is errors:
            offered = {name for name in dir(module) if name.endswith("Error") and name != "OSError"}
        else:
            offered = set(module.__all__)
        assert offered == set(names), module_name


PRIVATE_READS_MAX = 160
"""How often tests may name a private attribute of another object: each name of it is a read.

A test that needs one more uses a report, the log's `parts` or a helper in a `support.py`.
"""
PUBLIC_DESPITE_ITS_NAME = {"_asdict", "_exit", "_fields", "_getframe", "_make", "_replace"}
"""Of named tuples, `os` and `sys`."""


def private_reads(path: Path) -> int:
    """Count where a file names a private attribute of anything but `self` and `cls`."""
    text, names = path.read_text(encoding="utf8"), []
    if not re.search(r"(?<!\bself)(?<!\bcls)\._[a-zA-Z]|\bgetattr\(", text):
        return 0  # not worth parsing
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Attribute):
            own = isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")
            names += [] if own else [node.attr]
        elif isinstance(node, ast.Call) and getattr(node.func, "id", "") == "getattr":
            names.append(str(getattr(node.args[1], "value", "")))
    private = [name for name in names if re.match("_(?!_)", name)]
    return sum(name not in PUBLIC_DESPITE_ITS_NAME for name in private)


def test_tests_seldom_reach_into_private_attributes() -> None:
    """Each of them breaks in a change that breaks nothing."""
    reads = {str(path): private_reads(path) for path in (ROOT / "tests").rglob("*.py")}
    most = sorted(reads.items(), key=lambda item: -item[1])[:10]
    assert sum(reads.values()) <= PRIVATE_READS_MAX, f"{sum(reads.values())} reads, most in {most}"


def test_every_module_says_what_it_is() -> None:
    for found in pkgutil.walk_packages(lakebed.__path__, "lakebed."):
        if found.name.endswith(".__main__"):
            continue  # importing it runs it
        assert importlib.import_module(found.name).__doc__, found.name


def test_the_project_speaks_of_the_project_alone() -> None:
    """No path of a machine and no registry's address in what is published."""
    banned = re.compile(r"/work/|/root/|/home/[a-z]|pypi\.org|files\.pythonhosted|registry\.npmjs")
    names = ("src", "docs", "bench", "examples", "tools", "deploy")
    places = [ROOT / name for name in names]
    files = [path for place in places for path in place.rglob("*") if path.is_file()]
    files += [path for path in ROOT.iterdir() if path.is_file()]
    for path in files:
        if path.suffix in (".py", ".md", ".toml", ".txt", ".json") or path.name == "Makefile":
            match = banned.search(path.read_text(encoding="utf8"))
            assert match is None, (path, match)


def test_lakebed_is_imported_without_pandas() -> None:
    """It takes as long to import as everything else together, and Spark has many processes."""
    code = "import lakebed, lakebed.spark.stream, sys; print('pandas' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_every_file_that_a_design_page_names_exists() -> None:
    """A page beside the code names files of its folder, or of another by their path."""
    for page in sorted((ROOT / "src" / "lakebed").glob("*/DESIGN.md")):
        named = re.findall(r"`((?:\w+/)*\w+\.py)`", page.read_text(encoding="utf8"))
        missing = [
            name
            for name in named
            if not any((base / name).exists() for base in (page.parent, SOURCE, ROOT))
        ]
        assert not missing, f"{page}: {missing}"
