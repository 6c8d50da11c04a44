"""What was run for whom, how long it took, how often it failed, and what it cost."""

from __future__ import annotations

import csv
import io
from typing import NamedTuple

import msgspec

from treadle.job import Usage
from treadle.web import formatting
from treadle.web.http import Request, Response
from treadle.web.pages import cached, usage_charts, windows
from treadle.web.pages.windows import LONGER, Sums, Window
from treadle.web.render import render
from treadle.web.route import Parameter, Route
from treadle.web.site import Site

KINDS = (("type", "By type"), ("tenant", "By tenant"), ("queue", "By queue"))
MOST = 500
"""Rows of the table; the CSV has them all."""


class Line(NamedTuple):
    name: str
    sums: Sums
    cost: float | None


class Asked(NamedTuple):
    """What the address says."""

    over: Window
    by: str
    tenant: str | None
    type: str


def insights(site: Site, request: Request) -> Response:
    asked, say = _asked(site, request), formatting.of(request)
    usage = _usage(site, asked)
    chosen = [row for row in usage if not asked.type or row.key[1] == asked.type]
    steps = windows.by_step(chosen, asked.over)
    lines = sorted((_line(site, name, rows) for name, rows in windows.by_key(chosen).items()), key=_most)

    def stay(**changed: str) -> str:
        kept = {"window": asked.over.key, "by": asked.by, "tenant": asked.tenant, "type": asked.type}
        return request.url("/insights", **(kept | changed))

    return render(
        site,
        request,
        "insights.html",
        place="insights",
        asked=asked,
        over=asked.over,
        windows=[(key, key) for key in LONGER],
        window_href=lambda key: stay(window=key),
        kinds=_kinds(request),
        by_href=lambda key: stay(by=key),
        types=sorted({row.key[1] for row in usage}),
        tenants=sorted({row.key[2] for row in usage} - {""}) if request.caller.tenant is None else [],
        charts=[
            usage_charts.throughput(steps, asked.over, say),
            usage_charts.seconds("busy", "good", [s.busy for s in steps], asked.over, say),
            usage_charts.seconds("waiting", "calm", [s.waiting for s in steps], asked.over, say),
        ],
        lines=lines[:MOST],
        left_out=max(0, len(lines) - MOST),
        all=Line("", windows.total(chosen), _cost(site, windows.total(chosen))),
        csv=request.url("/insights.csv", window=asked.over.key, tenant=asked.tenant, type=asked.type),
    )


def export(site: Site, request: Request) -> Response:
    """One row per step, type, queue and tenant: all that the page adds up."""
    asked = _asked(site, request)
    rows = cached.usage(site, asked.over, ("type", "queue", "tenant"), asked.tenant)
    out = io.StringIO()
    sheet = csv.writer(out, lineterminator="\n")
    sheet.writerow(
        [
            "from",
            "seconds",
            "type",
            "queue",
            "tenant",
            "runs",
            "completed",
            "failures",
            "busy_seconds",
            "waiting_seconds",
        ]
    )
    for row in rows:
        if not asked.type or row.key[0] == asked.type:
            names = [_harmless(name) for name in row.key]
            numbers = [row.runs, row.completed, row.failures, f"{row.busy:.6f}", f"{row.waiting:.6f}"]
            sheet.writerow([row.at.isoformat(), asked.over.step, *names, *numbers])
    name = f"treadle-usage-{asked.over.key}.csv"
    headers = {"Content-Disposition": f'attachment; filename="{name}"'}
    return Response(text=out.getvalue(), media="text/csv; charset=utf-8", headers=headers)


def _harmless(name: str) -> str:
    """A spreadsheet would run a cell that starts so."""
    return f"'{name}" if name[:1] in ("=", "+", "-", "@", "\t", "\r") else name


def _asked(site: Site, request: Request) -> Asked:
    over = windows.window(request.query["window"], site.app.store.now(), LONGER)
    by = request.query["by"] if request.query["by"] in dict(_kinds(request)) else "type"
    tenant = request.caller.tenant if request.caller.tenant is not None else request.query["tenant"] or None
    return Asked(over, by, tenant, request.query["type"])


def _kinds(request: Request) -> list[tuple[str, str]]:
    """Whoever is bound to a tenant has but one."""
    return [kind for kind in KINDS if kind[0] != "tenant" or request.caller.tenant is None]


def _usage(site: Site, asked: Asked) -> list[Usage]:
    """By what the table groups by, type and tenant."""
    by = tuple(dict.fromkeys((asked.by, "type", "tenant")))
    return [_keyed(row, by, asked.by) for row in cached.usage(site, asked.over, by, asked.tenant)]


def _keyed(row: Usage, by: tuple[str, ...], first: str) -> Usage:
    named = dict(zip(by, row.key, strict=True))
    key = (named[first], named["type"], named["tenant"])
    return msgspec.structs.replace(row, key=key)


def _line(site: Site, name: str, rows: list[Usage]) -> Line:
    sums = windows.total(rows)
    return Line(name, sums, _cost(site, sums))


def _cost(site: Site, sums: Sums) -> float | None:
    return None if site.price is None else sums.busy * site.price


def _most(line: Line) -> tuple[float, str]:
    return -line.sums.busy, line.name


PARAMETERS = (
    Parameter("window", str, "1h, 6h, 24h, 7d, 30d or 90d", default="24h"),
    Parameter("by", str, "type, tenant or queue", default="type"),
    Parameter("tenant", str, "Of this tenant only", default=""),
    Parameter("type", str, "Of this type only", default=""),
)
ROUTES = (
    Route(method="GET", path="/insights", do=insights, summary="Usage", parameters=PARAMETERS, page=True),
    Route(method="GET", path="/insights.csv", do=export, summary="Usage as CSV", parameters=PARAMETERS, page=True),
)
