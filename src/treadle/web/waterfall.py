"""What a job did when: a bar over time for each attempt, each step and each wait.

Pure functions: spans in, SVG out. A bar is in percent of the width, so that it stretches and its stripes do not.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple

from markupsafe import Markup

from treadle.units import format_duration
from treadle.web.charts import element

LEAST = 0.4
"""Percent that can be seen."""
HEIGHT = 12.0


class Span(NamedTuple):
    """A row: something that took some time, or still does."""

    name: str
    start: datetime
    end: datetime
    tone: str
    """As in charts.py."""
    link: str
    inner: bool = False
    """Whether it is a part of an attempt."""
    waits: bool = False
    """Whether nothing ran meanwhile: its bar is hatched."""

    @property
    def took(self) -> str:
        return format_duration(max(0.0, (self.end - self.start).total_seconds()))


def rows(spans: Sequence[Span]) -> list[tuple[Span, Markup]]:
    """The spans in the order of time, each with its bar."""
    ordered = sorted(spans, key=lambda span: (span.start, span.inner))
    if not ordered:
        return []
    first, last = ordered[0].start, max(span.end for span in ordered)
    total = (last - first).total_seconds() or 1.0
    return [(span, _bar(span, (span.start - first).total_seconds() / total * 100, total)) for span in ordered]


def _bar(span: Span, at: float, total: float) -> Markup:
    share = max(LEAST, (span.end - span.start).total_seconds() / total * 100)
    start = min(at, 100 - LEAST)
    end = min(100.0, start + share)
    place: dict[str, str | float] = {"x": f"{start:.2f}%", "width": f"{end - start:.2f}%", "height": HEIGHT, "rx": 2}
    if span.waits:
        place = {"x1": f"{start:.2f}%", "x2": f"{end:.2f}%", "y1": HEIGHT / 2, "y2": HEIGHT / 2}
    tag, hatched = ("line", "hatched ") if span.waits else ("rect", "")
    bar = element(tag, class_=f"{hatched}c-{span.tone}", **place)
    return element("svg", bar, height=HEIGHT, role="img", aria_label=f"{span.name}: {span.took}")
