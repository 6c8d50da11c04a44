"""Numbers from a noisy machine: what is compared runs alternately, and the median counts."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence

import msgspec

from bench.setting import Setting


class Sample(msgspec.Struct, frozen=True):
    """One thing, measured several times."""

    values: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    @property
    def low(self) -> float:
        return min(self.values)

    @property
    def high(self) -> float:
        return max(self.values)


def alternately(
    setting: Setting, runs: Mapping[str, Callable[[], float]], repeats: int | None = None
) -> dict[str, Sample]:
    """Run all of them alternately, forward and backward, so that a slow machine slows each of them down."""
    values: dict[str, list[float]] = {what: [] for what in runs}
    times = repeats or setting.sizes.repeats
    for repeat in range(1, times + 1):
        for what, run in list(runs.items())[:: 1 if repeat % 2 else -1]:
            setting.say(f"{what} ({repeat} of {times})")
            values[what].append(run())
    return {what: Sample(tuple(found)) for what, found in values.items()}


def ratio(sample: Sample, other: Sample) -> Sample:
    """Each run divided by the run of the other that alternated with it."""
    return Sample(tuple(a / b if b else 0.0 for a, b in zip(sample.values, other.values, strict=True)))


def percentile(values: Sequence[float], percent: float) -> float:
    """The smallest value that `percent` of all do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, min(len(ordered), -int(-len(ordered) * percent // 100)) - 1)]
