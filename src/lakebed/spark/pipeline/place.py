"""The place of a pipeline's checkpoints: what Spark writes there, and what is written beside it.

    <checkpoint>/.lock                   held by whoever runs the pipeline
    <checkpoint>/<flow>/flow.json        what the flow was when it was started last
    <checkpoint>/<flow>/status.json      what its last batch did
    <checkpoint>/<flow>/offsets/N        Spark's: what batch N reads, written before it begins
    <checkpoint>/<flow>/commits/N        Spark's: batch N is done

Our files are written whole or not at all. Spark's are only read, so that the state of a pipeline
can be told whether or not it runs.
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
        """Make the folder, if it is one and is not there."""
        if self.folder is not None:
            OsDisk().make_folder(self.folder)

    def of(self, flow: str) -> str:
        """Return the place of a flow's checkpoint, for Spark."""
        return f"{self.location.rstrip('/')}/{flow}"

    def read(self, flow: str, name: str) -> dict[str, Any] | None:
        """Return one of our documents about a flow; None if there is none."""
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
        """Write one of our documents about a flow, whole or not at all."""
        text = json.dumps({"version": _VERSION, **values}, indent=1, sort_keys=True)
        self._store.put(f"{flow}/{name}", memoryview(text.encode()))

    def begun(self, flow: str) -> bool:
        """Return whether the flow has begun a batch, of which there may be something written."""
        return self._names(flow, "offsets") != []

    def holds(self, flow: str) -> bool:
        """Return whether there is anything of Spark's, be it what an interrupted removal left."""
        return any(each.name not in _ours(flow) for each in self._listing(flow))

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

        Ours go first: what a removal leaves that is cut short is nobody's, and is not gone on from.
        """
        ours = _ours(flow)
        found = [each.name for each in self._listing(flow)]
        for name in sorted(found, key=lambda each: (each not in ours, each)):
            self._store.remove(name)
        return len(found)

    def _names(self, flow: str, kind: str) -> list[int]:
        names = (each.name.rpartition("/")[2] for each in self._listing(f"{flow}/{kind}"))
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
