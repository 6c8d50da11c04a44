"""How many."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from windlass import clock
from windlass.web.api.shapes import Stats
from windlass.web.ask import Answer, Ask
from windlass.web.route import Parameter, Route
from windlass.web.site import Site

GROUPS = "Some of status, type, queue, tenant, subject, with commas between them"
Groups = Annotated[str, Meta(pattern=r"^(status|type|queue|tenant|subject)(,(status|type|queue|tenant|subject)){0,4}$")]


def stats(site: Site, ask: Ask) -> Answer:
    by = tuple(dict.fromkeys(ask.query["group_by"].split(",")))
    items = site.cached(("counts", by), 0.5, lambda: site.app.counts(by))
    return Answer(data=Stats(items=items, as_of=clock.to_datetime(clock.now())))


ROUTES = (
    Route(
        method="GET",
        path="/api/stats",
        do=stats,
        summary="How many jobs there are, grouped",
        parameters=(Parameter("group_by", Groups, GROUPS, default="status"),),
        answers={200: Stats},
    ),
)
