"""Workers and what they are doing, and how full each queue is."""

from __future__ import annotations

from datetime import datetime
from typing import NamedTuple

from treadle import clock, views
from treadle.diagnosis import handles, is_alive
from treadle.filters import Filter
from treadle.job import SUMMARY
from treadle.stores.base import WorkerRow
from treadle.stores.rows import QueueStats
from treadle.version import __version__
from treadle.views import WorkerOut
from treadle.web.http import Request, Response
from treadle.web.pages import cached
from treadle.web.render import render
from treadle.web.route import route
from treadle.web.site import Site


class WorkerCard(NamedTuple):
    """A worker as the page shows it."""

    worker: WorkerOut
    filter: str
    other_version: bool
    """It runs another version than this dashboard."""


class QueueCard(NamedTuple):
    """A type in a queue: its jobs by state, and how many workers handle it."""

    row: QueueStats
    oldest: datetime | None
    workers: int
    filters: dict[str, str]


@route("GET", "/workers", "Workers and queues", page=True, for_tenants=False)
def workers(site: Site, request: Request) -> Response:
    now, rows = site.app.store.now(), cached.workers(site)
    live = [row for row in rows if is_alive(row, now)]
    cards = sorted((_worker_card(row, now) for row in rows), key=lambda card: (card.worker.live, card.worker.name))
    queues = [_queue_card(row, live) for row in cached.queues(site)]
    return render(site, request, "workers.html", place="workers", cards=cards, queues=queues)


def _worker_card(row: WorkerRow, now: int) -> WorkerCard:
    filter = str(Filter(statuses=("processing",), workers=(row.id,)))
    return WorkerCard(views.worker(row, now), filter, other_version=row.version not in ("", __version__))


def _queue_card(row: QueueStats, live: list[WorkerRow]) -> QueueCard:
    states = [state.name for state in SUMMARY]
    filters = {state: str(Filter(statuses=(state,), queues=(row.queue,), types=(row.type,))) for state in states}
    oldest = clock.to_datetime(row.oldest_due) if row.oldest_due is not None and row.counts["queued"] else None
    return QueueCard(row, oldest, sum(handles(worker, row.queue, row.type) for worker in live), filters)
