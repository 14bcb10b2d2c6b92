"""Arguments of the WAL, checked: what does not fit the format must not reach a commit."""

from __future__ import annotations

from lakebed.errors import InvalidArgumentError


def check_number(name: str, value: int, highest: int = 2**64 - 1) -> None:
    """Raise unless `value` is an integer from 0 to `highest`."""
    if not isinstance(value, int) or not 0 <= value <= highest:
        raise InvalidArgumentError(
            f"{name} must be an integer from 0 to {highest}", value=repr(value)
        )


def check_index(index: int) -> int:
    """Return an index of an entry, or raise if it is not an integer."""
    if not isinstance(index, int):
        raise InvalidArgumentError("index must be an integer", value=repr(index))
    return index
