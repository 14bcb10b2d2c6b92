"""What docs/cli.md has from the code: the help of each command, as Markdown.

The page marks where the help of a command is written, below the heading that names it:

    ### `lakebed topic create NAME`

    <!--help-->
    <!--end-->
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

import click

from lakebed.cli import cli
from tools.python_names import wrapped

COMMON: Final = frozenset({"--data", "--json", "--help"})
"""Options of every command, which the page explains once."""

_COMMON_TEXTS: Final = ("The log's folder, or the URL", "Write JSON lines", "Show this message")

_MARKED: Final = re.compile(
    r"^(#+ `lakebed ([a-z]+(?:[ -][a-z]+)*)\b[^\n]*`\n\n<!--help-->\n).*?^(?=<!--end-->$)",
    re.M | re.S,
)
_LITERAL: Final = re.compile(
    r"(?<![`\w-])(--[a-z][a-z-]*|LAKEBED_[A-Z]+|[a-z]+\.(?:toml|json|html))\b"
)


def with_help(page: str) -> str:
    """Return the page with today's help text at each mark."""
    shown: dict[str, set[str]] = {}

    def write(mark: re.Match[str]) -> str:
        path = mark[2].split()
        return mark[1] + help_of(path, shown.setdefault(path[0], set()))

    return _MARKED.sub(write, page)


def help_of(path: list[str], shown: set[str]) -> str:
    """Return the text and the options of a command.

    Args:
        path: names of the group and the command.
        shown: options that the chapter has described so far; new ones are added.
    """
    command = command_at(path)
    options = dict(_options(command))
    lines = [f"* {option}" for option in options.values() if option not in shown]
    again = [name for name, option in options.items() if option in shown]
    shown |= set(options.values())
    parts = [*_paragraphs(command.help or "")]
    if lines:
        parts.append("\n".join(wrapped(line, indent="  ") for line in lines))
    if again:
        parts.append(f"Also {', '.join(f'`{name}`' for name in again)}.")
    return "\n\n".join(parts) + "\n"


def command_at(path: list[str]) -> click.Command:
    """Return the command of a path of names."""
    command: click.Command = cli
    for name in path:
        assert isinstance(command, click.Group)
        below = command.get_command(click.Context(command), name)
        assert below is not None, path
        command = below
    return command


def _paragraphs(text: str) -> Iterator[str]:
    for block in text.split("\n\n"):
        if block.lstrip().startswith("\b"):
            yield "\n".join(
                f"    {line.strip()}" for line in block.split("\n") if line.strip("\b ")
            )
        else:
            yield wrapped(_quote(" ".join(block.split())))


def _options(command: click.Command) -> Iterator[tuple[str, str]]:
    """Yield the name of each option that is not common, and its line."""
    context = click.Context(command)
    for option in command.params:
        record = option.get_help_record(context)
        name = option.opts[-1]
        if record is None or not name.startswith("--"):
            continue
        text = " ".join(record[1].split())
        if name not in COMMON or not text.startswith(_COMMON_TEXTS):
            yield name, f"`{record[0]}`: {_quote(text)}"


def _quote(text: str) -> str:
    """Return a text with its options, variables and files as code."""
    parts = text.split("`")  # every second one is code already
    return "`".join(
        part if number % 2 else _LITERAL.sub(r"`\1`", part) for number, part in enumerate(parts)
    )
