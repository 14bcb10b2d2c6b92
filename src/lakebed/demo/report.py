"""The report of a run: one self-contained HTML page."""

from __future__ import annotations

import os
import platform
from collections import defaultdict
from collections.abc import Iterable, Sequence
from html import escape
from importlib.metadata import version as installed
from itertools import pairwise
from typing import Final

from lakebed.demo import pipeline, plots
from lakebed.demo.measures import Comparison, Measures, Query, Sale, Syncs
from lakebed.demo.plots import PlotMark, Series
from lakebed.version import __version__

_PER_SECOND: Final = "per second, over the seconds of the run"
_PER_SYNC: Final = "entries per fdatasync, over the seconds of the run"
_BUCKET_SECONDS: Final = 0.25

_STYLE: Final = """
:root { --text: #1c2430; --soft: #667080; --line: #dfe3e8; --page: #fff; --box: #f5f7f9;
  --c0: #2563ab; --c1: #d97706; --c2: #5b8c5a; --kill: #c0302b; }
@media (prefers-color-scheme: dark) { :root { --text: #e6e9ee; --soft: #98a3b3; --line: #323a45;
  --page: #14181d; --box: #1d232b; --c0: #6ea8e8; --c1: #f0a94a; --c2: #8fc78d; --kill: #ff7b72; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--text); background: var(--page);
  max-width: 800px; margin: 2em auto; padding: 0 1em; }
h1 { font-size: 1.5em; margin-bottom: 0; } h2 { font-size: 1.15em; margin: 2em 0 .3em; }
p.soft, figcaption { color: var(--soft); } figure { margin: 1.2em 0; }
p.verdict { font-size: 1.15em; } p.verdict b { color: var(--c2); } p.verdict b.bad { color: var(--kill); }
dl { display: grid; grid-template-columns: repeat(auto-fit, minmax(150px, 1fr)); gap: .7em; }
dl div { background: var(--box); border-radius: 8px; padding: .6em .9em; }
dt { color: var(--soft); font-size: .85em; } dd { margin: 0; font-size: 1.35em; }
svg { width: 100%; height: auto; font: 12px system-ui, sans-serif; }
svg text { fill: var(--soft); } svg text.end { text-anchor: end; } svg text.middle { text-anchor: middle; }
svg .grid { stroke: var(--line); } svg .line { fill: none; stroke-width: 2; }
svg .line.c0 { stroke: var(--c0); } svg .line.c1 { stroke: var(--c1); } svg .line.c2 { stroke: var(--c2); }
svg .bar.c0 { fill: var(--c0); } svg .bar.c1 { fill: var(--c1); } svg .bar.c2 { fill: var(--c2); }
svg path.kill { stroke: var(--kill); stroke-dasharray: 4 3; } svg text.kill { fill: var(--kill); }
svg path.mark { stroke: var(--soft); stroke-dasharray: 2 4; }
table { border-collapse: collapse; margin: .6em 0; } th, td { padding: .2em .9em .2em 0; text-align: left; }
th { color: var(--soft); font-weight: normal; border-bottom: 1px solid var(--line); }
td.number, th.number { text-align: right; font-variant-numeric: tabular-nums; }
pre { background: var(--box); border-radius: 8px; padding: .7em 1em; overflow-x: auto; font-size: 13px; }
"""  # noqa: E501  # a style sheet


def page(measures: Measures) -> str:
    """Return the whole page."""
    body = "\n".join(
        [
            *_head(measures),
            *_writer(measures.sale),
            *_comparison_part(measures),
            *_pipeline_part(measures),
            *_size_part(measures),
            *_query_part(measures.queries),
            *_next_part(),
        ]
    )
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width">'
        f"<title>Lakebed: a demonstration</title><style>{_STYLE}</style></head>\n"
        f"<body>\n{body}\n</body></html>\n"
    )


def _head(measures: Measures) -> Iterable[str]:
    sale, check = measures.sale, measures.check
    verdict = (
        "<b>All checks passed: every acknowledged record is there exactly once, unchanged.</b>"
        if measures.is_right
        else '<b class="bad">Some checks failed: see below.</b>'
    )
    machine = (
        f"{os.cpu_count()} cores, Python {platform.python_version()}, "
        f"Spark {installed('pyspark')}, DuckDB {installed('duckdb')}"
    )
    yield "<h1>Lakebed: a demonstration</h1>"
    yield (
        f'<p class="soft">Lakebed {__version__}, {escape(measures.started)}, '
        f"{measures.seconds:.0f} seconds; {escape(machine)}. All figures are from this run.</p>"
    )
    yield f'<p class="verdict">{verdict}</p>'
    tiles = [
        ("records acknowledged", f"{sale.records:,}"),
        ("missing, wrong or duplicated", f"{check.missing + check.wrong:,}" if check else "-"),
        ("processes killed", str(measures.kills)),
        ("entries per sync", f"{sale.entries_per_sync():.1f}"),
        (
            "append latency, p99",
            f"{sale.latencies_ms()[99]:.1f} ms",
        ),
    ]
    rows = (f"<div><dt>{name}</dt><dd>{value}</dd></div>" for name, value in tiles)
    yield f"<dl>{''.join(rows)}</dl>"


def _writer(sale: Sale) -> Iterable[str]:
    marks = [
        *_kill_marks(sale.killed_at, "writer killed"),
        PlotMark(sale.reopened_at, "open", False),
    ]
    yield "<h2>The writer</h2>"
    yield (
        f"<p>{sale.checkouts} threads append {sale.records:,} orders, corrections and deletions. "
        f"The first process ended after {sale.acknowledged_before:,} acknowledged records. "
        f"{sale.unacknowledged:,} more were on disk without an acknowledgement; the restarted "
        "writer found them in the log and continued after them. Recovery took "
        f"{sale.opening_ms:.0f} ms; the rest of the gap is process start-up.</p>"
    )
    rates = Series("acknowledged", _rates(sale))
    yield plots.over_time(
        "Acknowledged records (on disk)",
        _PER_SECOND,
        [rates],
        marks,
        stepped=True,
    )
    shared = [Series("entries", _shares(life)) for life in sale.syncs]
    yield plots.over_time(
        "Entries per fdatasync (group commit)",
        _PER_SYNC,
        shared,
        marks,
    )
    latency = sale.latencies_ms()
    names = {50.0: "p50", 100.0: "slowest"}
    yield plots.bars(
        "Append latency of all batches",
        [(names.get(share, f"p{share:g}"), value) for share, value in latency.items()],
        lambda value: f"{value:.1f} ms",
    )


def _kill_marks(second: float | None, label: str) -> list[PlotMark]:
    return [] if second is None else [PlotMark(second, label, True)]


def _rates(sale: Sale) -> list[tuple[float, float]]:
    """Return records per second, for each part of a second from the first record to the last."""
    records = defaultdict[int, int](int)
    for ack in sale.acks:
        records[int(ack.at / _BUCKET_SECONDS)] += ack.records
    if not records:
        return []
    buckets = range(min(records), max(records) + 2)
    return [(bucket * _BUCKET_SECONDS, records[bucket] / _BUCKET_SECONDS) for bucket in buckets]


def _shares(life: list[Syncs]) -> list[tuple[float, float]]:
    return [
        (later.at, (later.entries - before.entries) / (later.syncs - before.syncs))
        for before, later in pairwise(life)
        if later.syncs > before.syncs
    ]


def _comparison_part(measures: Measures) -> Iterable[str]:
    piping = measures.piping
    rows: list[tuple[str, Comparison | None]] = [
        ("topic orders: every record, byte by byte", measures.check),
        (f"topic {pipeline.PAID}", piping.paid),
        (f"topic {pipeline.DEAD}", piping.dead),
        (f"table {pipeline.TABLE}: every row", piping.table),
    ]
    yield "<h2>Expected and found</h2>"
    yield _table(
        ("", "expected", "found", "missing", "wrong or duplicated"),
        [
            (name, comparison.expected, comparison.found, comparison.missing, comparison.wrong)
            for name, comparison in rows
            if comparison is not None
        ],
    )


def _pipeline_part(measures: Measures) -> Iterable[str]:
    piping = measures.piping
    names = {"paid": f"topic {pipeline.PAID}", "now": f"table {pipeline.TABLE}"}
    series = [
        Series(
            label,
            [(progress.at, progress.records) for progress in piping.flows if progress.name == name],
        )
        for name, label in names.items()
    ]
    marks = _kill_marks(piping.killed_at, "pipeline killed")
    yield "<h2>The pipeline</h2>"
    yield (
        f"<p>Two runs of Spark, {piping.seconds:.0f} seconds including two starts. The second run "
        "continued where the first had ended; every record took effect exactly once.</p>"
    )
    yield plots.over_time("Records read by the pipeline", "", series, marks, stepped=True)


def _size_part(measures: Measures) -> Iterable[str]:
    acts = [size.act for size in measures.sizes]
    lake = [
        ("segments (Parquet)", [float(size.segments) for size in measures.sizes]),
        ("tables (Iceberg)", [float(size.tables) for size in measures.sizes]),
    ]
    yield "<h2>Sizes</h2>"
    yield plots.stacks("The lake, after each step", acts, lake, _bytes)
    yield plots.bars(
        "Write-ahead log files (preallocated)",
        [(size.act, float(size.wal)) for size in measures.sizes],
        _bytes,
    )
    if (done := measures.compaction) is not None:
        yield (
            f"<p>Compaction by Spark left {done.records_after:,} of {done.records_before:,} "
            f"records ({done.expected:,} expected) in {done.seconds:.0f} seconds, including "
            "Spark start-up. Files that table snapshots refer to stay until those expire.</p>"
        )


def _bytes(value: float) -> str:
    return f"{value / 2**20:,.1f} MiB"


def _query_part(queries: Sequence[Query]) -> Iterable[str]:
    yield "<h2>DuckDB queries</h2>"
    for query in queries:
        right = "matches" if query.is_right else "does not match"
        yield f"<p>{escape(query.name)}: {right}, {query.seconds * 1000:.0f} ms</p>"
        yield f"<pre>{escape(query.sql)}</pre>"
        yield _table(query.columns, query.rows)


def _next_part() -> Iterable[str]:
    yield "<h2>Next</h2>"
    yield "<p>The log is kept. In the folder of this page:</p>"
    yield (
        "<pre>lakebed consume paid-orders --max 3 --data log\n"
        "lakebed lake describe orders --data log\n"
        f"lakebed pipeline status {pipeline.NAME}</pre>"
    )


def _table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a table; its columns are aligned as what they hold."""
    cells = list(rows)
    numbers = [isinstance(cell, int | float) for cell in cells[0]] if cells else []
    kinds = [' class="number"' if is_number else "" for is_number in numbers] or [""] * len(columns)
    head = (f"<th{kind}>{escape(name)}</th>" for name, kind in zip(columns, kinds, strict=True))
    body = (f"<tr>{''.join(map(_cell, row))}</tr>" for row in cells)
    return f"<table><tr>{''.join(head)}</tr>{''.join(body)}</table>"


def _cell(value: object) -> str:
    if isinstance(value, int | float):
        return f'<td class="number">{value:,}</td>'
    return f"<td>{escape(str(value))}</td>"
