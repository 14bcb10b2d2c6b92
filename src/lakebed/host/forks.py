"""Forked processes: objects that only their own process can use learn of a fork in the child.

A forked child has copies of its parent's objects, but none of its threads, and shares its sockets.
Locks that another thread held at that moment stay locked in the child.
"""

from __future__ import annotations

import ctypes
import os
import weakref
from typing import Any, Final, Protocol


class Forkable(Protocol):
    """An object that has to be told of a fork."""

    def after_fork(self) -> None:
        """Make the object unusable in the child; called there, before anything else runs."""
        ...


_watched: Final[weakref.WeakSet[Any]] = weakref.WeakSet()


def watch_forks(forkable: Forkable) -> None:
    """Call the `after_fork` of an object in every child that is forked while the object exists."""
    _watched.add(forkable)


def keep_forever(native: object) -> None:
    """Never free an object that is not None, not even when the process exits.

    Destroying a gRPC client or stream waits for threads, which a forked child does not have.
    """
    if native is not None:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(native))


def _tell() -> None:
    for forkable in list(_watched):
        forkable.after_fork()


os.register_at_fork(after_in_child=_tell)
