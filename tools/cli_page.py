"""What docs/cli.md has from the code: the help of each command."""

from __future__ import annotations

import re
from typing import Final

from click.testing import CliRunner

from lakebed.cli import cli

_HELP: Final = re.compile(r"^\$ lakebed((?: [a-z]+)*) --help\n.*?(?=^\$ |^```)", re.M | re.S)
_COMMON: Final = re.compile(
    r"^  (?:-h, --help +Show this message and exit\.|--json +Write JSON lines\."
    r"|--data DIR\|URL +The log\'s folder, or the URL of a server\.\s+\[env\s+var:\s+LAKEBED_DATA;"
    r"\s+required\])\n",
    re.M,
)
"""Options that every command has, which the page explains once."""


def with_help(page: str) -> str:
    """Return the page with the help texts of today, wherever it shows one."""
    return _HELP.sub(lambda found: f"$ lakebed{found[1]} --help\n{help_of(found[1].split())}", page)


def help_of(path: list[str]) -> str:
    """Return the help of a command without the options that every command has."""
    result = CliRunner().invoke(cli, [*path, "--help"], prog_name="lakebed", terminal_width=80)
    return (
        result.stdout
        if not path
        else _COMMON.sub("", result.stdout).replace("Options:\n\n", "").removesuffix("\nOptions:\n")
    )
