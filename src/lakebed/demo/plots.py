"""Plots as SVG, small enough to stand inside a page: lines over time, bars, and bars in groups.

Colours are classes (`c0`, `c1`, ...) that the page's style sheet defines, for light and for dark.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from html import escape
from typing import Final, NamedTuple

WIDTH: Final = 760
_HEIGHT: Final = 250
_LEFT, _RIGHT, _TOP, _BOTTOM = 74, 18, 26, 40
_TICKS: Final = 5
_BAR: Final = 26
"""How high a bar that lies is, with the space below it."""

Format = Callable[[float], str]
Point = tuple[float, float]


class PlotMark(NamedTuple):
    """A moment that is marked by a line from top to bottom."""

    at: float
    label: str
    is_kill: bool


class Series(NamedTuple):
    """A line; those of one name have one colour."""

    name: str
    points: Sequence[Point]


def over_time(
    title: str,
    unit: str,
    series: Sequence[Series],
    marks: Sequence[PlotMark],
    *,
    stepped: bool = False,
) -> str:
    """Draw lines over the seconds of the run."""
    points = [point for line in series for point in line.points] or [(0.0, 0.0)]
    first = math.floor(min(x for x, _ in points))
    xs = _Scale(first, max(max(x for x, _ in points), first + 1), _LEFT, WIDTH - _RIGHT)
    ys = _Scale(0, max(y for _, y in points) or 1, _HEIGHT - _BOTTOM, _TOP)
    parts = [*_across(ys), *_seconds(xs)]
    for mark in marks:
        parts += _mark_lines(mark, xs(mark.at))
    names = list(dict.fromkeys(line.name for line in series))
    for line in series:
        colour, drawn = names.index(line.name), _path(line.points, xs, ys, stepped)
        parts.append(f'<path class="line c{colour}" d="{drawn}"/>')
    return _drawing(title, unit, parts, _HEIGHT, names)


def bars(title: str, rows: Sequence[tuple[str, float]], shown: Format) -> str:
    """Draw a bar with its value for each row, one below the other."""
    xs = _Scale(0, max((value for _, value in rows), default=0) or 1, 120, WIDTH - 120)
    parts = []
    for row, (name, value) in enumerate(rows):
        top = _TOP + row * _BAR
        middle = top + _BAR / 2
        parts += [
            f'<text class="end" x="112" y="{middle + 4:.1f}">{escape(name)}</text>',
            f'<rect class="bar c0" x="120" y="{top + 3}" width="{max(1, xs(value) - 120):.1f}"'
            f' height="{_BAR - 6}" rx="3"/>',
            f'<text x="{max(121, xs(value)) + 6:.1f}" y="{middle + 4:.1f}">{shown(value)}</text>',
        ]
    return _drawing(title, "", parts, _TOP + len(rows) * _BAR + 8, [])


def stacks(
    title: str, groups: Sequence[str], series: Sequence[tuple[str, Sequence[float]]], shown: Format
) -> str:
    """Draw a bar for each group, one below the other, of a piece for each series."""
    sums = [sum(values[index] for _, values in series) for index in range(len(groups))]
    xs = _Scale(0, max(sums, default=0) or 1, 150, WIDTH - 120)
    parts = []
    for index, group in enumerate(groups):
        top, left = _TOP + index * _BAR, 150.0
        parts.append(f'<text class="end" x="142" y="{top + 17}">{escape(group)}</text>')
        for colour, (_, values) in enumerate(series):
            width = xs(values[index]) - 150
            parts.append(
                f'<rect class="bar c{colour}" x="{left:.1f}" y="{top + 3}"'
                f' width="{width:.1f}" height="{_BAR - 6}"/>'
            )
            left += width
        parts.append(f'<text x="{left + 6:.1f}" y="{top + 17}">{shown(sums[index])}</text>')
    names = [name for name, _ in series]
    return _drawing(title, "", parts, _TOP + len(groups) * _BAR + 8, names)


def short(value: float) -> str:
    """Format a number in at most four characters: 950, 12 k, 3.4 M."""
    rounded = float(f"{value:.3g}")
    for limit, sign in ((1e9, " G"), (1e6, " M"), (1e3, " k")):
        if rounded >= limit:
            return f"{rounded / limit:.3g}{sign}"
    return f"{rounded:.3g}"


class _Scale:
    """Maps values to positions on the drawing."""

    def __init__(self, low: float, high: float, start: float, end: float) -> None:
        self.low, self.high = low, high
        self._start, self._factor = start, (end - start) / (high - low)

    def __call__(self, value: float) -> float:
        return self._start + (value - self.low) * self._factor

    def ticks(self) -> list[float]:
        """Return round values from the least to the greatest."""
        rough = (self.high - self.low) / _TICKS
        power = 10 ** math.floor(math.log10(rough))
        step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough)
        first = math.ceil(self.low / step)
        return [multiple * step for multiple in range(first, math.floor(self.high / step) + 1)]


def _across(ys: _Scale) -> list[str]:
    parts = []
    for value in ys.ticks():
        y = ys(value)
        parts.append(f'<path class="grid" d="M{_LEFT} {y:.1f}H{WIDTH - _RIGHT}"/>')
        parts.append(f'<text class="end" x="{_LEFT - 8}" y="{y + 4:.1f}">{short(value)}</text>')
    return parts


def _seconds(xs: _Scale) -> list[str]:
    return [
        f'<text class="middle" x="{xs(value):.1f}" y="{_HEIGHT - _BOTTOM + 18}">{value:g} s</text>'
        for value in xs.ticks()
    ]


def _mark_lines(mark: PlotMark, x: float) -> list[str]:
    kind = "kill" if mark.is_kill else "mark"
    anchor, shift = ("end", -5) if x > WIDTH * 0.75 else ("start", 5)
    return [
        f'<path class="{kind}" d="M{x:.1f} {_TOP}V{_HEIGHT - _BOTTOM}"/>',
        f'<text class="{kind}" text-anchor="{anchor}" x="{x + shift:.1f}"'
        f' y="{_TOP + (10 if mark.is_kill else 24)}">{escape(mark.label)}</text>',
    ]


def _path(points: Sequence[Point], xs: _Scale, ys: _Scale, stepped: bool) -> str:
    parts = list[str]()
    for x, y in points:
        point = f"{xs(x):.1f} {ys(y):.1f}"
        if not parts:
            parts.append(f"M{point}")
        elif stepped:
            parts.append(f"H{xs(x):.1f}V{ys(y):.1f}")
        else:
            parts.append(f"L{point}")
    return "".join(parts)


def _drawing(title: str, unit: str, parts: list[str], height: int, names: list[str]) -> str:
    legend = []
    if len(names) > 1:
        for colour, name in enumerate(names):
            x = _LEFT + colour * 150
            legend.append(f'<rect class="bar c{colour}" x="{x}" y="6" width="10" height="10"/>')
            legend.append(f'<text x="{x + 15}" y="15">{escape(name)}</text>')
    elif unit:
        legend.append(f'<text x="{_LEFT}" y="15">{escape(unit)}</text>')
    return (
        f'<figure><figcaption>{escape(title)}</figcaption><svg viewBox="0 0 {WIDTH} {height}"'
        f' role="img" aria-label="{escape(title)}">{"".join(legend + parts)}</svg></figure>'
    )
