"""The door through which executors read and write the Parquet files of derived tables.

    file:///folder/...   s3://bucket/...   and what else pyarrow knows

A local file is a `SyncedFile`, and its folder is synced as well: a name always means a whole file
that survives a power cut. A stream to an object store shows nothing until it is closed. Every file
has a name of its own, so one that was written in vain does no harm.
"""

from __future__ import annotations

import contextlib
import urllib.parse
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from lakebed.host.synced_file import SyncedFile

_ROW_GROUP_ROWS: Final = 256 * 1024
_LOCAL: Final = "file://"


class WrittenFile(NamedTuple):
    """A file that was written."""

    location: str
    rows: int
    bytes: int


class TableFiles:
    """Parquet files by URL. It can be pickled; one thread at a time."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._options = dict(options)
        self._systems: dict[tuple[str, str], Any] = {}

    def __repr__(self) -> str:
        return f"TableFiles(options={sorted(self._options)})"

    def __reduce__(self) -> tuple[Any, ...]:
        return (TableFiles, (self._options,))

    def write(
        self,
        location: str,
        schema: pa.Schema,
        batches: Iterable[pa.Table],
        plain: Iterable[str] = (),
    ) -> WrittenFile:
        """Write tables, which have the columns of `schema`, as one file that is there for good.

        Columns in `plain` have no dictionary: values of a key are hardly ever alike.
        """
        rows = 0
        with self._output(location) as sink:
            settings: dict[str, Any] = {
                "compression": "zstd",
                "write_page_checksum": True,
                "write_page_index": True,
                "store_schema": False,
                "use_dictionary": [name for name in schema.names if name not in set(plain)],
            }
            with pq.ParquetWriter(sink, schema, **settings) as writer:
                for table in batches:
                    writer.write_table(table, row_group_size=_ROW_GROUP_ROWS)
                    rows += table.num_rows
        return WrittenFile(location, rows, self._size(location))

    def read(self, location: str, columns: list[str] | None = None) -> pa.Table:
        """Read a file, or those of its columns that it has."""
        with contextlib.closing(self._input(location)) as source:
            file = pq.ParquetFile(source, pre_buffer=not location.startswith(_LOCAL))
            if columns is not None:
                columns = [name for name in columns if name in file.schema_arrow.names]
            return file.read(columns)

    def _output(self, location: str) -> Any:
        if location.startswith(_LOCAL):
            return SyncedFile(Path(location.removeprefix(_LOCAL)), sync_folder=True)
        system, path = self._system(location)
        return system.open_output_stream(path)

    def _input(self, location: str) -> Any:
        if location.startswith(_LOCAL):
            return pa.memory_map(location.removeprefix(_LOCAL))
        system, path = self._system(location)
        return system.open_input_file(path)

    def _size(self, location: str) -> int:
        if location.startswith(_LOCAL):
            return Path(location.removeprefix(_LOCAL)).stat().st_size
        system, path = self._system(location)
        return int(system.get_file_info(path).size)

    def _system(self, location: str) -> tuple[Any, str]:
        from pyiceberg.io.pyarrow import PyArrowFileIO

        from lakebed.host.bucket_options import with_defaults

        parts = urllib.parse.urlsplit(location)
        system = self._systems.get((parts.scheme, parts.netloc))
        if system is None:
            opened = PyArrowFileIO(with_defaults(self._options))
            system = opened.fs_by_scheme(parts.scheme, parts.netloc)
            self._systems[parts.scheme, parts.netloc] = system
        return system, f"{parts.netloc}{parts.path}"
