"""Schemas in files: `topic/schema_document.py` describes their content."""

from __future__ import annotations

import json
from pathlib import Path

import click
import pyarrow as pa

from lakebed.errors import InvalidArgumentError, from_os_error
from lakebed.topic.schema_document import schema_of


def read_schema(path: Path) -> pa.Schema:
    """Read a schema; errors name the file and the field."""
    try:
        with click.open_file(str(path), "rb") as file:
            document = json.load(file)
    except OSError as error:
        if isinstance(error, FileNotFoundError | IsADirectoryError):
            raise InvalidArgumentError("the schema file does not exist", file=path) from error
        raise from_os_error(error, "reading the schema", path) from error
    except (ValueError, RecursionError) as error:
        raise InvalidArgumentError(f"the schema is not JSON: {error}", file=path) from error
    return schema_of(document, file=path)
