"""Writing a chunk of a job into a topic: by one commit, under the job's name and its number."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lakebed.spark.batch_reads import target_options

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from lakebed.spark.options import Target


def write(frame: DataFrame, target: Target, topic: str, name: str, chunk_index: int) -> None:
    """Write a chunk in one commit; a chunk that was written before is skipped."""
    writer = frame.write.format("lakebed").mode("append")
    for option, value in target_options(target, topic):
        writer = writer.option(option, value)
    writer.option("txnAppId", name).option("txnVersion", str(chunk_index)).save()
