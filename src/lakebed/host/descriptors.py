"""The limit on open files, which counts connections too."""

from __future__ import annotations

import resource


def raise_limit() -> int:
    """Raise the process's soft limit on open files to the hard one; return what it is now.

    The usual soft limit, 1,024, is for programs that use `select`.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    except (OSError, ValueError):  # not allowed here: the limit stays as it is
        return soft
    return hard
