"""`lakebed demo`: the whole data path with two kills, checked, with a report."""

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

_RECORDS: Final = 200_000
_FAILOVER_RECORDS: Final = 20_000
_RECORDS_MIN: Final = 2_000
"""Fewer records would be written before the writer could be killed."""
_RECORDS_MAX: Final = 5_000_000
"""All of them are held in memory, to be compared with what is read back."""
_PACKAGES: Final = ("pyspark", "duckdb", "duckdb_extension_avro", "duckdb_extension_iceberg")
_REPORT: Final = "report.html"


@click.command(short_help="Run the end-to-end demo: two kills, every record checked.")
@click.option(
    "--records",
    metavar="N",
    type=click.IntRange(_RECORDS_MIN, _RECORDS_MAX),
    help="Number of records to write; default 200,000, with --failover 20,000.",
)
@click.option(
    "--folder",
    metavar="DIR",
    type=click.Path(path_type=Path),
    default="demo",
    show_default=True,
    help="Folder for the log and the report; replaces an earlier demo.",
)
@click.option(
    "--failover",
    is_flag=True,
    help="Lose a server's machine instead: a standby takes over. Needs neither Spark nor Java.",
)
@json_option
@click.pass_context
def demo(
    ctx: click.Context, records: int | None, folder: Path, *, failover: bool, as_json: bool
) -> None:
    """Run the end-to-end demo: write, kill, recover, derive, compact, query, report.

    A writer and a Spark pipeline are killed (SIGKILL) and restarted; every record is compared with
    what was sent. The folder keeps the log and report.html. Exit code 1 if any check fails.

    With --failover, the owner of two servers is killed and its folder deleted while orders flow.
    The standby takes over; every acknowledged order is looked for.
    """
    if failover:
        _fail_over(ctx, records or _FAILOVER_RECORDS, folder, as_json=as_json)
    else:
        _run_story(ctx, records or _RECORDS, folder, as_json=as_json)


def _fail_over(ctx: click.Context, records: int, folder: Path, *, as_json: bool) -> None:
    from lakebed.demo.failover import failover_page, run_failover
    from lakebed.demo.story import stage

    with interruptible(), stage(folder), _Teller(silent=as_json) as teller:
        measures = run_failover(folder, records, teller)
        report = folder / _REPORT
        report.write_text(failover_page(measures), encoding="utf8")
    if as_json:
        results = {"is_right": measures.is_right, **asdict(measures)}
        write_json("demo", {"report": report, **results})
    else:
        verdict = "All checks passed" if measures.is_right else "SOME CHECKS FAILED"
        write_line(f"{verdict}. Report: {report}")
    if not measures.is_right:
        ctx.exit(1)


def _run_story(ctx: click.Context, records: int, folder: Path, *, as_json: bool) -> None:
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
        write_line(f"Report: {report}")
        _suggest(folder)
    if not measures.is_right:
        ctx.exit(1)


class _Teller(Closing):
    """Writes steps and results to stdout, and transient progress to stderr."""

    def __init__(self, *, silent: bool) -> None:
        self._silent = silent
        self._acts = 0
        self._doing, self._since = "", 0.0
        self._meter = self._new_meter()

    def _new_meter(self) -> Meter:
        return Meter(silent=self._silent, unit="records")

    def close(self) -> None:
        """Remove the progress display."""
        self._meter.__exit__(None, None, None)

    def act(self, text: str) -> None:
        """Report the step that begins."""
        self._acts += 1
        self._say(f"{self._acts}. {text}")

    def fact(self, text: str) -> None:
        """Report a result."""
        self._say(f"   {text}")

    def far(self, doing: str, done: int, total: int) -> None:
        """Report the progress of a step."""
        self._meter(f"   {doing}", done, total)

    def busy(self, doing: str) -> None:
        """Report work whose progress is unknown."""
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
        self._renew()  # a bar would overwrite the line
        write_line(text)
        flush()

    def _renew(self) -> None:
        self.close()
        self._meter = self._new_meter()


def _conclude(measures: Measures) -> None:
    """Show the answer to the first query, and whether all checks passed."""
    query = measures.queries[0]
    columns = [name if not index else f">{name}" for index, name in enumerate(query.columns)]
    write_table(columns, [[_format(value) for value in row] for row in query.rows])
    verdict = "All checks passed" if measures.is_right else "SOME CHECKS FAILED"
    write_line(f"{verdict} in {measures.seconds:.0f} s.")


def _suggest(folder: Path) -> None:
    """Write the three commands to try next."""
    from lakebed.demo import pipeline

    log = folder / "log"
    write_line("Try next:")
    write_line(f"  lakebed consume {pipeline.PAID} --max 3 --data {log}")
    write_line(f"  lakebed lake describe orders --data {log}")
    write_line(f"  lakebed pipeline status {folder / pipeline.NAME}")


def _format(value: object) -> str:
    return f"{value:,}" if isinstance(value, int | float) else str(value)


def _summary(measures: Measures) -> Mapping[str, object]:
    """Return the results without the time series."""
    results = asdict(measures)
    for name in ("acks", "syncs"):
        del results["sale"][name]
    del results["piping"]["flows"]
    return {"is_right": measures.is_right, **results}
