"""The HTTP routes: those of operations and streams, and those of the server itself."""

from __future__ import annotations

from typing import Final

from lakebed.operations.description import Endpoint, Need, Operation, Owner, Pace, Route, Stream
from lakebed.operations.table import OPERATIONS
from lakebed.operations.terms import ADMIN, READ, TOPIC_PATH, WRITE

SLOW: Final = Pace.SLOW

_STREAMS: Final = (
    Stream(
        "put",
        WRITE,
        Route(
            "POST", f"{TOPIC_PATH}/records", 200, "Written", body="NewRecords", errors=(404, 409)
        ),
    ),
    Stream(
        "read", READ, Route("GET", f"{TOPIC_PATH}/records", answer="Records", errors=(404, 416))
    ),
    Stream("fetch", READ),
    Stream("range", READ, pace=SLOW),
    Stream("follow", READ, pace=SLOW),
    Stream("scan", READ, owner=Owner.TABLE, pace=SLOW),
    Stream("record", READ, owner=Owner.TABLE),
    Stream("latest", READ, owner=Owner.TABLE, pace=SLOW),
    Stream("as_of", READ, owner=Owner.TABLE, pace=SLOW),
)
STREAMS: Final = {stream.name: stream for stream in _STREAMS}
"""By the names of their tickets; `put` is the one that writes."""

_ENDPOINTS: Final = (
    Endpoint("live", None, Route("GET", "/health/live", answer="Live")),
    Endpoint("ready", None, Route("GET", "/health/ready", answer="Ready", errors=(503,))),
    Endpoint("metrics", ADMIN, Route("GET", "/metrics", answer="text/plain")),
)
ENDPOINTS: Final = frozenset(endpoint.name for endpoint in _ENDPOINTS)
"""The names of the routes that are no operations of the log."""
_ALL: Final[tuple[Operation | Stream | Endpoint, ...]] = (
    *_ENDPOINTS,
    *OPERATIONS.values(),
    *_STREAMS,
)
ROUTES: Final[dict[str, Route]] = {row.name: row.route for row in _ALL if row.route is not None}
"""The HTTP routes by the names of their calls."""
NEEDS: Final[dict[str, Need]] = {
    row.name: row.need for row in _ALL if row.route is not None and row.need is not None
}
"""The permission of each HTTP call; those without one need no token."""
