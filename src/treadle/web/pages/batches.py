"""The pages of batches: a list, and one batch with its progress and what holds it up."""

from __future__ import annotations

from treadle.job import STATES, State
from treadle.views import BatchOut, Total
from treadle.web.api.batches import batch_out
from treadle.web.render import render
from treadle.web.route import Request, Response, get

MAX_ROWS = 100


@get("/batches", "Batches", page=True)
def batches(request: Request) -> Response:
    tenant, cursor = request.text("tenant") or None, request.text("cursor") or None
    page = request.batches.page(tenant, MAX_ROWS, cursor)
    return render(
        request,
        "batches.html",
        current_page="batches",
        batches=page.batches,
        tenant=tenant,
        older=request.url("/batches", tenant=tenant, cursor=page.next) if page.next else None,
        first=request.url("/batches", tenant=tenant) if cursor else None,
    )


@get("/batch", "One batch", page=True)
def batch(request: Request) -> Response:
    out = batch_out(request, request.text("name"), request.text("tenant") or None)
    return render(request, "batch.html", current_page="batches", one=out.batch, rows=held_up_by(out))


def held_up_by(out: BatchOut) -> list[tuple[State, Total]]:
    """The states that members are in: those that need somebody first, then those that have not ended."""
    order = sorted(STATES, key=lambda state: (state.tone != "bad", state.final))
    return [(state, out.states[state.name]) for state in order if out.states[state.name].value]
