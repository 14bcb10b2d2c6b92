"""A disk in memory that knows what a power cut would keep and lose.

What a process sees and what would survive are kept apart:

* Each write, truncation or preallocation of a file is pending until that file is synced. At a power
  cut every 512 or 4096 byte sector of a pending write may have been kept, lost or filled with
  garbage, each independently: so writes may be torn and reordered.
* Each creation, rename and removal of a name is pending until its folder is synced. At a power cut
  a folder keeps either a prefix of its pending changes (a journalling file system) or any subset of
  them (anything else allowed).

`crash` gives a new disk as it would be found afterwards. `on_call` is run after every call that
changes anything, so that a test can cut the power at each of them. One thread at a time.
"""

from __future__ import annotations

import enum
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from lakebed.host.disk import LockHeldError, Mode

if TYPE_CHECKING:
    from typing_extensions import Buffer


class Survival(enum.Enum):
    """What becomes of writes that were not synced."""

    KEPT = "kept"
    LOST = "lost"
    TORN_512 = "torn-512"
    TORN_4096 = "torn-4096"
    GARBAGE = "garbage"


@dataclass
class _Write:
    position: int
    data: bytes


@dataclass
class _Resize:
    length: int


@dataclass(eq=False)
class _Inode:
    seen: bytearray = field(default_factory=bytearray)
    durable: bytearray = field(default_factory=bytearray)
    pending: list[_Write | _Resize] = field(default_factory=list)

    def apply(self, change: _Write | _Resize) -> None:
        _apply(self.seen, change)
        self.pending.append(change)

    def sync(self) -> None:
        for change in self.pending:
            _apply(self.durable, change)
        self.pending.clear()

    def crash(self, survival: Survival, rng: random.Random) -> _Inode:
        content = bytearray(self.durable)
        for change in self.pending:
            _survive(content, change, survival, rng)
        return _Inode(bytearray(content), content)


def _apply(content: bytearray, change: _Write | _Resize) -> None:
    if isinstance(change, _Resize):
        del content[change.length :]
        content.extend(bytes(change.length - len(content)))
        return
    end = change.position + len(change.data)
    if len(content) < end:
        content.extend(bytes(end - len(content)))
    content[change.position : end] = change.data


def _survive(
    content: bytearray, change: _Write | _Resize, survival: Survival, rng: random.Random
) -> None:
    if survival is Survival.KEPT:
        _apply(content, change)
    elif survival is Survival.LOST:
        return
    elif isinstance(change, _Resize):
        if rng.random() < 0.5:
            _apply(content, change)
    else:
        _survive_sectors(content, change, survival, rng)


def _survive_sectors(
    content: bytearray, change: _Write, survival: Survival, rng: random.Random
) -> None:
    sector = 4096 if survival is Survival.TORN_4096 else 512
    position, end = change.position, change.position + len(change.data)
    while position < end:
        stop = min(end, (position // sector + 1) * sector)
        fate = rng.random()
        if fate < 0.5:
            piece = change.data[position - change.position : stop - change.position]
            _apply(content, _Write(position, piece))
        elif survival is Survival.GARBAGE and fate < 0.75:
            _apply(content, _Write(position, rng.randbytes(stop - position)))
        position = stop


@dataclass(frozen=True)
class _NameChange:
    folder: Path
    added: tuple[Path, _Inode] | None = None
    removed: Path | None = None

    def apply(self, names: dict[Path, _Inode]) -> None:
        if self.removed is not None:
            names.pop(self.removed, None)
        if self.added is not None:
            names[self.added[0]] = self.added[1]


class SimMapping:
    """A view of a simulated file that shows later writes, as a memory map does."""

    def __init__(self, inode: _Inode) -> None:
        self._inode = inode
        self._length = len(inode.seen)

    def view(self, start: int, stop: int) -> memoryview:
        """Return a copy of the bytes as they are now."""
        return memoryview(bytes(self._inode.seen[start:stop]))

    def release(self, start: int, stop: int) -> None:
        """Do nothing: views are copies."""

    def __len__(self) -> int:
        return self._length


class SimFile:
    """An open file of a simulated disk."""

    def __init__(self, disk: SimDisk, path: Path, inode: _Inode) -> None:
        self.path = path
        self._disk = disk
        self._inode = inode

    def size(self) -> int:
        """Return the length a process sees."""
        return len(self._inode.seen)

    def read_into(self, buffer: Buffer, position: int) -> int:
        """Read what a process sees."""
        view = memoryview(buffer).cast("B")
        data = self._inode.seen[position : position + len(view)]
        view[: len(data)] = data
        return len(data)

    def write(self, buffer: Buffer, position: int) -> int:
        """Write, pending until synced."""
        return self.write_vector([buffer], position)

    def write_vector(self, buffers: Sequence[Buffer], position: int) -> int:
        """Write all buffers as one pending write."""
        data = b"".join(bytes(buffer) for buffer in buffers)
        self._inode.apply(_Write(position, data))
        self._disk.note_call("write")
        return len(data)

    def map(self) -> SimMapping:
        """Map the file."""
        return SimMapping(self._inode)

    def sync_data(self) -> None:
        """Make contents and length durable."""
        self._inode.sync()
        self._disk.note_call("sync_data")

    def sync(self) -> None:
        """Make contents and length durable."""
        self._inode.sync()
        self._disk.note_call("sync")

    def drop_cache(self) -> None:
        """Nothing is cached."""

    def truncate(self, length: int) -> None:
        """Resize, pending until synced."""
        self._inode.apply(_Resize(length))
        self._disk.note_call("truncate")

    def preallocate(self, length: int) -> None:
        """Extend with zeros, pending until synced."""
        self._inode.apply(_Resize(max(length, self.size())))
        self._disk.note_call("preallocate")

    def close(self) -> None:
        """Nothing is held."""


class SimFolder:
    """An open folder of a simulated disk."""

    def __init__(self, disk: SimDisk, path: Path) -> None:
        self._disk = disk
        self._path = path

    def sync(self) -> None:
        """Make the folder's pending changes durable."""
        self._disk.sync_folder(self._path)

    def close(self) -> None:
        """Nothing is held."""


class SimLock:
    """A lock that a power cut releases, because the crashed disk is a new one."""

    def __init__(self, disk: SimDisk, path: Path) -> None:
        self._disk = disk
        self._path = path

    def describe(self, owner: str) -> None:
        """Report more about who holds it."""
        self._disk.locks[self._path] = owner

    def release(self) -> None:
        """Return it up."""
        self._disk.locks.pop(self._path, None)


class SimDisk:
    """Files in memory, and what of them would survive."""

    def __init__(self) -> None:
        self.calls = 0
        self.on_call: Callable[[str], None] | None = None
        self.locks: dict[Path, str] = {}
        self._folders: set[Path] = set()
        self._seen: dict[Path, _Inode] = {}
        self._durable: dict[Path, _Inode] = {}
        self._pending: list[_NameChange] = []

    def note_call(self, kind: str) -> None:
        """Count a call that changed something and let the test look."""
        self.calls += 1
        if self.on_call is not None:
            self.on_call(kind)

    def open(self, path: Path, mode: Mode) -> SimFile:
        """Open or create."""
        inode = self._seen.get(path)
        if mode is Mode.CREATE:
            if inode is not None:
                raise FileExistsError(17, "exists", str(path))
            inode = _Inode()
            self._change(_NameChange(path.parent, added=(path, inode)))
            self.note_call("create")
        if inode is None:
            raise FileNotFoundError(2, "no such file", str(path))
        return SimFile(self, path, inode)

    def open_folder(self, path: Path) -> SimFolder:
        """Open a folder."""
        return SimFolder(self, path)

    def rename(self, old: Path, new: Path) -> None:
        """Rename, pending until the folder is synced."""
        inode = self._seen.get(old)
        if inode is None:
            raise FileNotFoundError(2, "no such file", str(old))
        self._change(_NameChange(new.parent, added=(new, inode), removed=old))
        self.note_call("rename")

    def remove(self, path: Path) -> None:
        """Remove, pending until the folder is synced."""
        if path not in self._seen:
            raise FileNotFoundError(2, "no such file", str(path))
        self._change(_NameChange(path.parent, removed=path))
        self.note_call("remove")

    def _change(self, change: _NameChange) -> None:
        change.apply(self._seen)
        self._pending.append(change)

    def make_folder(self, path: Path) -> None:
        """Make a folder; folders are durable at once, as `OsDisk` syncs their parents."""
        self._folders.add(path)

    def sync_folder(self, path: Path) -> None:
        """Make this folder's pending changes durable, in their order."""
        for change in self._pending:
            if change.folder == path:
                change.apply(self._durable)
        self._pending = [change for change in self._pending if change.folder != path]
        self.note_call("sync_folder")

    def names(self, path: Path) -> list[str]:
        """List files and folders directly below `path`."""
        if path in self._seen:
            raise NotADirectoryError(20, "not a folder", str(path))
        below = [*self._seen, *self._folders]
        return sorted({child.name for child in below if child.parent == path and child != path})

    def lock(self, path: Path, owner: str, *, folder: bool = False) -> SimLock:  # noqa: ARG002
        """Lock in memory, where removing a file unlocks nothing."""
        if path in self.locks:
            raise LockHeldError(self.locks[path])
        self.locks[path] = owner
        return SimLock(self, path)

    def lock_owner(self, path: Path) -> str | None:
        """Look who holds it."""
        return self.locks.get(path)

    def crash(
        self, survival: Survival, rng: random.Random, *, names_in_order: bool = True
    ) -> SimDisk:
        """Return the disk as it is found after a power cut now; this one is not changed."""
        after = SimDisk()
        after._folders = set(self._folders)
        names = dict(self._durable)
        for change in self._surviving_names(survival, rng, names_in_order):
            change.apply(names)
        fates = {inode: inode.crash(survival, rng) for inode in names.values()}
        after._seen = {path: fates[inode] for path, inode in names.items()}
        after._durable = dict(after._seen)
        return after

    def _surviving_names(
        self, survival: Survival, rng: random.Random, names_in_order: bool
    ) -> list[_NameChange]:
        if survival is Survival.KEPT:
            return list(self._pending)
        if survival is Survival.LOST:
            return []
        if names_in_order:
            return self._pending[: rng.randint(0, len(self._pending))]
        return [change for change in self._pending if rng.random() < 0.5]

    def contents(self) -> dict[Path, bytes]:
        """Return every file's bytes, for tests that damage or compare them."""
        return {path: bytes(inode.seen) for path, inode in self._seen.items()}

    def put(self, path: Path, data: bytes) -> None:
        """Place a durable file, for tests."""
        inode = _Inode(bytearray(data), bytearray(data))
        self._folders.update(path.parents)
        self._seen[path] = inode
        self._durable[path] = inode
