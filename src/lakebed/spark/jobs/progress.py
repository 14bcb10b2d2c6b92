"""How far a job is: told by the job itself, or by Spark's count of finished tasks."""

from __future__ import annotations

import contextlib
import threading
import uuid
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Progress = Callable[[str, int, int], None]
"""Told what is being done, how much of it is done, and how much there is."""

_LOOK_SECONDS: Final = 0.2


def say_nothing(_doing: str, _done: int, _total: int) -> None:
    """Keep progress to oneself."""


@contextlib.contextmanager
def watched(spark: SparkSession, doing: str, progress: Progress | None) -> Iterator[None]:
    """Tell how many tasks of the queries within the block are finished, while they run."""
    if progress is None:
        yield
        return
    context = spark.sparkContext
    group = f"lakebed-{uuid.uuid4().hex}"
    context.setJobGroup(group, doing)
    ended = threading.Event()
    watcher = threading.Thread(
        target=_watch, args=(spark, group, doing, progress, ended), daemon=True
    )
    watcher.start()
    try:
        yield
    finally:
        ended.set()
        watcher.join()
        context.setLocalProperty("spark.jobGroup.id", None)  # type: ignore[arg-type]  # unsets it


def _watch(
    spark: SparkSession, group: str, doing: str, progress: Progress, ended: threading.Event
) -> None:
    tracker = spark.sparkContext.statusTracker()
    seen: dict[int, tuple[int, int]] = {}
    while not ended.wait(_LOOK_SECONDS):
        for job in tracker.getJobIdsForGroup(group):
            found = tracker.getJobInfo(job)
            for stage in () if found is None else found.stageIds:
                info = tracker.getStageInfo(int(stage))
                if info is not None:
                    seen[info.stageId] = (info.numCompletedTasks, info.numTasks)
        if seen:
            progress(
                doing, sum(done for done, _ in seen.values()), sum(n for _, n in seen.values())
            )
