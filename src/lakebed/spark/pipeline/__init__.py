"""Pipelines: declared in one file or in Python, run by Spark, exactly once from end to end."""
