"""What to type elsewhere to read a table: DuckDB, pyiceberg, Spark. Secrets are not in it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from lakebed.config import LakeConfig
from lakebed.lake.catalog import NAME, OWN_NAME
from lakebed.lake.places import TABLES_NAME

_HIDDEN: Final = "..."
"""Stands for what is not shown."""
_SECRET: Final = re.compile(r"secret|pass|token|credential|auth|key|connection-string", re.I)
_PASSWORD: Final = re.compile(r"(?<=://)([^/@:]*):.*@")
_PARAMETER: Final = re.compile(r"([?&][^=&]*(?:pass|token|secret|key)[^=&]*=)[^&]*", re.I)


def catalog_properties(config: LakeConfig, folder: Path) -> dict[str, str]:
    """Give what pyiceberg needs to find the tables, but for secrets."""
    own = {"type": "sql", "uri": f"sqlite:///{folder.resolve() / TABLES_NAME / OWN_NAME}"}
    given = {**(config.catalog or own), **config.store_options}
    return {name: _shown(name, value) for name, value in given.items()}


def _shown(name: str, value: str) -> str:
    if value.startswith("env:"):
        return value
    if _SECRET.search(name):
        return _HIDDEN
    return _PARAMETER.sub(rf"\1{_HIDDEN}", _PASSWORD.sub(rf"\1:{_HIDDEN}@", value))


def readers(metadata: str, name: tuple[str, ...], properties: Mapping[str, str]) -> dict[str, str]:
    """Give by program the lines that read a table."""
    source = metadata.replace("'", "''")
    return {
        "DuckDB": f"SELECT * FROM iceberg_scan('{source}');",  # noqa: S608  # shown, not run
        "pyiceberg": _pyiceberg(name, properties),
        "Spark": "spark.read.parquet(*[each.file.file_path for each in table.scan().plan_files()])",
    }


def _pyiceberg(name: tuple[str, ...], properties: Mapping[str, str]) -> str:
    catalog = properties.get("name", NAME)
    given = [
        f"    {key!r}: {_expression(value)}," for key, value in properties.items() if key != "name"
    ]
    from_environment = any(value.startswith("env:") for value in properties.values())
    return "\n".join(
        [
            *(["import os"] if from_environment else []),
            "from pyiceberg.catalog import load_catalog",
            f"catalog = load_catalog({catalog!r}, **{{",
            *given,
            "})",
            f"table = catalog.load_table({name!r})",
        ]
    )


def _expression(value: str) -> str:
    prefix, _, variable = value.partition(":")
    return f"os.environ[{variable!r}]" if prefix == "env" else repr(value)
