"""A `JobsRepository` for programs that run jobs themselves and report by hand how each ended."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from functools import partial
from typing import Any

from treadle import Fail, Job, Lease, LeaseLost, Treadle

from .rules import RUNS, can_retry, get_backoff_delay_ms


class JobsRepository:
    """Jobs in a database. An instance marks only the jobs that it claimed."""

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
        """Returns the job's id. If a job with the same dedupe key is queued or running, returns that job's id."""
        of_org = partial(self._td.enqueue, type, payload, tenant=org_id or "", dedupe=True, max_attempts=RUNS)
        return (of_org() if run_at is None else of_org(run_at=run_at)).id

    def claim(self, n: int, *, types: list[str] | None = None, lease: float = 60) -> list[Job]:
        """Claim at most `n` runnable jobs for `lease` seconds each. `heartbeat` extends the lease."""
        claimed = self._td.claim(n, types=types, lease=lease)
        self._leases.update({lease.job.id: lease for lease in claimed})
        return [lease.job for lease in claimed]

    def heartbeat(self, id: str, seconds: float = 60) -> None:
        self._lease(id).extend(seconds)

    def mark_success(self, id: str, result: Any = None) -> None:
        """Raises LeaseLost if the lease has expired and the job may run elsewhere."""
        self._lease(id).complete(result)
        del self._leases[id]

    def mark_failure(self, id: str, error: str) -> None:
        """Queue the job again after a delay, or fail it if no attempts are left."""
        lease = self._lease(id)
        before = lease.job.attempts - 1  # the claim has already counted this run
        if can_retry("failed", before):
            lease.fail(error, retry_in=get_backoff_delay_ms(before + 1) / 1000)
        else:
            lease.fail(Fail(error))
        del self._leases[id]

    def _lease(self, id: str) -> Lease:
        if id not in self._leases:
            raise LeaseLost(id, 0)
        return self._leases[id]
