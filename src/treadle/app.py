"""`Treadle`, the object you hold: it declares jobs, enqueues them, manages them and makes workers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Unpack, overload

from treadle import clock
from treadle.backoff import DEFAULT
from treadle.batches import Batches, NewBatchBlock
from treadle.clock import Duration, in_seconds
from treadle.context import Tracing
from treadle.diagnosis import BEAT
from treadle.errors import BadOption, BadPayload, JobNotFound, MissingExtra, UnknownOption
from treadle.function import KNOWN_OPTIONS, Options, checked, encode_payload, make_request
from treadle.group_commit import warn_if_on_loop
from treadle.hooks import Hooks, dispatch_now
from treadle.job import ClaimedJob, Job, NewJob, R
from treadle.lease import Lease
from treadle.limit_changes import AppLimits
from treadle.management import Management, Statuses, statuses
from treadle.redact import Setting
from treadle.registry import Registry
from treadle.results import ResultPoller, id_of, result_of, twin
from treadle.schedules import Schedules
from treadle.settings import checked_name, checked_names, database_url, redactor_for, wanted_name
from treadle.stores import open_store
from treadle.stores.base import ClaimRequest, Store, TypePolicy
from treadle.worker.chores import PRUNED, prune, reconcile
from treadle.worker.health import Health
from treadle.worker.tick import TickReport, tick
from treadle.worker.worker import Worker

if TYPE_CHECKING:
    from treadle.web.app import WebApp, WebOptions
    from treadle.web.auth import Auth

RESCUE_AFTER = 60 * clock.SECOND
"""Microseconds of silence after which `rescue` declares a worker dead. It compares clocks, so it waits longer than
the workers, which watch each other's counts."""


class Treadle(Management):
    """Durable background jobs in one database.

    `url`: `sqlite:///jobs.db`; default `$TREADLE_URL`, else `sqlite:///treadle.db`.
    `synchronous`: "FULL" survives a power cut; "NORMAL" is faster and may lose the last moments then.
    `retention`: how long completed and cancelled jobs are kept. Default 7 days; None keeps them forever.
    `redact`: names whose values are hidden, too, where jobs are shown and logged. False hides nothing.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        synchronous: str = "FULL",
        retention: timedelta | None = timedelta(days=7),
        redact: Setting = True,
        clock: clock.Clock = clock.now,
    ) -> None:
        if retention is not None and not (isinstance(retention, timedelta) and retention >= timedelta(0)):
            way_out = "how long ended jobs are kept: a timedelta, or None to keep them forever"
            raise BadOption("retention", retention, way_out)
        self.registry = Registry(self)
        self.job = self.registry.job
        self.include = self.registry.include
        self.middleware = self.registry.middleware
        self.lifespan = self.registry.lifespan
        self.hooks = Hooks()
        self.on = self.hooks.on
        self.tracing: Tracing | None = None
        self.retention = retention
        self.redactor = redactor_for(redact)
        self.schedules = Schedules(self)
        self.limits = AppLimits(self)
        self.batches = Batches(self)
        self._wakers = set()
        self._use(open_store(database_url(url), synchronous=synchronous, clock=clock))

    def __repr__(self) -> str:
        return f"<Treadle {self.store.where}>"

    def _use(self, store: Store) -> None:
        """Use this store from now on. For tests: `treadle.testing.temporary` switches and switches back."""
        self.store = store
        self._policies: tuple[float, dict[str, TypePolicy]] = (0.0, {})
        self._start_over()

    def close(self) -> None:
        """Close all connections. If you use the app again, it reconnects."""
        self.store.close()

    # Enqueue

    def enqueue(self, type: str, payload: Mapping[str, Any] | None = None, /, **options: Unpack[Options]) -> Job:
        """Store a job by the name of its type. The producer needs no handler code."""
        [job] = self._submit([self.request(type, payload, **options)], options)
        return job

    async def aenqueue(self, type: str, payload: Mapping[str, Any] | None = None, /, **options: Unpack[Options]) -> Job:
        """`enqueue` without blocking the event loop."""
        request = await self._to_thread(self.request, type, payload, **options)
        [job] = await self._asubmit([request], options)
        return job

    def request(self, type: str, payload: Mapping[str, Any] | None = None, /, **options: Unpack[Options]) -> NewJob:
        """A checked request by name, for `enqueue_many`."""
        known = self.registry.get(wanted_name("type", type))
        try:
            checked(options)
        except UnknownOption as error:
            way_out = f"arguments are a dict: td.enqueue({type!r}, {{{error.option!r}: …}})"
            raise UnknownOption(error.option, KNOWN_OPTIONS, way_out) from None
        text = encode_payload(type, known, payload)
        if known is not None:
            return make_request(known.policy, known.dedupe, text, options)
        return make_request(self._policy(checked_name("type", type)), None, text, options)

    def enqueue_many(self, requests: Sequence[NewJob], *, connection: Any = None, detached: bool = False) -> list[Job]:
        """Store all requests or none, in one transaction."""
        return self._submit(_requests(requests), {"connection": connection, "detached": detached})

    async def aenqueue_many(
        self, requests: Sequence[NewJob], *, connection: Any = None, detached: bool = False
    ) -> list[Job]:
        """`enqueue_many` without blocking the event loop."""
        return await self._asubmit(_requests(requests), {"connection": connection, "detached": detached})

    def batch(
        self,
        name: str,
        then: NewJob | None = None,
        on_failure: NewJob | None = None,
        *,
        tenant: str = "",
        connection: Any = None,
    ) -> NewBatchBlock:
        """A named group of jobs: `with td.batch("import-7", then=report.request(n=7)) as batch: batch.add(…)`.

        It is stored with its members when the block ends; `async with` works, too. When all members have ended, `then`
        is enqueued if all of them completed, and `on_failure` if not, once. A member that is retried opens the batch
        again. Inside a handler, the batch is stored with its completion; with `connection`, in your open transaction.
        """
        return NewBatchBlock(self, name, then, on_failure, tenant, connection)

    def clone(self, id: str, payload: Mapping[str, Any] | None = None, **options: Unpack[Options]) -> Job:
        """Store a new job like that one, with another payload or other options if given. Raises JobNotFound."""
        job = self.get(id)
        if job is None:
            raise JobNotFound(id)
        same: Options = {"queue": job.queue, "tenant": job.tenant, "subject": job.subject}
        merged: Options = {**same, "priority": job.priority, "max_attempts": job.max_attempts, **options}
        try:
            request = self.request(job.type, job.payload if payload is None else payload, **merged)
        except BadPayload:
            if payload is not None:
                raise
            # The error would quote what is stored, which the caller need not be allowed to see.
            way_out = f"pass another one: td.clone({id!r}, {{…}})"
            raise BadPayload(f"the stored payload of job {id} does not fit {job.type!r} any more; {way_out}") from None
        [new] = self._submit([request], options)
        return new

    def _policy(self, type: str) -> TypePolicy:
        """The policy that workers published for a type, read at most every few seconds."""
        read_at, policies = self._policies
        if type not in policies or time.monotonic() - read_at > 5:
            policies = self.store.policies()
            self._policies = (time.monotonic(), policies)
        return policies.get(type) or TypePolicy(type=type)

    @overload
    def result(self, job: Job[R], *, timeout: Duration = 60) -> R: ...
    @overload
    def result(self, job: str, *, timeout: Duration = 60) -> Any: ...
    def result(self, job: Job | str, *, timeout: Duration = 60) -> Any:
        """Wait until the job, or the one with that id, has ended, and return its result, as the type that its handler
        says. Raises JobFailed, or ResultTimeout if it takes longer than `timeout`: 60 seconds by default."""
        warn_if_on_loop()
        poller = ResultPoller(self.store, id_of(job), in_seconds(timeout))
        while True:
            if ended := poller.look():
                return result_of(self.registry.with_result(ended))
            time.sleep(poller.pause())

    @overload
    async def aresult(self, job: Job[R], *, timeout: Duration = 60) -> R: ...
    @overload
    async def aresult(self, job: str, *, timeout: Duration = 60) -> Any: ...
    async def aresult(self, job: Job | str, *, timeout: Duration = 60) -> Any:
        """`result` without blocking the event loop."""
        poller = ResultPoller(self.store, id_of(job), in_seconds(timeout))
        while True:
            if ended := await self._to_thread(poller.look):
                return result_of(self.registry.with_result(ended))
            await asyncio.sleep(poller.pause())

    # Chores that every worker also does

    def rescue(self) -> int:
        """Return the jobs of dead workers, and jobs stuck beyond their timeout. Returns how many.

        Workers and ticks watch the count of each worker. This call does not wait for a beat, so it declares a worker
        dead only after a minute of silence by the database's clock.
        """
        return self.store.rescue(silent_for=RESCUE_AFTER)

    def reconcile(self) -> int:
        """Complete the jobs whose work exists already, according to `already_done`. Returns how many."""
        return reconcile(self.store, self.registry.types)

    def prune(self, *, older_than: Duration = timedelta(days=7), status: Statuses = PRUNED) -> int:
        """Delete jobs that ended longer ago than `older_than` (a timedelta, or seconds). Returns how many."""
        age = in_seconds(older_than)
        ended = statuses(status)
        if age < 0 or not ended or not all(s.is_final for s in ended):
            way_out = "an age of 0 or more, of completed, cancelled or failed jobs"
            raise BadOption("prune", (older_than, status), way_out)
        return sum(prune(self.store, ended, age))

    # Work

    def worker(
        self,
        *,
        concurrency: int = 10,
        queues: Sequence[str] = (),
        grace: Duration = 30.0,
        beat: Duration = BEAT,
        health: str | None = None,
    ) -> Worker:
        """A worker. `.run()` handles signals and blocks; `async with td.worker():` runs inside a web server, and
        `.start()` in a thread of a program without an event loop.

        `concurrency`: jobs at once. `queues`: only these; default all. `grace`: seconds that running jobs
        have to end when it stops. `beat`: seconds between two heartbeats. `health`: HOST:PORT at which it serves
        /livez, /readyz and /metrics, as long as it runs.
        """
        wait, every = in_seconds(grace), in_seconds(beat)
        probes = None if health is None else Health(address=health)
        names = checked_names("queues", queues)
        return Worker(self, concurrency=concurrency, queues=names, grace=wait, beat=every, health=probes)

    def tick(self, *, max_jobs: int = 100, max_seconds: Duration = 10) -> TickReport:
        """One bounded pass: rescue, claim at most `max_jobs`, run them here. For cron and serverless."""
        return tick(self, max_jobs, in_seconds(max_seconds))

    def _drained_here(self, raising: bool, max_jobs: int, max_seconds: float) -> TickReport | None:
        """What `treadle.testing.drain` ran in this thread. None: a worker in this process can run it."""
        return None

    def claim(
        self, n: int = 1, *, types: Sequence[str] | None = None, queues: Sequence[str] = (), lease: Duration = 300
    ) -> list[Lease]:
        """Claim up to `n` due jobs by hand. Each is yours for `lease` seconds; `extend` makes it longer."""
        until = clock.seconds(lease)
        if n < 1 or until <= 0:
            raise BadOption("claim", (n, lease), "claim at least 1 job, for more than 0 seconds")
        kinds = None if types is None else dict.fromkeys(checked_names("types", types), until)
        request = ClaimRequest(limit=n, types=kinds, queues=checked_names("queues", queues), lease_for=until)
        claimed = self.store.claim("", request)
        dispatch_now(self.hooks, self.hooks.started(claimed, ""))
        return [self._lease(c) for c in claimed]

    def _lease(self, claimed: ClaimedJob) -> Lease:
        job = self.store.get(claimed.id)
        assert job is not None
        known = self.registry.get(claimed.type)
        return Lease(job, claimed, self.store, self.hooks, known.backoff if known else DEFAULT, self._to_thread)

    def asgi(self, *, auth: Auth | None = None, **options: Unpack[WebOptions]) -> WebApp:
        """The dashboard and the HTTP API as an ASGI app that you mount. `auth(request)` decides who may do what.

        Without it, users sign in with a link that the server prints.
        """
        try:
            from treadle.web import asgi
        except ModuleNotFoundError as error:
            raise MissingExtra("the dashboard", str(error.name), "web") from None
        return asgi(self, auth=auth, **options)

    # Async twins

    aclone = twin(clone)
    arescue = twin(rescue)
    areconcile = twin(reconcile)
    aprune = twin(prune)
    atick = twin(tick)
    aclaim = twin(claim)


def _requests(requests: Sequence[NewJob]) -> Sequence[NewJob]:
    way_out = "a list of requests: [send_mail.request(to='…'), …]"
    given: Any = requests
    if not isinstance(given, Collection):  # a generator can be read only once
        raise BadOption("enqueue_many", given, way_out)
    for request in requests:
        if not isinstance(request, NewJob):
            raise BadOption("enqueue_many", request, way_out)
    return requests
