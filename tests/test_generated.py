"""The methods that only pass a call on are those that the table of operations describes."""

from __future__ import annotations

import importlib
import inspect
import sys
import textwrap
import typing
from pathlib import Path
from typing import Any

import pytest
from tools import generate
from tools.generate import FILES, SUBJECTS
from tools.stubs import SOURCE

from lakebed.operations.description import Owner
from lakebed.operations.table import OPERATIONS
from lakebed.serve import calls
from tests.documents.pages import blocks_of


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_a_file_is_what_the_generator_writes(path: Path) -> None:
    assert path.read_text(encoding="utf8") == FILES[path](), "run `python -m tools.generate`"


def test_the_generator_reports_a_file_that_is_stale_and_writes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stale = tmp_path / "src" / "_stubs.py"
    monkeypatch.setattr(generate, "SOURCE", tmp_path / "src")
    monkeypatch.setattr(generate, "FILES", {stale: lambda: "new"})
    monkeypatch.setattr(sys, "argv", ["generate", "--check"])
    assert (generate.main(), stale.exists()) == (1, False)
    assert capsys.readouterr().out == "src/_stubs.py: is stale: run `python -m tools.generate`\n"
    stale.parent.mkdir()
    monkeypatch.setattr(sys, "argv", ["generate"])
    assert (generate.main(), stale.read_text()) == (0, "new")
    monkeypatch.setattr(sys, "argv", ["generate", "--check"])
    assert generate.main() == 0


def loaded(name: str) -> Any:
    module, _, kind = name.partition(":")
    return getattr(importlib.import_module(module), kind)


ORIGINS = {subject.owner: loaded(subject.origin) for subject in SUBJECTS}


def test_every_operation_has_a_method_or_a_function_of_the_server() -> None:
    for name, operation in OPERATIONS.items():
        if operation.owner in ORIGINS:
            assert callable(getattr(ORIGINS[operation.owner], operation.method)), name
        if operation.owner in (Owner.CLIENT, Owner.GROUPS, Owner.TABLE):
            assert name in calls._FUNCTIONS, name
    assert set(calls._FUNCTIONS) <= set(OPERATIONS)


@pytest.mark.parametrize("owner", ORIGINS, ids=lambda owner: owner.value)
def test_the_result_of_an_operation_is_what_its_method_returns(owner: Owner) -> None:
    for operation in OPERATIONS.values():
        if operation.owner is owner:
            method = getattr(ORIGINS[owner], operation.method)
            expected = operation.result
            returned = typing.get_type_hints(method)["return"]
            assert returned == (type(None) if expected is None else expected), operation.name


def test_the_server_passes_a_request_on_as_the_arguments_of_its_method() -> None:
    for name, operation in OPERATIONS.items():
        if name not in calls._FUNCTIONS and operation.owner in ORIGINS:
            method = getattr(ORIGINS[operation.owner], operation.method)
            assert set(operation.request) <= set(inspect.signature(method).parameters), name


def test_the_example_of_an_operation_is_in_the_code() -> None:
    """Both blocks of CONTRIBUTING.md are copied from the source."""
    blocks = [each for each in blocks_of("CONTRIBUTING.md") if each.language == "python"]
    sources = [SOURCE / "lakebed" / name for name in ("api/log.py", "operations/table.py")]
    assert len(blocks) == 2
    for block, source in zip(blocks, sources, strict=True):
        assert textwrap.indent(block.text.rstrip(), "    ") in source.read_text(encoding="utf8"), (
            source
        )
