"""Writing a chunk of a job into a topic: by one commit, under the job's name and its number."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lakebed.spark.frames import target_options

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from lakebed.spark.options import Target


def write(frame: DataFrame, target: Target, topic: str, name: str, number: int) -> None:
    """Write a chunk; one that was written before adds nothing."""
    writer = frame.write.format("lakebed").mode("append")
    for option, value in target_options(target, topic):
        writer = writer.option(option, value)
    writer.option("txnAppId", name).option("txnVersion", str(number)).save()
