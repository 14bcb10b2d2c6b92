"""A Spark application that copies a topic by a stream, run by a process of its own.

    python -m tests.proof.spark_driver URL CHECKPOINT RUNS

It runs the stream up to so many times, each time from where the last one ended, until one comes to
its end, and says a line of JSON for each thing that happens: `session`, `failed` with the error,
`done`. A stream that fails is what an operator would start again.
"""

from __future__ import annotations

import json
import sys

from pyspark.errors import PySparkException

import lakebed.spark

_SETTINGS = {"spark.driver.memory": "512m", "spark.sql.shuffle.partitions": "2"}
BATCH_RECORDS = 60


def say(event: str, **facts: object) -> None:
    """Return whoever started this."""
    sys.stdout.write(json.dumps({"event": event, **facts}) + "\n")
    sys.stdout.flush()


def main(url: str, checkpoint: str, runs: str) -> None:
    """Copy topic `in` to topic `out` until that is done."""
    # Tasks may fail more often than a test makes them; a worker that dies is one failed task.
    spark = lakebed.spark.session(master="local[2,8]", name="copy", conf=_SETTINGS)
    say("session")
    source = {"log": url, "topic": "in", "retryMs": "30000"}
    for _ in range(int(runs)):
        query = (
            spark.readStream.format("lakebed")
            .options(**source, startingOffsets="earliest", maxOffsetsPerTrigger=BATCH_RECORDS)
            .load()
            .select("key", "value")
            .writeStream.format("lakebed")
            .options(log=url, topic="out", checkpointLocation=checkpoint)
            .trigger(availableNow=True)
            .start()
        )
        try:
            query.awaitTermination()
        except PySparkException as error:
            say("failed", error=str(error))
            continue
        say("done")
        break
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
