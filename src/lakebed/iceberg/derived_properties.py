"""What a derived table states about itself, in properties, which outlive its snapshots.

lakebed.log         the log's identity
lakebed.kind        current, history or append
lakebed.key         the names of its key columns, a JSON list
lakebed.buckets     parts that the key divides it into
lakebed.version     how many commits there were
lakebed.commit      the last commit's own name: tells ours from another's if it ends in doubt
lakebed.snapshot    the snapshot that the last commit with files left behind
lakebed.writers     {writer: number of its last commit}
lakebed.positions   {topic: {partition: next offset}}
lakebed.term        the term of the owner that changed it last, in a log that ships its entries
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

import pyarrow as pa

from lakebed.api.derived_change import Change
from lakebed.iceberg.commit import PROPERTIES
from lakebed.iceberg.derived_schema import plain_field
from lakebed.iceberg.table_metadata import LOG, number_of
from lakebed.reports.derived import DerivedTable

KIND: Final = "lakebed.kind"
VERSION: Final = "lakebed.version"
COMMIT: Final = "lakebed.commit"
SNAPSHOT: Final = "lakebed.snapshot"
_KEY: Final = "lakebed.key"
_BUCKETS: Final = "lakebed.buckets"
_WRITERS: Final = "lakebed.writers"
_POSITIONS: Final = "lakebed.positions"

_PROPERTIES: Final = {
    **PROPERTIES,
    "format-version": "2",
    "write.delete.mode": "merge-on-read",
    "write.update.mode": "merge-on-read",
    "write.merge.mode": "merge-on-read",
}


def first_properties(log: str, kind: str, key: Sequence[str], buckets: int) -> dict[str, str]:
    """Return the properties of a table without a commit."""
    return {
        **_PROPERTIES,
        LOG: log,
        KIND: kind,
        _KEY: json.dumps(key),
        _BUCKETS: str(buckets),
        VERSION: "0",
        _WRITERS: "{}",
        _POSITIONS: "{}",
    }


def following_properties(
    now: Mapping[str, str], change: Change, commit_id: str, snapshot: str
) -> dict[str, str]:
    """Return the properties after a commit that leaves `snapshot` as the newest."""
    writers = {**json.loads(now[_WRITERS]), change.writer: change.number}
    positions = json.loads(now[_POSITIONS])
    for topic, ends in (change.positions or {}).items():
        positions[topic] = {str(partition): end for partition, end in sorted(ends.items())}
    return {
        **_PROPERTIES,
        VERSION: str(number_of(now, VERSION) + 1),
        COMMIT: commit_id,
        SNAPSHOT: snapshot,
        _WRITERS: json.dumps(writers, sort_keys=True),
        _POSITIONS: json.dumps(positions, sort_keys=True),
    }


def description_of(name: str, table: Any) -> DerivedTable:
    """Describe a table to its users."""
    from pyiceberg.io.pyarrow import schema_to_pyarrow

    properties = table.properties
    newest = table.current_snapshot()
    summary = {} if newest is None else newest.summary.additional_properties
    rows = int(summary.get("total-records", 0))
    return DerivedTable(
        name=name,
        kind=properties[KIND],
        key=tuple(json.loads(properties[_KEY])),
        buckets=int(properties[_BUCKETS]),
        schema=pa.schema(
            plain_field(field)
            for field in schema_to_pyarrow(table.schema(), include_field_ids=True)
        ),
        version=number_of(properties, VERSION),
        location=table.location(),
        metadata=table.metadata_location,
        snapshot=None if newest is None else newest.snapshot_id,
        records=rows - int(summary.get("total-position-deletes", 0)),
        files=int(summary.get("total-data-files", 0)),
        bytes=int(summary.get("total-files-size", 0)),
        writers=json.loads(properties[_WRITERS]),
        positions=_positions_of(json.loads(properties[_POSITIONS])),
    )


def _positions_of(positions: Mapping[str, Mapping[str, int]]) -> dict[str, dict[int, int]]:
    return {
        topic: {int(partition): end for partition, end in ends.items()}
        for topic, ends in positions.items()
    }
