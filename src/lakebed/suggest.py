"""Suggestions for names that do not exist."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

__all__ = ["did_you_mean"]


def did_you_mean(name: str, candidates: Iterable[str]) -> str:
    """Return the end of an error message about an unknown name: the closest known one, if any.

    The case of letters does not matter.
    """
    names = {other.lower(): other for other in candidates}
    close = difflib.get_close_matches(name.lower(), names, 1)
    return f"; did you mean {names[close[0]]!r}?" if close else ""
