"""The page about the command line shows every command, every option and today's help texts."""

from __future__ import annotations

import re
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from lakebed.cli import cli

PAGE = (Path(__file__).parents[2] / "docs" / "cli.md").read_text(encoding="utf8")


def commands(group: click.Group, path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    found = []
    for name, command in group.commands.items():
        found.append((*path, name))
        if isinstance(command, click.Group):
            found += commands(command, (*path, name))
    return found


def unwrapped(text: str) -> str:
    """Give a text whose lines may be broken anywhere as one line."""
    return " ".join(text.split())


@pytest.mark.parametrize("command", commands(cli), ids=" ".join)
def test_the_page_shows_the_help_of_each_command(command: tuple[str, ...]) -> None:
    result = CliRunner().invoke(cli, [*command, "--help"], prog_name="lakebed")
    shown = f"$ lakebed {' '.join(command)} --help\n{result.stdout}"
    assert unwrapped(shown) in unwrapped(PAGE)


def test_each_command_has_an_example() -> None:
    for command in commands(cli):
        if len(command) > 1:
            assert re.search(rf"^\$ lakebed {' '.join(command)} data", PAGE, re.MULTILINE), command
