"""Files that executors have written, described to a derived table.

The footer of each file is read: its columns must be the table's, by name, type and field id, or
some of them. So a file that is missing, cut off or of another table is refused before anything is
committed.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from lakebed.errors import InvalidArgumentError, SchemaMismatchError
from lakebed.iceberg.table_metadata import file_statistics
from lakebed.lake.schema import FIELD_ID
from lakebed.reports.derived import DATA, DELETES, DerivedFile

_THREADS: Final = 8
_PATH_ID: Final = 2147483546
_POSITION_ID: Final = 2147483545

DELETES_SCHEMA: Final = pa.schema(
    [
        pa.field("file_path", pa.string(), nullable=False, metadata={FIELD_ID: str(_PATH_ID)}),
        pa.field("pos", pa.int64(), nullable=False, metadata={FIELD_ID: str(_POSITION_ID)}),
    ]
)
"""The columns of a file of deleted positions, which Iceberg prescribes."""


def describe_files(files: list[DerivedFile], table: Any, columns: pa.Schema) -> list[Any]:
    """Return the files as pyiceberg's data files, in their order."""
    if not files:
        return []
    with ThreadPoolExecutor(min(_THREADS, len(files))) as pool:
        return list(pool.map(lambda file: _describe(file, table, columns), files))


def _describe(file: DerivedFile, table: Any, columns: pa.Schema) -> Any:
    from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
    from pyiceberg.typedef import Record

    source = table.io.new_input(file.location)
    try:
        with source.open() as stream:
            metadata = pq.read_metadata(stream)
        size = len(source)
    except FileNotFoundError as error:
        raise InvalidArgumentError(
            "a file of the commit is missing: it was not written, or its job took longer than "
            "the grace period",
            file=file.location,
        ) from error
    except pa.ArrowInvalid as error:
        raise InvalidArgumentError(
            "a file of the commit is damaged", file=file.location, reason=error
        ) from error
    data = file.content == DATA
    if data:
        _check_columns(metadata, columns, file.location)
        statistics = file_statistics(metadata, table.metadata, table.schema()).to_serialized_dict()
    else:
        statistics = _deletes_statistics(metadata)
    return DataFile.from_args(
        content=DataFileContent.DATA if data else DataFileContent.POSITION_DELETES,
        file_path=file.location,
        file_format=FileFormat.PARQUET,
        partition=Record(file.bucket) if table.spec().fields else Record(),
        file_size_in_bytes=size,
        sort_order_id=None,
        spec_id=table.metadata.default_spec_id,
        equality_ids=None,
        key_metadata=None,
        **statistics,
    )


def _check_columns(metadata: Any, columns: pa.Schema, location: str) -> None:
    """Refuse a file with a column that is not the table's; those that it lacks are null."""
    schema = metadata.schema.to_arrow_schema()
    for field in schema:
        field_id = (field.metadata or {}).get(FIELD_ID)
        index = columns.get_field_index(field.name)
        if index < 0 or (columns.field(index).metadata or {}).get(FIELD_ID) != field_id:
            raise SchemaMismatchError(
                "a file has a column that the table does not have", file=location, column=field.name
            )
        if columns.field(index).type != field.type:
            raise SchemaMismatchError(
                "a file has a column of another type than the table",
                file=location,
                column=field.name,
                expected=columns.field(index).type,
                found=field.type,
            )


def _deletes_statistics(metadata: Any) -> dict[str, Any]:
    """Return the first and the last file of deleted positions, so that readers can skip others."""
    if metadata.schema.to_arrow_schema().names != DELETES_SCHEMA.names or not metadata.num_rows:
        raise SchemaMismatchError("not a file of deleted positions", columns=metadata.schema.names)
    paths = [
        metadata.row_group(group).column(0).statistics for group in range(metadata.num_row_groups)
    ]
    bounds: dict[str, Any] = {"lower_bounds": None, "upper_bounds": None}
    if all(path is not None and path.has_min_max for path in paths):
        bounds["lower_bounds"] = {_PATH_ID: _encode(min(path.min for path in paths))}
        bounds["upper_bounds"] = {_PATH_ID: _encode(max(path.max for path in paths))}
    return {
        "record_count": metadata.num_rows,
        "column_sizes": None,
        "value_counts": None,
        "null_value_counts": None,
        "nan_value_counts": None,
        "split_offsets": None,
        **bounds,
    }


def _encode(value: Any) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode()


def to_derived_file(data_file: Any) -> DerivedFile:
    """Return a file of pyiceberg as users see it."""
    from pyiceberg.manifest import DataFileContent

    return DerivedFile(
        location=data_file.file_path,
        bucket=int(data_file.partition[0]) if len(data_file.partition) else 0,
        content=DATA if data_file.content == DataFileContent.DATA else DELETES,
        rows=data_file.record_count,
        bytes=data_file.file_size_in_bytes,
    )
