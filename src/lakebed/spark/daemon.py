"""The process that Spark forks its Python workers from, with everything imported already.

Without it every new worker would import Arrow and Lakebed for itself, which takes longer than most
micro-batches. Nothing is connected to before the fork: connections do not outlive one.
"""

import runpy
import sys

import pyarrow.compute
import pyarrow.flight
import pyarrow.parquet  # noqa: F401  # imported for those who are forked from here

import lakebed.client.log
import lakebed.spark.sink
import lakebed.spark.source
import lakebed.spark.stream  # noqa: F401

if __name__ == "__main__":
    sys.argv[0] = "pyspark.daemon"
    runpy.run_module("pyspark.daemon", run_name="__main__", alter_sys=True)
