"""Lakebed on the command line: one file per group of commands."""

from __future__ import annotations

import importlib
from typing import Final

import click

from lakebed.cli.output import LakebedGroup
from lakebed.version import __version__

__all__ = ["cli", "main"]

_COMMANDS: Final = {
    "access": "access.access",
    "backup": "backup.backup",
    "checkpoint": "look.checkpoint",
    "completion": "completion.completion",
    "config": "settings.config_command",
    "consume": "consume.consume",
    "demo": "demo.demo",
    "doctor": "doctor.doctor",
    "group": "group.group",
    "job": "job.job",
    "lake": "lake.lake",
    "owner": "owner.owner",
    "pipeline": "pipeline.pipeline",
    "produce": "produce.produce",
    "restore": "backup.restore",
    "retain": "look.retain",
    "serve": "serve.serve",
    "stats": "look.stats",
    "token": "token.token",
    "top": "top.top",
    "topic": "topic.topic",
    "wal": "wal.wal",
}
"""The object of each command, by its module in this package."""


class _Commands(LakebedGroup):
    """Imports the module of a command when it is used, so that no command waits for the others."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002  # of click
        """Return the names of the commands."""
        return sorted(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """Return a command, or None if there is none of this name."""
        if cmd_name not in _COMMANDS:
            return None
        module, _, name = _COMMANDS[cmd_name].partition(".")
        command: click.Command = getattr(importlib.import_module(f"lakebed.cli.{module}"), name)
        return command


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="lakebed", message="%(prog)s %(version)s")
def cli() -> None:
    """Run and manage a durable event log."""


def main() -> None:
    """Run the command line; the entry point of the program `lakebed`."""
    cli(prog_name="lakebed")
