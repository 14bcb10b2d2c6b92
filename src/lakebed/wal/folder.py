"""The folder of a log: what its files are called, whose it is, and who may write to it.

DIR/lakebed.json             format version, log identity, kind, checksum; rebuilt if it is lost
DIR/lock                     held by the one owner; says which process that is
DIR/wal/{number:020d}.wal    the log
DIR/wal/{number:020d}.spare  files ready to be taken into use
DIR/wal/*.tmp                files being made; removed when the log is opened
DIR/wal/torn/                torn tails, kept aside by recovery
"""

from __future__ import annotations

import json
import os
import re
import socket
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from crc32c import crc32c

from lakebed.config import CONFIG_NAME
from lakebed.errors import (
    FormatTooNewError,
    LockedError,
    NotALogError,
    from_os_error,
    translate_os_errors,
)
from lakebed.host import Disk, Lock, LockHeldError, Mode, read_exactly, write_all
from lakebed.host.atomic import write_atomically

FORMAT_VERSION: Final = 1
IDENTITY_NAME: Final = "lakebed.json"
TOPICS: Final = "topics"
"""The kind of a folder that holds a log with topics."""
RAFT: Final = "raft"
"""The kind of a folder that `lakebed.raft` of an earlier version wrote: nothing opens it now."""
LOCK_NAME: Final = "lock"
_WAL_NAME: Final = re.compile(r"(\d{20})\.wal", re.ASCII)
_IDENTITY_BYTES_MAX: Final = 4096


@dataclass(frozen=True)
class Layout:
    """Paths of a log's files."""

    root: Path

    @property
    def wal(self) -> Path:
        """Return the folder of the WAL files."""
        return self.root / "wal"

    @property
    def torn(self) -> Path:
        """Return the folder of the torn tails."""
        return self.wal / "torn"

    @property
    def identity(self) -> Path:
        """Return the path of the identity file."""
        return self.root / IDENTITY_NAME

    @property
    def lock(self) -> Path:
        """Return the path of the lock."""
        return self.root / LOCK_NAME

    def file(self, file_number: int) -> Path:
        """Return the path of a WAL file."""
        return self.wal / f"{file_number:020d}.wal"

    def spare(self, file_number: int) -> Path:
        """Return the path of a spare file."""
        return self.wal / f"{file_number:020d}.spare"


def file_numbers(disk: Disk, layout: Layout) -> list[int]:
    """List the numbers of the WAL files, in order."""
    matches = (_WAL_NAME.fullmatch(name) for name in disk.names(layout.wal))
    return sorted(int(match.group(1)) for match in matches if match)


def is_log(disk: Disk, layout: Layout) -> bool:
    """Return whether the folder holds a log; an empty or half-created one does not yet."""
    return IDENTITY_NAME in disk.names(layout.root) or bool(file_numbers(disk, layout))


def check_is_log_or_empty(disk: Disk, layout: Layout) -> None:
    """Refuse a folder with other people's files in it."""
    if is_log(disk, layout):
        return
    ours = {LOCK_NAME, "wal", IDENTITY_NAME + ".tmp", CONFIG_NAME}
    strangers = [name for name in disk.names(layout.root) if name not in ours]
    if strangers:
        raise NotALogError(
            "the folder is not empty and not a log", path=layout.root, found=strangers[0]
        )


def write_identity(disk: Disk, layout: Layout, log_id: uuid.UUID, kind: str | None = None) -> None:
    """Write the identity file so that it is there whole or not at all."""
    record: dict[str, object] = {"format": FORMAT_VERSION, "log": str(log_id)}
    if kind is not None:
        record["kind"] = kind
    text = json.dumps({**record, "crc32c": _identity_checksum(record)}).encode() + b"\n"
    with write_atomically(disk, layout.identity) as file:
        write_all(file, [text], 0, len(text))


def read_identity(disk: Disk, layout: Layout) -> uuid.UUID | None:
    """Return the log's identity, or None if its file is missing or damaged and must be rebuilt."""
    identity = _read_identity(disk, layout)
    return None if identity is None else identity[0]


def read_kind(disk: Disk, layout: Layout) -> str | None:
    """Return what kind of log the folder holds; None if that is not written down.

    Folders of version 0.6 and those of a bare WAL do not say it, and a file that is lost cannot.
    """
    identity = _read_identity(disk, layout)
    return None if identity is None else identity[1]


def check_kind(disk: Disk, layout: Layout, kind: str) -> None:
    """Refuse a folder that says that it holds a log of another kind."""
    actual = read_kind(disk, layout)
    if actual is not None and actual != kind:
        raise other_kind_error(layout.root, kind, actual)


def is_declared(disk: Disk, layout: Layout) -> bool:
    """Return True if the folder says which kind of log it holds."""
    with translate_os_errors("reading the identity file", layout.identity):
        return read_kind(disk, layout) is not None


def declare_kind(disk: Disk, layout: Layout, log_id: uuid.UUID, kind: str) -> None:
    """Write down which kind of log the folder holds, for one that does not say it yet."""
    with translate_os_errors("writing the identity file", layout.identity):
        write_identity(disk, layout, log_id, kind)


def other_kind_error(path: Path, kind: str, actual: str) -> NotALogError:
    """Build the error for a folder that holds a log of another kind."""
    holds = "the log of a Raft node" if actual == RAFT else f"a log of kind {actual!r}"
    return NotALogError(
        f"the folder holds {holds}, not one of kind {kind!r}",
        path=path,
        kind=actual,
        expected=kind,
    )


def _read_identity(disk: Disk, layout: Layout) -> tuple[uuid.UUID, str | None] | None:
    try:
        file = disk.open(layout.identity, Mode.READ)
    except FileNotFoundError:
        return None
    try:
        data = read_exactly(file, 0, _IDENTITY_BYTES_MAX)
    finally:
        file.close()
    return _parse_identity(data, layout.identity)


def _parse_identity(data: bytes, path: Path) -> tuple[uuid.UUID, str | None] | None:
    try:
        record = json.loads(data)
        checksum = record.pop("crc32c")
        if checksum != _identity_checksum(record):
            return None
        version, log_id = int(record["format"]), uuid.UUID(record["log"])
        kind = str(record["kind"]) if "kind" in record else None
    except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError):
        return None
    if version > FORMAT_VERSION:
        raise FormatTooNewError(
            "the log has a newer format", path=path, version=version, supported=FORMAT_VERSION
        )
    return log_id, kind


def _identity_checksum(record: dict[str, object]) -> int:
    return crc32c(json.dumps(record, sort_keys=True).encode())


def take_lock(disk: Disk, layout: Layout) -> Lock:
    """Become the folder's owner, or say who is."""
    try:
        return disk.lock(layout.lock, owner_text(), folder=True)
    except LockHeldError as held:
        facts = _owner_facts(held.owner)
        own = facts.get("pid") == os.getpid() and facts.get("host") == socket.gethostname()
        message = "the log is in use"
        if own:
            message += ", by this process itself: use the log that is open, or close it first"
        elif not held.owner:
            message += ", though its lock file was removed or is empty"
        raise LockedError(message, path=layout.root, **facts) from None


def owner_text(url: str = "") -> str:
    """Return which process this is, and where it serves the log if it does."""
    owner = {"pid": os.getpid(), "host": socket.gethostname()}
    return json.dumps({**owner, "url": url} if url else owner)


def living_owner(disk: Disk, layout: Layout) -> dict[str, object] | None:
    """Return which process owns the folder now, or None if none does; changes nothing."""
    text = disk.lock_owner(layout.lock)
    return None if text is None else _owner_facts(text)


def _owner_facts(text: str) -> dict[str, object]:
    try:
        owner = json.loads(text)
        facts: dict[str, object] = {"pid": owner["pid"], "host": owner["host"]}
        if isinstance(owner.get("url"), str):
            facts["url"] = owner["url"]
        return facts
    except (LookupError, RecursionError, TypeError, ValueError):
        return {"owner": "unknown"}


def make_folders(disk: Disk, layout: Layout) -> None:
    """Make the folder and its WAL folder."""
    try:
        disk.make_folder(layout.root)
        disk.make_folder(layout.wal)
    except OSError as error:
        raise from_os_error(error, "making the log's folder", layout.root) from error
