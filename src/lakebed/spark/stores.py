"""How Spark's processes reach the object store: with the log's settings, or their environment's.

The owner of a log has the settings; a client of a server does not, because credentials do not cross
the wire. Then the environment of the process must have them: `LAKEBED_LAKE_STORE`, and
`LAKEBED_LAKE_STORE_OPTIONS`.
"""

from __future__ import annotations

import os
from typing import Any

from lakebed.config import LogConfig, resolve_env, with_environment
from lakebed.host.table_files import TableFiles


def table_files(derived: Any) -> TableFiles:
    """Return what reads and writes the files of a log's derived tables, on any machine."""
    lake = with_environment(LogConfig(), os.environ).lake
    return TableFiles(derived.store_options or resolve_env(lake.store_options))


def in_store(location: str) -> Any:
    """Open a file of an object store, with the settings that this process's environment has."""
    from pyiceberg.io.pyarrow import PyArrowFileIO

    lake = with_environment(LogConfig(), os.environ).lake
    if not lake.store or not location.startswith(lake.store.rstrip("/") + "/"):
        raise FileNotFoundError("the environment has no settings of this object store")
    return PyArrowFileIO(resolve_env(lake.store_options)).new_input(location).open()
