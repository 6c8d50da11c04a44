"""One job: what it is, where it is, why it is not running, and what became of each attempt."""

from __future__ import annotations

import shlex
from typing import Any, NamedTuple

from markupsafe import Markup

from treadle import codec, views
from treadle.filters import Filter
from treadle.job import Attempt, Job, Status, state_of
from treadle.web import charts, formatting, highlight
from treadle.web.api.jobs import the_job
from treadle.web.http import Request, Response
from treadle.web.pages import cached, timeline
from treadle.web.pages.actions import ACTS, forbids
from treadle.web.render import render
from treadle.web.route import Route
from treadle.web.site import Site

SAME = ("queue", "tenant", "subject", "priority", "max_attempts")


class Try(NamedTuple):
    """An unsuccessful attempt, and its traceback twice: one's own frames, and all of them."""

    attempt: Attempt
    worker: str
    own: Markup
    whole: Markup
    text: str


def job(site: Site, request: Request) -> Response:
    found = the_job(site, request)
    history = [views.attempt(attempt) for attempt in site.app.attempts(found.id)]
    why = views.why(site.app.why(found.id))
    names = {worker.id: worker.name for worker in cached.workers(site)}
    now = formatting.of(request).now
    parts = timeline.parts(found, history, now)
    safe = views.job(found)
    return render(
        site,
        request,
        "job.html",
        place="jobs",
        job=safe,
        state=state_of(found, now),
        why=why,
        parts=parts,
        ribbon=charts.ribbon([(part.tone, part.tip, part.seconds) for part in parts], "Where its time went"),
        tries=[_try(one, names) for one in reversed(history)],
        names=names,
        actions=[(act, forbids(act.key, found, now)) for act in ACTS.values()] if can_change(site, request) else [],
        may_clone=request.caller.may("enqueue") and not site.read_only,
        copies=copies(request, safe),
        same=_same(found),
        payload=highlight.json(safe.payload),
        result=highlight.json(safe.result) if found.status is Status.COMPLETED else None,
    )


def _same(job: Job) -> dict[str, str]:
    """Filters for what it has in common with others."""
    return {
        "type": str(Filter(types=(job.type,))),
        "queue": str(Filter(queues=(job.queue,))),
        "tenant": str(Filter(tenants=(job.tenant,))),
        "subject": str(Filter(subjects=(job.subject,))),
    }


def can_change(site: Site, request: Request) -> bool:
    """For looks only: the routes decide."""
    return request.caller.may("manage") and not site.read_only


def _try(attempt: Attempt, names: dict[str, str]) -> Try:
    lines = highlight.traceback(attempt.traceback or "")
    own = highlight.own(lines)
    worker = names.get(attempt.worker_id, attempt.worker_id) or "by hand"
    whole = highlight.marked(lines) if own != lines else Markup("")
    return Try(attempt, worker, highlight.marked(own), whole, attempt.traceback or "")


def copies(request: Request, job: Job) -> list[tuple[str, str]]:
    """What can be copied: the job, and two ways to enqueue one like it."""
    options = {name: value for name in SAME if (value := getattr(job, name)) not in ("", 0)}
    given = "".join(f", {name}={value!r}" for name, value in options.items())
    body = codec.encode({"type": job.type, "payload": job.payload, **options}).decode()
    where = request.raw.url.replace(path="", query="", fragment="")
    parts = ["curl", f"{where}{request.url('/api/jobs')}", "-H", "Authorization: Bearer …", "--json", body]
    return [
        ("id", job.id),
        ("JSON", highlight.pretty(_plain(job))),
        ("curl", " ".join(map(shlex.quote, parts))),
        ("Python", f"td.enqueue({job.type!r}, {job.payload!r}{given})"),
    ]


def _plain(job: Job) -> Any:
    return codec.decode(codec.encode(job))


ROUTES = (Route(method="GET", path="/jobs/{id}", do=job, summary="One job", page=True),)
