"""Probes for load balancers, and /metrics for Prometheus: gauges of the database, counters of the process."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Iterable
from functools import partial

import msgspec
from anyio import to_thread

from treadle import clock
from treadle.app import Treadle
from treadle.diagnosis import alive, silence, stalled_for
from treadle.errors import SchemaTooOld, TreadleError
from treadle.job import Usage
from treadle.limits import LimitState
from treadle.pauses import age
from treadle.prometheus import MEDIA, family
from treadle.web.api.stats import queue_stats
from treadle.web.problem import HTTPProblem
from treadle.web.route import Request, Response, get

FRESH_SECONDS, SHARE = 1.0, 0.2
"""Seconds for which a response is cached, so that two scrapers cost as much as one; and the part of the time that goes
into making it."""
MAX_TYPES = 1_000
"""Types that have counters of their own. The others share one, without a type."""

LEFT_OUT = "Queues and types without series of their own: the series without queue and type are their sums."

RUNNING = "Jobs that run under a limit; without a key, those of all keys."

STEP = 60
COUNTERS = {
    "runs": ("treadle_runs_total", "Attempts that ended."),
    "completed": ("treadle_completed_total", "Attempts that completed their job."),
    "failures": ("treadle_failures_total", "Attempts that failed."),
    "busy": ("treadle_busy_seconds_total", "Seconds in handlers."),
    "waiting": ("treadle_waiting_seconds_total", "Seconds from being due to being started."),
}
"""Sums of usage, by the name of its field: a name and an explanation."""
Key = tuple[str, str]
"""A type, and one of the counters."""

log = logging.getLogger("treadle.web")


class Health(msgspec.Struct):
    """All is well."""

    ok: bool = True


class Ready(msgspec.Struct, kw_only=True):
    """The database answers, and has the schema that this treadle needs."""

    ok: bool = True
    schema: int


@get("/livez", "The process answers", scope=None)
@get("/healthz", "The process answers", scope=None)
async def healthz(request: Request) -> Health:
    """Without a thread: it answers while every thread is busy."""
    return Health()


@get("/readyz", "The database answers, and its schema fits", scope=None, problems=(503,))
async def readyz(request: Request) -> Ready:
    """At most one query a second, because it is open to all; on a thread and a connection that pages do not use."""
    found = partial(request.web.cached, "schema", 1.0, lambda: _schema(request))
    return Ready(schema=await to_thread.run_sync(found, limiter=request.web.probe_limiter))


def _schema(request: Request) -> int:
    """Its number. Errors go to the log: this route is public, and must not show where the database is."""
    store = request.app.store
    try:
        found, needed = store.schema(), store.newest_schema()
        if found is None or found < needed:
            raise SchemaTooOld(store.where, found or 0, needed)
    except TreadleError as error:
        log.warning("not ready: %s", error)
        raise HTTPProblem(503, "the database cannot be used", "see the server's log, or run: treadle doctor") from None
    return found


@get("/metrics", "Numbers for Prometheus", for_tenants=False, returns="text/plain")
def metrics(request: Request) -> Response:
    """What takes long to make is kept longer."""
    made = request.web.cached("metrics", FRESH_SECONDS, lambda: text(request), share=SHARE)
    return Response(text=made, media=MEDIA)


def text(request: Request) -> str:
    """Gauges are of the database, the same in every process. Counters start with this process.

    A series without queue and type is the sum of those that have none of their own: to Prometheus, an empty label is
    none.
    """
    queues, workers, now = queue_stats(request), request.app.workers(), request.app.store.now()
    by_type = [({} if row.others else {"queue": row.queue, "type": row.type}, row) for row in queues]
    jobs = [({**labels, "status": state}, n) for labels, row in by_type for state, n in row.counts.items()]
    oldest = [(labels, max(0.0, (now - row.oldest_due) / 1e6)) for labels, row in by_type if row.oldest_due is not None]
    by_worker = [({"worker": worker.name, "id": worker.id}, worker) for worker in workers]
    slots = [(labels, worker.concurrency) for labels, worker in by_worker]
    busy = [(labels, worker.leases) for labels, worker in by_worker]
    silent = [(labels, silence(worker, now)) for labels, worker in by_worker]
    stalled = [(labels, stalled_for(worker, now) or 0.0) for labels, worker in by_worker]
    limits = [(_names_of(state), state) for state in request.jobs.limits()]
    held = [({pause.target.kind: pause.target.name}, age(pause, now)) for pause in request.app.pauses()]
    parts = [
        family("treadle_jobs", "gauge", "Jobs by queue, type and status.", jobs),
        family("treadle_types_left_out", "gauge", LEFT_OUT, [({}, sum(row.others for row in queues))]),
        family("treadle_oldest_due_seconds", "gauge", "How long the oldest due job has waited.", oldest),
        family("treadle_workers", "gauge", "Live workers.", [({}, len(alive(workers, now)))]),
        family("treadle_worker_slots", "gauge", "Jobs that a worker may run at once.", slots),
        family("treadle_worker_busy", "gauge", "Jobs that a worker has leased.", busy),
        family("treadle_worker_silent_seconds", "gauge", "Seconds since a worker's last heartbeat.", silent),
        family("treadle_worker_stalled_seconds", "gauge", "How long a worker's event loop has been blocked.", stalled),
        family("treadle_pause_seconds", "gauge", "How long a queue, type or tenant has been paused.", held),
        family("treadle_limit_running", "gauge", RUNNING, [(labels, state.running) for labels, state in limits]),
        family(
            "treadle_limit_concurrency",
            "gauge",
            "How many jobs may run at once under a limit, or under each key of it.",
            [(labels, state.concurrency) for labels, state in limits if state.concurrency is not None],
        ),
        *_counters(request),
    ]
    return "".join(parts)


def _names_of(state: LimitState) -> dict[str, str]:
    return {"limit": state.name, "key": state.key} if state.key else {"limit": state.name}


def _counters(request: Request) -> Iterable[str]:
    totals = request.web.counters.totals()
    for kind, (name, help) in COUNTERS.items():
        rows = [({"type": type} if type else {}, value) for (type, of), value in sorted(totals.items()) if of == kind]
        yield family(name, "counter", f"{help} Since this process started.", rows)


class Counters:
    """Sums the minutes that are over and queries the rest, so that a query never covers more than a few minutes."""

    def __init__(self, app: Treadle) -> None:
        self._app = app
        self._lock = threading.Lock()
        began = clock.now() // clock.SECOND
        self._since = began - began % STEP
        self._closed: Counter[Key] = Counter()
        """The sums of the minutes that are over."""
        self._types: set[str] = set()
        """Those with counters of their own: the first ones, so that no counter ever goes back."""

    def totals(self) -> dict[Key, float]:
        """Since the minute in which this process started, by type and kind."""
        with self._lock:
            now = self._app.store.now() // clock.SECOND
            start, end = (clock.to_datetime(at * clock.SECOND) for at in (self._since, now + STEP))
            rows = self._app.usage(start, end, by=("type",), step=STEP)
            found = self._closed + self._sum(rows)
            self._close(rows, now)
            return dict(found)

    def _close(self, rows: list[Usage], now: int) -> None:
        """A minute is over one minute after its end: until then a transaction may still add to it."""
        until = now - now % STEP - STEP
        if until > self._since:
            self._closed += self._sum([row for row in rows if clock.from_datetime(row.at) < until * clock.SECOND])
            self._since = until

    def _sum(self, rows: list[Usage]) -> Counter[Key]:
        found: Counter[Key] = Counter()
        for row in rows:
            [type] = row.key
            if len(self._types) < MAX_TYPES:
                self._types.add(type)
            for kind in COUNTERS:
                found[type if type in self._types else "", kind] += getattr(row, kind)
        return found
