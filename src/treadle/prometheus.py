"""The text that Prometheus reads."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from itertools import accumulate

import msgspec

MEDIA = "text/plain; version=0.0.4; charset=utf-8"
Sample = tuple[dict[str, str], float]
ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})
BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0)
"""Seconds: the upper bounds of a histogram. One more bucket has what is longer."""


class Histogram(msgspec.Struct):
    """How often a duration was in each bucket, and the sum of all."""

    counts: list[int] = msgspec.field(default_factory=lambda: [0] * (len(BUCKETS) + 1))
    seconds: float = 0.0

    def observe(self, seconds: float) -> None:
        self.counts[bisect_left(BUCKETS, seconds)] += 1
        self.seconds += seconds


def family(name: str, kind: str, help: str, samples: Iterable[Sample]) -> str:
    lines = [f"# HELP {name} {help}", f"# TYPE {name} {kind}"]
    lines += [f"{name}{_labels(labels)} {value:.10g}" for labels, value in samples]
    return "\n".join(lines) + "\n"


def histograms(name: str, help: str, found: Iterable[tuple[dict[str, str], Histogram]]) -> str:
    lines = [f"# HELP {name} {help}", f"# TYPE {name} histogram"]
    for labels, one in found:
        bounds = [*(f"{bound:g}" for bound in BUCKETS), "+Inf"]
        sums = list(accumulate(one.counts))
        lines += [f"{name}_bucket{_labels({**labels, 'le': le})} {n}" for le, n in zip(bounds, sums, strict=True)]
        lines += [f"{name}_sum{_labels(labels)} {one.seconds:.10g}", f"{name}_count{_labels(labels)} {sums[-1]}"]
    return "\n".join(lines) + "\n"


def _labels(labels: dict[str, str]) -> str:
    escaped = {name: value.translate(ESCAPES) for name, value in labels.items()}
    return "{" + ",".join(f'{name}="{value}"' for name, value in escaped.items()) + "}" if labels else ""
