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
"""Files whose names begin with one of these are not data, as in Spark."""


@dataclass(frozen=True)
class StoredFile:
    """A file as it is now."""

    path: str
    bytes: int
    changed_ms: int


def list_files(spark: SparkSession, paths: Sequence[str]) -> list[StoredFile]:
    """Return the files of paths, each a file, a folder or a pattern, sorted by name."""
    files: dict[str, StoredFile] = {}
    for path in paths:
        system, hadoop_path = _resolve(spark, path)
        matches = system.globStatus(hadoop_path) or []
        if not matches:
            raise InvalidArgumentError("the file does not exist", path=path)
        for match in matches:
            for file in _below(system, match):
                files[file.path] = file
    return [files[name] for name in sorted(files)]


def _below(system: Any, status: Any) -> list[StoredFile]:
    if status.isFile():
        return [_file(status)]
    files = []
    for child in system.listStatus(status.getPath()):
        if not child.getPath().getName().startswith(_HIDDEN):
            files += _below(system, child)
    return files


def _file(status: Any) -> StoredFile:
    return StoredFile(
        str(status.getPath().toString()), int(status.getLen()), int(status.getModificationTime())
    )


def _resolve(spark: SparkSession, path: str) -> tuple[Any, Any]:
    machine: Any = spark.sparkContext._jvm
    hadoop_path = machine.org.apache.hadoop.fs.Path(path)
    settings = spark.sparkContext._jsc.hadoopConfiguration()
    system = hadoop_path.getFileSystem(settings)
    return system, hadoop_path


class ExportFolder:
    """A folder that gets new contents: all of them, or none."""

    def __init__(self, spark: SparkSession, path: str) -> None:
        self.path = path.rstrip("/")
        self._spark = spark
        self._system, self._hadoop_path = _resolve(spark, self.path)
        token = uuid.uuid4().hex[:12]
        parent, _, name = self.path.rpartition("/")
        before = f"{parent}/" if parent or self.path.startswith("/") else ""
        self.unfinished = f"{before}.{name}-{token}.unfinished"
        self._replaced = f"{before}.{name}-{token}.replaced"

    def check_free(self, *, overwrite: bool) -> None:
        """Raise if the folder exists, unless it may be overwritten."""
        if self._system.exists(self._hadoop_path) and not overwrite:
            raise InvalidArgumentError(
                "the target exists: choose another one, or replace it (--overwrite)",
                path=self.path,
            )

    def finish(self) -> None:
        """Rename what was written to its final name, and delete what was there before."""
        old = None
        if self._system.exists(self._hadoop_path):
            old = self._at(self._replaced)
            self._rename(self._hadoop_path, old)
        self._rename(self._at(self.unfinished), self._hadoop_path)
        if old is not None:
            self._system.delete(old, True)

    def drop(self) -> None:
        """Remove what was written so far."""
        self._system.delete(self._at(self.unfinished), True)

    def files(self) -> list[StoredFile]:
        """Return the files in the folder."""
        return list_files(self._spark, [self.path])

    def _at(self, path: str) -> Any:
        return _resolve(self._spark, path)[1]

    def _rename(self, old: Any, new: Any) -> None:
        if not self._system.rename(old, new):
            raise InvalidArgumentError(
                "a folder cannot be renamed", path=old.toString(), to=new.toString()
            )
