"""How far a stream has come, as Spark keeps it in a query's checkpoint.

    {"group": "spark-3f…", "ids": {"orders": 7}, "offsets": {"orders": {"0": 123}}, "version": 1}

`offsets` are the next ones to be read, by topic and partition. `ids` tell a topic from a later one
of the same name. `group` is the consumer group that shows how far the query is; it is chosen once,
at the query's first start, and holds compaction back from what the query may read again. Spark
compares these documents as text: keys are sorted, and they contain nothing that changes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from lakebed.errors import FormatTooNewError, InvalidArgumentError

VERSION: Final = 1

Offsets = Mapping[str, Mapping[int, int]]
"""Offsets by topic and partition."""


@dataclass(frozen=True)
class Position:
    """How far a stream has come."""

    group: str
    ids: Mapping[str, int]
    offsets: Offsets

    def document(self) -> dict[str, Any]:
        """Return the document that Spark keeps in the checkpoint."""
        return {
            "group": self.group,
            "ids": {topic: self.ids[topic] for topic in sorted(self.ids)},
            "offsets": {
                topic: {
                    # As text "10" comes before "2"; Spark only asks for the same order each time.
                    str(partition): self.offsets[topic][partition]
                    for partition in sorted(self.offsets[topic])
                }
                for topic in sorted(self.offsets)
            },
            "version": VERSION,
        }


def position(document: Any) -> Position:
    """Return the position of a document of `Position.document`.

    Raises:
        FormatTooNewError: a newer version wrote it.
        InvalidArgumentError: it is not such a document.
    """
    if not isinstance(document, dict):
        raise _unreadable(document)
    version = document.get("version")
    if type(version) is int and version > VERSION:
        raise FormatTooNewError("the checkpoint was written by a newer version", version=version)
    try:
        group, ids, offsets = document["group"], document["ids"], document["offsets"]
        read = {
            str(topic): {int(partition): _whole(offset) for partition, offset in parts.items()}
            for topic, parts in offsets.items()
        }
        return Position(
            str(group), {str(name): _whole(topic_id) for name, topic_id in ids.items()}, read
        )
    except (KeyError, ValueError, AttributeError, TypeError) as error:
        raise _unreadable(document) from error


def _whole(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise ValueError("not an integer")
    return value


def _unreadable(document: Any) -> InvalidArgumentError:
    return InvalidArgumentError(
        "the checkpoint holds offsets of another source: use a separate checkpoint for each query",
        got=str(document)[:200],
    )
