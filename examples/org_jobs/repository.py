"""The seed's `JobsRepository`: for whoever runs jobs elsewhere, and says by hand how each ended."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from functools import partial
from typing import Any

from examples.org_jobs.rules import RUNS, can_retry, get_backoff_delay_ms
from treadle import Fail, Job, Lease, LeaseLost, Treadle


class JobsRepository:
    """Jobs in a database. Those that were claimed here are marked here."""

    def __init__(self, td: Treadle) -> None:
        self._td = td
        self._leases: dict[str, Lease] = {}

    def enqueue(
        self,
        type: str,
        *,
        org_id: str | None = None,
        payload: Mapping[str, Any] | None = None,
        run_at: datetime | None = None,
    ) -> str:
        """The job's id. While one with the same dedupe key is queued or running, it is that one's."""
        of_org = partial(self._td.enqueue, type, payload, tenant=org_id or "", dedupe=True, max_attempts=RUNS)
        return (of_org() if run_at is None else of_org(run_at=run_at)).id

    def claim(self, n: int, *, types: list[str] | None = None, lease: float = 60) -> list[Job]:
        """At most `n` runnable jobs. Each is ours for so many seconds; `heartbeat` makes them more."""
        claimed = self._td.claim(n, types=types, lease=lease)
        self._leases.update({lease.job.id: lease for lease in claimed})
        return [lease.job for lease in claimed]

    def heartbeat(self, id: str, seconds: float = 60) -> None:
        self._lease(id).extend(seconds)

    def mark_success(self, id: str, result: Any = None) -> None:
        """Raises LeaseLost if it took too long and the job is somebody else's by now."""
        self._lease(id).complete(result)
        del self._leases[id]

    def mark_failure(self, id: str, error: str) -> None:
        """Queued again after a while, or failed for good if it has no attempts left."""
        lease = self._lease(id)
        before = lease.job.attempts - 1  # treadle has counted this run when it was claimed
        if can_retry("failed", before):
            lease.fail(error, retry_in=get_backoff_delay_ms(before + 1) / 1000)
        else:
            lease.fail(Fail(error))
        del self._leases[id]

    def _lease(self, id: str) -> Lease:
        if id not in self._leases:
            raise LeaseLost(id, 0)
        return self._leases[id]
