"""Lakebed on the command line: one file per group of commands."""

from __future__ import annotations

import click

from lakebed.cli.access import access
from lakebed.cli.backup import backup, restore
from lakebed.cli.completion import completion
from lakebed.cli.consume import consume
from lakebed.cli.demo import demo
from lakebed.cli.doctor import doctor
from lakebed.cli.group import group
from lakebed.cli.job import job
from lakebed.cli.lake import lake
from lakebed.cli.look import checkpoint, retain, stats
from lakebed.cli.output import LakebedGroup
from lakebed.cli.pipeline import pipeline
from lakebed.cli.produce import produce
from lakebed.cli.serve import serve
from lakebed.cli.settings import config_command
from lakebed.cli.token import token
from lakebed.cli.top import top
from lakebed.cli.topic import topic
from lakebed.cli.wal import wal
from lakebed.version import __version__

__all__ = ["cli", "main"]


@click.group(cls=LakebedGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="lakebed", message="%(prog)s %(version)s")
def cli() -> None:
    """Run a durable event log, and look after it."""


for command in (
    demo,
    serve,
    topic,
    produce,
    consume,
    group,
    lake,
    job,
    pipeline,
    checkpoint,
    retain,
    stats,
    top,
    backup,
    restore,
    doctor,
    token,
    access,
    config_command,
    completion,
    wal,
):
    cli.add_command(command)


def main() -> None:
    """Run the command line; the entry point of the program `lakebed`."""
    cli(prog_name="lakebed")
