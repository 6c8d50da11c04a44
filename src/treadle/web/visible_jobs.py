"""The jobs that one caller may see and change: all of them, or those of one tenant. `request.jobs` is the way to them.

The tenant of a caller is bound here and nowhere else. For a caller bound to a tenant, jobs of others do not exist: a
job of another tenant and one that was never stored get the same answer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

import msgspec

from treadle import filters, views
from treadle.app import Treadle
from treadle.bulk import Bulk
from treadle.diagnosis import for_tenant
from treadle.errors import JobNotFound, RequestDiffers
from treadle.filters import Filter
from treadle.function import Changes, Options
from treadle.job import Attempt, Count, Job, NewJob, Page, Usage
from treadle.limits import LimitState
from treadle.lineage import MOST_RELATED, Lineage
from treadle.log_lines import LogLine
from treadle.pauses import Pause
from treadle.reasons import Why
from treadle.signals import send
from treadle.steps import Step
from treadle.stores.rows import JobCounts, Operation
from treadle.waits import Signal, Wait
from treadle.web.problem import HTTPProblem

if TYPE_CHECKING:
    from treadle.web.auth import Principal

JobAction = Callable[..., Job]
"""A method of Treadle that changes one job: retry, run_now, reschedule, cancel, delete, clone."""


class OfCaller(msgspec.Struct, frozen=True):
    """A part of the app, as one caller may see it."""

    _app: Treadle
    caller: Principal

    def _tenant(self, given: str | None) -> str:
        """The caller's own tenant, or the given one if the caller may choose."""
        bound = self.caller.tenant
        if bound is None:
            return given or ""
        if given not in (None, bound):
            text = f"tenant={given!r}: {self.caller.name} is bound to the tenant {bound!r}"
            raise HTTPProblem(403, text, "leave tenant out")
        return bound


class VisibleJobs(OfCaller, frozen=True):
    """What `Treadle` can do with stored jobs, for one caller."""

    def filter(self, wanted: Filter) -> Filter:
        """The filter, limited to what is shown, and to the caller's tenant if the caller is bound to one."""
        wanted, tenant = views.visible(wanted, self._app.redactor), self.caller.tenant
        if tenant is None:
            return wanted
        if not filters.matches(tenant, wanted.tenants):
            bound = f"{self.caller.name} is bound to the tenant {tenant!r}"
            raise HTTPProblem(403, bound, "leave tenant: out of the filter")
        return wanted.replace(tenants=(tenant,))

    def find(self, id: str) -> Job | None:
        job = self._app.get(id)
        return job if job is not None and self.caller.tenant in (None, job.tenant) else None

    def get(self, id: str) -> Job:
        job = self.find(id)
        if job is None:
            raise JobNotFound(id)
        return job

    def attempts(self, id: str) -> list[Attempt]:
        """Lease numbers count the claims of all tenants. For a caller bound to one, they count this job's."""
        found = self._app.attempts(self.get(id).id)
        if self.caller.tenant is None:
            return found
        return [msgspec.structs.replace(attempt, lease=n) for n, attempt in enumerate(found, 1)]

    def logs(self, id: str, after: int | None, limit: int) -> list[LogLine]:
        return self._app.logs(self.get(id).id, after, limit)

    def lineage(self, id: str, most: int = MOST_RELATED) -> Lineage:
        found = self._app.store.lineage(id, most, self.caller.tenant)
        if found is None:
            raise JobNotFound(id)
        return found

    def why(self, id: str) -> Why:
        job = self.get(id)
        found = self._app.why(job.id)
        return found if self.caller.tenant is None else for_tenant(found, job)

    def steps(self, id: str) -> list[Step]:
        return self._app.steps(self.get(id).id)

    def waits(self, id: str) -> list[Wait]:
        return self._app.waits(self.get(id).id)

    def signal(self, name: str, tenant: str | None) -> Signal | None:
        return self._app.get_signal(name, tenant=self._tenant(tenant))

    def page(self, wanted: Filter, limit: int, cursor: str | None) -> Page:
        return self._app.jobs(self.filter(wanted), limit=limit, cursor=cursor)

    def count(self, wanted: Filter) -> Count:
        return self._app.count(self.filter(wanted))

    def counts_by_state(self, wanted: Filter) -> dict[str, Count]:
        return self._app.counts_by_state(self.filter(wanted))

    def counts(self, by: Sequence[str], wanted: Filter, most: int) -> JobCounts:
        return self._app.store.counts(by, self.filter(wanted), most)

    def usage(self, since: datetime, until: datetime, *, tenant: str | None = None, **options: Any) -> list[Usage]:
        """As `td.usage`. `tenant`: only of this one. A caller bound to a tenant has no choice."""
        bound = self.caller.tenant
        return self._app.usage(since, until, tenant=tenant if bound is None else bound, **options)

    def pauses(self) -> list[Pause]:
        """What is paused. A caller bound to a tenant sees that tenant's pause, and no other."""
        return [pause for pause in self._app.pauses() if self.caller.tenant in (None, pause.tenant or None)]

    def limits(self) -> list[LimitState]:
        """All limits. A caller bound to a tenant sees what was changed for that tenant, and nothing of others."""
        found, bound = [views.limit(state, self._app.redactor) for state in self._app.limits.list()], self.caller.tenant
        if bound is None:
            return found
        own = [state for state in found if bound and (state.per, state.key) == ("tenant", bound)]
        return [msgspec.structs.replace(state, types=()) for state in own]

    def now(self) -> int:
        return self._app.store.now()

    # Changes

    def change(self, action: JobAction, id: str, *options: Any, **changes: Any) -> Job:
        return action(self._app, self.get(id).id, *options, **changes)

    def send_signal(self, name: str, value: Any, tenant: str | None) -> tuple[Signal, bool]:
        """Send a signal. Return the one that counts, and whether it is new."""
        return send(self._app, name, value, self._tenant(tenant), self.caller.name[:200])

    def request(self, type: str, payload: dict[str, Any], options: Options) -> NewJob:
        """A request to enqueue. A caller bound to a tenant enqueues for that one."""
        tenant = self.caller.tenant
        if tenant is not None:
            self._tenant(options.get("tenant"))
        return self._app.request(type, payload, **(options if tenant is None else {**options, "tenant": tenant}))

    def arguments(self, type: str) -> str:
        """The JSON schema of a type's arguments, of its handler here or as workers published it; '' if unknown."""
        known = self._app.registry.get(type)
        return known.signature.schema if known is not None else self._app.store.arguments(type)

    def published_types(self) -> list[str]:
        """The types that workers have published. A caller bound to a tenant learns only of those that it names."""
        if self.caller.tenant is not None:
            return []
        return sorted({*self._app.store.policies(), *self._app.registry.types})

    def insert(self, new_jobs: Sequence[NewJob]) -> list[Job]:
        return self._app.enqueue_many(new_jobs)

    def insert_once(self, key: str, hash: str, new_jobs: Sequence[NewJob]) -> list[Job]:
        """Stores them, unless this caller has sent the key before: then, the jobs of that request."""
        caller = self.caller
        own = msgspec.json.encode((caller.tenant, caller.name, key)).decode()  # so that no two callers share a key
        try:
            jobs, _ = self._app.store.insert_once(caller.tenant or "", own, hash, new_jobs)
        except RequestDiffers:
            raise RequestDiffers(key) from None
        return jobs

    def bulk(self, action: str, wanted: Filter, expected: int | None, changes: Changes) -> Bulk:
        return self._app.bulk(action, self.filter(wanted), expected=expected, **changes)

    def operation(self, id: str) -> Operation | None:
        """One about jobs of several tenants is not for a caller bound to one of them."""
        found = self._app.store.operation(id)
        if found is None or self.caller.tenant is None:
            return found
        return found if filters.read_back(found.filter).tenants == (self.caller.tenant,) else None
