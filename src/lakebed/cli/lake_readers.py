"""What to type elsewhere to read a table: DuckDB, pyiceberg, Polars, Spark. Secrets are not in it.

The lines stay right over syncs: they name the table, and never one of its metadata files.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple

from lakebed.config import LakeConfig
from lakebed.iceberg.catalog import NAME, OWN_NAME
from lakebed.lake.locations import TABLES_NAME

_HIDDEN: Final = "..."
"""Stands for what is not shown."""
_SECRET: Final = re.compile(r"secret|pass|token|credential|auth|key|connection-string", re.I)
_PASSWORD: Final = re.compile(r"(?<=://)([^/@:]*):.*@")
_PARAMETER: Final = re.compile(r"([?&][^=&]*(?:pass|token|secret|key)[^=&]*=)[^&]*", re.I)
_S3: Final = re.compile(r"s3[an]?://")
_FILES: Final = "each.file.file_path for each in table.scan().plan_files()"


def catalog_properties(config: LakeConfig, folder: Path) -> dict[str, str]:
    """Return the properties that pyiceberg needs to find the tables, without secrets."""
    own = {"type": "sql", "uri": f"sqlite:///{folder.resolve() / TABLES_NAME / OWN_NAME}"}
    properties = {**(config.catalog or own), **config.store_options, **_region(config)}
    return {name: _hide_secrets(name, value) for name, value in properties.items()}


def file_properties(config: LakeConfig) -> dict[str, str]:
    """Return the properties that pyiceberg needs to read a table's files, without secrets."""
    properties = {**config.store_options, **_region(config)}
    return {name: _hide_secrets(name, value) for name, value in properties.items()}


def _region(config: LakeConfig) -> dict[str, str]:
    """Return the region that we use, also if none is set: pyiceberg would ask Amazon for it."""
    from lakebed.host.bucket_options import with_defaults

    used = with_defaults(config.store_options)
    return {name: value for name, value in used.items() if name == "s3.region"}


def _hide_secrets(name: str, value: str) -> str:
    if value.startswith("env:"):
        return value
    if _SECRET.search(name):
        return _HIDDEN
    return _PARAMETER.sub(rf"\1{_HIDDEN}", _PASSWORD.sub(rf"\1:{_HIDDEN}@", value))


def readers(
    location: str, name: tuple[str, ...], properties: Mapping[str, str], *, hint: bool = False
) -> dict[str, str]:
    """Return the lines, by program, that read the table in a folder; two need pyiceberg's.

    With `hint`, pyiceberg finds the table by its version hint, without a catalog.
    """
    s3 = _Store.of(properties) if _S3.match(location) else None
    table_lines = _by_hint(location, properties) if hint else _pyiceberg(name, properties)
    return {
        "DuckDB": "\n".join(_duckdb(location, s3)),
        "pyiceberg": "\n".join(table_lines),
        "Polars": "\n".join(_polars(s3)),
        "Spark": "\n".join(_spark(s3)),
    }


class _Store(NamedTuple):
    """What readers need to know of an S3 store; empty where their defaults will do."""

    endpoint: str
    """A URL; nothing for Amazon's own."""
    region: str
    key: str
    secret: str
    token: str
    path_style: bool
    """The bucket is in the path of a URL, not in its host."""

    @classmethod
    def of(cls, properties: Mapping[str, str]) -> _Store:
        def option(name: str) -> str:
            return properties.get(f"s3.{name}", properties.get(f"client.{name}", ""))

        endpoint = option("endpoint")
        if endpoint and "://" not in endpoint and not endpoint.startswith("env:"):
            endpoint = f"https://{endpoint}"
        virtual = option("force-virtual-addressing").lower() in ("true", "1", "yes")
        return cls(
            endpoint,
            option("region"),
            option("access-key-id"),
            option("secret-access-key"),
            option("session-token"),
            path_style=bool(endpoint) and not virtual,
        )


# DuckDB


def _duckdb(location: str, s3: _Store | None) -> Iterator[str]:
    if s3 is not None:
        yield "-- for S3 DuckDB needs its extension httpfs: INSTALL httpfs; LOAD httpfs;"
        if not s3.key:
            yield "-- and aws, to find credentials as other programs do: INSTALL aws; LOAD aws;"
        yield f"CREATE OR REPLACE SECRET (TYPE s3, {', '.join(_duckdb_secret(s3))});"
    source = location.removeprefix("file://").replace("'", "''")
    yield f"SELECT * FROM iceberg_scan('{source}');"  # noqa: S608  # shown, not run


def _duckdb_secret(s3: _Store) -> Iterator[str]:
    if not s3.key:
        yield "PROVIDER credential_chain"
    yield from (
        f"{name} '{_sql(value)}'"
        for name, value in {
            "KEY_ID": s3.key,
            "SECRET": s3.secret,
            "SESSION_TOKEN": s3.token,
            "REGION": s3.region,
        }.items()
        if value
    )
    if s3.endpoint:
        scheme, _, host = s3.endpoint.rpartition("://")
        yield f"ENDPOINT '{_sql(host)}'"
        yield f"USE_SSL {'false' if scheme == 'http' else 'true'}"
    if s3.path_style:
        yield "URL_STYLE 'path'"


def _sql(value: str) -> str:
    """Return a value for a string of SQL, which cannot look into the environment."""
    return _HIDDEN if value.startswith("env:") else value.replace("'", "''")


# Python


def _by_hint(location: str, properties: Mapping[str, str]) -> Iterator[str]:
    if any(value.startswith("env:") for value in properties.values()):
        yield "import os"
    yield "from pyiceberg.table import StaticTable"
    if not properties:
        yield f"table = StaticTable.from_metadata({location!r})"
        return
    yield f"table = StaticTable.from_metadata({location!r}, {{"
    yield from (f"    {key!r}: {_expression(value)}," for key, value in properties.items())
    yield "})"


def _pyiceberg(name: tuple[str, ...], properties: Mapping[str, str]) -> Iterator[str]:
    if any(value.startswith("env:") for value in properties.values()):
        yield "import os"
    yield "from pyiceberg.catalog import load_catalog"
    yield f"catalog = load_catalog({properties.get('name', NAME)!r}, **{{"
    for key, value in properties.items():
        if key != "name":
            yield f"    {key!r}: {_expression(value)},"
    yield "})"
    yield f"table = catalog.load_table({name!r})"


def _expression(value: str) -> str:
    prefix, _, variable = value.partition(":")
    return f"os.environ[{variable!r}]" if prefix == "env" else repr(value)


def _polars(s3: _Store | None) -> Iterator[str]:
    yield "import os"
    yield "import polars"
    yield "os.environ['POLARS_ICEBERG_PLANNER'] = 'pyiceberg'  # or it warns"
    options = {} if s3 is None else _polars_options(s3)
    if not options:
        yield "polars.scan_iceberg(table).collect()"
        return
    yield "polars.scan_iceberg(table, storage_options={"
    yield from (f"    {key!r}: {_expression(value)}," for key, value in options.items())
    yield "}).collect()"


def _polars_options(s3: _Store) -> dict[str, str]:
    options = {
        "aws_endpoint_url": s3.endpoint,
        "aws_region": s3.region,
        "aws_access_key_id": s3.key,
        "aws_secret_access_key": s3.secret,
        "aws_session_token": s3.token,
        "aws_allow_http": "true" if s3.endpoint.startswith("http://") else "",
        "aws_virtual_hosted_style_request": "true" if s3.endpoint and not s3.path_style else "",
    }
    return {name: value for name, value in options.items() if value}


def _spark(s3: _Store | None) -> Iterator[str]:
    if s3 is None:
        yield f"spark.read.parquet(*[{_FILES}])  # local files need no jar"
        return
    yield "# S3 needs the jar org.apache.hadoop:hadoop-aws of Spark's Hadoop version, and settings"
    yield "# spark.hadoop.fs.s3a.access.key and .secret.key" + _spark_endpoint(s3)
    yield f"files = [{_FILES}]"
    yield "spark.read.parquet(*['s3a://' + each.partition('://')[2] for each in files])"


def _spark_endpoint(s3: _Store) -> str:
    if not s3.endpoint:
        return ""
    endpoint = _HIDDEN if s3.endpoint.startswith("env:") else s3.endpoint
    style = ", .path.style.access=true" if s3.path_style else ""
    return f", .endpoint={endpoint}{style}"
