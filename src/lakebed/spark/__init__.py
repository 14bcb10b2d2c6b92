"""Spark: `format("lakebed")`, jobs and pipelines. Nothing here is imported before it is used."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

# Not when it is used: once its module is imported by another one, its name would be the module's.
from lakebed.spark.session import session

if TYPE_CHECKING:
    from lakebed.spark.batch_reads import read
    from lakebed.spark.jobs.compact import compact
    from lakebed.spark.jobs.exporting import export
    from lakebed.spark.jobs.importing import import_
    from lakebed.spark.jobs.replay import replay
    from lakebed.spark.jobs.tier import tier
    from lakebed.spark.jobs.verify import verify
    from lakebed.spark.pipeline.builder import Pipeline
    from lakebed.spark.tables.appending import append
    from lakebed.spark.tables.materialising import materialise
    from lakebed.spark.tables.merging import merge
    from lakebed.spark.tables.reading import read_table

__all__ = [
    "Pipeline",
    "append",
    "compact",
    "export",
    "import_",
    "materialise",
    "merge",
    "read",
    "read_table",
    "replay",
    "session",
    "tier",
    "verify",
]

_MODULES: Final = {
    "Pipeline": "lakebed.spark.pipeline.builder",
    "append": "lakebed.spark.tables.appending",
    "compact": "lakebed.spark.jobs.compact",
    "export": "lakebed.spark.jobs.exporting",
    "import_": "lakebed.spark.jobs.importing",
    "materialise": "lakebed.spark.tables.materialising",
    "merge": "lakebed.spark.tables.merging",
    "read": "lakebed.spark.batch_reads",
    "read_table": "lakebed.spark.tables.reading",
    "replay": "lakebed.spark.jobs.replay",
    "tier": "lakebed.spark.jobs.tier",
    "verify": "lakebed.spark.jobs.verify",
}


def __getattr__(name: str) -> Any:
    module = _MODULES.get(name)
    if module is None:
        raise AttributeError(f"module 'lakebed.spark' has no attribute {name!r}")
    return getattr(importlib.import_module(module), name)
