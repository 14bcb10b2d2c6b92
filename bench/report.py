"""What every benchmark shares: rows with targets, the table, the page, and the command line.

A benchmark runs in rounds. Every round measures each thing once, one after the other, so that a
slow moment of the machine touches all of them; a ratio is the median over the rounds of the ratios
within a round.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import shutil
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import pyarrow as pa
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

MIB = 1 << 20
GIB = 1 << 30
PAGE = Path(__file__).parents[1] / "docs" / "benchmarks.md"
RESULTS = Path(__file__).parent / "results"
HEADINGS = ("work", "measured", "median", "range", "target", "reached")


@dataclass
class Row:
    """One line of the table. A target is reached by at least it, or `at_most` it."""

    work: str
    measured: str
    value: float
    target: float | None = None
    unit: str = "x"
    rounds: list[float] = field(default_factory=list)
    at_most: bool = False

    @property
    def reached(self) -> str:
        """Report whether the target was reached."""
        if self.target is None:
            return ""
        good = self.value <= self.target if self.at_most else self.value >= self.target
        return "yes" if good else "no"

    def cells(self) -> list[str]:
        """Return what stands in the table."""
        digits = 2 if self.value < 100 else 0
        sign = "≤" if self.at_most else "≥"
        return [
            self.work,
            self.measured,
            f"{self.value:,.{digits}f} {self.unit}".rstrip(),
            f"{min(self.rounds):,.{digits}f} to {max(self.rounds):,.{digits}f}",
            "" if self.target is None else f"{sign} {_plain(self.target)}",
            self.reached,
        ]


def _plain(number: float) -> str:
    """Write a target in digits: 3,000,000 rather than 3e+06."""
    return f"{number:,.0f}" if number == int(number) else f"{number:,}"


class Rows(list[Row]):
    """The lines of a table, added as medians over rounds."""

    def figure(
        self,
        work: str,
        measured: str,
        rounds: Sequence[float],
        unit: str,
        target: float | None = None,
        *,
        at_most: bool = False,
    ) -> None:
        """Add a plain figure."""
        value = statistics.median(rounds)
        self.append(Row(work, measured, value, target, unit, list(rounds), at_most))

    def ratio(
        self,
        work: str,
        ours: Sequence[float],
        theirs: Sequence[float],
        name: str,
        target: float | None = None,
        *,
        at_most: bool = False,
    ) -> None:
        """Add a ratio, round by round."""
        rounds = [mine / peer for mine, peer in zip(ours, theirs, strict=True)]
        self.figure(work, f"÷ {name}", rounds, "x", target, at_most=at_most)


Measure = Callable[[argparse.Namespace, Rows], None]
"""Measures one kind of work with the options given, in `options.folder`."""


def run(
    name: str,
    measures: Mapping[str, Measure],
    *,
    about: str | None,
    add_options: Callable[[argparse.ArgumentParser], object],
    rounds: int,
) -> None:
    """Run all measures, or those named on the command line; keep and show what they found."""
    options = _options(name, measures, about, add_options, rounds)
    rows, machine = _measured(measures, options)
    options.json.parent.mkdir(parents=True, exist_ok=True)
    found = {"machine": machine, "rows": [asdict(row) for row in rows]}
    options.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf8")
    if not options.names and options.publish:
        publish(name, rows, PAGE)
    _show(rows, Console(width=160))


def _options(
    name: str,
    measures: Mapping[str, Measure],
    about: str | None,
    add_options: Callable[[argparse.ArgumentParser], object],
    rounds: int,
) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog=f"python -m bench.{name}",
        description=about,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    # No `choices`: argparse would hold the empty list, which means all, against them.
    parser.add_argument("names", nargs="*", help=f"of {', '.join(measures)}; default: all")
    parser.add_argument("--rounds", type=int, default=rounds)
    parser.add_argument(
        "--dir", type=Path, default=Path(".bench-data"), help="a folder on the disk to measure"
    )
    parser.add_argument("--json", type=Path, default=RESULTS / f"{name}.json")
    parser.add_argument(
        "--publish",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="put the table of a whole run into docs/benchmarks.md",
    )
    add_options(parser)
    options = parser.parse_args()
    if unknown := [each for each in options.names if each not in measures]:
        parser.error(f"there is no benchmark {unknown[0]!r}; there are {', '.join(measures)}")
    if options.rounds < 1:
        parser.error("--rounds must be at least 1")
    # A folder of its own: what else lies in the folder given is not ours to remove.
    options.folder = options.dir / f"lakebed-bench-{name}"
    return options


def _measured(
    measures: Mapping[str, Measure], options: argparse.Namespace
) -> tuple[Rows, dict[str, object]]:
    rows = Rows()
    folder = options.folder
    with own_folder(folder), Progress(console=Console(stderr=True), transient=True) as progress:
        chosen = options.names or list(measures)
        task = progress.add_task("measuring", total=len(chosen))
        for each in chosen:
            progress.update(task, description=each.replace("_", " "))
            # A folder for each, gone before the next one needs the space.
            options.folder = folder / each
            options.folder.mkdir()
            measures[each](options, rows)
            shutil.rmtree(options.folder)
            progress.advance(task)
        return rows, machine(folder)


@contextlib.contextmanager
def own_folder(folder: Path) -> Iterator[None]:
    """Make a folder again and remove it in the end, and the one above it if it is empty then."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    try:
        yield
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        with contextlib.suppress(OSError):  # somebody else's files are in it
            folder.parent.rmdir()


def _show(rows: Rows, console: Console) -> None:
    table = Table(*HEADINGS)
    for column in table.columns:
        column.no_wrap = True
    for row in rows:
        table.add_row(*row.cells())
    console.print(table)


def grid(lines: Sequence[Sequence[str]]) -> str:
    """Return lines as a table of Markdown; the first one is its heading."""
    head, *rest = lines
    return "".join(
        "| " + " | ".join(cells) + " |\n" for cells in (head, ["---"] * len(head), *rest)
    )


def placed(text: str, name: str, content: str) -> str:
    """Return a page's text with other content between the two marks of a name."""
    begin, end = f"<!-- table: {name} -->\n", f"<!-- end of table: {name} -->\n"
    before, found_begin, rest = text.partition(begin)
    _, found_end, after = rest.partition(end)
    if not found_begin or not found_end:
        raise SystemExit(f"the page has no place for: {begin.strip()} … {end.strip()}")
    return f"{before}{begin}{content}{end}{after}"


def page_lines(rows: Sequence[Row]) -> list[list[str]]:
    """Return the page's lines: each work named once, the target with whether it is reached."""
    lines, previous = [["work", "measured", "median", "range", "target"]], ""
    for row in rows:
        work, measured, median, span, target, reached = row.cells()
        shown = "" if work == previous else work
        goal = f"{target}: {reached}" if target else ""
        lines.append([shown, measured, median, span.replace(" to ", "\u2013"), goal])
        previous = work
    return lines


def publish(name: str, rows: Sequence[Row], page: Path) -> None:
    """Put a table into the page, between its two marks."""
    table = grid(page_lines(rows))
    page.write_text(placed(page.read_text(encoding="utf8"), name, table), encoding="utf8")


def machine(folder: Path) -> dict[str, object]:
    """Return what the figures come from."""
    return {
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "system": platform.system(),
        "pyarrow": pa.__version__,
        "free_gib": shutil.disk_usage(folder).free // GIB,
    }
