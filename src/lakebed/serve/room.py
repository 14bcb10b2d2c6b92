"""How much a caller of a server may add to the state of a log: producers, markers, groups.

The state is in memory and in every snapshot. What the log itself refuses would be refused again
when it is replayed, so these limits are looked at before a command is submitted. They are for the
callers of a server: whoever has the folder has no such limit. Calls at the same time may exceed a
limit by as many as there are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from lakebed import limits
from lakebed.errors import InvalidArgumentError
from lakebed.state.values import owner_of

if TYPE_CHECKING:
    from lakebed.engine.log import EmbeddedLog


class StateQuota:
    """What one caller may still add."""

    def __init__(self, log: EmbeddedLog, principal: str, *, administrator: bool) -> None:
        self._core = log.parts.core
        self._principal = principal
        self._administrator = administrator

    def check_producer(self, name: str, *, transactional: bool) -> None:
        """Refuse another producer or transaction if there are too many."""
        if (transactional, name) in self._core.state.producer_names:
            return
        producers, owner = self._core.state.producers, owner_of(name)
        self._check("producers", len(producers), limits.PRODUCERS_MAX)
        self._check_own("producers", producers.count_of(owner), limits.PRODUCERS_OF_ONE_MAX)

    def check_marker(self, name: str) -> None:
        """Refuse another name of commits if there are too many."""
        markers = self._core.state.markers
        if name in markers or next(markers.over(self._core.clock.time_us()), None) is not None:
            return  # with this commit those are forgotten whose time is over
        if not self._administrator:  # those of the log itself are checked there
            self._check("markers", len(markers), limits.MARKERS_MAX)
        self._check_own("markers", markers.count_of(owner_of(name)), limits.MARKERS_OF_ONE_MAX)

    def check_groups(self, names: Sequence[str]) -> None:
        """Refuse another consumer group if there are too many."""
        groups = self._core.state.groups
        if any(name not in groups for name in names):
            self._check("groups", len(groups), limits.GROUPS_MAX)

    def _check(self, what: str, count: int, most: int) -> None:
        """Refuse one more of all callers; administrators have a reserve."""
        reserve = 0 if self._administrator else min(limits.ADMIN_RESERVE, most // 2)
        if count >= most - reserve:
            raise InvalidArgumentError(f"there are too many {what}", **{f"{what}_max": most})

    def _check_own(self, what: str, count: int, most: int) -> None:
        """Refuse one more of this caller."""
        if not self._administrator and count >= most:
            raise InvalidArgumentError(
                f"the principal has too many {what}",
                principal=self._principal,
                **{f"principal_{what}_max": most},
            )
