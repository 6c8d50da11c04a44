"""How far an operation over many jobs is."""

from __future__ import annotations

from treadle import clock
from treadle.web.api.bulk import as_out, the_operation
from treadle.web.http import Request, Response
from treadle.web.pages.actions import ACTS
from treadle.web.render import render
from treadle.web.route import Route
from treadle.web.site import Site

DONE = {"retry": "retried", "run_now": "told to run now", "cancel": "cancelled", "delete": "deleted"}


def operation(site: Site, request: Request) -> Response:
    found = as_out(the_operation(site, request))
    seconds = (
        clock.from_datetime(found.ended_at or found.updated_at) - clock.from_datetime(found.started_at)
    ) / clock.SECOND
    return render(
        site,
        request,
        "operation.html",
        place="jobs",
        operation=found,
        name=ACTS[found.action].name if found.action in ACTS else found.action,
        done_word=DONE.get(found.action, "done"),
        seconds=seconds,
        state="failed" if found.error else "completed" if found.ended_at else "processing",
    )


ROUTES = (Route(method="GET", path="/operations/{id}", do=operation, summary="A bulk operation", page=True),)
