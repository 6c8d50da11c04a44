"""Charts: the marks are SVG that stretches, the labels around them are HTML that does not.

Pure functions of numbers. Colors are classes, sizes are attributes: the CSP allows no style in the page.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import groupby
from typing import NamedTuple

from markupsafe import Markup, escape

WIDTH, HEIGHT = 1000.0, 100.0
NOTHING = "\u2013"
"""A dash in place of a number that is not known."""
GAP = 0.22
"""The share of a bar's room that stays empty."""
LEAST = 0.012
"""The least share of a ribbon that can be seen."""


class Series(NamedTuple):
    """One thing over time. A value that is None is unknown and leaves a gap."""

    name: str
    tone: str
    """The class that colors it: ok, bad, calm, good, warn."""
    values: Sequence[float | None]
    summary: str = ""
    """A number for the legend: the sum or the mean."""


class Scale(NamedTuple):
    """How values are formatted, and where an axis may end."""

    format: Callable[[float], str]
    top: Callable[[float], float]


class Chart(NamedTuple):
    """A drawing, its labels, and the numbers behind it."""

    svg: Markup
    ys: list[str]
    """From the top down."""
    xs: list[str]
    series: Sequence[Series]
    rows: list[tuple[str, list[str]]]
    """The chart as a table, the latest step first, without the empty steps. None if there is nothing to draw."""
    links: Sequence[str] = ()
    """Where each row of the table leads, if the chart has links."""


def bars(labels: Sequence[str], series: Sequence[Series], scale: Scale, name: str) -> Chart:
    """Stacked bars, the first series at the bottom."""
    sums = [sum(one.values[n] or 0 for one in series) for n in range(len(labels))]
    top, room = scale.top(max(sums, default=0)), WIDTH / max(1, len(labels))
    marks: list[Markup] = []
    for n, label in enumerate(labels):
        parts, floor = [], HEIGHT
        for one in series:
            if height := _height(one.values[n] or 0, top):
                floor -= height
                parts.append(_box(one.tone, (n + GAP / 2) * room, (1 - GAP) * room, floor, height))
        marks.append(_hit(n, room, label, series, scale, parts))
    return _chart(marks, labels, series, scale, name, top)


def lines(labels: Sequence[str], series: Sequence[Series], scale: Scale, name: str, links: Sequence[str] = ()) -> Chart:
    """A line per series; the first has its area shaded. `links`: where each step leads."""
    known = [value for one in series for value in one.values if value is not None]
    top, room = scale.top(max(known, default=0)), WIDTH / max(1, len(labels))
    marks: list[Markup] = []
    for number, one in enumerate(series):
        points = [None if v is None else ((n + 0.5) * room, (1 - v / top) * HEIGHT) for n, v in enumerate(one.values)]
        for run in runs(points):
            if len(run) == 1:  # a line without length is a dot, because its ends are round
                marks.append(element("path", class_=f"line dot c-{one.tone}", d=path(run) + "h0"))
                continue
            if number == 0:
                closed = [(run[0][0], HEIGHT), *run, (run[-1][0], HEIGHT)]
                marks.append(element("path", class_=f"area c-{one.tone}", d=path(closed) + "Z"))
            marks.append(element("path", class_=f"line c-{one.tone}", d=path(run)))
    hits = [_hit(n, room, label, series, scale, []) for n, label in enumerate(labels)]
    if links:  # not by the keyboard: the table has the same links, one after the other
        hits = [element("a", hit, href=link, tabindex="-1") for hit, link in zip(hits, links, strict=True)]
    marks += hits
    return _chart(marks, labels, series, scale, name, top, links)


def spark(values: Sequence[float], name: str) -> Markup:
    top, room = max(values, default=0), WIDTH / max(1, len(values))
    heights = [_height(value, top) for value in values]
    boxes = [
        _box("ok" if height else "none", n * room, room * 0.72, HEIGHT - (height or 4), height or 4)
        for n, height in enumerate(heights)
    ]
    return _svg(boxes, name, class_="spark")


def ribbon(parts: Sequence[tuple[str, str, float]], name: str) -> Markup:
    """How a job spent its time: (tone, tip, seconds) side by side. Parts too short to see are widened."""
    total = sum(seconds for _, _, seconds in parts) or 1
    shares = [max(seconds / total, LEAST) for _, _, seconds in parts]
    scale, at = WIDTH / (sum(shares) or 1), 0.0
    boxes: list[Markup] = []
    for (tone, tip, _), share in zip(parts, shares, strict=True):
        boxes.append(_box(tone, at, max(share * scale - 2, 1), inside=_title(tip)))
        at += share * scale
    return _svg(boxes, name, class_="line-time")


def nice(value: float) -> float:
    """The end of an axis: the least of 1, 2, 4, 6, 8, 10, 20 … that is not smaller. Its half is round too."""
    if value <= 0 or not math.isfinite(value):
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    steps = (step * power for step in (1, 2, 4, 6, 8, 10))
    return next((step for step in steps if step >= value * (1 - 1e-9)), value)  # the smallest floats have no tenth


ROUND = (1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 14_400, 21_600, 43_200, 86_400)


def nice_seconds(value: float) -> float:
    """The same for durations, which are not decimal."""
    if value < 1:
        return nice(value)
    return next((float(one) for one in ROUND if one >= value), nice(value / 86_400) * 86_400)


def runs(points: Sequence[tuple[float, float] | None]) -> list[list[tuple[float, float]]]:
    parts = [[point for point in run if point is not None] for _, run in groupby(points, lambda point: point is None)]
    return [run for run in parts if run]


def path(points: Sequence[tuple[float, float]]) -> str:
    return "M" + "L".join(f"{_n(x)} {_n(y)}" for x, y in points)


def pick(labels: Sequence[str], most: int = 5) -> list[str]:
    """A few labels, evenly spaced, the first and the last among them."""
    if len(labels) <= most:
        return list(labels)
    return [labels[round(n * (len(labels) - 1) / (most - 1))] for n in range(most)]


def element(tag: str, inside: Markup | str = "", /, **attributes: str | float) -> Markup:
    """One SVG element, everything escaped."""
    names = [name.rstrip("_").replace("_", "-") for name in attributes]
    values = [escape(value) if isinstance(value, str) else _n(value) for value in attributes.values()]
    pairs = [f' {name}="{value}"' for name, value in zip(names, values, strict=True)]
    return Markup(f"<{tag}{''.join(pairs)}>{escape(inside)}</{tag}>")


def _chart(
    marks: Sequence[Markup],
    labels: Sequence[str],
    series: Sequence[Series],
    scale: Scale,
    name: str,
    top: float,
    links: Sequence[str] = (),
) -> Chart:
    grid = [element("line", class_="grid-line", x1=0, x2=WIDTH, y1=y, y2=y) for y in (0, HEIGHT / 2, HEIGHT)]
    ys = [scale.format(top), scale.format(top / 2), "0"]
    svg = _svg([*grid, *marks], name, role="group") if links else _svg([*grid, *marks], name)
    shown = [n for n in reversed(range(len(labels))) if any(one.values[n] for one in series)]
    rows = [(labels[n], [_cell(one.values[n], scale) for one in series]) for n in shown]
    return Chart(svg, ys, pick(labels), series, rows, [links[n] for n in shown] if links else ())


def _cell(value: float | None, scale: Scale) -> str:
    return NOTHING if value is None else scale.format(value)


def _svg(inside: Sequence[Markup], name: str, **attributes: str | float) -> Markup:
    given = {"viewBox": f"0 0 {_n(WIDTH)} {_n(HEIGHT)}", "preserveAspectRatio": "none", "role": "img"}
    return element("svg", Markup("").join(inside), **{**given, **attributes}, aria_label=name)


def _hit(n: int, room: float, label: str, series: Sequence[Series], scale: Scale, parts: Sequence[Markup]) -> Markup:
    """A column that shows its numbers when you point at it."""
    values = [f"{one.name} {scale.format(value)}" for one in series if (value := one.values[n]) is not None]
    title = _title(f"{label}: {', '.join(values) or 'nothing'}")
    return element("g", Markup("").join([title, _box("hit", n * room, room), *parts]), class_="hit")


def _box(tone: str, x: float, width: float, y: float = 0, height: float = HEIGHT, inside: Markup | str = "") -> Markup:
    return element("rect", inside, class_=f"c-{tone}", x=x, y=y, width=width, height=height)


def _title(tip: str) -> Markup:
    return Markup("<title>{}</title>").format(tip)


def _height(value: float, top: float) -> float:
    """A value above 0 is always visible."""
    return max(value / top * HEIGHT, 1.5) if value > 0 and top > 0 else 0.0


def _n(value: float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)
