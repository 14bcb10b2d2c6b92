"""Lets Spark find `format("lakebed")` by itself: it looks into modules of this name."""

from lakebed.spark.source import LakebedSource as DefaultSource

__all__ = ["DefaultSource"]
