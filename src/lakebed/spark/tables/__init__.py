"""Derived tables by Spark: merge changes, append rows, read a table, materialise a topic."""

from lakebed.spark.tables.appending import append
from lakebed.spark.tables.materialising import MaterialiseReport, materialise
from lakebed.spark.tables.merging import TableReport, merge
from lakebed.spark.tables.reading import read_table

__all__ = ["MaterialiseReport", "TableReport", "append", "materialise", "merge", "read_table"]
