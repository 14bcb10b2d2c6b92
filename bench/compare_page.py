"""A comparison as a page: tables and charts put between the page's marks, out of the results."""

from __future__ import annotations

import statistics
from pathlib import Path

from bench.compare_results import Found, Line, Measure, Results
from bench.report import grid, placed
from bench.svg import Dot, Panel, chart

PAGE = Path(__file__).parents[1] / "docs" / "comparison.md"
README = Path(__file__).parents[1] / "README.md"
CHARTS = "comparison"
"""The folder of the charts, beside the page."""
NONE = "\u2013"
_SUMMARY = [
    ("durable_writes", "records per second", "Lakebed", "batches of 1,000, one writer"),
    ("durable_writes", "records per second", "Lakebed, served", "the same, served"),
    ("fan_in", "records per second", "Lakebed, served", "one record per connection, 64 of them"),
    ("tail_latency", "p99", "Lakebed", "one record under load, p99"),
    ("replay", "records per second", "Lakebed", "replay"),
    ("freshness", "seen by DuckDB after", "Lakebed", "from write to DuckDB"),
]
"""The rows of the front page: workload, measure, the line of Lakebed, and how the row is named."""
_NOTE = (
    "dot: median, line: least to most of the rounds; hollow: not synced before it is acknowledged"
)


def render(text: str, results: Results) -> str:
    """Return the page with what the results say between its marks."""
    text = placed(text, "run", _run(results))
    text = placed(text, "behind", _behind(results))
    told: set[tuple[str, str]] = set()
    for found in results.workloads:
        text = placed(text, found.name, table(found, told) + f"\n{_image(found)}\n")
    return text


def charts(results: Results) -> dict[str, str]:
    """Return every chart by the name of its file."""
    return {f"{found.name}.svg": _chart(found) for found in results.workloads}


def publish(results: Results, page: Path) -> None:
    """Write the page and its charts."""
    page.write_text(render(page.read_text(encoding="utf8"), results), encoding="utf8")
    folder = page.parent / CHARTS
    folder.mkdir(exist_ok=True)
    for name, drawn in charts(results).items():
        (folder / name).write_text(drawn, encoding="utf8")


def publish_summary(results: Results) -> None:
    """Write the table of the front page."""
    text = placed(README.read_text(encoding="utf8"), "comparison", summary(results))
    README.write_text(text, encoding="utf8")


def summary(results: Results) -> str:
    """Return the table of the front page: a row for each line of `_SUMMARY`."""
    workloads = {found.name: found for found in results.workloads}
    rows = [["work", "Lakebed", "times as fast as"]]
    for workload, measure_name, ours, label in _SUMMARY:
        found = workloads[workload]
        (measure,) = (each for each in found.measures if each.name == measure_name)
        figure = _figure(found.line(ours), measure).partition(" (")[0]
        rows.append([label, figure, "; ".join(_ratios(found, measure, ours))])
    return grid(rows)


def _ratios(found: Found, measure: Measure, ours: str) -> list[str]:
    """Return how many times as fast one of Lakebed's lines is as each peer beside it."""
    ratios = []
    for line in found.lines:
        times = found.times_as_fast(line, measure)
        if times is not None and not line.limit and line.against == ours:
            name = line.peer if line.synced else f"{line.peer}\\*"
            ratios.append(f"{name} {_digits(times)}")
    return ratios


# Tables


def table(found: Found, told: set[tuple[str, str]] | None = None) -> str:
    """Return a workload as a table: a line for each peer, and why some have no figures.

    How a peer is run is told once: `told` has what earlier tables have said, and gains the rest.
    """
    told = set() if told is None else told
    return grid([headings(found), *(cells(found, line, told) for line in found.lines)])


def headings(found: Found) -> list[str]:
    """Return what stands above the columns."""
    names = ["", "how"]
    for measure in found.measures:
        names.append(measure.name)
        if measure.compared:
            names.append("ratio")
    return [*names, f"of {found.reference}"] if found.reference else names


def cells(found: Found, line: Line, told: set[tuple[str, str]]) -> list[str]:
    """Return a peer's row."""
    known = (line.peer, line.how) in told
    told.add((line.peer, line.how))
    how = "" if known else line.how
    how = how if line.synced else f"{how}; **not synced**".removeprefix("; ")
    row = [f"**{line.peer}**" if line.ours else line.peer, line.reason or how]
    for measure in found.measures:
        row.append(_figure(line, measure))
        if measure.compared:
            row.append(_times(found.times_as_fast(line, measure)))
    if found.reference:
        share = found.share(line, found.measures[0])
        row.append(NONE if share is None else f"{_digits(share)}")
    return row


def _figure(line: Line, measure: Measure) -> str:
    rounds = line.figures.get(measure.name)
    if not rounds:
        return NONE
    middle = f"{_digits(statistics.median(rounds))} {measure.unit}".rstrip()
    return f"{middle} ({_digits(min(rounds))}\u2013{_digits(max(rounds))})"


def _times(value: float | None) -> str:
    return NONE if value is None else _digits(value)


def _digits(value: float) -> str:
    """Write three digits or so, and no power of ten."""
    if abs(value) >= 100:
        return f"{value:,.0f}"
    if abs(value) >= 10:
        return f"{value:.1f}"
    return f"{value:.2f}" if abs(value) >= 0.1 or not value else f"{value:.2g}"


def _run(results: Results) -> str:
    cores, python, system = (results.machine[name] for name in ("cores", "python", "system"))
    versions = ", ".join(f"{name} {value}" for name, value in sorted(results.versions.items()))
    small = f" at the scale `{results.scale}`, which is for trying out"
    kind = "" if results.scale == "full" else small
    return (
        f"* **Run**: {results.rounds} round{'s' if results.rounds > 1 else ''}{kind}.\n"
        f"* **Machine**: {cores} cores, {system}, CPython {python}.\n"
        f"* **Versions**: {versions}.\n"
    )


def _behind(results: Results) -> str:
    """List every figure in which another system is ahead."""
    lines = []
    for found in results.workloads:
        parts = [
            f"**{measure.name}**{', served' if 'served' in ours else ''}: {', '.join(ahead)}"
            for measure in found.measures
            for ours, ahead in _ahead(found, measure).items()
        ]
        if parts:
            lines.append(f"* {found.title}. {'; '.join(parts)}.\n")
    return "".join(lines) or "In this run no other system was ahead of Lakebed.\n"


def _ahead(found: Found, measure: Measure) -> dict[str, list[str]]:
    """Return which systems are ahead of each line of Lakebed, and how many times as fast."""
    ahead: dict[str, list[str]] = {}
    for line in found.lines:
        times = found.times_as_fast(line, measure)
        if times is not None and times < 1 and not line.limit:
            peer = line.peer if line.synced else f"{line.peer}\\*"
            ahead.setdefault(line.against, []).append(f"{peer} {_digits(1 / times)}")
    return ahead


# Charts


def _image(found: Found) -> str:
    return f"![{found.title}]({CHARTS}/{found.name}.svg)"


def _chart(found: Found) -> str:
    panels = [
        Panel(
            measure.name,
            measure.unit + (", more is better" if measure.more_is_better else ", less is better"),
            [_dot(line, measure) for line in found.lines],
        )
        for measure in found.measures
        if measure.compared
    ]
    return chart(found.title, panels, _NOTE)


def _dot(line: Line, measure: Measure) -> Dot:
    rounds = line.figures.get(measure.name, [])
    remark = line.reason if len(line.reason) <= 80 else line.reason[:79] + "\u2026"
    return Dot(line.peer, rounds, ours=line.ours, hollow=not line.synced, remark=remark)
