"""Who works, on what, and how full each queue is."""

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
from treadle.web.route import Route
from treadle.web.site import Site


class WorkerCard(NamedTuple):
    """A worker as the page shows it."""

    shown: WorkerOut
    filter: str
    stranger: bool
    """It runs another version than this dashboard."""


class Lane(NamedTuple):
    """A type in a queue: what waits, who could take it."""

    row: QueueStats
    oldest: datetime | None
    takers: int
    filters: dict[str, str]


def workers(site: Site, request: Request) -> Response:
    now = site.app.store.now()
    found, lanes = cached.workers(site), cached.lanes(site)
    cards = sorted((_card(row, now) for row in found), key=lambda card: (card.shown.live, card.shown.name))
    living = [row for row in found if is_alive(row, now)]
    return render(
        site, request, "workers.html", place="workers", cards=cards, lanes=[_lane(lane, living) for lane in lanes]
    )


def _card(row: WorkerRow, now: int) -> WorkerCard:
    return WorkerCard(
        shown=views.worker(row, now),
        filter=str(Filter(statuses=("processing",), workers=(row.id,))),
        stranger=row.version not in ("", __version__),
    )


def _lane(lane: QueueStats, living: list[WorkerRow]) -> Lane:
    filters = {
        state.name: str(Filter(statuses=(state.name,), queues=(lane.queue,), types=(lane.type,))) for state in SUMMARY
    }
    oldest = clock.to_datetime(lane.oldest_due) if lane.oldest_due is not None and lane.counts["queued"] else None
    takers = sum(handles(worker, lane.queue, lane.type) for worker in living)
    return Lane(lane, oldest, takers, filters)


ROUTES = (Route(method="GET", path="/workers", do=workers, summary="Workers and queues", page=True, for_tenants=False),)
