"""What the metadata of a loaded Iceberg table states, and what it must state to be the log's.

Tables, snapshots and schemas are pyiceberg's, which is imported when a table is first needed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final, NamedTuple

from lakebed.errors import ForeignTableError, SchemaMismatchError
from lakebed.iceberg.failures import reading_manifests, translate_failures
from lakebed.state.values import Segment

LOG: Final = "lakebed.log"
TOPIC: Final = "lakebed.topic"
POSITION: Final = "lakebed.position"
OFFSETS: Final = "lakebed.offsets"
TERM: Final = "lakebed.term"


class Registered(NamedTuple):
    """A segment as a file of a table."""

    partition: int
    segment: Segment
    metadata: Callable[[], Any]
    """Returns the Parquet library's metadata of the file."""


def number_of(properties: Mapping[str, str], name: str) -> int:
    """Return a property that is a number; -1 if it is missing or not a number."""
    text = properties.get(name, "")
    return int(text) if text.isascii() and text.isdigit() else -1


def terms(term: int | None) -> dict[str, str]:
    """Return the property that states an owner's term; none for a log on this disk alone."""
    return {} if term is None else {TERM: str(term)}


def is_ours(snapshot: Any, properties: Mapping[str, str], log: str) -> bool:
    """Return whether the log committed a table's newest snapshot."""
    summary = snapshot.summary.additional_properties if snapshot.summary else {}
    return (summary.get(LOG), summary.get(POSITION)) == (log, properties.get(POSITION))


def check_position(table: Any, name: str, position: int) -> None:
    """Refuse a table that is ahead of the log."""
    there = number_of(table.properties, POSITION)
    if there > position:
        raise ForeignTableError(
            "the table is ahead of the log: this is an older copy of it",
            table=name,
            position=there,
            log_position=position,
        )


def check_partitioning(table: Any, name: str) -> None:
    """Refuse a table that is not partitioned by the log's partitions."""
    fields = [(field.source_id, str(field.transform)) for field in table.spec().fields]
    if fields != [(1, "identity")]:
        raise ForeignTableError(
            "another writer has changed the table's partitioning", table=name, now=table.spec()
        )


def fields_of(schema: Any) -> dict[int, tuple[str, str, bool]]:
    """Return name, type and nullability of every field by its id; only leaves have a type here."""
    fields = {}
    for field_id in schema.field_ids:
        field = schema.find_field(field_id)
        kind = str(field.field_type) if field.field_type.is_primitive else ""
        fields[field_id] = (schema.find_column_name(field_id), kind, field.required)
    return fields


def live_files(table: Any, *, with_deletes: bool = False) -> dict[str, Any]:
    """Return every file of a table's newest snapshot by its location; refuse deletes by default."""
    from pyiceberg.manifest import ManifestContent

    snapshot = table.current_snapshot()
    files: dict[str, Any] = {}
    with reading_manifests(table):
        for manifest in snapshot.manifests(table.io) if snapshot is not None else ():
            if manifest.content == ManifestContent.DELETES and not with_deletes:
                raise ForeignTableError(
                    "another writer has deleted records from the table",
                    table=".".join(table.name()),
                    snapshot=snapshot.snapshot_id,
                )
            for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=True):
                files[entry.data_file.file_path] = entry.data_file
    return files


def files_in_use(table: Any) -> set[str]:
    """Return the location of every file that the table or one of its snapshots refers to."""
    needed = {table.metadata_location}
    needed.update(entry.metadata_file for entry in table.metadata.metadata_log)
    needed.update(file.statistics_path for file in table.metadata.statistics)
    needed.update(file.statistics_path for file in table.metadata.partition_statistics)
    seen: set[str] = set()
    with translate_failures("reading a table", ".".join(table.name())), reading_manifests(table):
        for snapshot in table.metadata.snapshots:
            needed.add(snapshot.manifest_list)
            for manifest in snapshot.manifests(table.io):
                if manifest.manifest_path in seen:
                    continue
                seen.add(manifest.manifest_path)
                for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=True):
                    needed.add(entry.data_file.file_path)
    return needed | seen


def data_file(location: str, file: Registered, metadata: Any, schema: Any) -> Any:
    """Describe a segment to a table, with the statistics that its readers prune by."""
    from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
    from pyiceberg.typedef import Record

    footer = file.metadata()
    _check_ids(footer, location)
    statistics = file_statistics(footer, metadata, schema or metadata.schema())
    return DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=location,
        file_format=FileFormat.PARQUET,
        partition=Record(file.partition),
        file_size_in_bytes=file.segment.file_bytes,
        sort_order_id=None,
        spec_id=metadata.default_spec_id,
        equality_ids=None,
        key_metadata=None,
        **statistics.to_serialized_dict(),
    )


def file_statistics(footer: Any, metadata: Any, schema: Any) -> Any:
    """Return the statistics of a file's columns in the form that a table of this schema keeps."""
    from pyiceberg.io.pyarrow import (
        MetricModeTypes,
        MetricsMode,
        compute_statistics_plan,
        data_file_statistics_from_parquet_metadata,
        parquet_path_to_id_mapping,
    )

    mapping = parquet_path_to_id_mapping(schema)
    plan = dict(compute_statistics_plan(schema, metadata.properties))
    for path in _columns_without_bounds(footer):
        # pyiceberg would take the bounds of the other row groups for those of the file.
        statistics = plan[mapping[path]]
        if statistics.mode.type != MetricModeTypes.NONE:
            plan[mapping[path]] = replace(statistics, mode=MetricsMode(MetricModeTypes.COUNTS))
    return data_file_statistics_from_parquet_metadata(
        parquet_metadata=footer, stats_columns=plan, parquet_column_mapping=mapping
    )


def _columns_without_bounds(metadata: Any) -> set[str]:
    """Return the columns of which some row group has no least and greatest value.

    The Parquet library leaves out those of values over 4 KiB.
    """
    unbounded = set()
    for index in range(metadata.num_row_groups):
        group = metadata.row_group(index)
        for leaf in range(group.num_columns):
            column = group.column(leaf)
            statistics = column.statistics
            if statistics is None or (
                statistics.has_null_count and statistics.null_count == group.num_rows
            ):
                continue
            try:
                bounded = statistics.has_min_max and None not in (statistics.min, statistics.max)
            except (OverflowError, ValueError):  # a time that Python's calendar does not have
                bounded = False
            if not bounded:
                unbounded.add(column.path_in_schema)
    return unbounded


def _check_ids(metadata: Any, location: str) -> None:
    """Refuse a segment whose columns have other field ids than the table's."""
    value = metadata.schema.to_arrow_schema().field("value")
    if (value.metadata or {}).get(b"PARQUET:field_id") != b"6":
        raise SchemaMismatchError(
            "a segment was written by a version that numbered columns differently", file=location
        )


def snapshots_to_expire(metadata: Any, kept: int, before_us: int | None = None) -> list[int]:
    """Return the snapshots beyond the newest ones, except those with a branch or tag.

    With a time, only those before it.
    """
    named = {ref.snapshot_id for ref in metadata.refs.values()}
    by_age = sorted(
        metadata.snapshots, key=lambda snapshot: snapshot.sequence_number or 0, reverse=True
    )
    return [
        snapshot.snapshot_id
        for snapshot in by_age[kept:]
        if snapshot.snapshot_id not in named
        and (before_us is None or snapshot.timestamp_ms * 1000 < before_us)
    ]
