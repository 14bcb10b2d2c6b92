"""Checks of settings; errors name the setting, the value and what is allowed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeGuard

from lakebed.errors import InvalidArgumentError


def is_whole(value: object, low: int, high: int) -> TypeGuard[int]:
    """Return whether a value is an integer from `low` to `high`, and not a bool."""
    return isinstance(value, int) and not isinstance(value, bool) and low <= value <= high


def check_bounds(config: object, bounds: Mapping[str, tuple[int, int]]) -> None:
    """Raise `InvalidArgumentError` for a number out of its bounds."""
    for name, (low, high) in bounds.items():
        value = getattr(config, name)
        if not is_whole(value, low, high):
            refuse(name, value, f"an integer from {low} to {high}")


def refuse(setting: str, value: object, allowed: str) -> None:
    """Raise `InvalidArgumentError` with the setting, the value and what is allowed."""
    raise InvalidArgumentError(f"{setting} must be {allowed}", setting=setting, value=repr(value))
