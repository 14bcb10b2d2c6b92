"""How a value that is not allowed is refused: by name, with what is."""

from __future__ import annotations

from collections.abc import Mapping

from lakebed.errors import InvalidArgumentError


def check_bounds(config: object, bounds: Mapping[str, tuple[int, int]]) -> None:
    """Refuse a number out of its bounds."""
    for name, (low, high) in bounds.items():
        value = getattr(config, name)
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            refuse(name, value, f"an integer from {low} to {high}")


def refuse(setting: str, value: object, allowed: str) -> None:
    """Refuse a value, naming setting, value and what is allowed."""
    raise InvalidArgumentError(f"{setting} must be {allowed}", setting=setting, value=repr(value))
