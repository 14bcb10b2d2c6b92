"""Charts as SVG: a dot for a median and a line from the least to the most, on a log scale.

Dots, not bars: what is compared differs by factors of a hundred, and a bar has no length on a scale
without a zero. A chart needs nothing but itself, in a page or alone.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from lakebed.demo.plots import short

_WIDTH = 860
_LEFT = 250
_RIGHT = 150
_ROW = 24
_HEAD = 46
_FOOT = 30
_INK, _FAINT, _OURS, _THEIRS = "#1f2933", "#cbd2d9", "#0b6e99", "#616e7c"


@dataclass(frozen=True)
class Dot:
    """One row of a chart."""

    label: str
    values: Sequence[float]
    """Of all rounds; none for a row that has a remark instead."""
    ours: bool = False
    hollow: bool = False
    remark: str = ""


@dataclass(frozen=True)
class Panel:
    """Rows that share a scale."""

    title: str
    unit: str
    dots: Sequence[Dot]


def chart(title: str, panels: Sequence[Panel], note: str) -> str:
    """Draw panels, one below the other."""
    parts, top = [], 34
    for panel in panels:
        drawn, height = _panel(panel, top)
        parts += drawn
        top += height
    height = top + 26
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" '
        f'width="{_WIDTH}" height="{height}" role="img" '
        'font-family="system-ui, sans-serif" font-size="13">'
    )
    return "\n".join(
        [
            head,
            f"<title>{escape(title)}</title>",
            f'<rect width="{_WIDTH}" height="{height}" fill="#ffffff"/>',
            _text(12, 22, title, size=16, weight="600"),
            *parts,
            _text(12, height - 10, note, size=12, fill=_THEIRS),
            "</svg>\n",
        ]
    )


def _panel(panel: Panel, top: int) -> tuple[list[str], int]:
    height = _HEAD + _ROW * len(panel.dots) + _FOOT
    bottom = top + height - _FOOT
    every = [value for dot in panel.dots for value in dot.values if value > 0]
    parts = [_text(12, top + 24, f"{panel.title} ({panel.unit}, log scale)", weight="600")]
    if not every:
        return parts, height
    scale = _Scale(min(every), max(every))
    for tick in scale.ticks():
        x = scale.at(tick)
        parts.append(_line(x, top + _HEAD - 8, x, bottom, _FAINT))
        parts.append(_text(x, bottom + 16, short(tick), size=11, fill=_THEIRS, anchor="middle"))
    for number, dot in enumerate(panel.dots):
        parts += _row(dot, scale, top + _HEAD + _ROW * number + _ROW // 2)
    return parts, height


def _row(dot: Dot, scale: _Scale, y: float) -> list[str]:
    colour = _OURS if dot.ours else _THEIRS
    weight = "600" if dot.ours else "400"
    parts = [_text(_LEFT - 14, y + 4, dot.label, anchor="end", weight=weight)]
    if not dot.values:
        parts.append(_text(_LEFT, y + 4, f"\u2013 {dot.remark}", size=11, fill=_THEIRS))
        return parts
    middle = statistics.median(dot.values)
    x = scale.at(middle)
    least, most = scale.at(min(dot.values)), scale.at(max(dot.values))
    parts.append(_line(least, y, most, y, colour, width=3))
    fill = "#ffffff" if dot.hollow else colour
    parts.append(
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="5" fill="{fill}" '
        f'stroke="{colour}" stroke-width="2"/>'
    )
    parts.append(_text(max(most, x) + 10, y + 4, short(middle), fill=colour, weight=weight))
    return parts


class _Scale:
    """Powers of ten from the left edge to the right one."""

    def __init__(self, least: float, most: float) -> None:
        self._low = math.floor(math.log10(least))
        self._high = max(math.ceil(math.log10(most)), self._low + 1)

    def at(self, value: float) -> float:
        place = (math.log10(max(value, 10.0**self._low)) - self._low) / (self._high - self._low)
        return _LEFT + place * (_WIDTH - _LEFT - _RIGHT)

    def ticks(self) -> list[float]:
        return [10.0**power for power in range(self._low, self._high + 1)]


def _line(x1: float, y1: float, x2: float, y2: float, colour: str, *, width: int = 1) -> str:
    return (
        f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" '
        f'stroke="{colour}" stroke-width="{width}"/>'
    )


def _text(
    x: float,
    y: float,
    text: str,
    *,
    size: int = 13,
    fill: str = _INK,
    weight: str = "400",
    anchor: str = "start",
) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" font-weight="{weight}" '
        f'fill="{fill}" text-anchor="{anchor}" '
        f'stroke="#ffffff" stroke-width="3" paint-order="stroke">{escape(text)}</text>'
    )
