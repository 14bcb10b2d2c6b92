"""Spark: `format("lakebed")`, jobs and pipelines. Nothing here is imported before it is used."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from lakebed.spark.frames import read
    from lakebed.spark.session import session

__all__ = ["read", "session"]

_PLACES: Final = {
    "read": "lakebed.spark.frames",
    "session": "lakebed.spark.session",
}


def __getattr__(name: str) -> Any:
    place = _PLACES.get(name)
    if place is None:
        raise AttributeError(f"module 'lakebed.spark' has no attribute {name!r}")
    return getattr(importlib.import_module(place), name)
