"""Usage by type, tenant or queue: runs, failures, time and cost. As a page and as CSV."""

from __future__ import annotations

import csv
import io

from treadle.web import formatting
from treadle.web.pages import queries, usage_charts
from treadle.web.pages.usage_charts import LONG_WINDOWS, Window
from treadle.web.render import render
from treadle.web.route import Request, Response, get

KINDS = (("type", "By type"), ("tenant", "By tenant"), ("queue", "By queue"))
MAX_ROWS = 500
"""Rows of the table. The CSV file has them all."""
KEY = ("type", "queue", "tenant")
COLUMNS = ["from", "seconds", *KEY, "runs", "completed", "failures", "busy_seconds", "waiting_seconds"]
Chosen = tuple[Window, str, str | None, str]
"""What the address selects: the window, the key that the table groups by, a tenant or None, a type or ''."""


@get("/insights", "Usage", page=True)
def insights(request: Request) -> Response:
    fmt = formatting.formatter_for(request)
    over, by, tenant, type = _chosen(request)
    steps = usage_charts.by_step(queries.usage(request, over, (), tenant, type or None), over)
    groups = queries.usage(request, usage_charts.in_one_step(over), (by,), tenant, type or None, MAX_ROWS + 1)
    busiest = sorted(groups, key=lambda row: (-row.runs, row.key))[:MAX_ROWS]
    table = [(row.key[0], usage_charts.total([row])) for row in busiest]
    table.sort(key=lambda row: (-row[1].busy, row[0]))
    return render(
        request,
        "insights.html",
        current_page="insights",
        path="/insights",
        selected={"window": over.key, "by": by, "tenant": tenant, "type": type},
        windows=[(key, key) for key in LONG_WINDOWS],
        kinds=_kinds(request),
        types=_choices(request, over, "type", tenant, type),
        tenants=_choices(request, over, "tenant", None, tenant) if request.caller.tenant is None else [],
        charts=[
            usage_charts.throughput_chart(steps, over, fmt),
            usage_charts.seconds_chart("busy", "good", [s.busy for s in steps], over, fmt),
            usage_charts.seconds_chart("waiting", "calm", [s.waiting for s in steps], over, fmt),
        ],
        rows=table,
        has_more=len(groups) > MAX_ROWS,
        all=usage_charts.total(steps),
        csv=request.url("/insights.csv", window=over.key, tenant=tenant, type=type),
    )


@get("/insights.csv", "Usage as CSV", page=True)
def export(request: Request) -> Response:
    """One row per step, type, queue and tenant: everything that the page sums up."""
    over, _, tenant, type = _chosen(request)
    out = io.StringIO()
    sheet = csv.writer(out, lineterminator="\n")
    sheet.writerow(COLUMNS)
    for row in queries.usage(request, over, KEY, tenant, type or None):
        names = [_harmless(name) for name in row.key]
        numbers = [row.runs, row.completed, row.failures, f"{row.busy:.6f}", f"{row.waiting:.6f}"]
        sheet.writerow([row.at.isoformat(), over.step, *names, *numbers])
    headers = {"Content-Disposition": f'attachment; filename="treadle-usage-{over.key}.csv"'}
    return Response(text=out.getvalue(), media="text/csv; charset=utf-8", headers=headers)


def _choices(request: Request, over: Window, name: str, tenant: str | None, chosen: str | None) -> list[str]:
    """What a menu offers: the names that ran most, and what is chosen."""
    found = queries.usage(request, usage_charts.in_one_step(over), (name,), tenant, None, MAX_ROWS)
    return sorted({*(row.key[0] for row in found), chosen or ""} - {""})


def _harmless(name: str) -> str:
    """A spreadsheet would run a cell that starts like a formula."""
    return f"'{name}" if name[:1] in ("=", "+", "-", "@", "\t", "\r") else name


def _chosen(request: Request) -> Chosen:
    over = usage_charts.window(request.text("window", "24h"), request.jobs.now(), LONG_WINDOWS)
    by = request.text("by") if request.text("by") in dict(_kinds(request)) else "type"
    bound = request.caller.tenant
    return over, by, bound if bound is not None else request.text("tenant") or None, request.text("type")


def _kinds(request: Request) -> list[tuple[str, str]]:
    """A caller bound to a tenant has only one."""
    return [kind for kind in KINDS if kind[0] != "tenant" or request.caller.tenant is None]
