"""What the model knows of batches: who is a member, when a batch closes, and what it enqueues then."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

from hypothesis.stateful import invariant

from tests.conformance.helpers import new_job
from tests.conformance.known import Known
from treadle.batch import NewBatch
from treadle.ids import id_at
from treadle.job import Status

ENDED = tuple(status for status in Status if status.is_final)


@dataclass
class KnownBatch:
    gone: Counter[Status]
    """Members that had ended when they were deleted."""
    is_open: bool = True
    closings: int = 0
    last_job: str | None = None


class Batches:
    """The part of a machine that knows batches: one for each tenant."""

    clock: Any
    store: Any
    jobs: dict[str, Known]

    def __init__(self) -> None:
        super().__init__()
        self.batches: dict[str, KnownBatch] = {}

    def open_batch(self, tenant: str) -> str | None:
        """The batch of a tenant, which is made anew if it was pruned. None if it is closed."""
        if self.store.batch(tenant, "b") is None:
            then, on_failure = (new_job(type, queue="r", tenant=tenant, max_attempts=2) for type in ("b", "a"))
            self.store.insert_batch(NewBatch(name="b", tenant=tenant, then=then, on_failure=on_failure))
            self.batches[tenant] = KnownBatch(Counter())
        return "b" if self.batches[tenant].is_open else None

    def members(self, tenant: str) -> Counter[Status]:
        """How many members have each status."""
        there = Counter(k.status for k in self.jobs.values() if k.batch and k.tenant == tenant)
        return there + self.batches[tenant].gone

    def closing(self) -> list[str]:
        """The tenants whose batches close at the next match."""
        open_ = [tenant for tenant, batch in self.batches.items() if batch.is_open]
        return [tenant for tenant in open_ if all(status.is_final for status in self.members(tenant))]

    def close_batches(self) -> None:
        for tenant in self.closing():
            batch, ended = self.batches[tenant], self.members(tenant)
            batch.is_open, batch.closings = False, batch.closings + 1
            batch.last_job = id_at(self.clock(), "batch", tenant, "b", str(batch.closings))
            type = "b" if ended.total() == ended[Status.COMPLETED] else "a"
            place: dict[str, Any] = {"type": type, "queue": "r", "tenant": tenant, "priority": 0}
            self.jobs[batch.last_job] = Known(**place, max_attempts=2, key=None, run_at=self.clock())

    def reopen_batch(self, k: Known) -> None:
        """A member is retried."""
        if k.batch:
            self.batches[k.tenant].is_open = True

    def left_batch(self, k: Known) -> None:
        """A job was deleted. If it had ended, it still counts."""
        if k.batch and k.status.is_final:
            self.batches[k.tenant].gone[k.status] += 1

    @invariant()
    def batches_are_as_the_model_has_them(self) -> None:
        for tenant, known in list(self.batches.items()):
            batch = self.store.batch(tenant, "b")
            if batch is None:  # it was pruned with its last member
                assert not known.is_open
                assert not any(k.batch and k.tenant == tenant for k in self.jobs.values())
                del self.batches[tenant]
                continue
            members = self.members(tenant)
            ended = tuple(members[status] for status in ENDED)
            assert (members.total(), *ended) == (batch.added, batch.completed, batch.failed, batch.cancelled)
            assert (known.is_open, known.closings, known.last_job) == (batch.is_open, batch.closings, batch.last_job)
