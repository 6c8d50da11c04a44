"""Who changed what, and how far bulk operations are."""

from __future__ import annotations

from treadle import clock, filters
from treadle.ids import is_id
from treadle.web.api.bulk import find_operation, operation_out
from treadle.web.pages.actions import ACTION_BUTTONS
from treadle.web.render import render
from treadle.web.route import Request, Response, get

MAX_ROWS = 100
MAX_OPERATIONS = 10


@get("/operations/{id}", "A bulk operation", page=True)
def operation(request: Request) -> Response:
    found = operation_out(find_operation(request))
    action = ACTION_BUTTONS.get(found.action)
    return render(
        request,
        "operation.html",
        current_page="jobs",
        operation=found,
        findable=len(found.filter) <= filters.LONGEST,
        name=action.name if action else found.action.capitalize(),
        done_word=action.done if action else "stored",
        skipped_because="it no longer applies to them" if action else "they were stored before",
        seconds=((found.ended_at or found.updated_at) - found.started_at).total_seconds(),
        state="failed" if found.error else "completed" if found.ended_at else "processing",
    )


def _job_of(what: str) -> tuple[str, str]:
    """The id of the job that a change is about, if it is one, and the rest of the text."""
    id, _, rest = what.partition(" ")
    return (id, rest) if is_id(id) else ("", what)


@get("/audit", "Who changed what", scope="manage", page=True, for_tenants=False)
def audit(request: Request) -> Response:
    cursor = request.text("cursor") or None
    rows = request.app.store.audits(MAX_ROWS, cursor)
    operations = request.app.store.operations(MAX_OPERATIONS) if cursor is None else []
    return render(
        request,
        "audit.html",
        current_page="audit",
        rows=[(row, clock.moment(row.at), *_job_of(row.what)) for row in rows],
        operations=[operation_out(one) for one in operations],
        older=request.url("/audit", cursor=rows[-1].id) if len(rows) == MAX_ROWS else None,
        newest=request.url("/audit") if cursor else None,
    )
