"""The schedules and batches that one caller may see: all of them, or those of one tenant, as with `visible_jobs.py`."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any, TypeVar

from treadle import views
from treadle.backfill import Backfill
from treadle.batch import Batch, BatchPage
from treadle.errors import BatchNotFound, ScheduleNotFound
from treadle.schedule import Schedule
from treadle.schedules import SchedulePage, Schedules, newest_jobs
from treadle.views import ScheduleOut
from treadle.web.visible_jobs import OfCaller

T = TypeVar("T")


class NamedByTenant(OfCaller, frozen=True):
    """Something with names for each tenant. A tenant that is not given, or empty, is the caller's own, or none."""

    def _tenant(self, given: str | None) -> str:
        return OfCaller._tenant(self, given or None)

    def _tenants(self, given: str | None) -> str | None:
        """Of which tenant to list; None: of all that the caller may see."""
        return self._tenant(given) if given is not None or self.caller.tenant is not None else None


class VisibleSchedules(NamedByTenant, frozen=True):
    """What `td.schedules` can do, for one caller."""

    def page(self, tenant: str | None, limit: int, cursor: str | None) -> SchedulePage:
        return self._app.schedules.list(self._tenants(tenant), limit=limit, cursor=cursor)

    def get(self, name: str, tenant: str | None) -> Schedule:
        whose = self._tenant(tenant)
        found = self._app.schedules.get(name, tenant=whose)
        if found is None:
            raise ScheduleNotFound(name, whose)
        return found

    def out(self, name: str, tenant: str | None) -> ScheduleOut:
        """All that is shown of it."""
        app, found = self._app, self.get(name, tenant)
        why = app.schedules.why(name, tenant=found.tenant)
        return views.schedule_out(found, why, newest_jobs(app, found), app.redactor)

    # Changes

    def change(self, action: Callable[..., T], name: str, tenant: str | None, **options: Any) -> T:
        """`action`: a method of `td.schedules` that changes one: pause, resume, run_now, delete."""
        return action(self._app.schedules, name, tenant=self._tenant(tenant), **options)

    def pause(self, name: str, tenant: str | None, reason: str, until: datetime | timedelta | None) -> Schedule:
        by = self.caller.name[:200]
        return self.change(Schedules.pause, name, tenant, reason=reason, until=until, by=by)

    def backfill(self, name: str, tenant: str | None, start: datetime, end: datetime) -> Backfill:
        return Backfill.between(self._app.store, self._tenant(tenant), name, start, end)


class VisibleBatches(NamedByTenant, frozen=True):
    """What `td.batches` can do, for one caller."""

    def page(self, tenant: str | None, limit: int, cursor: str | None) -> BatchPage:
        return self._app.batches.list(self._tenants(tenant), limit=limit, cursor=cursor)

    def get(self, name: str, tenant: str | None) -> Batch:
        whose = self._tenant(tenant)
        found = self._app.batches.get(name, tenant=whose)
        if found is None:
            raise BatchNotFound(name, whose)
        return found
