"""The figures of a soak: quantiles, memory over time, and the table that is printed."""

from __future__ import annotations

import io
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console
from rich.table import Table

from tests.proof.soak_clients import DOCUMENTED

_MIB = 1 << 20


def quantile(seconds: Sequence[float], share: float) -> float:
    """Return the time that this share of the calls took at most; 0 without calls."""
    ordered = sorted(seconds)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0


@dataclass
class Soak:
    """What the processes reported, and what was measured beside them."""

    seconds: float
    honest: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    """Reports of the clients by kind."""
    hostile: dict[str, dict[str, dict[str, int]]] = field(default_factory=dict)
    """Outcomes by kind and attack."""
    resident: list[int] = field(default_factory=list)
    """Resident bytes of the server, at equal distances over the whole run."""
    resident_after: int = 0
    """Resident bytes once the attack has ended and every record was read."""

    @property
    def operations(self) -> int:
        """Return how many calls of the clients were measured."""
        return sum(len(r["before"]) + len(r["during"]) for r in self._reports())

    @property
    def errors(self) -> Counter[str]:
        """Return the errors of the clients by code."""
        total: Counter[str] = Counter()
        for report in self._reports():
            total.update(report["errors"])
        return total

    @property
    def unexpected(self) -> dict[str, int]:
        """Return the errors of the clients that are no documented refusals."""
        return {code: count for code, count in self.errors.items() if code not in DOCUMENTED}

    def _reports(self) -> list[dict[str, Any]]:
        return [report for reports in self.honest.values() for report in reports]

    def latencies(self, kind: str, phase: str) -> list[float]:
        """Return the seconds of each call of a kind of client, `before` or `during` the attack."""
        return [seconds for report in self.honest[kind] for seconds in report[phase]]

    @property
    def ratio(self) -> float:
        """Return the p99 of single appends under attack as a multiple of that before it."""
        before = quantile(self.latencies("single", "before"), 0.99)
        return quantile(self.latencies("single", "during"), 0.99) / before if before else 0.0

    def resident_of(self, quarter: int) -> float:
        """Return the median of resident bytes in a quarter of the run, 0 to 3."""
        size = len(self.resident) // 4
        return statistics.median(self.resident[quarter * size : (quarter + 1) * size])

    def render(self) -> str:
        """Return the tables as text."""
        console = Console(file=io.StringIO(), width=110, force_terminal=False)
        for table in (self._clients(), self._attacks(), self._memory()):
            console.print(table)
        file = console.file
        assert isinstance(file, io.StringIO)
        return file.getvalue()

    def _clients(self) -> Table:
        table = Table(title=f"Honest clients, {self.seconds:.0f} s", title_justify="left")
        for column in ("kind", "calls", "p50 before", "p50 during", "p99 before", "p99 during"):
            table.add_column(column, justify="left" if column == "kind" else "right")
        for kind in self.honest:
            before, during = self.latencies(kind, "before"), self.latencies(kind, "during")
            if not before + during:  # it waits for records, so its times say nothing
                read = sum(report["read"] for report in self.honest[kind])
                table.add_row(kind, f"{read:,} read")
                continue
            times = [quantile(part, share) for share in (0.5, 0.99) for part in (before, during)]
            calls = f"{len(before) + len(during):,}"
            table.add_row(kind, calls, *(f"{1000 * seconds:.1f} ms" for seconds in times))
        refusals = ", ".join(f"{code} {count}" for code, count in self.errors.items())
        table.caption = (
            f"p99 of single appends: {self.ratio:.2f} times; errors: {refusals or 'none'}"
        )
        return table

    def _attacks(self) -> Table:
        table = Table("kind", "attack", "outcomes", title="Hostile clients", title_justify="left")
        for kind, attacks in self.hostile.items():
            for attack, outcomes in attacks.items():
                told = ", ".join(f"{name} {count:,}" for name, count in outcomes.items())
                table.add_row(kind, attack, told)
        return table

    def _memory(self) -> Table:
        table = Table(title="Resident memory of the server, MiB", title_justify="left")
        step = max(1, len(self.resident) // 12)
        samples = self.resident[::step][:12]
        for index in range(len(samples)):
            table.add_column(f"{100 * index * step // len(self.resident)} %", justify="right")
        table.add_row(*(f"{size / _MIB:.0f}" for size in samples))
        medians = ", ".join(f"{self.resident_of(quarter) / _MIB:.0f}" for quarter in range(4))
        table.caption = f"medians by quarter: {medians}; after: {self.resident_after / _MIB:.0f}"
        return table
