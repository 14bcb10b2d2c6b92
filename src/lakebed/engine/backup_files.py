"""A backup on disk: a folder with a log's files in it, and a manifest that makes it a backup.

    DIR/backup.json.tmp                there from the start; the manifest is written here
    DIR/backup.json                    the manifest: written last, so a backup is whole or is none
    DIR/snapshots/{index:020d}.snapshot
    DIR/lake/{topic}/{partition}-{segment:020d}.parquet
    DIR/staging/{id:020d}.staged       data of transactions that were open
    DIR/lakebed.toml                   the settings, if the log's folder has any

There is no WAL in it, so it cannot be mistaken for a log: everything up to the manifest's index is
in the snapshot and the files that it names. The manifest is JSON: identity of the log, index, the
offsets of each partition, and every file with its size and CRC32C. It has a CRC32C of its own.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

from crc32c import crc32c

from lakebed import limits
from lakebed.errors import (
    BackupDamagedError,
    FormatTooNewError,
    InvalidArgumentError,
    NotABackupError,
    translate_os_errors,
)
from lakebed.host import Disk, File, Mode, fill, read_exactly, write_all
from lakebed.host.atomic import write_atomically

MANIFEST_NAME: Final = "backup.json"
PARTIAL_NAME: Final = MANIFEST_NAME + ".tmp"
FORMAT: Final = 1
_NAME: Final = re.compile(
    r"lakebed\.toml|snapshots/\d{20}\.snapshot|staging/\d{20}\.staged"
    r"|lake/(0|[1-9]\d{0,18})/(0|[1-9]\d{0,18})-\d{20}\.parquet",
    re.ASCII,
)
"""The files that a backup may have. A name that leads elsewhere is not followed."""


class BackupFile(NamedTuple):
    """A file of a backup: its path below the folder, and what it holds."""

    name: str
    bytes: int
    crc32c: int


@dataclass(frozen=True)
class Manifest:
    """What a backup holds, and of which log at which point."""

    log_id: str
    index: int
    """The last entry of the log that the backup reflects."""
    term: int
    taken_us: int
    version: str
    """The version of Lakebed that took it."""
    offsets: dict[str, list[list[int]]]
    """Earliest offset and end of each partition, by topic."""
    records: int
    store: str
    """The log's object store, if it had one."""
    catalog: bool
    """Whether its tables were in a catalog outside of its folder."""
    stored: list[str]
    """Segments that are in the object store alone, by the names of their objects: not copied."""
    files: list[BackupFile]

    @property
    def size_bytes(self) -> int:
        """The size of all files."""
        return sum(file.bytes for file in self.files)


def write_manifest(disk: Disk, folder: Path, manifest: Manifest) -> None:
    """Make a folder a backup, durably. Its files must be durable already."""
    record = {"format": FORMAT, **asdict(manifest)}
    record["files"] = [list(file) for file in manifest.files]
    text = json.dumps({**record, "crc32c": _checksum(record)}).encode() + b"\n"
    target, claimed = folder / MANIFEST_NAME, folder / PARTIAL_NAME
    with write_atomically(disk, target, "the manifest", claimed=claimed) as file:
        write_all(file, [text], 0, len(text))


def read_manifest(disk: Disk, folder: Path) -> Manifest:
    """Return the manifest of a backup; refuse a folder that is none, or a damaged manifest."""
    path = folder / MANIFEST_NAME
    with translate_os_errors("reading the manifest", path):
        names = disk.names(folder)
        if MANIFEST_NAME not in names:
            problem = "there is no backup in this folder"
            if PARTIAL_NAME in names:
                problem = "the backup was not finished"
            raise NotABackupError(problem, path=folder)
        file = disk.open(path, Mode.READ)
        try:
            data = read_exactly(file, 0, file.size())
        finally:
            file.close()
    return _parse(data, path)


def _parse(data: bytes, path: Path) -> Manifest:
    try:
        record: dict[str, Any] = json.loads(data)
        checksum, version = record.pop("crc32c"), record["format"]
        if checksum != _checksum(record):
            raise BackupDamagedError("the manifest is damaged", file=path)
        if version > FORMAT:
            raise FormatTooNewError(
                "the backup has a newer format", path=path, version=version, supported=FORMAT
            )
        del record["format"]
        files = [BackupFile(*fields) for fields in record.pop("files")]
        manifest = Manifest(**record, files=files)
    except (AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
        raise BackupDamagedError("the manifest is damaged", file=path) from error
    for file in files:
        if not _NAME.fullmatch(file.name):
            raise BackupDamagedError(
                "the manifest names a file that no backup has", file=path, name=file.name
            )
    return manifest


def _checksum(record: dict[str, Any]) -> int:
    return crc32c(json.dumps(record, sort_keys=True).encode())


# Files


def copy_file(disk: Disk, source: Path, target: Path, told: Callable[[int], None]) -> BackupFile:
    """Copy a file durably, but for its name; tell after each piece how many bytes it had."""
    with translate_os_errors("copying a file", source):
        reading = disk.open(source, Mode.READ)
        try:
            with translate_os_errors("writing a copy", target):
                disk.make_folder(target.parent)
                writing = disk.open(target, Mode.CREATE)
            try:
                size, checksum = _copy_pieces(reading, writing, told)
                with translate_os_errors("syncing a copy", target):
                    writing.sync()
            finally:
                writing.close()
        finally:
            reading.close()
    return BackupFile(target.name, size, checksum)


def _copy_pieces(reading: File, writing: File, told: Callable[[int], None]) -> tuple[int, int]:
    position = checksum = 0
    for piece in _pieces(reading):
        checksum = crc32c(piece, checksum)
        with translate_os_errors("writing a copy", writing.path):
            write_all(writing, [piece], position, len(piece))
        position += len(piece)
        told(len(piece))
    return position, checksum


def check_file(disk: Disk, folder: Path, expected: BackupFile, told: Callable[[int], None]) -> None:
    """Raise `BackupDamagedError` unless a file is what the manifest says."""
    path = folder / expected.name
    with translate_os_errors("reading a backup", path):
        try:
            file = disk.open(path, Mode.READ)
        except FileNotFoundError as error:
            raise BackupDamagedError("a file of the backup is missing", file=path) from error
        try:
            size, checksum = file.size(), 0
            if size == expected.bytes:
                file.drop_cache()  # what counts is what the device holds
                for piece in _pieces(file):
                    checksum = crc32c(piece, checksum)
                    told(len(piece))
        finally:
            file.close()
    check_same(path, expected, size, checksum)


def check_same(path: Path, expected: BackupFile, size: int, checksum: int) -> None:
    """Raise `BackupDamagedError` unless size and checksum are those of the manifest."""
    if size != expected.bytes:
        raise BackupDamagedError(
            "a file of the backup has another size",
            file=path,
            bytes=size,
            bytes_written=expected.bytes,
        )
    if checksum != expected.crc32c:
        raise BackupDamagedError(
            "a file of the backup is damaged",
            file=path,
            checksum=f"{checksum:08x}",
            checksum_written=f"{expected.crc32c:08x}",
        )


def _pieces(file: File) -> Iterator[memoryview]:
    buffer, position = memoryview(bytearray(limits.READ_CHUNK_BYTES)), 0
    while have := fill(file, buffer, position):
        yield buffer[:have]
        position += have


# Folders


def check_vacant(disk: Disk, folder: Path) -> None:
    """Refuse a folder with a file in it, however deep; empty folders do not count."""
    with translate_os_errors("looking into the folder", folder):
        for path in files_below(disk, folder):
            raise InvalidArgumentError("the folder is not empty", path=folder, found=path)


def files_below(disk: Disk, folder: Path) -> Iterator[Path]:
    """Return every file in a folder and the folders in it."""
    for name in disk.names(folder):
        try:
            disk.names(folder / name)
        except NotADirectoryError:
            yield folder / name
        else:
            yield from files_below(disk, folder / name)


def check_apart(one: Path, other: Path, problem: str) -> None:
    """Refuse two folders of which one is in the other."""
    first, second = one.resolve(), other.resolve()
    if first == second or first in second.parents or second in first.parents:
        raise InvalidArgumentError(problem, path=one, to=other)
