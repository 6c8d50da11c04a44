"""The first page: what is going on, and what is wrong."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from markupsafe import Markup

from treadle import clock
from treadle.diagnosis import is_alive
from treadle.filters import Filter
from treadle.job import STATE_NAMES, STATE_OF, SUMMARY, Latency, State, Status, Usage
from treadle.stores.rows import QueueStats
from treadle.units import format_duration, plural
from treadle.web import charts, formatting
from treadle.web.http import Request, Response, redirect
from treadle.web.pages import cached, usage_charts, windows
from treadle.web.pages.failures import groups
from treadle.web.pages.job import can_change
from treadle.web.pages.windows import WINDOWS, Window
from treadle.web.render import render
from treadle.web.route import Parameter, Route
from treadle.web.site import Site

GROUPS = (("type", "By type"), ("queue", "By queue"), ("tenant", "By tenant"))
TENANTS = 100
"""Shown of them, by how much they ran."""
SPARKS = 24
LATEST = 5


class Tile(NamedTuple):
    """A number that is a link."""

    key: str
    name: str
    value: str
    note: str
    href: str
    alarm: bool = False


class Line(NamedTuple):
    """A type, a queue or a tenant."""

    name: str
    filter: dict[str, str]
    counts: dict[str, int]
    latency: Latency | None
    sums: windows.Sums
    spark: Markup


def overview(site: Site, request: Request) -> Response:
    """Of everybody's jobs. Those bound to a tenant begin with the list of theirs."""
    if request.caller.tenant is not None:
        return redirect(request.url("/jobs"))
    say, now = formatting.of(request), site.app.store.now()
    over = windows.window(request.query["window"], now)
    by = request.query["by"] if request.query["by"] in dict(GROUPS) else "type"
    lanes = cached.lanes(site)
    usage = cached.usage(site, over, (by,))
    steps = windows.by_step(usage, over)
    found = cached.failures(site)

    def stay(**changed: str) -> str:
        return request.url("/", **({"window": over.key, "by": by} | changed))

    return render(
        site,
        request,
        "overview.html",
        place="overview",
        tiles=_tiles(site, request, lanes, now, over, steps),
        problems=cached.problems(site),
        charts=[
            usage_charts.throughput(steps, over, say),
            usage_charts.waits(steps, over, say),
            usage_charts.times(steps, over, say),
        ],
        over=over,
        windows=[(key, key) for key in WINDOWS],
        by=by,
        kinds=GROUPS,
        window_href=lambda key: stay(window=key),
        by_href=lambda key: stay(by=key),
        lines=_lines(site, by, lanes, usage, over),
        groups=groups(found[:LATEST]),
        more_groups=len(found) - LATEST,
        may_manage=can_change(site, request),
    )


def _tiles(
    site: Site, request: Request, lanes: list[QueueStats], now: int, over: Window, steps: list[windows.Sums]
) -> list[Tile]:
    workers = [worker for worker in cached.workers(site) if is_alive(worker, now)]
    slots = sum(worker.concurrency for worker in workers)
    oldest = min(
        (lane.oldest_due for lane in lanes if lane.oldest_due is not None and lane.counts["queued"]), default=None
    )
    soonest = min((lane.next_due for lane in lanes if lane.next_due is not None), default=None)
    more = "" if all(lane.exact for lane in lanes) else "+"
    failures = sum(step.failures for step in steps)

    waited = 0.0 if oldest is None else (now - oldest) / clock.SECOND
    notes = {
        "queued": f"oldest for {format_duration(waited)}" if oldest else "nothing waits",
        "scheduled": f"next {_in(soonest, now)}" if soonest else "none for later",
        "retrying": "after a failure",
        "processing": f"of {plural(slots, 'slot')}, {plural(len(workers), 'worker')}",
        "failed": f"{plural(failures, 'failed run')} in {over.key}",
        "completed": f"{sum(s.completed for s in steps):,} in {over.key}",
    }

    def tile(state: State) -> Tile:
        count = sum(lane.counts[state.name] for lane in lanes)
        value = f"{count:,}{more if state.name in ('scheduled', 'retrying') else ''}"
        href = request.url("/jobs", q=f"status:{state.name}")
        return Tile(state.name, state.label, value, notes.get(state.name, ""), href, state.tone == "bad" and count > 0)

    return [tile(state) for state in (*SUMMARY, STATE_OF[Status.COMPLETED])]


def _in(at: int, now: int) -> str:
    return f"in {format_duration((at - now) / clock.SECOND)}" if at > now else "now"


def _lines(site: Site, by: str, lanes: list[QueueStats], usage: list[Usage], over: Window) -> list[Line]:
    used = windows.by_key(usage)
    latency = cached.latency(site) if by == "type" else {}
    counts = cached.tenants(site) if by == "tenant" else _of_lanes(lanes, by)
    names = sorted({*used, *counts}, key=lambda name: (-sum(row.runs for row in used.get(name, ())), name))[:TENANTS]

    def line(name: str) -> Line:
        rows = used.get(name, [])
        steps = windows.by_step(rows, over)
        spark = charts.spark(windows.thinned([s.runs for s in steps], SPARKS), f"Runs of {name or 'no tenant'}")
        filter = {state: _filter(by, name, state) for state in ("", *STATE_NAMES)}
        return Line(name, filter, counts.get(name, {}), latency.get(name), windows.total(rows), spark)

    return [line(name) for name in names]


def _filter(by: str, name: str, state: str) -> str:
    fields: dict[str, Any] = {f"{by}s": (name,), "statuses": (state,) if state else ()}
    return str(Filter(**fields))


def _of_lanes(lanes: Iterable[QueueStats], by: str) -> dict[str, dict[str, int]]:
    found: dict[str, dict[str, int]] = {}
    for lane in lanes:
        sums = found.setdefault(getattr(lane, by), dict.fromkeys(STATE_NAMES, 0))
        for state in sums:
            sums[state] += lane.counts[state]
    return found


ROUTES = (
    Route(
        method="GET",
        path="/",
        do=overview,
        summary="What is going on",
        parameters=(
            Parameter("window", str, "1h, 6h, 24h or 7d", default="1h"),
            Parameter("by", str, "type, queue or tenant", default="type"),
        ),
        page=True,
    ),
)
