"""Benchmarks: ratios to the disk and to peers, measured in one run."""
