"""Lakebed: a durable event log for Python and Spark teams."""

import logging

from lakebed.errors import LakebedError
from lakebed.version import __version__

__all__ = ["LakebedError", "__version__"]

# A library says nothing on its own: whoever wants the log lines of "lakebed" asks for them.
logging.getLogger("lakebed").addHandler(logging.NullHandler())
