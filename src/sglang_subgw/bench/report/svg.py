"""Charts as inline SVG: bars, stacked bars and distributions, drawn with the page's own colours."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Final

_WIDTH: Final = 680
_LABELS: Final = 150
_BAR: Final = 22
_GAP: Final = 10
_PLOT_HEIGHT: Final = 260
_MARGIN: Final = 46
_TICKS: Final = 5
_DASHES: Final = 4


@dataclass(frozen=True, slots=True)
class Bar:
    """One row: its pieces by name, in order, and the range of the sum."""

    label: str
    pieces: Mapping[str, float]
    low: float | None = None
    high: float | None = None
    kind: str = ""
    """Gives a bar of one piece its colour."""

    @property
    def total(self) -> float:
        """The length of the bar."""
        return sum(self.pieces.values())


def bars(rows: Sequence[Bar], unit: str) -> str:
    """Horizontal bars, each with its number; pieces of the same name have the same colour."""
    names = list(dict.fromkeys(name for row in rows for name in row.pieces))
    top = _nice(max((row.high or row.total for row in rows), default=0.0))
    plot = _WIDTH - _LABELS - 70
    height = len(rows) * (_BAR + _GAP) + 30
    out = [_open(height, unit)]
    for i in range(_TICKS + 1):
        x = _LABELS + plot * i / _TICKS
        out.append(f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="0" y2="{height - 26}"/>')
        out.append(
            f'<text class="tick" x="{x:.1f}" y="{height - 10}" text-anchor="middle">{_short(top * i / _TICKS)}</text>'
        )
    for i, row in enumerate(rows):
        y, x = i * (_BAR + _GAP) + 4, float(_LABELS)
        out.append(f'<text class="label" x="{_LABELS - 8}" y="{y + 15}" text-anchor="end">{escape(row.label)}</text>')
        for name, value in row.pieces.items():
            width = plot * max(value, 0.0) / top
            colour = f"k-{row.kind}" if row.kind else f"c{names.index(name)}"
            out.append(
                f'<rect class="{colour}" x="{x:.1f}" y="{y}" width="{width:.1f}" height="{_BAR}" rx="2">'
                f"<title>{escape(row.label)}, {escape(name)}: {_short(value)} {escape(unit)}</title></rect>"
            )
            x += width
        if row.low is not None and row.high is not None and row.high > row.low:
            ends = [_LABELS + plot * value / top for value in (row.low, row.high)]
            out.append(
                f'<path class="whisker" d="M{ends[0]:.1f} {y + 11}H{ends[1]:.1f}M{ends[0]:.1f} {y + 6}v10'
                f'M{ends[1]:.1f} {y + 6}v10"/>'
            )
            x = max(x, ends[1])
        out.append(f'<text class="value" x="{x + 6:.1f}" y="{y + 15}">{_short(row.total)}</text>')
    out.append("</svg>")
    return "".join(out) + (_legend(names) if len(names) > 1 else "")


def distributions(series: Mapping[str, Sequence[tuple[float, float]]], kinds: Mapping[str, str], unit: str) -> str:
    """Lines over the share of all that are above, from one half to one in ten thousand, on logarithmic axes.

    A kind is a colour, as in `bars`; lines of the same kind differ by their dashes.
    """
    points = [point for line in series.values() for point in line]
    if not points:
        return ""
    smallest, largest = max(min(value for _, value in points), 1e-6), max(value for _, value in points)
    ticks = _log_ticks(smallest, largest)
    low, high = math.log10(ticks[0]), math.log10(ticks[-1])
    shares = (0.5, 0.1, 0.01, 0.001, 0.0001)
    plot_width, height = _WIDTH - _MARGIN - 20, _PLOT_HEIGHT

    def x_of(above: float) -> float:
        return _MARGIN + plot_width * math.log10(0.5 / above) / math.log10(0.5 / shares[-1])

    def y_of(value: float) -> float:
        return 10 + height * (high - math.log10(max(value, ticks[0]))) / (high - low)

    out = [_open(height + 40, unit)]
    for share in shares:
        x = x_of(share)
        text = "p50" if share == 0.5 else f"p{100 * (1 - share):.4g}"
        out.append(f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="10" y2="{height + 10}"/>')
        out.append(f'<text class="tick" x="{x:.1f}" y="{height + 26}" text-anchor="middle">{text}</text>')
    for tick in ticks:
        y = y_of(tick)
        out.append(f'<line class="grid" x1="{_MARGIN}" x2="{_MARGIN + plot_width}" y1="{y:.1f}" y2="{y:.1f}"/>')
        out.append(f'<text class="tick" x="{_MARGIN - 6}" y="{y + 4:.1f}" text-anchor="end">{_short(tick)}</text>')
    legend, seen = [], Counter[str]()
    for name, line in series.items():
        kind = kinds[name]
        style = f"k-{kind} d{seen[kind] % _DASHES}"
        seen[kind] += 1
        path = "L".join(f"{x_of(above):.1f} {y_of(value):.1f}" for above, value in line)
        out.append(f'<path class="line {style}" d="M{path}"><title>{escape(name)}</title></path>')
        legend.append(f'<span><i class="stroke {style}"></i>{escape(name)}</span>')
    out.append("</svg>")
    return "".join(out) + f'<div class="legend">{"".join(legend)}</div>'


def _open(height: int, unit: str) -> str:
    return (
        f"<figcaption>{escape(unit)}</figcaption>"
        f'<svg viewBox="0 0 {_WIDTH} {height}" role="img" xmlns="http://www.w3.org/2000/svg">'
    )


def _legend(names: Sequence[str]) -> str:
    items = (f'<span><i class="c{i}"></i>{escape(name)}</span>' for i, name in enumerate(names))
    return f'<div class="legend">{"".join(items)}</div>'


def _log_ticks(low: float, high: float) -> list[float]:
    """1, 2 and 5 of each power of ten from just below to just above; powers alone where that is many."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    steps = (1, 2, 5) if len(powers) <= 4 else (1,)
    ticks = [step * 10.0**power for power in powers for step in steps]
    first = max((i for i, tick in enumerate(ticks) if tick <= low), default=0)
    last = min((i for i, tick in enumerate(ticks) if tick >= high), default=len(ticks) - 1)
    return ticks[first : max(last, first + 1) + 1]


def _nice(value: float) -> float:
    """The next larger number that divides well."""
    if value <= 0:
        return 1.0
    unit = 10.0 ** math.floor(math.log10(value))
    return next(step * unit for step in (1, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10) if step * unit >= value)


def _short(value: float) -> str:
    size = abs(value)
    if size >= 1e6:
        return f"{value / 1e6:.3g}M"
    if size >= 1e4:
        return f"{value / 1e3:.3g}k"
    return f"{value:,.0f}" if size >= 100 else f"{value:.3g}"
