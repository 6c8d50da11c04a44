"""Workers and what they are doing, and how full each queue is."""

from __future__ import annotations

from datetime import datetime

from treadle import clock, views
from treadle.diagnosis import handles, is_alive
from treadle.stores.rows import QueueStats
from treadle.web.http import Request, Response
from treadle.web.pages import cached
from treadle.web.render import render
from treadle.web.route import route
from treadle.web.site import Site


@route("GET", "/workers", "Workers and queues", page=True, for_tenants=False)
def workers(site: Site, request: Request) -> Response:
    now, rows = site.app.store.now(), cached.workers(site)
    live = [row for row in rows if is_alive(row, now)]
    workers = sorted((views.worker(row, now) for row in rows), key=lambda worker: (worker.live, worker.name))
    queues = [(row, _oldest(row), sum(handles(w, row.queue, row.type) for w in live)) for row in cached.queues(site)]
    return render(site, request, "workers.html", place="workers", workers=workers, queues=queues)


def _oldest(row: QueueStats) -> datetime | None:
    return clock.to_datetime(row.oldest_due) if row.oldest_due is not None and row.counts["queued"] else None
