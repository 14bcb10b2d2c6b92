"""docs/python.md, and the help texts in docs/cli.md, are what the code says."""

from __future__ import annotations

import importlib
import inspect
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from tools import reference

import lakebed
from lakebed import errors
from tests.public_names import PUBLIC_NAMES

ROOT = Path(__file__).parents[1]
PYTHON = (ROOT / "docs" / "python.md").read_text(encoding="utf8")


@pytest.mark.parametrize("path", reference.pages(), ids=lambda path: path.name)
def test_a_page_is_what_the_generator_writes(path: Path) -> None:
    page = path.read_text(encoding="utf8")
    made = reference.pages()[path](page)
    assert made == page, "run `python -m tools.reference`"


def test_the_generator_says_which_page_is_not_as_the_code_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "page.md"
    page.write_text("old")
    monkeypatch.setattr(reference, "pages", lambda: {page: lambda _: "new"})
    monkeypatch.setattr(sys, "argv", ["reference", "--check"])
    assert (reference.main(), page.read_text()) == (1, "old")
    assert capsys.readouterr().out == "docs/page.md: is not as the code says\n"
    monkeypatch.setattr(sys, "argv", ["reference"])
    assert (reference.main(), page.read_text()) == (0, "new")


def test_two_runs_write_the_same_page() -> None:
    """Nothing on it depends on addresses of objects or on the order of sets."""
    code = "from tools.python_page import python_page; import sys; sys.stdout.write(python_page())"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, check=True, timeout=120
    )
    assert done.stdout.decode() == PYTHON
    assert " at 0x" not in PYTHON


@pytest.mark.parametrize("module", ["lakebed", "lakebed.aio", "lakebed.spark", "lakebed.wal"])
def test_every_public_name_is_on_the_page(module: str) -> None:
    names = importlib.import_module(module).__all__
    missing = [name for name in names if not re.search(rf"`[\w.]*\b{name}\b[`(]", PYTHON)]
    assert missing == []


def test_every_pinned_name_is_on_the_page() -> None:
    for module, names in PUBLIC_NAMES.items():
        for name in names:
            assert re.search(rf"`[\w.]*\b{name}\b[`(]", PYTHON), (module, name)


@pytest.mark.parametrize("kind", [lakebed.Log, lakebed.Producer, lakebed.Consumer, lakebed.Table])
def test_every_method_is_on_the_page_and_says_what_it_does(kind: type) -> None:
    inner = {"tick", "given", "after_fork"}
    for name, method in inspect.getmembers(kind, inspect.isfunction):
        if not name.startswith("_") and name not in inner:
            assert f"* `{name}(" in PYTHON, name
            assert (method.__doc__ or "").partition("\n")[0].endswith("."), name


def test_every_error_is_on_the_page_with_its_code_and_what_to_do() -> None:
    tree = PYTHON.partition("## `lakebed.errors`")[2]
    plain = " ".join(tree.split())
    for kind in vars(errors).values():
        if inspect.isclass(kind) and issubclass(kind, errors.LakebedError):
            assert f"`{kind.__name__}` (`{kind.code}`" in tree
            if "advice" in vars(kind):
                assert kind.advice[1:] in plain, kind


def test_every_package_that_is_installed_is_accounted_for() -> None:
    """docs/dependencies.md says what each dependency of pyproject.toml is for."""
    page = (ROOT / "docs" / "dependencies.md").read_text(encoding="utf8").lower()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf8"))["project"]
    wanted = list(project["dependencies"])
    for extra in project["optional-dependencies"].values():
        wanted += extra
    names = {re.match(r"[\w-]+", each)[0].lower() for each in wanted}  # type: ignore[index]
    plain = {name for name in names if not name.startswith(("duckdb-", "pytest-"))}
    assert len(plain) > 25
    assert [name for name in sorted(plain) if name.removesuffix("-binary") not in page] == []
