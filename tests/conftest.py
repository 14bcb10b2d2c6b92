"""Fixtures and hooks for every package of tests."""

from __future__ import annotations

import datetime
import gc
import os
import signal

from hypothesis import HealthCheck, settings

pytest_plugins = ["tests.s3", "tests.scheduling", "tests.proving", "tests.spark_session"]

# Set before the workers of a parallel run start, so that all of them draw the same.
os.environ.setdefault("LAKEBED_SEED", str(datetime.datetime.now(datetime.UTC).toordinal()))
# A Java that lives for a minute is not worth compiling for: it takes half as much of a core.
os.environ.setdefault("SPARK_SUBMIT_OPTS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")

# A run in the background of a shell ignores Ctrl-C, and so would the programs that tests interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# A slow machine takes long for an example, and for drawing it: neither is a failure.
settings.register_profile(
    "any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("any machine")


def pytest_collection_finish() -> None:
    """Spare the garbage collector what stays to the end: all modules and thousands of tests."""
    gc.collect()
    gc.freeze()


def pytest_report_header() -> str:
    """Name the seed: it repeats the run."""
    return f"seed of the proofs: LAKEBED_SEED={os.environ['LAKEBED_SEED']}"
