"""A checkpoint in the store: snapshot, then base, then what lies before the base is removed.

1. write the snapshot under a name that is used once
2. move the base to it; the base before stays in reserve
3. remove slots at or below the base in reserve, except fences, and the snapshot before that one

A crash after 1 leaves an object that nothing refers to; one after 2 leaves slots that the next
checkpoint removes, because the base states how far removal has come.
"""

from __future__ import annotations

from dataclasses import replace as change

from crc32c import crc32c

from lakebed.chain.calls import Delete, Get, Procedure, Put
from lakebed.chain.owner import ChainOwner
from lakebed.chain.records import Base
from lakebed.errors import CorruptionError, MissingFileError
from lakebed.host import failpoints
from lakebed.host.conditional import Versioned

_WRITTEN = failpoints.define("chain.snapshot_written")


def write_checkpoint(
    owner: ChainOwner, data: bytes, *, index: int, term: int
) -> Procedure[Base | None]:
    """Make a snapshot of everything up to `index` the base; return it if the base moved."""
    base = owner.base_for(index, term)
    checksum = crc32c(data)
    name = f"snapshots/{index:020d}-{base.slot:016x}-{checksum:08x}-{owner.new_name()}"
    yield Put(name, data)
    _WRITTEN.hit()
    base = change(base, snapshot=name, snapshot_bytes=len(data), snapshot_checksum=checksum)
    before = yield from owner.move_base(base)
    if before is None:
        yield Delete(name)  # no base names it: its name was used once
        return None
    return (yield from _remove(owner, base, before))


def _remove(owner: ChainOwner, base: Base, before: Base) -> Procedure[Base]:
    """Remove what neither the new base nor the one in reserve needs."""
    yield from owner.remove(before.slot)
    if before.reserve is not None and before.reserve.snapshot:
        yield Delete(before.reserve.snapshot)
    return base


def read_snapshot(base: Base) -> Procedure[bytes]:
    """Return the verified bytes of a base's snapshot; empty for a base without one."""
    if not base.snapshot:
        return b""
    stored: Versioned | None = yield Get(base.snapshot)
    if stored is None:
        raise MissingFileError("the snapshot of a base is missing", name=base.snapshot)
    data = stored.data
    if len(data) != base.snapshot_bytes or crc32c(data) != base.snapshot_checksum:
        raise CorruptionError("the snapshot of a base is damaged", name=base.snapshot)
    return data
