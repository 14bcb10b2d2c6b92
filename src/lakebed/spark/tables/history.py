"""Every version of a key, and from when to when it was valid.

The changes of a key, in their order, continue the version that is current. Each version ends when
the next change begins; a deletion ends the last one and begins none. The current version of a
changed key is removed from where it is, and written again with its end.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakebed.reports.derived import IS_CURRENT, VALID_FROM, VALID_TO
from lakebed.spark.tables.rows import conform, ends_key, in_order, key_codes

if TYPE_CHECKING:
    from lakebed.spark.tables.bucket import BucketChange

TIME = "_time"
_DELETED = "_deleted"
_TIME_TYPE = pa.timestamp("us", "UTC")


def versions(bucket: BucketChange, changes: pa.Table) -> pa.Table:
    """Mark the current versions of changed keys, and return them and the new ones as rows."""
    task = bucket.task
    bucket.remove(changes, also=IS_CURRENT)
    old = bucket.read_removed_rows()
    schema = _wide(task.table.schema, changes, task.order.columns)
    new = changes.append_column(VALID_FROM, changes.column(TIME).cast(_TIME_TYPE))
    rows = pa.concat_tables([conform(old, schema), conform(new, schema)]).combine_chunks()
    codes = key_codes(rows, task.table.key)
    sequence = in_order(rows, codes, task.order)  # the current version has no order, and is first
    return _chain(rows.take(pa.array(sequence)), codes[sequence])


def _wide(schema: pa.Schema, changes: pa.Table, order: tuple[str, ...]) -> pa.Schema:
    extra = [pa.field(name, changes.schema.field(name).type) for name in order]
    return pa.schema([*schema, pa.field(_DELETED, pa.bool_()), *extra])


def _chain(rows: pa.Table, codes: Any) -> pa.Table:
    """Return versions, sorted by key and order, each with its end, and without the deletions."""
    last = ends_key(codes)
    following = np.append(np.arange(1, len(codes)), 0)
    numbers = pa.array(following, mask=last)
    ends = rows.column(VALID_FROM).take(numbers)
    rows = _replace(rows, VALID_TO, ends)
    rows = _replace(rows, IS_CURRENT, pa.array(last))
    return rows.filter(pc.invert(rows.column(_DELETED).fill_null(False)))


def _replace(rows: pa.Table, name: str, values: Any) -> pa.Table:
    return rows.set_column(rows.schema.get_field_index(name), name, values)
