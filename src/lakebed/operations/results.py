"""The reports that may travel: the dataclasses of which the results of operations consist."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Iterator
from typing import Any, Final

from lakebed.operations.table import OPERATIONS


def _reports(kind: Any) -> Iterator[type]:
    """Yield the dataclasses in a type: those it names, and those of their fields."""
    for inner in typing.get_args(kind):
        yield from _reports(inner)
    if isinstance(kind, type) and dataclasses.is_dataclass(kind):
        yield kind
        for field_type in typing.get_type_hints(kind).values():
            yield from _reports(field_type)


REPORTS: Final[dict[str, Any]] = {
    report.__name__: report
    for operation in OPERATIONS.values()
    for report in _reports(operation.result)
}
"""By the name that stands for the class on the wire."""
