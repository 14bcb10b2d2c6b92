"""How far a job is: told by the job itself, or by Spark's count of finished tasks."""

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
def watched(spark: SparkSession, doing: str, progress: Progress | None) -> Iterator[None]:
    """Return how many tasks of the queries within the block are finished, while they run.

    Nothing is told twice. That all is done is told once, when the block has ended well: a query may
    have more tasks than Spark speaks of until then.
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
    """Asks Spark for the tasks of a group of queries, in a thread of its own."""

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
        """Begin to tell."""
        self._thread.start()

    def end(self) -> None:
        """Report no more."""
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
            found = self._tracker.getJobInfo(job)
            for stage in () if found is None else found.stageIds:
                info = self._tracker.getStageInfo(int(stage))
                if info is not None:
                    self._seen[info.stageId] = (info.numCompletedTasks, info.numTasks)
