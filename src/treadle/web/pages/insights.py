"""Usage by type, tenant or queue: runs, failures, time and cost. As a page and as CSV."""

from __future__ import annotations

import csv
import io

import msgspec

from treadle.job import Usage
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
    rows = _usage(request, over, by, tenant)
    kept = [row for row in rows if not type or row.key[1] == type]
    steps = usage_charts.by_step(kept, over)
    table = [(name, usage_charts.total(used)) for name, used in usage_charts.by_key(kept).items()]
    table.sort(key=lambda row: (-row[1].busy, row[0]))
    return render(
        request,
        "insights.html",
        current_page="insights",
        path="/insights",
        selected={"window": over.key, "by": by, "tenant": tenant, "type": type},
        windows=[(key, key) for key in LONG_WINDOWS],
        kinds=_kinds(request),
        types=_choices({row.key[1] for row in rows}, type),
        tenants=_choices({row.key[2] for row in rows}, tenant) if request.caller.tenant is None else [],
        charts=[
            usage_charts.throughput_chart(steps, over, fmt),
            usage_charts.seconds_chart("busy", "good", [s.busy for s in steps], over, fmt),
            usage_charts.seconds_chart("waiting", "calm", [s.waiting for s in steps], over, fmt),
        ],
        rows=table[:MAX_ROWS],
        left_out=max(0, len(table) - MAX_ROWS),
        all=usage_charts.total(kept),
        csv=request.url("/insights.csv", window=over.key, tenant=tenant, type=type),
    )


@get("/insights.csv", "Usage as CSV", page=True)
def export(request: Request) -> Response:
    """One row per step, type, queue and tenant: everything that the page sums up."""
    over, _, tenant, type = _chosen(request)
    out = io.StringIO()
    sheet = csv.writer(out, lineterminator="\n")
    sheet.writerow(COLUMNS)
    for row in queries.usage(request, over, KEY, tenant):
        if not type or row.key[0] == type:
            names = [_harmless(name) for name in row.key]
            numbers = [row.runs, row.completed, row.failures, f"{row.busy:.6f}", f"{row.waiting:.6f}"]
            sheet.writerow([row.at.isoformat(), over.step, *names, *numbers])
    headers = {"Content-Disposition": f'attachment; filename="treadle-usage-{over.key}.csv"'}
    return Response(text=out.getvalue(), media="text/csv; charset=utf-8", headers=headers)


def _choices(names: set[str], chosen: str | None) -> list[str]:
    """What a menu offers: not more than the table has rows, and always what is chosen."""
    return sorted({*sorted(names)[:MAX_ROWS], chosen or ""} - {""})


def _harmless(name: str) -> str:
    """A spreadsheet would run a cell that starts like a formula."""
    return f"'{name}" if name[:1] in ("=", "+", "-", "@", "\t", "\r") else name


def _chosen(request: Request) -> Chosen:
    over = usage_charts.window(request.text("window", "24h"), request.app.store.now(), LONG_WINDOWS)
    by = request.text("by") if request.text("by") in dict(_kinds(request)) else "type"
    bound = request.caller.tenant
    return over, by, bound if bound is not None else request.text("tenant") or None, request.text("type")


def _kinds(request: Request) -> list[tuple[str, str]]:
    """A caller bound to a tenant has only one."""
    return [kind for kind in KINDS if kind[0] != "tenant" or request.caller.tenant is None]


def _usage(request: Request, over: Window, by: str, tenant: str | None) -> list[Usage]:
    """With the key that the table groups by, then type, then tenant."""
    keys = tuple(dict.fromkeys((by, "type", "tenant")))
    columns = [keys.index(name) for name in (by, "type", "tenant")]
    rows = queries.usage(request, over, keys, tenant)
    return [msgspec.structs.replace(row, key=tuple(row.key[n] for n in columns)) for row in rows]
