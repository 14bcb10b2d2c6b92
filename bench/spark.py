"""Benchmarks of Spark: reads, streams, the sink and the jobs, beside Spark's own.

Run with `make bench`, or `python -m bench.spark [names]`. Results go to `bench/results/spark.json`,
to docs/benchmarks.md after a whole run, and to standard output.
"""

from __future__ import annotations

import argparse

from bench.report import run
from bench.spark_jobs import compacting
from bench.spark_reading import batch_reads, catching_up
from bench.spark_tables import materialising
from bench.spark_writing import floor, sink


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--records", type=int, default=10_000_000, help="to read and compact")
    parser.add_argument("--keys", type=int, default=1_000_000, help="among those to compact")


def main() -> None:
    """Run all benchmarks of Spark, or those named."""
    measures = (batch_reads, catching_up, sink, floor, materialising, compacting)
    run(
        "spark",
        {each.__name__: each for each in measures},
        about=__doc__,
        add_options=_add_options,
        rounds=3,
    )


if __name__ == "__main__":
    main()
