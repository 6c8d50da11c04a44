"""The state of the whole system: what is going on and what is wrong, failures by error, workers and queues."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import NamedTuple

from markupsafe import Markup

from treadle import clock, views
from treadle.diagnosis import handles, is_alive
from treadle.filters import Filter
from treadle.job import STATE_NAMES, STATE_OF, SUMMARY, FailureGroup, Latency, State, Status, Usage
from treadle.stores.base import WorkerRow
from treadle.stores.rows import QueueStats
from treadle.units import format_duration, plural
from treadle.views import HIDDEN
from treadle.web import charts, formatting
from treadle.web.http import Request, Response, redirect
from treadle.web.pages import cached, usage_charts
from treadle.web.pages.usage_charts import WINDOWS, Sums, Window
from treadle.web.render import render
from treadle.web.route import route
from treadle.web.site import Site

GROUPS = (("type", "By type"), ("queue", "By queue"), ("tenant", "By tenant"))
MAX_ROWS = 100
"""Those that ran most."""
SPARK_BARS = 24
LATEST = 5


class GroupRow(NamedTuple):
    """A type, a queue or a tenant."""

    name: str
    counts: dict[str, int]
    latency: Latency | None
    sums: Sums
    spark: Markup


@route("GET", "/", "What is going on", page=True)
def overview(site: Site, request: Request) -> Response:
    """Of all tenants. Callers bound to one go to the list of its jobs instead."""
    if request.caller.tenant is not None:
        return redirect(request.url("/jobs"))
    fmt, now = formatting.formatter_for(request), site.app.store.now()
    over = usage_charts.window(request.text("window"), now)
    by = request.text("by") if request.text("by") in dict(GROUPS) else "type"
    queues = cached.queues(site)
    used = cached.usage(site, over, (by,))
    steps = usage_charts.by_step(used, over)
    failures = cached.failures(site)
    return render(
        site,
        request,
        "overview.html",
        place="overview",
        path="/",
        selected={"window": over.key, "by": by},
        tiles=_tiles(queues, _notes(queues, cached.workers(site), steps, over, now)),
        problems=cached.problems(site),
        charts=[usage_charts.throughput_chart(steps, over, fmt), *usage_charts.mean_charts(steps, over, fmt)],
        windows=[(key, key) for key in WINDOWS],
        kinds=GROUPS,
        rows=_rows(site, by, queues, used, over),
        groups=with_filters(failures[:LATEST]),
        more_groups=len(failures) - LATEST,
    )


def _tiles(queues: list[QueueStats], notes: dict[str, str]) -> list[tuple[State, str, str]]:
    """A state, how many jobs have it, and the small print."""
    more = "" if all(row.exact for row in queues) else "+"

    def count(state: str) -> str:
        return f"{sum(row.counts[state] for row in queues):,}{more if state in ('scheduled', 'retrying') else ''}"

    return [(state, count(state.name), notes.get(state.name, "")) for state in (*SUMMARY, STATE_OF[Status.COMPLETED])]


def _notes(
    queues: list[QueueStats], workers: list[WorkerRow], steps: list[Sums], over: Window, now: int
) -> dict[str, str]:
    """The small print of each tile, by state."""
    live = [worker for worker in workers if is_alive(worker, now)]
    slots = sum(worker.concurrency for worker in live)
    failures, completed = sum(step.failures for step in steps), sum(step.completed for step in steps)
    return {
        "queued": _oldest_note(queues, now),
        "scheduled": _next_note(queues, now),
        "retrying": "after a failure",
        "processing": f"of {plural(slots, 'slot')}, {plural(len(live), 'worker')}",
        "failed": f"{plural(failures, 'failed run')} in {over.key}",
        "completed": f"{completed:,} in {over.key}",
    }


def _oldest_note(queues: list[QueueStats], now: int) -> str:
    due = [row.oldest_due for row in queues if row.oldest_due is not None and row.counts["queued"]]
    return f"oldest for {format_duration((now - min(due)) / clock.SECOND)}" if due else "nothing waits"


def _next_note(queues: list[QueueStats], now: int) -> str:
    later = [row.next_due for row in queues if row.next_due is not None]
    if not later:
        return "none for later"
    at = min(later)
    return f"next in {format_duration((at - now) / clock.SECOND)}" if at > now else "next now"


def _rows(site: Site, by: str, queues: list[QueueStats], used: list[Usage], over: Window) -> list[GroupRow]:
    by_name = usage_charts.by_key(used)
    latency = cached.latency(site) if by == "type" else {}
    counts = cached.tenants(site) if by == "tenant" else _counts(queues, by)
    names = sorted({*by_name, *counts}, key=lambda name: (-sum(row.runs for row in by_name.get(name, ())), name))

    def row(name: str) -> GroupRow:
        rows = by_name.get(name, [])
        runs = [step.runs for step in usage_charts.by_step(rows, over)]
        spark = charts.spark(usage_charts.thinned(runs, SPARK_BARS), f"Runs of {name or 'no tenant'}")
        return GroupRow(name, counts.get(name, {}), latency.get(name), usage_charts.total(rows), spark)

    return [row(name) for name in names[:MAX_ROWS]]


def _counts(queues: Iterable[QueueStats], by: str) -> dict[str, dict[str, int]]:
    """By type or queue, then by state."""
    found: dict[str, dict[str, int]] = {}
    for row in queues:
        sums = found.setdefault(row.type if by == "type" else row.queue, dict.fromkeys(STATE_NAMES, 0))
        for state in sums:
            sums[state] += row.counts[state]
    return found


@route("GET", "/failures", "Failed jobs, grouped", page=True, for_tenants=False)
def failures(site: Site, request: Request) -> Response:
    return render(site, request, "failures.html", place="failures", groups=with_filters(cached.failures(site)))


def with_filters(found: Sequence[FailureGroup]) -> list[tuple[FailureGroup, str, str]]:
    """Each with the filter that finds its jobs, and the one that finds the failed ones: only they can be retried."""
    groups = [views.failure(group) for group in found]
    return [(group, _filter(group, "failed", "retrying"), _filter(group, "failed")) for group in groups]


def _filter(group: FailureGroup, *statuses: str) -> str:
    """The text before a secret is enough to find them: a page's address must not contain the secret."""
    error = group.error.partition(HIDDEN)[0]
    return str(Filter(statuses=statuses, types=(group.type,), errors=((error,),) if error else ()))


@route("GET", "/workers", "Workers and queues", page=True, for_tenants=False)
def workers(site: Site, request: Request) -> Response:
    now, rows = site.app.store.now(), cached.workers(site)
    live = [row for row in rows if is_alive(row, now)]
    workers = sorted((views.worker(row, now) for row in rows), key=lambda worker: (worker.live, worker.name))
    queues = [(row, _oldest(row), sum(handles(w, row.queue, row.type) for w in live)) for row in cached.queues(site)]
    return render(site, request, "workers.html", place="workers", workers=workers, queues=queues)


def _oldest(row: QueueStats) -> datetime | None:
    return clock.to_datetime(row.oldest_due) if row.oldest_due is not None and row.counts["queued"] else None
