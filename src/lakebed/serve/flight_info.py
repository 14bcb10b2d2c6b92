"""A topic as Flight describes it: its schema, its size, and an endpoint for each partition."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow.flight as fl

from lakebed.errors import ProtocolError
from lakebed.wire.protocol import pack

if TYPE_CHECKING:
    from lakebed.engine.log import EmbeddedLog


def flight_info(log: EmbeddedLog, topic: str) -> Any:
    """Return the description of a topic."""
    info = log.describe_topic(topic)
    endpoints = [
        fl.FlightEndpoint(
            pack(
                {
                    "call": "range",
                    "topic": topic,
                    "partition": partition.partition,
                    "offset": partition.earliest,
                    "until": partition.end,
                }
            ),
            [],
        )
        for partition in info.partitions
    ]
    return fl.FlightInfo(
        log.table(topic).schema,
        fl.FlightDescriptor.for_path(topic),
        endpoints,
        info.records,
        sum(partition.segment_bytes for partition in info.partitions),
    )


def topic_of(descriptor: Any) -> str:
    """Return the topic that a descriptor names, or raise `ProtocolError`."""
    path = descriptor.path
    if not path or len(path) != 1:
        raise ProtocolError("a descriptor names one topic by its path")
    try:
        return bytes(path[0]).decode()
    except UnicodeDecodeError as error:
        raise ProtocolError("a descriptor's path is not text") from error
