"""The files of Iceberg tables: on a local disk each is there whole, and synced, or not at all.

pyiceberg writes manifests and metadata without syncing them, and then tells its catalog about them.
With this `FileIO` they survive a power cut before that: each is a `SyncedFile`, and the folder is
synced with the table's metadata file, which is the last of a commit. Any other file system (an
object store) is left to pyiceberg as it is.

pyiceberg finds the class by its name (`py-io-impl`), and makes it itself.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from pyiceberg.io.pyarrow import PyArrowFile, PyArrowFileIO

from lakebed.host.synced_file import SyncedFile

IMPLEMENTATION: Final = f"{__name__}.SyncedFileIO"
"""What `py-io-impl` must say."""

_LAST: Final = ".metadata.json"
"""Ends the name of the last file of a commit."""


class SyncedFileIO(PyArrowFileIO):
    """pyiceberg's own, but for what is written to a local disk."""

    def new_output(self, location: str) -> PyArrowFile:
        """Return a file to write."""
        made = super().new_output(location)
        scheme, netloc, path = self.parse_location(location, self.properties)
        if scheme != "file":
            return made
        return _LocalFile(location, path, self.fs_by_scheme(scheme, netloc))


class _LocalFile(PyArrowFile):
    def create(self, overwrite: bool = False) -> SyncedFile:  # type: ignore[override]
        """Begin to write; the file is there when the stream is closed."""
        if not overwrite and self.exists():
            raise FileExistsError(f"Cannot create file, already exists: {self.location}")
        path = Path(self._path)
        return SyncedFile(path, sync_folder=path.name.endswith(_LAST))
