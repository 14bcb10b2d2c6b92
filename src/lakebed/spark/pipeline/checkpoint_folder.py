"""The folder of a pipeline's checkpoints: Spark's files, and the files of Lakebed beside them.

    <checkpoint>/.lock                   held by the process that runs the pipeline
    <checkpoint>/<flow>/flow.json        the definition of the flow at its last start
    <checkpoint>/<flow>/status.json      what its last batch did
    <checkpoint>/<flow>/offsets/N        Spark's: what batch N reads, written before it begins
    <checkpoint>/<flow>/commits/N        Spark's: batch N is done

Lakebed's files are written atomically. Spark's are only read, to report the state of a pipeline
whether or not it runs.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from lakebed.errors import FormatTooNewError, InvalidArgumentError, StoreNotFoundError
from lakebed.host import OsDisk
from lakebed.host.store import SCHEMES, ObjectStore
from lakebed.spark.offsets import Position, position

FLOW: Final = "flow.json"
STATUS: Final = "status.json"
_VERSION: Final = 1


class CheckpointFolder:
    """The checkpoints of one pipeline. One thread."""

    def __init__(self, location: str) -> None:
        scheme, separator, _ = location.partition("://")
        if separator and scheme not in SCHEMES:
            raise InvalidArgumentError(
                "checkpoints are in a folder or in an object store",
                checkpoint=location,
                schemes=", ".join(SCHEMES),
            )
        self.location: Final = location
        self.folder: Final = None if separator and scheme != "file" else _folder(location)
        self._store = ObjectStore(location if separator else f"file://{location}", {})

    def make(self) -> None:
        """Create the folder if it does not exist, unless it is in an object store."""
        if self.folder is not None:
            OsDisk().make_folder(self.folder)

    def of(self, flow: str) -> str:
        """Return the location of a flow's checkpoint, for Spark."""
        return f"{self.location.rstrip('/')}/{flow}"

    def read(self, flow: str, name: str) -> dict[str, Any] | None:
        """Return a document of Lakebed about a flow; None if it does not exist."""
        data = self._bytes(f"{flow}/{name}")
        if data is None:
            return None
        try:
            document = json.loads(data)
            version = document["version"]
        except (ValueError, TypeError, KeyError) as error:
            raise InvalidArgumentError(
                "this file of a checkpoint is not what lakebed writes: move it away",
                path=f"{self.of(flow)}/{name}",
            ) from error
        if version > _VERSION:
            raise FormatTooNewError("the checkpoint was written by a newer version", flow=flow)
        return dict(document)

    def write(self, flow: str, name: str, values: Mapping[str, Any]) -> None:
        """Write a document of Lakebed about a flow, atomically."""
        text = json.dumps({"version": _VERSION, **values}, indent=1, sort_keys=True)
        self._store.put(f"{flow}/{name}", memoryview(text.encode()))

    def has_begun(self, flow: str) -> bool:
        """Return whether the flow has begun a batch, and may have written a part of it."""
        return self._names(flow, "offsets") != []

    def holds(self, flow: str) -> bool:
        """Return whether files of Spark exist, even if only an interrupted removal left them."""
        return any(file.name not in _ours(flow) for file in self._listing(flow))

    def last_batch(self, flow: str) -> int | None:
        """Return the number of the last batch that is done; None if there is none."""
        return max(self._names(flow, "commits"), default=None)

    def positions(self, flow: str, batch: int) -> list[Position]:
        """Return how far each source of a flow was read when a batch was done."""
        data = self._bytes(f"{flow}/offsets/{batch}")
        # The first line is Spark's version of the file, the second is about the batch itself.
        lines = [] if data is None else data.decode().splitlines()[2:]
        return [position(json.loads(line)) for line in lines if line.startswith("{")]

    def remove(self, flow: str) -> int:
        """Remove the checkpoint of a flow; return how many files it had.

        Lakebed's files are removed first: a flow does not continue from what an interrupted
        removal leaves.
        """
        ours = _ours(flow)
        names = [file.name for file in self._listing(flow)]
        for name in sorted(names, key=lambda path: (path not in ours, path)):
            self._store.remove(name)
        return len(names)

    def _names(self, flow: str, kind: str) -> list[int]:
        names = (file.name.rpartition("/")[2] for file in self._listing(f"{flow}/{kind}"))
        return [int(name) for name in names if name.isdecimal()]

    def _listing(self, folder: str) -> list[Any]:
        try:
            return list(self._store.listing(folder))
        except StoreNotFoundError:
            return []

    def _bytes(self, name: str) -> bytes | None:
        try:
            if self._store.size(name) is None:
                return None
            data = bytearray()

            def begin() -> Any:
                data.clear()
                return data.extend

            self._store.fetch(name, begin)
        except StoreNotFoundError:
            return None
        return bytes(data)


def _ours(flow: str) -> tuple[str, str]:
    return f"{flow}/{FLOW}", f"{flow}/{STATUS}"


def _folder(location: str) -> Path:
    return Path(location.removeprefix("file://"))
