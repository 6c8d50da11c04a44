"""How many."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from treadle import clock
from treadle.filters import Filter
from treadle.web.api.job_list import FILTERS, filter_of
from treadle.web.api.schemas import Rest, Stats
from treadle.web.http import Request, Response
from treadle.web.route import Parameter, Route
from treadle.web.site import Site

COUNTED = 100_000
"""So many of the newest jobs, where there is no tally."""
SHARE = 0.05
"""Part of the time that may be spent on counting one thing: by tenant or subject every job is looked at."""
MOST = 200
"""Groups of one answer: there may be a tenant for every job."""
GROUPS = "Some of status, type, queue, tenant, subject, with commas between them"
Groups = Annotated[str, Meta(pattern=r"^(status|type|queue|tenant|subject)(,(status|type|queue|tenant|subject)){0,4}$")]


def stats(site: Site, request: Request) -> Response:
    by = tuple(dict.fromkeys(request.query["group_by"].split(",")))
    wanted = filter_of(request)
    return Response(data=site.cached(("stats", by, wanted), 0.5, lambda: _count(site, by, wanted), share=SHARE))


def _count(site: Site, by: tuple[str, ...], wanted: Filter) -> Stats:
    store = site.app.store
    found = store.counts(by, wanted, COUNTED)
    rows = sorted(found.rows, key=lambda row: -row["count"])
    rest = Rest(groups=len(rows[MOST:]), count=sum(row["count"] for row in rows[MOST:]))
    return Stats(items=rows[:MOST], other=rest, exact=found.exact, as_of=clock.to_datetime(store.now()))


ROUTES = (
    Route(
        method="GET",
        path="/api/stats",
        do=stats,
        summary="How many jobs there are, grouped",
        parameters=(
            *FILTERS,
            Parameter("group_by", Groups, GROUPS, default="status"),
        ),
        answers={200: Stats},
    ),
)
