"""Committing transactions of several writers together, once under a name and a number."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from lakebed import limits
from lakebed.api.offsets import Offsets
from lakebed.errors import InvalidArgumentError, RejectedError
from lakebed.state.commands import CommitTogether
from lakebed.state.decision import Written
from lakebed.types import GroupName, ProducerName

KEEP_MS: Final = 400 * 86_400_000
"""How long a number is remembered after the last commit of its name, unless told otherwise."""

Places = Callable[[Offsets], tuple[tuple[int, int, int], ...]]
"""Gives offsets as (topic id, partition, offset)."""


@dataclass(frozen=True)
class CommittedTogether:
    """What became of a commit of several transactions."""

    duplicate: bool
    """This number, or a later one, was committed before: nothing was added now.

    A call whose answer got lost on the way is made again, and may find itself here.
    """
    records: int
    """How many records became visible; none for a duplicate."""


def command_of(
    transactions: Sequence[tuple[int, int]],
    name: str,
    number: int,
    keep_ms: int,
    offsets: Mapping[str, Offsets] | None,
    places: Places,
    time_us: int,
) -> CommitTogether:
    """Check what is to be committed together, and return it as a command."""
    chosen = str(ProducerName(name))
    _check_whole("number", number, limits.MARKER_NUMBER_MAX)
    _check_whole("keep_ms", keep_ms, limits.MARKER_KEPT_MS_MAX)
    named = check_transactions(transactions)
    groups = tuple(
        (str(GroupName(group)), "", *partition)
        for group, wanted in sorted(_by_group(offsets).items())
        for partition in places(wanted)
    )
    return CommitTogether(chosen, number, time_us, keep_ms * 1000, named, groups)


def check_transactions(transactions: Any) -> tuple[tuple[int, int], ...]:
    """Take what `prepare` gave, of each transaction, or refuse it."""
    if isinstance(transactions, str | bytes | Mapping) or not isinstance(transactions, Sequence):
        raise InvalidArgumentError("transactions must be a list of results of prepare()")
    if len(transactions) > limits.TOGETHER_MAX:
        raise InvalidArgumentError(
            "there are too many transactions for one commit",
            transactions=len(transactions),
            transactions_max=limits.TOGETHER_MAX,
        )
    named = tuple(tuple(item) if isinstance(item, tuple | list) else () for item in transactions)
    for identity in named:
        if len(identity) != 2 or any(type(part) is not int or part < 0 for part in identity):
            raise InvalidArgumentError(
                "a transaction must be (id, epoch), as prepare() returns it",
                got=repr(identity)[:200],
            )
    return tuple((producer_id, epoch) for producer_id, epoch in named)


def outcome_of(written: Written) -> CommittedTogether:
    """Sum up what a commit came to."""
    records = sum(
        run.records for part in written.parts if not isinstance(part, RejectedError) for run in part
    )
    return CommittedTogether(written.duplicate, records)


def _by_group(offsets: Any) -> Mapping[str, Offsets]:
    if offsets is None:
        return {}
    if not isinstance(offsets, Mapping) or not all(isinstance(group, str) for group in offsets):
        raise InvalidArgumentError("offsets must be {group: offsets}", got=repr(offsets)[:200])
    return offsets


def _check_whole(name: str, value: Any, most: int) -> None:
    if type(value) is not int or not 0 <= value <= most:
        raise InvalidArgumentError(
            f"{name} must be an integer from 0 to {most}", got=repr(value)[:200]
        )
