"""Lakebed: a durable event log for Python and Spark teams."""

from lakebed.errors import LakebedError
from lakebed.version import __version__

__all__ = ["LakebedError", "__version__"]
