"""`td.schedules`: schedules that are made and changed at run time, and a look at all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, TypeVar, Unpack

import msgspec

from treadle.backfill import Backfill
from treadle.codec import as_json, read_cursor
from treadle.errors import BadOption, ScheduleNotFound, StoreUnusable
from treadle.filters import Filter
from treadle.function import AnyJob, JobFunction, ScheduleOptions, make_schedule
from treadle.group_commit import warn_if_on_loop
from treadle.job import Job
from treadle.pauses import checked_text, checked_until
from treadle.pausing import who
from treadle.results import WithTwins, twin
from treadle.schedule import NewSchedule, Schedule
from treadle.schedule_diagnosis import ScheduleWhy, explain_schedule, to_schedule
from treadle.settings import wanted_name
from treadle.stores.user_connections import is_async, run_on_async

if TYPE_CHECKING:
    from treadle.app import Treadle
    from treadle.stores.base import WorkerRow
    from treadle.stores.rows import ScheduleRow

PAGE_LIMIT, NEWEST = 1_000, 10

T = TypeVar("T")
JobOrType = AnyJob | str
Progress = Callable[[int, int], None]
"""Gets how many moments are done, and how many there are."""


class SchedulePage(msgspec.Struct, frozen=True):
    """Some schedules, by tenant and name, and the cursor of the next page."""

    schedules: list[Schedule]
    next: str | None

    def __iter__(self) -> Iterator[Schedule]:
        return iter(self.schedules)

    def __len__(self) -> int:
        return len(self.schedules)

    def __getitem__(self, index: int) -> Schedule:
        return self.schedules[index]


def newest_jobs(app: Treadle, schedule: Schedule) -> list[Job]:
    return app.jobs(Filter(schedules=(schedule.name,), tenants=(schedule.tenant,)), limit=NEWEST).jobs


class Backfilled(msgspec.Struct, frozen=True):
    """What a backfill did: how many moments there were, and how many jobs are new. The others were stored before."""

    moments: int
    stored: int


class Schedules(WithTwins):
    """The schedules of an app. A name is unique for each tenant."""

    def __init__(self, app: Treadle) -> None:
        self._app = app

    # Look

    def list(self, tenant: str | None = None, *, limit: int = 200, cursor: str | None = None) -> SchedulePage:
        """A page of schedules, by tenant and name. Iterate over it; `.next` is the cursor of the next page.

        Without `tenant`, those of all tenants are listed.
        """
        if not 1 <= limit <= PAGE_LIMIT:
            raise BadOption("limit", limit, f"from 1 to {PAGE_LIMIT}; for more, pass cursor=page.next")
        after = ("", "") if cursor is None else read_cursor(cursor, tuple[str, str])
        rows = self._app.store.schedules(tenant, after, limit + 1)
        workers, now = self._workers(rows), self._app.store.now()
        shown = [to_schedule(row, workers, now, shown=1) for row in rows[:limit]]
        return SchedulePage(shown, as_json((shown[-1].tenant, shown[-1].name)) if len(rows) > limit else None)

    def get(self, name: str, *, tenant: str = "") -> Schedule | None:
        """The schedule, with its next ten moments, or None."""
        row = self._app.store.schedule(tenant, _wanted(name))
        return None if row is None else self._shown(row)

    def why(self, name: str, *, tenant: str = "") -> ScheduleWhy:
        """Why it did not fire, or when it will: every reason that holds, the deciding one first."""
        row = self._app.store.schedule(tenant, _wanted(name))
        if row is None:
            raise ScheduleNotFound(name, tenant)
        return explain_schedule(row, self._visible_workers(), self._app.store.now())

    def _visible_workers(self) -> Sequence[WorkerRow] | None:
        """None for a role that sees one tenant: it does not see workers."""
        try:
            return self._app.store.workers()
        except StoreUnusable:
            return None

    # Change

    def put(
        self, name: str, job: JobOrType, *, tenant: str = "", connection: Any = None, **options: Unpack[ScheduleOptions]
    ) -> Schedule:
        """Store a schedule, or change the one with this name. `job`: a job, or the name of its type.

        It wins over what code declares under this name, until it is deleted. With `connection`, it exists if and only
        if your open transaction commits.
        """
        if (connection := self._app._connection({"connection": connection})) is None:
            warn_if_on_loop("its twin: aput")
        return self._shown(self._app.store.put_schedule(self._new(name, job, options, tenant), connection))

    async def aput(
        self, name: str, job: JobOrType, *, tenant: str = "", connection: Any = None, **options: Unpack[ScheduleOptions]
    ) -> Schedule:
        """`put` without blocking the event loop."""
        store, new = self._app.store, self._new(name, job, options, tenant)
        if connection is None:
            row = await self._app._to_thread(store.put_schedule, new)
        elif is_async(connection):
            row = await run_on_async(connection, lambda theirs: store.put_schedule(new, theirs))
        else:
            row = store.put_schedule(new, connection)
        return await self._app._to_thread(self._shown, row)

    def _new(self, name: str, job: JobOrType, options: ScheduleOptions, tenant: str) -> NewSchedule:
        if not isinstance(job, JobFunction | str):
            raise BadOption("job", job, "a function with @td.job, or the name of its type")
        kind = (self._app.registry.get(job) or job) if isinstance(job, str) else job.job_type
        return make_schedule(name, kind, options, tenant)

    def pause(
        self,
        name: str,
        *,
        reason: str = "",
        until: datetime | timedelta | None = None,
        by: str | None = None,
        tenant: str = "",
    ) -> Schedule:
        """Fire none of its moments until it is resumed, or `until`. They are skipped, not missed. A deployment does not
        end a pause. `by`: who did it; default: the user of the operating system, and the host. Raises
        ScheduleNotFound."""
        end = None if until is None else checked_until(until, self._app.store.now())
        given = who(by), checked_text("reason", reason), end
        return self._shown(self._stored(name, tenant, lambda: self._app.store.pause_schedule(tenant, name, *given)))

    def resume(self, name: str, *, tenant: str = "") -> Schedule:
        """Fire again, from the next moment on. Raises ScheduleNotFound."""
        return self._shown(self._stored(name, tenant, lambda: self._app.store.resume_schedule(tenant, name)))

    def delete(self, name: str, *, tenant: str = "") -> Schedule:
        """Forget a schedule. Its jobs stay. Raises ScheduleNotFound, and ScheduleDeclared if a live worker has it."""
        return self._shown(self._app.store.delete_schedule(tenant, _wanted(name)))

    def run_now(self, name: str, *, tenant: str = "") -> Job:
        """Store a job of it now, even if it is paused or another one runs. Its moments stay as they are. Raises
        ScheduleNotFound."""
        return self._app._waking(self._stored(name, tenant, lambda: self._app.store.fire_now(tenant, name)))

    def backfill(
        self, name: str, start: datetime, end: datetime, *, tenant: str = "", progress: Progress | None = None
    ) -> Backfilled:
        """Store the jobs of all moments from `start` on and before `end`, in short transactions.

        Moments that have a job are left out, so you can repeat it. `overlap` does not apply. `progress` is called after
        each transaction.
        """
        work = self._stored(name, tenant, lambda: Backfill.between(self._app.store, tenant, name, start, end))
        for _ in work:
            if progress is not None:
                progress(work.done + work.skipped, work.total)
        self._app._wake()
        return Backfilled(work.total, work.done)

    # Async twins

    alist = twin(list)
    aget = twin(get)
    awhy = twin(why)
    apause = twin(pause)
    aresume = twin(resume)
    adelete = twin(delete)
    arun_now = twin(run_now)
    abackfill = twin(backfill)

    def _stored(self, name: str, tenant: str, change: Callable[[], T]) -> T:
        """`change`, for a stored schedule. If the code of this app declares it and no worker has stored it, this
        does."""
        _wanted(name)
        try:
            return change()
        except ScheduleNotFound:
            declared = self._app.registry.schedules.get(name)
            if declared is None or declared.tenant != tenant:
                raise
            self._app.store.declare_schedules([declared])
            return change()

    def _shown(self, row: ScheduleRow) -> Schedule:
        return to_schedule(row, self._workers([row]), self._app.store.now())

    def _workers(self, rows: Sequence[ScheduleRow]) -> Sequence[WorkerRow]:
        """The workers, if they matter. A role that sees one tenant does not see workers."""
        return self._app.store.workers() if any(row.source == "code" for row in rows) else ()


def _wanted(name: str) -> str:
    return wanted_name("schedule", name)
