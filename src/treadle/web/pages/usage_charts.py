"""The charts of usage: how much was run, and how long it took."""

from __future__ import annotations

from collections.abc import Sequence

from treadle.units import format_duration
from treadle.web.charts import NOTHING, Chart, Scale, Series, bars, lines, nice, nice_seconds
from treadle.web.formatting import Formatter, number
from treadle.web.pages.windows import Sums, Window


def _whole(value: float) -> str:
    return number(round(value)) if value == round(value) else f"{value:.1f}"


COUNT = Scale(_whole, lambda value: nice(max(value, 2)))  # half a run is none
TIME = Scale(format_duration, nice_seconds)


def _labels(over: Window, say: Formatter) -> list[str]:
    return [say.stamp(at, over.span) for at in over.starts]


def throughput(steps: Sequence[Sums], over: Window, say: Formatter) -> Chart:
    completed, failed = [s.completed for s in steps], [s.failures for s in steps]
    series = (
        Series("completed", "ok", completed, number(sum(completed))),
        Series("failed", "bad", failed, number(sum(failed))),
    )
    return bars(_labels(over, say), series, COUNT, "Runs over time, those that failed on top")


def waits(steps: Sequence[Sums], over: Window, say: Formatter) -> Chart:
    return _mean("wait", "calm", [s.wait for s in steps], total_wait(steps), over, say)


def times(steps: Sequence[Sums], over: Window, say: Formatter) -> Chart:
    return _mean("run", "good", [s.run for s in steps], total_run(steps), over, say)


def _mean(
    name: str, tone: str, values: Sequence[float | None], overall: float | None, over: Window, say: Formatter
) -> Chart:
    told = NOTHING if overall is None else format_duration(overall)
    return lines(_labels(over, say), (Series("mean", tone, values, told),), TIME, f"Mean {name} over time")


def total_wait(steps: Sequence[Sums]) -> float | None:
    runs = sum(s.runs for s in steps)
    return sum(s.waiting for s in steps) / runs if runs else None


def total_run(steps: Sequence[Sums]) -> float | None:
    runs = sum(s.runs for s in steps)
    return sum(s.busy for s in steps) / runs if runs else None


def seconds(name: str, tone: str, values: Sequence[float], over: Window, say: Formatter) -> Chart:
    """Time spent, step by step."""
    return bars(
        _labels(over, say), (Series(name, tone, values, format_duration(sum(values))),), TIME, f"{name} over time"
    )
