"""What the tests of the lake share: records of every shape, and a lake on a simulated disk."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from lakebed.host import Disk, SimDisk
from lakebed.lake import LakeFolder, SegmentReader, segment_schema, write_segment
from lakebed.state.values import Segment

ROOT = Path("/log")
TOPIC, PARTITION, ID = 3, 1, 7
RAW = segment_schema(pa.binary())
VALUE = pa.struct(
    [
        pa.field("name", pa.string()),
        pa.field("count", pa.int64(), metadata={"unit": "pieces"}),
        pa.field("price", pa.float64()),
        pa.field("paid", pa.bool_()),
        pa.field("tags", pa.list_(pa.string())),
        pa.field("when", pa.timestamp("us", "UTC")),
        pa.field("place", pa.struct([("lat", pa.float32()), ("lon", pa.float32())])),
        pa.field("sizes", pa.map_(pa.string(), pa.int32())),
        pa.field("kind", pa.dictionary(pa.int32(), pa.string())),
        pa.field("exact", pa.decimal128(12, 2)),
        pa.field("long", pa.large_string()),
    ]
)
TYPED = segment_schema(VALUE)
EVERYTHING = 1 << 60


def lake(disk: Disk | None = None, root: Path = ROOT) -> LakeFolder:
    """Return a lake with the folder of the topic in it."""
    folder = LakeFolder(disk or SimDisk(), root)
    folder.prepare(TOPIC)
    return folder


def typed_value(number: int) -> dict[str, Any] | None:
    """Return a value with nulls at every depth here and there."""
    if number % 11 == 0:
        return None
    return {
        "name": None if number % 5 == 0 else f"name {number % 3}",
        "count": number,
        "price": number / 4,
        "paid": number % 2 == 0,
        "tags": [None, "a"] if number % 3 else [],
        "when": number,
        "place": None if number % 4 == 0 else {"lat": 1.5, "lon": None},
        "sizes": [("s", number), ("m", None)],
        "kind": f"kind {number % 4}",
        "exact": None,
        "long": "x" * (number % 9),
    }


def records(
    offsets: Sequence[int] | range,
    *,
    times: Sequence[int] | None = None,
    value_bytes: int = 20,
    schema: pa.Schema = RAW,
) -> pa.Table:
    """Make records whose contents follow from their offsets, nulls and empties among them."""
    raw = schema.field("value").type == pa.binary()
    rng = np.random.default_rng(0)
    columns = [
        [PARTITION] * len(offsets),
        list(offsets),
        [1_000_000 + each for each in offsets] if times is None else list(times),
        [[None, b"", b"key %d" % (each % 10)][each % 3] for each in offsets],
        [[None, [], [("trace", b"%d" % each), ("none", None)]][each % 3] for each in offsets],
        [None if each % 7 == 0 else rng.bytes(value_bytes) for each in offsets]
        if raw
        else [typed_value(each) for each in offsets],
    ]
    arrays = [pa.array(each, kind) for each, kind in zip(columns, schema.types, strict=True)]
    return pa.Table.from_arrays(arrays, schema=schema)


def write(
    folder: LakeFolder,
    batches: Iterable[pa.RecordBatch | pa.Table] | pa.Table,
    *,
    base: int = 0,
    end: int | None = None,
    segment_id: int = ID,
    compression: str = "zstd",
    schema: pa.Schema | None = None,
) -> Segment:
    """Write a segment and sync its folder."""
    batches = [batches] if isinstance(batches, pa.Table) else list(batches)
    if end is None:
        end = max(each.column("offset")[-1].as_py() for each in batches) + 1
    segment = write_segment(
        folder.disk,
        folder.path(TOPIC, PARTITION, segment_id),
        batches,
        segment_id=segment_id,
        base=base,
        end=end,
        compression=compression,
        schema=schema or batches[0].schema,
    )
    folder.sync(TOPIC)
    return segment


def read(
    reader: SegmentReader,
    segment: Segment,
    offset: int = 0,
    *,
    max_records: int = EVERYTHING,
    max_bytes: int = EVERYTHING,
    columns: Sequence[str] | None = None,
) -> pa.Table:
    """Read once, as one table."""
    batches = reader.read(
        TOPIC,
        PARTITION,
        segment,
        offset=offset,
        max_records=max_records,
        max_bytes=max_bytes,
        columns=columns,
    )
    return pa.Table.from_batches(batches, None if batches else RAW)


def verify(folder: LakeFolder, segment: Segment) -> None:
    """Verify with a reader of its own."""
    reader = SegmentReader(folder, 0)
    reader.verify(TOPIC, PARTITION, segment)
    reader.close()
