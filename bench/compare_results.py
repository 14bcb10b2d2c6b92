"""What a comparison found: a line for each peer of a workload, and its ratio to Lakebed."""

from __future__ import annotations

import json
import statistics
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Measure:
    """One thing that is measured of every peer of a workload."""

    name: str
    unit: str
    more_is_better: bool
    compared: bool = True
    """Whether a ratio to Lakebed says something."""


@dataclass
class Line:
    """One peer in a workload: what was measured in each round, or why nothing was."""

    peer: str
    how: str
    synced: bool
    against: str
    """The line of Lakebed that it is compared with; empty for Lakebed itself."""
    limit: bool = False
    """Whether it is what the disk allows, and nothing that a user could pick."""
    figures: dict[str, list[float]] = field(default_factory=dict)
    reason: str = ""

    @property
    def ours(self) -> bool:
        """Return whether it is Lakebed."""
        return not self.against


@dataclass
class Found:
    """One workload with its lines."""

    name: str
    title: str
    measures: list[Measure]
    lines: list[Line]
    reference: str = ""
    """The line of which every other one is a share."""

    def line(self, peer: str) -> Line:
        """Return the line of a peer."""
        return next(line for line in self.lines if line.peer == peer)

    def times_as_fast(self, line: Line, measure: Measure) -> float | None:
        """Return how many times as fast Lakebed is, the median of the rounds."""
        if line.ours or not measure.compared:
            return None
        ours = self.line(line.against).figures.get(measure.name)
        theirs = line.figures.get(measure.name)
        if not ours or not theirs:
            return None
        pairs = list(zip(ours, theirs, strict=True))
        if measure.more_is_better:
            return statistics.median(mine / peer for mine, peer in pairs)
        return statistics.median(peer / mine for mine, peer in pairs)

    def share(self, line: Line, measure: Measure) -> float | None:
        """Return what share of the reference it reaches, the median of the rounds."""
        theirs = line.figures.get(measure.name)
        if not self.reference or not theirs:
            return None
        whole = self.line(self.reference).figures.get(measure.name, [])
        if len(whole) != len(theirs):
            return None
        return statistics.median(each / of for each, of in zip(theirs, whole, strict=True))


@dataclass
class Results:
    """One run."""

    machine: dict[str, Any]
    versions: dict[str, str]
    scale: str
    rounds: int
    workloads: list[Found]

    def save(self, path: Path) -> None:
        """Write everything as JSON."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(asdict(self), indent=1) + "\n", encoding="utf8")

    @classmethod
    def load(cls, path: Path) -> Results:
        """Read what was saved."""
        given = json.loads(path.read_text(encoding="utf8"))
        workloads = [
            Found(
                **{
                    **each,
                    "measures": [Measure(**measure) for measure in each["measures"]],
                    "lines": [Line(**line) for line in each["lines"]],
                }
            )
            for each in given.pop("workloads")
        ]
        return cls(**given, workloads=workloads)
