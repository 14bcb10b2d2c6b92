"""What docs/cli.md has from the code: the help of each command, and a table of all of them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

import click
from click.testing import CliRunner

from lakebed.cli import cli

_HELP: Final = re.compile(r"^\$ lakebed((?: [a-z]+)*) --help\n.*?(?=^\$ |^```)", re.M | re.S)


def with_help(page: str) -> str:
    """Return the page with the help texts of today, wherever it shows one."""
    return _HELP.sub(lambda found: f"$ lakebed{found[1]} --help\n{_help(found[1].split())}", page)


def _help(path: list[str]) -> str:
    return CliRunner().invoke(cli, [*path, "--help"], prog_name="lakebed", terminal_width=80).stdout


def command_table() -> str:
    """Return a row for each command: how it is called, what it does, which options it has."""
    lines = ["| command | does | options |", "|---|---|---|"]
    for path, command in commands(cli):
        call = " ".join(["lakebed", *path, *arguments(command)])
        does = command.get_short_help_str(200).rstrip(".")
        call = call.replace("|", "\\|")
        lines.append(f"| `{call}` | {does} | {', '.join(options(command)) or 'none'} |")
    return "\n".join(lines) + "\n"


def commands(
    group: click.Group, path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Return every command that does something, by its path."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None, name
        if isinstance(command, click.Group):
            yield from commands(command, (*path, name))
        else:
            yield (*path, name), command


def arguments(command: click.Command) -> list[str]:
    """Return the arguments of a command, as its usage shows them."""
    context = click.Context(command)
    found = []
    for each in command.params:
        if isinstance(each, click.Argument):
            found.append(each.make_metavar(context))
    return found


def options(command: click.Command) -> list[str]:
    """Return the options of a command with what each takes; those that must be given are bold."""
    context = click.Context(command)
    found = []
    for each in command.params:
        if not isinstance(each, click.Option) or each.hidden:
            continue
        name = "/".join([each.opts[-1], *each.secondary_opts])
        takes = "" if each.is_flag or each.count else f" {each.make_metavar(context)}"
        shown = f"`{name}{takes}`".replace("|", "\\|")
        found.append(f"**{shown}**" if each.required else shown)
    return found
