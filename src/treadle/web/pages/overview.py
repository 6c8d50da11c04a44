"""The state of the whole system: what is going on and what is wrong, failures by error, workers and queues."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence

from markupsafe import Markup

from treadle import clock, views
from treadle.diagnosis import alive, handles
from treadle.filters import MOST_SEARCHED, Filter
from treadle.job import STATE_OF, SUMMARY, FailureGroup, Latency, State, Status, Usage
from treadle.redact import HIDDEN, Redactor
from treadle.stores.base import WorkerRow
from treadle.stores.rows import QueueStats
from treadle.units import format_duration, plural
from treadle.web import charts, formatting
from treadle.web.pages import queries, usage_charts
from treadle.web.pages.usage_charts import WINDOWS, Sums, Window
from treadle.web.render import render
from treadle.web.route import Request, Response, get, redirect

GROUPS = (("type", "By type"), ("queue", "By queue"), ("tenant", "By tenant"))
MAX_ROWS = 100
"""Of a table: those that ran most, or a page of them."""
SPARK_BARS = 24
LATEST = 5
QUEUE_HEADS = {"Queue": "", "Type": "", **{state.label: "n" for state in SUMMARY}}
QUEUE_HEADS |= {"Oldest due": "n", "Limit": "n", "Workers": "n"}
"""The heads of a table, each with the class of its column."""
GroupRow = tuple[str, Mapping[str, int], Latency | None, Sums, Markup]
"""A type, a queue or a tenant: its name, its jobs by state, their latency, what ran, and a small chart of the runs."""


@get("/", "What is going on", page=True)
def overview(request: Request) -> Response:
    """The overview of all tenants. Callers bound to one get the list of its jobs instead."""
    if request.caller.tenant is not None:
        return redirect(request.url("/jobs"))
    fmt, now = formatting.formatter_for(request), request.app.store.now()
    over = usage_charts.window(request.text("window"), now)
    by = request.text("by") if request.text("by") in dict(GROUPS) else "type"
    queues = queries.queues(request)
    steps = usage_charts.by_step(queries.usage(request, over), over)
    used = queries.usage(request, over, (by,), at_most=MAX_ROWS)
    failures = queries.failures(request)
    return render(
        request,
        "overview.html",
        current_page="overview",
        path="/",
        selected={"window": over.key, "by": by},
        tiles=_tiles(queues, _notes(queues, queries.workers(request), usage_charts.total(steps), over, now)),
        problems=queries.problems(request),
        pauses=queries.pauses(request),
        charts=[usage_charts.throughput_chart(steps, over, fmt), *usage_charts.mean_charts(steps, over, fmt)],
        backlog=usage_charts.backlog_chart(
            queries.backlog(request, over), over, fmt, lambda wanted: request.url("/jobs", q=str(wanted))
        ),
        windows=[(key, key) for key in WINDOWS],
        kinds=GROUPS,
        rows=_rows(request, by, queues, used, over),
        groups=with_filters(failures[:LATEST], request.redactor),
        more_groups=len(failures) - LATEST,
    )


def _tiles(queues: list[QueueStats], notes: dict[str, str]) -> list[tuple[State, str, str]]:
    """A state, how many jobs have it, and the small print."""
    more = "" if all(row.exact for row in queues) else "+"

    def count(state: str) -> str:
        return f"{sum(row.counts[state] for row in queues):,}{more if state in ('scheduled', 'retrying') else ''}"

    return [(state, count(state.name), notes.get(state.name, "")) for state in (*SUMMARY, STATE_OF[Status.COMPLETED])]


def _notes(queues: list[QueueStats], workers: list[WorkerRow], ran: Sums, over: Window, now: int) -> dict[str, str]:
    live = alive(workers, now)
    slots = sum(worker.concurrency for worker in live)
    return {
        "queued": _oldest_note(queues, now),
        "scheduled": _next_note(queues, now),
        "retrying": "after a failure",
        "blocked": "wait for others",
        "processing": f"of {plural(slots, 'slot')}, {plural(len(live), 'worker')}",
        "failed": f"{plural(ran.failures, 'failed run')} in {over.key}",
        "completed": f"{ran.completed:,} in {over.key}",
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


def _rows(request: Request, by: str, queues: list[QueueStats], used: list[Usage], over: Window) -> list[GroupRow]:
    by_name = usage_charts.by_key(used)
    latency = queries.latency(request) if by == "type" else {}
    counts = queries.tenants(request) if by == "tenant" else _counts(queues, by)
    names = sorted({*by_name, *counts}, key=lambda name: (-sum(row.runs for row in by_name.get(name, ())), name))

    def row(name: str) -> GroupRow:
        rows = by_name.get(name, [])
        runs = [step.runs for step in usage_charts.by_step(rows, over)]
        spark = charts.spark(usage_charts.thinned(runs, SPARK_BARS), f"Runs of {name or 'no tenant'}")
        return name, counts.get(name, {}), latency.get(name), usage_charts.total(rows), spark

    return [row(name) for name in names[:MAX_ROWS]]


def _counts(queues: Iterable[QueueStats], by: str) -> Mapping[str, Mapping[str, int]]:
    """By type or queue, then by state."""
    found: dict[str, Counter[str]] = defaultdict(Counter)
    for row in queues:
        if row.others:  # the table has only the largest
            continue
        found[row.type if by == "type" else row.queue].update(row.counts)
    return found


@get("/failures", "Failed jobs, grouped", page=True, for_tenants=False)
def failures(request: Request) -> Response:
    groups = with_filters(queries.failures(request), request.redactor)
    return render(request, "failures.html", current_page="failures", groups=groups)


def with_filters(found: Sequence[FailureGroup], hide: Redactor) -> list[tuple[FailureGroup, str, str]]:
    """Each with the filter that finds its jobs, and the one that finds the failed ones: only they can be retried."""
    groups = [views.failure(group, hide) for group in found]
    errors = [hide.searchable(group.error.partition(HIDDEN)[0])[:MOST_SEARCHED] for group in groups]
    return [
        (group, _filter(group, error, "failed", "retrying"), _filter(group, error, "failed"))
        for group, error in zip(groups, errors, strict=True)
    ]


def _filter(group: FailureGroup, error: str, *statuses: str) -> str:
    """The text before a secret is enough to find them: a page's address must not contain the secret."""
    return str(Filter(statuses=statuses, types=(group.type,), errors=((error,),) if error else ()))


@get("/workers", "Workers and queues", page=True, for_tenants=False)
def workers(request: Request) -> Response:
    now, rows = request.app.store.now(), queries.workers(request)
    live = alive(rows, now)
    workers = sorted((views.worker(row, now) for row in rows), key=lambda worker: (worker.live, worker.name))
    every = queries.queues(request)
    page, pages = _page(request.text("page"), len(every))
    found = [
        (row, row.oldest_due if row.counts["queued"] else None) for row in every[(page - 1) * MAX_ROWS :][:MAX_ROWS]
    ]
    queues = [(row, views.moment(at), sum(handles(w, row.queue, row.type) for w in live)) for row, at in found]
    return render(
        request,
        "workers.html",
        current_page="workers",
        workers=workers,
        queues=queues,
        queue_heads=QUEUE_HEADS,
        pauses=request.app.pauses(),  # not from the cache, as the next: it follows a button
        limits=request.jobs.limits(),
        page=page,
        pages=pages,
    )


def _page(text: str, rows: int) -> tuple[int, int]:
    """The number of a page, from 1 on, and how many there are. What is no page is the nearest one."""
    pages = max(1, -(-rows // MAX_ROWS))
    return min(max(1, int(text) if text.isascii() and text.isdigit() and len(text) < 10 else 1), pages), pages
