"""Bar charts as SVG files, drawn from numbers alone: the same data give the same bytes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

WIDTH = 760
LEFT = 170
BAR = 13
GAP = 10
COLOURS = ("#2f6f8f", "#d08c3c", "#8a8f98", "#7a9e5f", "#a5658e", "#b9574f")


def bars(title: str, groups: Sequence[str], series: Mapping[str, Mapping[str, float]]) -> str:
    """Horizontal bars: one group per row name, one bar per engine that has a figure for it.

    Each group has its own scale (prefill and decode differ by a hundred times), so bars compare
    within a group only; the figure stands at each bar's end.
    """
    names = list(series)
    parts, y = [], 34 + 18 * len(names)
    for index, name in enumerate(names):
        line = 26 + 18 * (index + 1)
        parts.append(_rect(LEFT, line - 10, 11, COLOURS[index % len(COLOURS)]))
        parts.append(_text(LEFT + 18, line, name))
    y += 16
    for group in groups:
        held = [(i, series[name][group]) for i, name in enumerate(names) if group in series[name]]
        largest = max((value for _, value in held), default=0.0)
        parts.append(_text(LEFT - 10, y + BAR * max(len(held), 1) / 2 + 4, group, anchor="end"))
        for index, value in held:
            length = (WIDTH - LEFT - 80) * value / largest if largest else 0.0
            parts.append(_rect(LEFT, y, length, COLOURS[index % len(COLOURS)]))
            parts.append(_text(LEFT + length + 6, y + BAR - 3, f"{value:,.0f}"))
            y += BAR
        y += GAP
    return _drawing(title, parts, y)


def stacked(title: str, rows: Mapping[str, Mapping[str, float]], parts: Sequence[str]) -> str:
    """Horizontal bars of 100 percent, cut into ``parts``; the first part's figure stands in it."""
    left, scale = 250, (WIDTH - 250 - 20) / 100
    shapes, y = [], 34 + 18 * len(parts)
    for index, part in enumerate(parts):
        line = 26 + 18 * (index + 1)
        shapes += [_rect(left, line - 10, 11, COLOURS[index]), _text(left + 18, line, part)]
    y += 16
    for name, shares in rows.items():
        shapes.append(_text(left - 10, y + BAR - 3, name, anchor="end"))
        x = float(left)
        for index, part in enumerate(parts):
            shapes.append(_rect(x, y, shares[part] * scale, COLOURS[index]))
            x += shares[part] * scale
        shapes.append(_text(left + 4, y + BAR - 3, f"{shares[parts[0]]:.1f}", fill="#fff"))
        y += BAR + 6
    return _drawing(title, shapes, y + GAP)


def _drawing(title: str, parts: Sequence[str], height: int) -> str:
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" '
        f'font-family="sans-serif" font-size="12">\n'
        f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>\n'
    )
    return head + "\n".join([_text(12, 22, title), *parts]) + "\n</svg>\n"


def _rect(x: float, y: float, width: float, colour: str) -> str:
    return f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{BAR - 2}" fill="{colour}"/>'


def _text(x: float, y: float, text: str, *, anchor: str = "start", fill: str = "#222") -> str:
    place = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{fill}"'
    return f"<text {place}>{escape(text)}</text>"
