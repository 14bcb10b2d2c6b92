r"""Headers of records: a list with repeated names in Kafka, a map with unique names in a topic.

The second and every further header of a name is stored under the name, a zero byte and its number
among them (`trace`, `trace\0` + `1`, ...), so that order, repetition and null values are kept and
readers of the topic's table find unique keys. A name with a zero byte is refused for that reason.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from lakebed.kafka.codes import INVALID_RECORD, Refusal

_MARK: Final = "\0"

Header = tuple[str, bytes | None]


def escape_headers(headers: Sequence[Header]) -> dict[str, bytes | None]:
    """Return the headers of a record under unique names, in their order."""
    unique: dict[str, bytes | None] = {}
    seen: dict[str, int] = {}
    for name, value in headers:
        if _MARK in name:
            raise Refusal(INVALID_RECORD, "the name of a header contains a zero byte")
        count = seen.get(name, 0)
        seen[name] = count + 1
        unique[f"{name}{_MARK}{count}" if count else name] = value
    return unique


def restore_headers(stored: Iterable[Header]) -> list[Header]:
    """Return the headers as they were produced."""
    return [(name.partition(_MARK)[0], value) for name, value in stored]
