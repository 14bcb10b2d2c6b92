"""Benchmarks of the log, as figures with targets and as ratios to the disk, the WAL and peers.

Run with `make bench`, or `python -m bench.engine [names]`. Results go to
`bench/results/engine.json`, to docs/benchmarks.md after a whole run, and to standard output.
"""

from __future__ import annotations

import argparse

from bench.engine_imports import imports
from bench.engine_life import checkpoint_latency, ingest, many_segments, recovery
from bench.engine_reading import memtable, segments
from bench.engine_shipping import replicas, shipping
from bench.engine_small import small_entries, small_recovery
from bench.engine_writing import batches, producer, single_records
from bench.report import run


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--recovery-gb", type=float, default=1.0, help="of WAL to recover")
    parser.add_argument("--ingest-gb", type=float, default=5.0, help="of records to ingest")


def main() -> None:
    """Run all benchmarks of the log, or those named."""
    measures = (
        batches,
        producer,
        single_records,
        memtable,
        segments,
        small_entries,
        recovery,
        small_recovery,
        shipping,
        replicas,
        many_segments,
        checkpoint_latency,
        ingest,
        imports,
    )
    run(
        "engine",
        {each.__name__: each for each in measures},
        about=__doc__,
        add_options=_add_options,
        rounds=5,
    )


if __name__ == "__main__":
    main()
