"""Benchmarks of the lake: flush, Iceberg commits, many topics, scans and lookups, beside peers.

Run with `make bench`, or `python -m bench.lake [names]`. Results go to `bench/results/lake.json`,
to docs/benchmarks.md after a whole run, and to standard output.
"""

from __future__ import annotations

import argparse

from bench.lake_reading import lookups, scan_memory, scans
from bench.lake_tables import appends, commits, hundred_topics
from bench.lake_writing import flush
from bench.report import run


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--commits", type=int, default=1000, help="of one table")
    parser.add_argument("--records", type=int, default=10_000_000, help="to scan and look up")
    parser.add_argument("--scan-gb", type=float, default=10.0, help="to scan in bounded memory")


def main() -> None:
    """Run all benchmarks of the lake, or those named."""
    measures = (flush, commits, hundred_topics, appends, scans, scan_memory, lookups)
    run(
        "lake",
        {each.__name__: each for each in measures},
        about=__doc__,
        add_options=_add_options,
        rounds=5,
    )


if __name__ == "__main__":
    main()
