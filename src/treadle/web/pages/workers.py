"""Who works, on what, and how full each queue is."""

from __future__ import annotations

from datetime import datetime
from typing import NamedTuple

from treadle import clock
from treadle.filters import Filter
from treadle.health import handles, is_live
from treadle.job import SUMMARY
from treadle.stores.base import WorkerRow
from treadle.stores.rows import QueueStats
from treadle.version import __version__
from treadle.web.http import Request, Response
from treadle.web.pages import cached
from treadle.web.render import render
from treadle.web.route import Route
from treadle.web.site import Site


class WorkerCard(NamedTuple):
    """A worker as the page shows it."""

    row: WorkerRow
    live: bool
    seen_at: datetime
    started_at: datetime
    doing: list[tuple[str, int, datetime]]
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
    hands = sorted((_hand(row, now) for row in found), key=lambda hand: (hand.live, hand.row.name))
    living = [row for row in found if is_live(row, now)]
    return render(
        site, request, "workers.html", place="workers", hands=hands, lanes=[_lane(lane, living) for lane in lanes]
    )


def _hand(row: WorkerRow, now: int) -> WorkerCard:
    return WorkerCard(
        row=row,
        live=is_live(row, now),
        seen_at=clock.to_datetime(row.seen_at),
        started_at=clock.to_datetime(row.started_at),
        doing=[(type, count, clock.to_datetime(since)) for type, count, since in row.doing],
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
