"""The batches that one caller may see: all of them, or those of one tenant, as with `visible_jobs.py`."""

from __future__ import annotations

from treadle.batch import Batch, BatchPage
from treadle.errors import BatchNotFound
from treadle.web.visible_schedules import OfCaller


class VisibleBatches(OfCaller, frozen=True):
    """What `td.batches` can do, for one caller. A tenant that is not given is the caller's own, or none."""

    def page(self, tenant: str | None, limit: int, cursor: str | None) -> BatchPage:
        """Of one tenant, or of all that the caller may see."""
        return self._app.batches.list(self._tenants(tenant), limit=limit, cursor=cursor)

    def get(self, name: str, tenant: str | None) -> Batch:
        """The batch. Raises BatchNotFound."""
        whose = self._tenant(tenant)
        found = self._app.batches.get(name, tenant=whose)
        if found is None:
            raise BatchNotFound(name, whose)
        return found
