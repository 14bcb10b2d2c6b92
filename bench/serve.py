"""Benchmarks of the server, as figures with targets and as ratios to the log itself and to peers.

Run with `make bench`, or `python -m bench.serve [names]`. Results go to `bench/results/serve.json`,
to docs/benchmarks.md after a whole run, and to standard output. Servers and clients share the
machine: what a client needs of it, its server does not get.
"""

from __future__ import annotations

import argparse

from bench.report import run
from bench.serve_reading import end_to_end, gets
from bench.serve_writing import checks, connections, kafka_connections, puts


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--connections", type=int, default=1000, help="with one record each")
    parser.add_argument("--seconds", type=float, default=4.0, help="that they are measured")
    parser.add_argument("--samples", type=int, default=500, help="of the way from end to end")


def main() -> None:
    """Run all benchmarks of the server, or those named."""
    measures = (puts, checks, connections, kafka_connections, gets, end_to_end)
    run(
        "serve",
        {each.__name__: each for each in measures},
        about=__doc__,
        add_options=_add_options,
        rounds=5,
    )


if __name__ == "__main__":
    main()
