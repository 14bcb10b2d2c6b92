"""`lakebed demo`: the main job in small, with kills, and a report of what was measured."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from lakebed.cli.job_session import interruptible
from lakebed.cli.output import Meter, flush, json_option, write_json, write_line, write_table
from lakebed.spark.java import check_java
from lakebed.spark.packages import check_packages
from lakebed.types import Closing

if TYPE_CHECKING:
    from lakebed.demo.measures import Measures

_RECORDS_MIN: Final = 2_000
"""Fewer would be written before anybody could kill the till."""
_RECORDS_MAX: Final = 5_000_000
"""All of them are kept in mind, to be compared with what is found."""
_PACKAGES: Final = ("pyspark", "duckdb", "duckdb_extension_avro", "duckdb_extension_iceberg")
_REPORT: Final = "report.html"


@click.command(short_help="See the main job done, with kills, in two minutes.")
@click.option(
    "--records",
    metavar="N",
    type=click.IntRange(_RECORDS_MIN, _RECORDS_MAX),
    default=200_000,
    show_default=True,
    help="How many records the till writes.",
)
@click.option(
    "--folder",
    metavar="DIR",
    type=click.Path(path_type=Path),
    default="demo",
    show_default=True,
    help="Where log and report are made, in place of those of an earlier demonstration.",
)
@json_option
@click.pass_context
def demo(ctx: click.Context, records: int, folder: Path, *, as_json: bool) -> None:
    """Write, get killed, go on; derive by Spark, get killed, go on; compact, query, report.

    A till in a process of its own writes orders, corrections and deletions, and is killed with -9
    in the middle. A Spark pipeline makes a topic and a current-state table of them, and is killed
    too. All that was acknowledged is compared with what is there. Spark compacts the topic, DuckDB
    queries the Iceberg tables. The log stays in the folder, with a report of what was measured,
    report.html. Exit code 1 if anything is not as it should be.
    """
    check_packages("demo", *_PACKAGES)
    check_java()
    from lakebed.demo.children import alone
    from lakebed.demo.report import page
    from lakebed.demo.story import Story, stage

    with interruptible(), stage(folder), alone(), _Teller(silent=as_json) as teller:
        measures = Story(folder, records, teller).run()
        report = folder / _REPORT
        report.write_text(page(measures), encoding="utf8")
    if as_json:
        write_json("demo", {"report": report, **_summary(measures)})
    else:
        _conclude(measures)
        write_line(str(report))
    if not measures.is_right:
        ctx.exit(1)


class _Teller(Closing):
    """Tells acts and facts on stdout, and how far work is on stderr, where it does not stay."""

    def __init__(self, *, silent: bool) -> None:
        self._silent = silent
        self._acts = 0
        self._doing, self._since = "", 0.0
        self._meter = self._new_meter()

    def _new_meter(self) -> Meter:
        return Meter(silent=self._silent, unit="records")

    def close(self) -> None:
        """Take away what does not stay."""
        self._meter.__exit__(None, None, None)

    def act(self, text: str) -> None:
        """Return what begins."""
        self._acts += 1
        self._say(f"{self._acts}. {text}")

    def fact(self, text: str) -> None:
        """Return what was found."""
        self._say(f"   {text}")

    def far(self, doing: str, done: int, total: int) -> None:
        """Return how far work has come."""
        self._meter(f"   {doing}", done, total)

    def busy(self, doing: str) -> None:
        """Return what is being done of which nobody knows how far it is."""
        if doing != self._doing:
            self._doing, self._since = doing, time.monotonic()
            self._renew()
            if not (self._silent or sys.stderr.isatty()):
                click.echo(f"   {doing}", err=True)
        if sys.stderr.isatty():
            self._meter.tally(f"   {doing}: {time.monotonic() - self._since:.0f} s")

    def _say(self, text: str) -> None:
        if self._silent:
            return
        self._renew()  # a bar and a line would be in each other's way
        write_line(text)
        flush()

    def _renew(self) -> None:
        self.close()
        self._meter = self._new_meter()


def _conclude(measures: Measures) -> None:
    """Show what DuckDB answered first, and the verdict."""
    query = measures.queries[0]
    columns = [name if not place else f">{name}" for place, name in enumerate(query.columns)]
    write_table(columns, [[_shown(each) for each in row] for row in query.rows])
    verdict = "Everything is as promised" if measures.is_right else "NOT everything is as promised"
    write_line(f"{verdict}, after {measures.seconds:.0f} seconds. What was measured:")


def _shown(value: object) -> str:
    return f"{value:,}" if isinstance(value, int | float) else str(value)


def _summary(measures: Measures) -> Mapping[str, object]:
    """Return what was found, without what was measured at every moment."""
    found = asdict(measures)
    for name in ("acks", "syncs"):
        del found["sale"][name]
    del found["piping"]["flows"]
    return {"is_right": measures.is_right, **found}
