"""A new job like one that exists, its payload changed first if need be."""

from __future__ import annotations

from typing import Any

import msgspec

from treadle import codec, views
from treadle.errors import TreadleError
from treadle.web import highlight
from treadle.web.api.jobs import the_job
from treadle.web.http import Request, Response, redirect
from treadle.web.render import render
from treadle.web.route import Route
from treadle.web.site import Site


def form(site: Site, request: Request) -> Response:
    job = the_job(site, request)
    return _page(site, request, highlight.pretty(views.job(job).payload))


def clone(site: Site, request: Request) -> Response:
    job = the_job(site, request)
    text = request.field("payload")
    try:
        edited = codec.decode(text.encode())
        new = site.app.clone(job.id, restored(edited, views.job(job).payload, job.payload))
    except (msgspec.MsgspecError, TreadleError, RecursionError) as error:
        return _page(site, request, text, status=400, error=str(error))
    site.audit(request, "clone", f"{job.id} → {new.id}")
    return redirect(request.url(f"/jobs/{new.id}"))


def restored(edited: Any, seen: Any, original: Any) -> Any:
    """What was hidden from the editor, and left as it was, is what it was."""
    if edited == seen:
        return original
    if isinstance(edited, dict) and isinstance(seen, dict) and isinstance(original, dict):
        return {
            key: restored(value, seen[key], original[key]) if key in seen and key in original else value
            for key, value in edited.items()
        }
    if isinstance(edited, list) and isinstance(seen, list) and isinstance(original, list):
        pairs = zip(edited, seen, original, strict=False)
        return [*(restored(*pair) for pair in pairs), *edited[len(original) :]]
    return edited


def _page(site: Site, request: Request, text: str, *, status: int = 200, error: str = "") -> Response:
    job = views.job(the_job(site, request))
    return render(site, request, "clone.html", status=status, place="jobs", job=job, text=text, error=error)


ROUTES = (
    Route(method="GET", path="/jobs/{id}/clone", do=form, summary="A job like this one", scope="enqueue", page=True),
    Route(method="POST", path="/jobs/{id}/clone", do=clone, summary="Enqueue it", scope="enqueue", page=True),
)
