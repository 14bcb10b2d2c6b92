"""The Spark session of a job's command, and the options that all of them have."""

from __future__ import annotations

import contextlib
import re
import signal
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

import click

import lakebed
from lakebed.cli.data import Target, open_log
from lakebed.spark.java import check_java
from lakebed.spark.packages import check_packages
from lakebed.spark.session import LOCAL_MASTER

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_Command = TypeVar("_Command", bound=Callable[..., object])

_POINTS: Final = re.compile(r"\d{1,18}|\d{1,9}=\d{1,18}(,\d{1,9}=\d{1,18})*", re.ASCII)


class SparkOptions(NamedTuple):
    """How a command's Spark is to be."""

    master: str
    verbose: bool


@contextlib.contextmanager
def spark_on(
    folder: Target, options: SparkOptions, *, silent: bool
) -> Iterator[tuple[SparkSession, lakebed.Log]]:
    """Open the log and return it with a Spark session, which ends with the block if it began there.

    Java is looked for first: without it nothing is opened.
    """
    check_packages("spark", "pyspark")
    check_java()
    from pyspark.sql import SparkSession

    from lakebed.spark.session import session

    with interruptible(), open_log(folder, silent=silent) as log:
        running = SparkSession.getActiveSession()
        if running is not None:
            yield running, log
            return
        silent_java = not options.verbose
        spark = session(log, master=options.master, name="lakebed-job", silent=silent_java)
        try:
            yield spark, log
        finally:
            spark.stop()


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Make SIGTERM end the block as Ctrl-C does, and Spark's JVM with it, at once."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


master_option = click.option(
    "--master",
    metavar="URL",
    default=LOCAL_MASTER,
    show_default=True,
    help="The Spark master. With local[N] Spark never retries a task; with local[N,4] it does.",
)


def spark_options(command: _Command) -> _Command:
    """Return a command the options `--master` and `--verbose`."""
    command = click.option(
        "--verbose", is_flag=True, help="Show the output of Spark, with stack traces."
    )(command)
    return master_option(command)


class _Points(click.ParamType):  # type: ignore[type-arg]  # generic in new versions only
    """An offset for every partition, or one for each that is named."""

    name = "OFFSETS"

    def convert(
        self, value: Any, param: click.Parameter | None, context: click.Context | None
    ) -> int | dict[int, int]:
        """Take `100`, or `0=100,1=250`."""
        if not isinstance(value, str):
            return value  # type: ignore[no-any-return]
        if not _POINTS.fullmatch(value):
            self.fail(f"{value!r} is neither an offset nor like 0=100,1=250", param, context)
        if "=" not in value:
            return int(value)
        pairs = (pair.split("=") for pair in value.split(","))
        return {int(partition): int(offset) for partition, offset in pairs}


class _Time(click.ParamType):  # type: ignore[type-arg]  # generic in new versions only
    """A time."""

    name = "TIME"

    def convert(
        self, value: Any, param: click.Parameter | None, context: click.Context | None
    ) -> datetime:
        """Take a time as ISO 8601 says it."""
        if isinstance(value, datetime):
            return value
        try:
            return datetime.fromisoformat(value)
        except ValueError:
            self.fail(
                f"{value!r} is no time such as 2026-11-15T21:30:00Z (UTC if it does not say)",
                param,
                context,
            )


def range_options(command: _Command) -> _Command:
    """Return a command the options that bound what it reads."""
    for option in reversed(
        (
            click.option(
                "--start",
                metavar="OFFSETS",
                type=_Points(),
                help="From this offset on: 100, or 0=100,1=250 by partition.",
            ),
            click.option(
                "--until",
                metavar="OFFSETS",
                type=_Points(),
                help="Up to, not including, this offset.",
            ),
            click.option(
                "--from-time",
                metavar="TIME",
                type=_Time(),
                help="From the first record of this time or later.",
            ),
            click.option(
                "--to-time",
                metavar="TIME",
                type=_Time(),
                help="Up to the first record of this time or later.",
            ),
        )
    ):
        command = option(command)
    return command
