"""Sealed data: Parquet segments, written once, every byte checked when it is read."""

from lakebed.lake.folder import UNFINISHED, LakeFolder, SegmentName
from lakebed.lake.row_group_cache import CacheStats
from lakebed.lake.schema import COLUMNS, segment_schema
from lakebed.lake.segment_reader import SegmentReader
from lakebed.lake.segment_writer import COMPRESSIONS, write_segment

__all__ = [
    "COLUMNS",
    "COMPRESSIONS",
    "UNFINISHED",
    "CacheStats",
    "LakeFolder",
    "SegmentName",
    "SegmentReader",
    "segment_schema",
    "write_segment",
]
