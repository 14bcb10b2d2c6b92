"""Files beside the log that jobs read and write, wherever Spark can reach them."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from lakebed.errors import InvalidArgumentError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_HIDDEN: Final = ("_", ".")
"""Files whose names begin so are none of the data, as for Spark itself."""


@dataclass(frozen=True)
class StoredFile:
    """A file as it is now."""

    path: str
    bytes: int
    changed_ms: int


def found_files(spark: SparkSession, paths: Sequence[str]) -> list[StoredFile]:
    """Return the files of paths, each a file, a folder or a pattern, sorted by name."""
    found: dict[str, StoredFile] = {}
    for path in paths:
        system, place = _opened(spark, path)
        matches = system.globStatus(place) or []
        if not matches:
            raise InvalidArgumentError("the file does not exist", path=path)
        for match in matches:
            for each in _below(system, match):
                found[each.path] = each
    return [found[name] for name in sorted(found)]


def _below(system: Any, status: Any) -> list[StoredFile]:
    if status.isFile():
        return [_file(status)]
    found = []
    for each in system.listStatus(status.getPath()):
        if not each.getPath().getName().startswith(_HIDDEN):
            found += _below(system, each)
    return found


def _file(status: Any) -> StoredFile:
    return StoredFile(
        str(status.getPath().toString()), int(status.getLen()), int(status.getModificationTime())
    )


def _opened(spark: SparkSession, path: str) -> tuple[Any, Any]:
    machine: Any = spark.sparkContext._jvm
    place = machine.org.apache.hadoop.fs.Path(path)
    settings = spark.sparkContext._jsc.hadoopConfiguration()
    system = place.getFileSystem(settings)
    return system, place


class ExportFolder:
    """A folder that is to have new contents: whole, or not at all."""

    def __init__(self, spark: SparkSession, path: str) -> None:
        self.path = path.rstrip("/")
        self._spark = spark
        self._system, self._place = _opened(spark, self.path)
        token = uuid.uuid4().hex[:12]
        parent, _, name = self.path.rpartition("/")
        before = f"{parent}/" if parent or self.path.startswith("/") else ""
        self.unfinished = f"{before}.{name}-{token}.unfinished"
        self._replaced = f"{before}.{name}-{token}.replaced"

    def check_free(self, *, overwrite: bool) -> None:
        """Refuse to write where something is, unless that is wanted."""
        if self._system.exists(self._place) and not overwrite:
            raise InvalidArgumentError(
                "the target exists: choose another one, or replace it (--overwrite)",
                path=self.path,
            )

    def finish(self) -> None:
        """Return what was written its final name; what was there before goes."""
        old = None
        if self._system.exists(self._place):
            old = self._at(self._replaced)
            self._rename(self._place, old)
        self._rename(self._at(self.unfinished), self._place)
        if old is not None:
            self._system.delete(old, True)

    def drop(self) -> None:
        """Remove what was written so far."""
        self._system.delete(self._at(self.unfinished), True)

    def files(self) -> list[StoredFile]:
        """Return the files that it has."""
        return found_files(self._spark, [self.path])

    def _at(self, path: str) -> Any:
        return _opened(self._spark, path)[1]

    def _rename(self, old: Any, new: Any) -> None:
        if not self._system.rename(old, new):
            raise InvalidArgumentError(
                "a folder cannot be renamed", path=old.toString(), to=new.toString()
            )
