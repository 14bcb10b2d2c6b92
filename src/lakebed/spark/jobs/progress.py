"""Progress of a job, from Spark's count of finished tasks."""

from __future__ import annotations

import contextlib
import threading
import uuid
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from lakebed.types import Progress

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


_LOOK_SECONDS: Final = 0.2


@contextlib.contextmanager
def report_tasks(spark: SparkSession, doing: str, progress: Progress | None) -> Iterator[None]:
    """Report finished tasks of the queries within the block to `progress`, while they run.

    No state is reported twice. That all is done is reported once, when the block has ended without
    an error: until then a query may have more tasks than Spark knows of.
    """
    if progress is None:
        yield
        return
    context = spark.sparkContext
    group = f"lakebed-{uuid.uuid4().hex}"
    context.setJobGroup(group, doing)
    watcher = _Watcher(spark, group, doing, progress)
    watcher.start()
    try:
        yield
    except BaseException:
        watcher.end()
        raise
    else:
        watcher.end()
        watcher.tell_whole()
    finally:
        context.setLocalProperty("spark.jobGroup.id", None)  # type: ignore[arg-type]  # unsets it


class _Watcher:
    """Asks Spark for the tasks of a group of queries, in a separate thread."""

    def __init__(self, spark: SparkSession, group: str, doing: str, progress: Progress) -> None:
        self._tracker = spark.sparkContext.statusTracker()
        self._group = group
        self._doing = doing
        self._progress = progress
        self._seen: dict[int, tuple[int, int]] = {}
        self._told = (0, 0)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def start(self) -> None:
        """Start reporting."""
        self._thread.start()

    def end(self) -> None:
        """Stop reporting."""
        self._ended.set()
        self._thread.join()

    def tell_whole(self) -> None:
        """Report that all is done; nothing if Spark had no tasks to do."""
        self._look()
        total = sum(count for _, count in self._seen.values())
        if total:
            self._progress(self._doing, total, total)

    def _watch(self) -> None:
        while not self._ended.wait(_LOOK_SECONDS):
            self._look()
            done, total = map(sum, zip(*self._seen.values(), strict=True)) if self._seen else (0, 0)
            now = (min(done, total - 1), total)
            if total and now != self._told:
                self._told = now
                self._progress(self._doing, *now)

    def _look(self) -> None:
        for job in self._tracker.getJobIdsForGroup(self._group):
            job_info = self._tracker.getJobInfo(job)
            for stage in () if job_info is None else job_info.stageIds:
                info = self._tracker.getStageInfo(int(stage))
                if info is not None:
                    self._seen[info.stageId] = (info.numCompletedTasks, info.numTasks)
