"""The first page: what is going on."""

from __future__ import annotations

from windlass.web.ask import Answer, Ask
from windlass.web.render import render
from windlass.web.route import Route
from windlass.web.site import Site


def overview(site: Site, ask: Ask) -> Answer:
    counts = site.cached("counts", 0.5, site.app.counts)
    return render(site, ask, "overview.html", counts=counts)


ROUTES = (Route(method="GET", path="/", do=overview, summary="What is going on", page=True, for_tenants=False),)
