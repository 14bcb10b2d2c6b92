"""Segments that were fetched back from the object store, kept as files up to a number of bytes.

FOLDER/{name of the object, with + for /}      a segment, every byte as in the store
FOLDER/{name of the object, with + for /}.tmp  one being fetched, or left unfinished

The folder is a cache: nothing in it is synced, and whatever is lost or damaged in it is fetched
again. Those used least recently are removed first. A reader that has a removed file mapped can
continue.
"""

from __future__ import annotations

import contextlib
import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

from crc32c import crc32c

from lakebed.errors import (
    CorruptionError,
    LakebedError,
    MissingFileError,
    StoreNotFoundError,
    translate_os_errors,
)
from lakebed.host import Disk, File, Mode, failpoints, write_all
from lakebed.host.store import ObjectStore
from lakebed.lake.folder import UNFINISHED
from lakebed.lake.open_segment import check_size, chunk_damage_error, open_segment
from lakebed.state.values import Segment

_RENAMED = failpoints.define("lake.fetched.renamed")
_NAME: Final = re.compile(r"(?:[\w=-][\w.=-]*/)*[\w=-][\w.=-]*\.parquet", re.ASCII)
_TRIES: Final = 2
"""Bytes that are wrong once may have been damaged on the way; twice, they are so in the store."""


class RemoteCacheStats(NamedTuple):
    """What the files were good for."""

    hits: int = 0
    misses: int = 0
    fetched_bytes: int = 0
    evictions: int = 0
    failures: int = 0
    """Files found damaged or missing here, and segments that could not be fetched."""
    cached_bytes: int = 0
    """Bytes of the files that are there or being fetched now."""


class _Entry:
    def __init__(self, size_bytes: int = 0) -> None:
        self.guard = threading.Lock()
        """Held by the thread that looks at the file, fetches or removes it."""
        self.size_bytes = size_bytes
        self.users = 0
        self.whole = False
        """Its bytes were checked since the cache was opened."""
        self.stale = False
        """It is removed with its last user; a caller that asks for it before gets another."""


class RemoteCache:
    """A bounded cache of the store's segments. Any thread.

    One thread fetches a segment while others that want it wait; different segments are fetched
    side by side. The bound holds for all but the segments that are in use, and the last one used.
    """

    def __init__(self, *, disk: Disk, folder: Path, store: ObjectStore, bytes_max: int) -> None:
        self._disk = disk
        self._folder = folder
        self._store = store
        self._bytes_max = bytes_max
        self._guard = threading.Lock()
        self._entries: OrderedDict[str, _Entry] = OrderedDict()
        self._counts: dict[str, int] = dict.fromkeys(RemoteCacheStats._fields, 0)
        self._adopt()
        self._evict(None)

    @property
    def stats(self) -> RemoteCacheStats:
        """Count what was asked for so far, and the bytes held now."""
        with self._guard:
            return RemoteCacheStats(**self._counts)

    @contextlib.contextmanager
    def pin(self, name: str, segment: Segment) -> Iterator[Path]:
        """Return a file with the segment's exact bytes, which stays within the block."""
        entry = self._enter(name)
        try:
            with entry.guard:
                self._provide(name, entry, segment)
            yield self._path(name)
        finally:
            self._leave(name, entry)

    def path(self, name: str, segment: Segment) -> Path:
        """Return a file with the segment's exact bytes.

        It may go as soon as other segments are asked for: `pin` keeps it until it is opened.
        """
        with self.pin(name, segment) as path:
            return path

    def forget(self, name: str) -> None:
        """Remove a segment that is not needed again; it is no error if it is not cached.

        While others have pinned it, it stays.
        """
        entry = self._enter(name)
        with self._guard:
            entry.stale = True
        self._leave(name, entry)

    def discard(self, name: str) -> None:
        """Remove a segment whose file a reader found damaged, so that it is fetched again."""
        self._count(failures=1)
        self.forget(name)

    def _adopt(self) -> None:
        """Take over what an earlier process left. Its bytes are checked when they are wanted."""
        with translate_os_errors("opening the cache of segments", self._folder):
            self._disk.make_folder(self._folder)
            for file_name in self._disk.names(self._folder):
                name = file_name.replace("+", "/")
                if file_name.endswith(UNFINISHED):
                    self._disk.remove(self._folder / file_name)
                elif _NAME.fullmatch(name) and "/" not in file_name:
                    self._entries[name] = entry = _Entry()
                    self._resize(entry, _size(self._disk, self._path(name)))

    def _path(self, name: str) -> Path:
        return self._folder / name.replace("/", "+")

    def _enter(self, name: str) -> _Entry:
        if not _NAME.fullmatch(name):
            raise AssertionError(f"not the name of a segment: {name!r}")
        with self._guard:
            entry = self._entries.setdefault(name, _Entry())
            self._entries.move_to_end(name)
            entry.users += 1
            return entry

    def _leave(self, name: str, entry: _Entry) -> None:
        with self._guard:
            last = entry.stale and entry.users == 1
            if last:
                entry.guard.acquire()  # no other thread uses it, so it is free
        try:
            if last:
                self._drop(name, entry)
        finally:
            if last:
                entry.guard.release()
            self._release(name, entry)
        self._evict(name)

    def _release(self, name: str, entry: _Entry) -> None:
        with self._guard:
            entry.users -= 1
            if not entry.users and not entry.size_bytes:
                del self._entries[name]

    def _provide(self, name: str, entry: _Entry, segment: Segment) -> None:
        if entry.size_bytes and not entry.stale and self._intact(name, entry, segment):
            self._count(hits=1)
            return
        self._count(misses=1)
        entry.stale = False
        # Counted before it is there, so that the others make room for it first.
        self._resize(entry, segment.file_bytes)
        try:
            self._evict(name)
            self._fetch(name, segment)
        except BaseException:
            self._count(failures=1)
            self._drop(name, entry)
            raise
        entry.whole = True
        self._count(fetched_bytes=segment.file_bytes)

    def _intact(self, name: str, entry: _Entry, segment: Segment) -> bool:
        """Look whether the file has its length and, the first time, every byte."""
        path = self._path(name)
        try:
            with translate_os_errors("reading a cached segment", path):
                sound = _size(self._disk, path) == segment.file_bytes
            if sound and not entry.whole:
                # Not synced, and of unknown age: later readers do not check all of it.
                _check(self._disk, path, segment)
        except LakebedError:
            # Whatever is wrong with the file, the store has the segment.
            sound = False
        if not sound:
            self._count(failures=1)
        entry.whole = sound
        return sound

    def _fetch(self, name: str, segment: Segment) -> None:
        path = self._path(name)
        unfinished = path.with_name(path.name + UNFINISHED)
        try:
            self._fetch_checked(name, unfinished, segment)
            with translate_os_errors("renaming a fetched segment", path):
                # Neither file nor folder is synced: what a power cut takes is fetched again. A bad
                # file is replaced in one step, so that a reader about to open it finds one.
                self._disk.rename(unfinished, path)
                _RENAMED.hit()
        except BaseException:
            with contextlib.suppress(OSError):
                self._disk.remove(unfinished)
            raise

    def _fetch_checked(self, name: str, unfinished: Path, segment: Segment) -> None:
        uri = self._store.uri(name)
        for attempt in range(1, _TRIES + 1):
            try:
                self._download(name, unfinished, segment)
                _check(self._disk, unfinished, segment)
            except CorruptionError as error:
                if isinstance(error, MissingFileError) or attempt == _TRIES:
                    raise _in_store(error, uri) from error
            else:
                return

    def _download(self, name: str, unfinished: Path, segment: Segment) -> None:
        target = _Target(self._disk, unfinished, segment)
        try:
            self._store.fetch(name, target.begin)
        except StoreNotFoundError as error:
            if self._store.size(name) is None:  # else it is the bucket, which raises here
                raise MissingFileError("a segment is missing", path=unfinished) from error
            raise
        finally:
            target.close()

    def _drop(self, name: str, entry: _Entry) -> None:
        """Remove the file of an entry whose guard is held."""
        path = self._path(name)
        with translate_os_errors("removing a cached segment", path), _absent_is_fine():
            self._disk.remove(path)
        entry.whole = False
        self._resize(entry, 0)

    def _evict(self, kept: str | None) -> None:
        """Remove what was used least recently until the rest is within the bound."""
        while (oldest := self._take_oldest(kept)) is not None:
            name, entry = oldest
            try:
                self._drop(name, entry)
            finally:
                entry.guard.release()
                self._release(name, entry)
            self._count(evictions=1)

    def _take_oldest(self, kept: str | None) -> tuple[str, _Entry] | None:
        """Return the next entry to evict, its guard held: later readers fetch it again."""
        with self._guard:
            oldest = self._oldest(kept)
            if oldest is not None:
                oldest[1].guard.acquire()  # as in _leave
                oldest[1].users += 1
            return oldest

    def _oldest(self, kept: str | None) -> tuple[str, _Entry] | None:
        if self._counts["cached_bytes"] <= self._bytes_max:
            return None
        for name, entry in self._entries.items():
            if name != kept and not entry.users:
                return name, entry
        return None

    def _resize(self, entry: _Entry, size_bytes: int) -> None:
        with self._guard:
            self._counts["cached_bytes"] += size_bytes - entry.size_bytes
            entry.size_bytes = size_bytes

    def _count(self, **more: int) -> None:
        with self._guard:
            for name, count in more.items():
                self._counts[name] += count


class _Target:
    """The unfinished file that takes the pieces of a segment. One thread."""

    def __init__(self, disk: Disk, path: Path, segment: Segment) -> None:
        self._disk = disk
        self._path = path
        self._segment = segment
        self._file: File | None = None
        self._position = 0

    def begin(self) -> Callable[[memoryview], None]:
        """Start with an empty file."""
        self.close()
        self._position = 0
        with translate_os_errors("fetching a segment", self._path):
            with _absent_is_fine():
                self._disk.remove(self._path)
            self._file = file = self._disk.open(self._path, Mode.CREATE)
        return lambda piece: self._write(file, piece)

    def _write(self, file: File, piece: memoryview) -> None:
        end = self._position + len(piece)
        if end > self._segment.file_bytes:
            # Stopped here, so that a wrong object cannot fill the disk.
            check_size(self._path, self._segment, end)
        with translate_os_errors("fetching a segment", self._path):
            write_all(file, [piece], self._position, len(piece))
        self._position = end

    def close(self) -> None:
        """Close the file, if there is one."""
        if self._file is not None:
            self._file.close()
            self._file = None


def _absent_is_fine() -> contextlib.suppress:
    return contextlib.suppress(FileNotFoundError)


def _size(disk: Disk, path: Path) -> int:
    with contextlib.closing(disk.open(path, Mode.READ)) as file:
        return file.size()


def _check(disk: Disk, path: Path, segment: Segment) -> None:
    """Check every byte of a segment: it came over a network, from another machine's disk."""
    opened = open_segment(disk, path, segment)
    with (
        translate_os_errors("reading a fetched segment", path),
        contextlib.closing(disk.open(path, Mode.READ)) as file,
    ):
        data = file.map()
    for row_group, group in enumerate(opened.index.row_groups):
        for leaf, (start, length, checksum) in enumerate(group.chunks):
            if crc32c(data.view(start, start + length)) != checksum:
                raise chunk_damage_error(path, start, length, opened.leaves[leaf], row_group)


def _in_store(error: CorruptionError, uri: str) -> CorruptionError:
    """Report of an error about a fetched file that the store's object is meant."""
    facts = {name: fact for name, fact in error.facts.items() if name != "path"}
    return type(error)(f"in the object store: {error.message}", uri=uri, **facts)
