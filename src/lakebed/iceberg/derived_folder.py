"""The files of derived tables, on the local disk or in the store.

    local    DIR/derived/{name}/{id}/metadata/..., DIR/derived/{name}/{id}/data/{attempt}/...
    store    STORE/{log}/derived/{name}/{id}/...

A version hint is written with the first metadata of a table, and removed when the log drops the
table. So a folder with a hint whose table the catalog does not have belongs to a table that another
writer dropped, or that was in a lost catalog.
"""

from __future__ import annotations

from typing import Final

from lakebed.config import resolve_env
from lakebed.host.store import ObjectStore, Stored
from lakebed.iceberg.parts import LakeParts
from lakebed.lake.locations import HINT_NAME

NAME: Final = "derived"
"""The folder of derived tables."""

HINT: Final = f"/metadata/{HINT_NAME}"
"""The end of a hint's name, behind the root of its table."""


class DerivedFolder:
    """Lists and removes files of derived tables. Any thread."""

    def __init__(self, parts: LakeParts) -> None:
        root, store = parts.folder.resolve(), parts.config.store
        self._disk = parts.disk
        self._has_store = bool(store)
        self.path: Final = root / NAME
        """The local folder, which also has the times of pending deletes."""
        base = store.rstrip("/") if store else f"file://{root}"
        self._prefix = f"{parts.log_id}/{NAME}" if store else NAME
        self.store_options: Final = dict(resolve_env(parts.config.store_options)) if store else {}
        """What executors need to reach the files, secrets included."""
        self.store: Final = ObjectStore(base, self.store_options)
        if parts.owner is not None:
            self.store.before_remove = parts.owner.confirm
        self.location: Final = f"{base}/{self._prefix}"
        """The parent of every table's folder."""

    def has_files(self) -> bool:
        """Return whether there may be a file."""
        return self._has_store or bool(self._disk.names(self.path))

    def files_by_table(self) -> dict[str, list[Stored]]:
        """Return every file there is, by the name of its table."""
        files: dict[str, list[Stored]] = {}
        listing = self.store.listing(self._prefix)
        for file in (*listing, *self.store.list_unfinished(self._prefix)):
            name, _, rest = file.name.removeprefix(f"{self._prefix}/").partition("/")
            if rest:
                files.setdefault(name, []).append(file)
        return files

    def newest_metadata(self, name: str) -> str | None:
        """Return the newest metadata of a table with a hint: a hint may be one commit behind."""
        files = self._files(name)
        prefixes = tuple(f"{root}/metadata/" for root in roots_with_hint(files))
        metadata = [
            file
            for file in files
            if file.name.startswith(prefixes) and file.name.endswith(".metadata.json")
        ]
        newest = max(
            metadata, key=lambda file: (_version(file.name), file.modified_us), default=None
        )
        return None if newest is None else self.store.uri(newest.name)

    def remove_hints(self, name: str) -> bool:
        """Remove the hints below the name of a table; return whether there was one."""
        roots = roots_with_hint(self._files(name))
        for root in roots:
            self.store.remove(root + HINT)
        return bool(roots)

    def _files(self, name: str) -> list[Stored]:
        return list(self.store.listing(f"{self._prefix}/{name}")) if self.has_files() else []


def roots_with_hint(files: list[Stored]) -> list[str]:
    """Return the roots of tables that have a hint among these files."""
    return [file.name.removesuffix(HINT) for file in files if file.name.endswith(HINT)]


def _version(name: str) -> int:
    """Return the version in the name of a metadata file; -1 if there is none."""
    version = name.rpartition("/")[2].partition("-")[0]
    return int(version) if version.isdigit() else -1
