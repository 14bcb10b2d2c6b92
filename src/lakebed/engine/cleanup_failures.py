"""Topics whose cleanup failed: how often, why, and whether that is over."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace

from lakebed.errors import LakebedError
from lakebed.reports.maintenance import CleanupFailure


class CleanupFailures:
    """Counts failures by topic. Any thread."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._topics: dict[int, CleanupFailure] = {}

    def add(self, topic_id: int, name: str, error: LakebedError) -> bool:
        """Count a failure; return True unless the attempt before it failed in the same way."""
        with self._guard:
            before = self._topics.get(topic_id)
            count = 0 if before is None else before.failures
            self._topics[topic_id] = CleanupFailure(name, count + 1, str(error), failing=True)
            return before is None or not before.failing or before.last_failure != str(error)

    def clear(self, topic_id: int) -> None:
        """Note that an attempt succeeded."""
        with self._guard:
            failures = self._topics.get(topic_id)
            if failures is not None and failures.failing:
                self._topics[topic_id] = replace(failures, failing=False)

    def listing(self, exists: Callable[[int], bool]) -> tuple[CleanupFailure, ...]:
        """Return the topics that had a failure, by name; forget those that do not exist."""
        with self._guard:
            self._topics = {key: failures for key, failures in self._topics.items() if exists(key)}
            return tuple(sorted(self._topics.values(), key=lambda failures: failures.topic))
