"""Whether a write may begin: not in a log that is broken, and not before there is memory for it."""

from __future__ import annotations

from collections.abc import Callable

from lakebed.engine.budget import Budget
from lakebed.engine.core import Core
from lakebed.engine.shipping import Shipping
from lakebed.wal import Wal


class Admission:
    """Lets writes in, or makes them wait. Any thread."""

    def __init__(
        self,
        *,
        core: Core,
        wal: Wal,
        budget: Budget,
        relieve: Callable[[], None] | None,
        shipping: Shipping | None = None,
    ) -> None:
        self._core = core
        self._wal = wal
        self._budget = budget
        self._shipping = shipping
        self._relieve = relieve
        """Makes room where no maintenance thread does."""

    def admit(self) -> None:
        """Return when a write may begin; raise if the log is broken or has no room in time."""
        if self._core.broken is not None:
            raise self._core.broken
        self._wal.check_writable()
        if self._wal.commits.in_callback:
            return  # waiting there would hold up the commit that makes room
        if self._shipping is not None:
            self._shipping.admit()
        self._budget.admit(self._relieve)

    def must_wait(self) -> bool:
        """Return whether a write would wait or fail: for memory, the queue, a broken log."""
        return bool(self._core.broken or self._budget.pause() or self._wal.commits.queue_is_full)
