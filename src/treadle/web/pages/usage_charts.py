"""Usage over time: the windows that pages look back over, their steps and sums, and the charts of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import datetime, timedelta
from typing import NamedTuple

from treadle import clock
from treadle.filters import Filter
from treadle.job import Backlog, Usage
from treadle.management import ONE_STEP
from treadle.units import format_duration
from treadle.web.charts import NOTHING, Chart, Scale, Series, bars, lines, nice, nice_seconds
from treadle.web.formatting import Formatter, number

WINDOWS = {"1h": (3600, 60), "6h": (6 * 3600, 300), "24h": (86_400, 1200), "7d": (7 * 86_400, 7200)}
LONG_WINDOWS = {**WINDOWS, "30d": (30 * 86_400, 86_400), "90d": (90 * 86_400, 86_400)}
"""Seconds, and seconds of a step."""


class Window(NamedTuple):
    """A stretch of time in steps of `step` seconds. The last step is under way."""

    key: str
    since: datetime
    until: datetime
    step: int

    @property
    def span(self) -> timedelta:
        return self.until - self.since

    @property
    def starts(self) -> list[datetime]:
        return [self.since + timedelta(seconds=n) for n in range(0, int(self.span.total_seconds()), self.step)]


def window(key: str, now: int, kinds: dict[str, tuple[int, int]] = WINDOWS) -> Window:
    """The window of that name that ends with the current step. An unknown name means the first one."""
    key = key if key in kinds else next(iter(kinds))
    length, step = kinds[key]
    seconds = now // clock.SECOND
    end = seconds - seconds % step + step
    return Window(key, clock.to_datetime((end - length) * clock.SECOND), clock.to_datetime(end * clock.SECOND), step)


def in_one_step(over: Window) -> Window:
    return over._replace(step=ONE_STEP)


class Sums(NamedTuple):
    """What usage adds up to."""

    runs: int
    completed: int
    failures: int
    busy: float
    waiting: float

    @property
    def ended(self) -> int:
        """Runs that were a success or a failure: a snoozed or cancelled one is neither."""
        return self.completed + self.failures

    @property
    def mean_run(self) -> float | None:
        return self.busy / self.runs if self.runs else None

    @property
    def mean_wait(self) -> float | None:
        return self.waiting / self.runs if self.runs else None


def total(rows: Sequence[Sums | Usage]) -> Sums:
    return Sums(*(sum(getattr(row, name) for row in rows) for name in Sums._fields))


def by_step(rows: Iterable[Usage], over: Window) -> list[Sums]:
    found: list[list[Usage]] = [[] for _ in over.starts]
    for row in rows:
        n = int((row.at - over.since).total_seconds() // over.step)
        if 0 <= n < len(found):
            found[n].append(row)
    return [total(step) for step in found]


def by_key(rows: Iterable[Usage]) -> dict[str, list[Usage]]:
    """The rows of each type, queue or tenant: the first part of their key."""
    found: dict[str, list[Usage]] = {}
    for row in rows:
        found.setdefault(row.key[0], []).append(row)
    return found


def thinned(values: Sequence[float], most: int) -> list[float]:
    """At most this many numbers, for a small drawing: neighbors are added up."""
    size = -(-len(values) // most) or 1
    return [sum(values[n : n + size]) for n in range(0, len(values), size)]


def _whole(value: float) -> str:
    return number(round(value)) if value == round(value) else f"{value:.1f}"


COUNT = Scale(_whole, lambda value: nice(max(value, 2)))  # half a run does not exist
TIME = Scale(format_duration, nice_seconds)


def _labels(over: Window, fmt: Formatter) -> list[str]:
    return [fmt.axis_label(at, over.span) for at in over.starts]


def throughput_chart(steps: Sequence[Sums], over: Window, fmt: Formatter) -> Chart:
    completed, failed = [s.completed for s in steps], [s.failures for s in steps]
    bottom = Series("completed", "ok", completed, number(sum(completed)))
    top = Series("failed", "bad", failed, number(sum(failed)))
    return bars(_labels(over, fmt), (bottom, top), COUNT, "Runs over time, failed ones on top")


def mean_charts(steps: Sequence[Sums], over: Window, fmt: Formatter) -> list[Chart]:
    """How long jobs waited and how long they ran, on average."""
    sums, labels = total(steps), _labels(over, fmt)
    wait = Series("mean", "calm", [s.mean_wait for s in steps], _duration(sums.mean_wait))
    run = Series("mean", "good", [s.mean_run for s in steps], _duration(sums.mean_run))
    return [lines(labels, (wait,), TIME, "Mean wait over time"), lines(labels, (run,), TIME, "Mean run over time")]


def backlog_chart(rows: Iterable[Backlog], over: Window, fmt: Formatter, link: Callable[[Filter], str]) -> Chart:
    """How many jobs were due and how many ran, at most. A step without a sample leaves a gap. Each leads to the jobs
    that were stored in it."""
    found = {row.at: row for row in rows}
    steps = [found.get(at) for at in over.starts]
    due = Series("queued", "warn", [row.queued if row else None for row in steps], _latest(steps, "queued"))
    running = Series("running", "ok", [row.processing if row else None for row in steps], _latest(steps, "processing"))
    length = timedelta(seconds=over.step)
    links = [link(Filter(since=at, until=at + length)) for at in over.starts]
    return lines(_labels(over, fmt), (due, running), COUNT, "Queued and running jobs over time", links)


def _latest(steps: Sequence[Backlog | None], name: str) -> str:
    return next((number(getattr(row, name)) for row in reversed(steps) if row is not None), "")


def _duration(seconds: float | None) -> str:
    return NOTHING if seconds is None else format_duration(seconds)


def seconds_chart(name: str, tone: str, values: Sequence[float], over: Window, fmt: Formatter) -> Chart:
    series = Series(name, tone, values, format_duration(sum(values)))
    return bars(_labels(over, fmt), (series,), TIME, f"{name} over time")
