"""gRPC's own lines on stderr, kept away: what they tell is in the errors of calls and servers."""

from __future__ import annotations

import os


def quieten() -> None:
    """Keep gRPC from writing to stderr, unless the environment sets `GRPC_VERBOSITY`.

    It looks there when it is used first, so this comes before the first client or server.
    """
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
