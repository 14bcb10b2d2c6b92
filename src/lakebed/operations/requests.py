"""What requests consist of: what they are about, and what clients make of their arguments."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from lakebed.api.lookup import no_topic
from lakebed.reports.groups import GroupInfo

# Arguments


def topic_name(name: Any) -> Any:
    """Return the name of a topic; raise as the engine does if it cannot be one."""
    if not isinstance(name, str):
        raise no_topic(name)
    return name


def topic_name_or_none(name: Any) -> Any:
    """Return the name of a topic, or None for all topics."""
    return None if name is None else topic_name(name)


def as_list(values: Any) -> Any:
    """Return a collection as a list; the server refuses anything else."""
    if isinstance(values, Collection) and not isinstance(values, str | bytes | Mapping):
        return list(values)
    return values


# What a request is about


def about(*parameters: str) -> Callable[[Any], Sequence[str]]:
    """Make the function that returns the names in these parameters; one left out is all names."""
    return lambda request: [
        str(request[name]) for name in parameters if request.get(name) is not None
    ]


def groups_of_offsets(request: Any) -> Sequence[str]:
    """Return the groups whose offsets a transaction commits."""
    return sorted({group for group, *_ in request["offsets"]})


def topics_to_join(_log: Any, request: Any) -> Sequence[str]:
    """Return the topics that a consumer subscribes to."""
    return sorted({topic for topic in request["topics"] if isinstance(topic, str)})


def topics_of_offsets(_log: Any, request: Any) -> Sequence[str]:
    """Return the topics whose offsets are committed."""
    return sorted({topic for topic, _, _ in request["offsets"] if isinstance(topic, str)})


def topics_of_transaction(log: Any, request: Any) -> Sequence[str]:
    """Return the topics of a transaction's offsets; the log refuses ids that do not exist."""
    topics = log.parts.core.state.topics
    ids = {topic_id for _, _, topic_id, _, _ in request["offsets"]}
    return sorted(topics[topic_id].name for topic_id in ids if topic_id in topics)


# What of a reply a caller may see


def filter_group(info: GroupInfo, may_read: Callable[[str], bool]) -> GroupInfo:
    """Remove the partitions of topics that the caller may not read."""
    visible = tuple(partition for partition in info.partitions if may_read(partition.topic))
    return dataclasses.replace(info, partitions=visible)


def filter_offsets(offsets: Any, may_read: Callable[[str], bool]) -> Any:
    """Remove the offsets of topics that the caller may not read."""
    return [offset for offset in offsets if may_read(offset[0])]


def filter_names(names: Any, may_read: Callable[[str], bool]) -> Any:
    """Remove the names of what the caller may not read."""
    return [name for name in names if may_read(name)]
