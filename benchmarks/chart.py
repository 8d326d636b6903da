"""Bar charts as SVG files, drawn from numbers alone: the same data give the same bytes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

WIDTH = 760
LEFT = 170
BAR = 13
GAP = 10
COLOURS = ("#2f6f8f", "#d08c3c", "#8a8f98", "#7a9e5f", "#a5658e", "#b9574f")


@dataclass(frozen=True, slots=True)
class Drawing:
    """Shapes below a title, and how high they are together."""

    title: str
    parts: list[str]
    height: float

    def svg(self, *below: Drawing) -> str:
        """The file: this drawing, and others below it."""
        inside, y = [], 0.0
        for drawing in (self, *below):
            inside += [
                f'<g transform="translate(0 {y:.0f})">',
                _text(12, 22, drawing.title),
                *drawing.parts,
                "</g>",
            ]
            y += drawing.height
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{y:.0f}" '
            f'font-family="sans-serif" font-size="12">\n'
            f'<rect width="{WIDTH}" height="{y:.0f}" fill="#ffffff"/>\n'
        )
        return head + "\n".join(inside) + "\n</svg>\n"


def bars(
    title: str,
    groups: Sequence[str],
    series: Mapping[str, Mapping[str, float]],
    *,
    full: float = 0.0,
    digits: int = 0,
) -> Drawing:
    """Horizontal bars: one group per row name, one bar per engine that has a figure for it.

    Where figures of different kinds stand together (prefill and decode differ by a hundred times)
    each group has its own scale, so bars compare within a group only; with ``full`` all have one,
    on which that much fills the width. The figure stands at each bar's end.
    """
    names = list(series)
    parts, y = _legend(names, LEFT)
    for group in groups:
        held = [(i, series[name][group]) for i, name in enumerate(names) if group in series[name]]
        largest = full or max((value for _, value in held), default=0.0)
        parts.append(_text(LEFT - 10, y + BAR * max(len(held), 1) / 2 + 3, group, anchor="end"))
        for index, value in held:
            length = (WIDTH - LEFT - 80) * value / largest if largest else 0.0
            parts.append(_rect(LEFT, y, length, COLOURS[index % len(COLOURS)]))
            parts.append(_text(LEFT + length + 6, y + BAR - 3, _figure(value, digits)))
            y += BAR
        y += GAP
    return Drawing(title, parts, y)


def stacked(
    title: str,
    groups: Mapping[str, Mapping[str, Mapping[str, float]]],
    parts: Sequence[str],
    notes: Mapping[str, str],
) -> Drawing:
    """Horizontal bars of 100 percent, cut into ``parts``, in groups with a name above each.

    The first part's figure stands behind the bar, with the row's note.
    """
    left, right = LEFT, 150
    scale = (WIDTH - left - right) / 100
    shapes, y = _legend(parts, left)
    for group, rows in groups.items():
        shapes.append(_text(left, y + BAR - 3, group))
        y += BAR + 5
        for name, shares in rows.items():
            shapes.append(_text(left - 10, y + BAR - 3, name, anchor="end"))
            x = float(left)
            for index, part in enumerate(parts):
                shapes.append(_rect(x, y, shares[part] * scale, COLOURS[index]))
                x += shares[part] * scale
            figure = f"{shares[parts[0]]:.1f}{notes.get(name, '')}"
            shapes.append(_text(WIDTH - right + 8, y + BAR - 3, figure))
            y += BAR + 5
        y += GAP
    return Drawing(title, shapes, y)


def _legend(names: Sequence[str], left: float) -> tuple[list[str], float]:
    """A coloured square and a name per line, and where what follows begins."""
    parts = []
    for index, name in enumerate(names):
        line = 26 + 18 * (index + 1)
        parts.append(_rect(left, line - 10, 11, COLOURS[index % len(COLOURS)]))
        parts.append(_text(left + 18, line, name))
    return parts, 50 + 18 * len(names)


def _figure(value: float, digits: int) -> str:
    """At most so many digits behind the point."""
    text = f"{value:,.{digits}f}"
    return text.rstrip("0").rstrip(".") if digits else text


def _rect(x: float, y: float, width: float, colour: str) -> str:
    return f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{BAR - 2}" fill="{colour}"/>'


def _text(x: float, y: float, text: str, *, anchor: str = "start") -> str:
    place = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="#222"'
    return f"<text {place}>{escape(text)}</text>"
