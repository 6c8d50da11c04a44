"""Batches as frozen data: named groups of jobs, and what to enqueue when all of them have ended."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime

import msgspec

from treadle.dedupe import read_rule
from treadle.errors import BadOption
from treadle.job import NewJob
from treadle.units import plural


class NewBatch(msgspec.Struct, frozen=True, kw_only=True):
    """A batch to store, with its first members."""

    name: str
    tenant: str = ""
    jobs: tuple[NewJob, ...] = ()
    then: NewJob | None = None
    on_failure: NewJob | None = None


class Batch(msgspec.Struct, frozen=True, kw_only=True):
    """A batch, as read at one moment. `str()` is its progress for people: "9,120 of 10,000; 3 failed"."""

    name: str
    tenant: str
    added: int
    """Its members, and how many of them have ended in each way. What was pruned since still counts."""
    completed: int
    failed: int
    cancelled: int
    created_at: datetime
    closed_at: datetime | None
    """When the last of its members ended; None while it is open."""
    closings: int
    """How often it closed: a member that is retried opens it again."""
    then: str | None
    """The type of the job that it enqueues when all members have completed, and of the one if not."""
    on_failure: str | None
    last_job: str | None
    """The id of the job that its last closing enqueued."""

    @property
    def is_open(self) -> bool:
        return self.closed_at is None

    @property
    def ended(self) -> int:
        return self.completed + self.failed + self.cancelled

    @property
    def progress(self) -> float:
        """The part of its members that has ended, from 0 to 1."""
        return min(1.0, self.ended / self.added) if self.added > 0 else 1.0

    def __str__(self) -> str:
        others = [(self.failed, "failed"), (self.cancelled, "cancelled")]
        return "; ".join([f"{self.ended:,} of {self.added:,}", *(f"{n:,} {word}" for n, word in others if n)])


class BatchPage(msgspec.Struct, frozen=True):
    """Some batches, newest first, and the cursor of the next page."""

    batches: list[Batch]
    next: str | None

    def __iter__(self) -> Iterator[Batch]:
        return iter(self.batches)

    def __len__(self) -> int:
        return len(self.batches)

    def __getitem__(self, index: int) -> Batch:
        return self.batches[index]


def member(request: NewJob, name: str, tenant: str, origin: str | None = None) -> NewJob:
    """The request as a member of a batch. `origin`: the job whose handler adds it."""
    checked = _of_tenant("add", request, name, tenant)
    return msgspec.structs.replace(checked, batch=name, origin=origin or checked.origin)


def checked_closing(option: str, request: NewJob | None, name: str, tenant: str) -> NewJob | None:
    """What a batch enqueues when it closes. Nobody is there to get an error then, so that it must not need one."""
    if request is None:
        return None
    request = _of_tenant(option, request, name, tenant)
    refuse_rejects(option, [request])
    if request.after:
        problem = f"it runs when the batch closes, and cannot also wait for {plural(len(request.after), 'parent')}"
        raise BadOption(option, request.after, f"{problem}; leave after= out")
    return request


NOBODY_GETS_IT = "nobody gets the error when it is stored; choose another dedupe mode"


def refuse_rejects(option: str, requests: Iterable[NewJob], way_out: str = NOBODY_GETS_IT) -> None:
    """They are stored later, when nobody would get the error."""
    for request in requests:
        if request.dedupe_rule is not None and read_rule(request.dedupe_rule).mode == "reject":
            raise BadOption(option, "reject", way_out)


def _of_tenant(option: str, request: NewJob, name: str, tenant: str) -> NewJob:
    if not isinstance(request, NewJob):
        raise BadOption(option, request, "a request: load.request(row=1)")
    if request.tenant != tenant:
        way_out = f"batch {name!r} has the tenant {tenant!r}, and so have its jobs: using(tenant={tenant!r})"
        raise BadOption("tenant", request.tenant, way_out)
    return request
