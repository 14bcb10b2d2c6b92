"""Lakebed on the command line: one file per group of commands."""

from __future__ import annotations

import click

from lakebed.cli.output import LakebedGroup
from lakebed.cli.wal import wal
from lakebed.version import __version__

__all__ = ["cli", "main"]


@click.group(cls=LakebedGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="lakebed", message="%(prog)s %(version)s")
def cli() -> None:
    """Run a durable event log, and look after it."""


cli.add_command(wal)


def main() -> None:
    """Run the command line; the entry point of the program `lakebed`."""
    cli(prog_name="lakebed")
