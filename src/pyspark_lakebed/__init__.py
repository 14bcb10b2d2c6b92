"""Lets Spark find `format("lakebed")` automatically: it looks into modules of this name."""

from lakebed.spark.source import LakebedSource as DefaultSource

__all__ = ["DefaultSource"]
