"""Batches: a list, and one with the states of its members.

A batch is named by a parameter, not by the path: its name may contain a slash.
"""

from __future__ import annotations

from functools import partial

from treadle import views
from treadle.filters import Filter
from treadle.views import BatchesOut, BatchOut
from treadle.web.api.jobs import PAGE, Name
from treadle.web.api.schedules import TENANT, named
from treadle.web.api.stats import QUERY_SHARE
from treadle.web.route import Parameter, Request, get

NAMED = (Parameter("name", Name, "The name of the batch", default=""), TENANT)
SECONDS = 0.5


@get("/api/batches", "Batches, newest first, page by page", parameters=(TENANT, *PAGE))
def list_batches(request: Request) -> BatchesOut:
    page = request.batches.page(request.query["tenant"], request.query["limit"], request.query["cursor"])
    return BatchesOut(items=page.batches, next_cursor=page.next)


@get("/api/batch", "One batch: its progress, and its members by state", parameters=NAMED, problems=(404,))
def get_batch(request: Request) -> BatchOut:
    return batch_out(request, *named(request))


def batch_out(request: Request, name: str, tenant: str | None) -> BatchOut:
    """Its members are counted for all readers at once: there may be many."""
    found = request.batches.get(name, tenant)
    wanted = Filter(**views.members(found))
    key, make = ("members", str(wanted)), partial(request.jobs.counts_by_state, wanted)
    return views.batch_out(found, request.cached(key, SECONDS, make, share=QUERY_SHARE))
