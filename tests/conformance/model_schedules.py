"""What the model knows of schedules: which moments are due, which were missed, and which overlap with earlier jobs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule

from tests.conformance.helpers import HOUR
from tests.conformance.known import Known
from treadle.clock import SECOND
from treadle.ids import id_at
from treadle.job import Status
from treadle.schedule import LATE, MISSED, OVERLAP, NewSchedule, Rule

EVERY = {"once": 4 * SECOND, "skip": 1200 * SECOND, "all": 1200 * SECOND}
"""By what becomes of missed moments: an hour has few of them, if all are fired."""


class Schedules:
    """The part of a machine that knows one schedule, of a kind that differs from run to run."""

    clock: Any
    store: Any
    jobs: dict[str, Known]

    @initialize(missed=st.sampled_from(MISSED), overlap=st.sampled_from(OVERLAP))
    def begin_schedule(self, missed: str, overlap: str) -> None:
        self.missed, self.overlap, self.every = missed, overlap, EVERY[missed]
        repeated = Rule(every=self.every, anchor=self.clock.start)
        kind = {"missed": missed, "overlap": overlap}
        self.store.put_schedule(NewSchedule(name="heartbeat", type="a", tenant="t", rule=repeated, **kind))
        self.next_fire: int | None = self.moment_after(self.clock())
        self.fired: set[str] = set()

    def moment_after(self, at: int) -> int:
        return self.clock.start + ((at - self.clock.start) // self.every + 1) * self.every

    def wanted(self) -> list[int]:
        """The moments to fire, if none of them overlaps."""
        if self.next_fire is None or self.next_fire > self.clock():
            return []
        now, due = self.clock(), range(self.next_fire, self.clock() + 1, self.every)
        if self.missed == "skip":
            return [moment for moment in due[-1:] if now - moment <= LATE]
        recent = [moment for moment in due if moment >= now - HOUR] if self.missed == "all" else []
        return recent or [due[-1]]

    @rule()
    def fire(self) -> None:
        moments = self.wanted()
        unended = [id for id in sorted(self.fired) if id in self.jobs and not self.jobs[id].status.is_final]
        waiting = [id for id in unended if self.jobs[id].is_waiting]
        if self.overlap == "cancel_running":
            moments = moments[-1:]
        elif (self.overlap == "skip" and unended) or (self.overlap == "queue_one" and waiting):
            moments = []
        elif self.overlap != "allow":
            moments = moments[:1]

        assert (len(moments), False) == self.store.fire(10)

        for id in unended if self.overlap == "cancel_running" and moments else ():
            self.cancelled(id)
        for moment in moments:
            self.store_fired(id_at(moment, "t", "heartbeat"))
        if self.overlap != "allow":
            self.fired |= {id_at(moment, "t", "heartbeat") for moment in moments}
        if self.next_fire is not None and self.next_fire <= self.clock():
            self.next_fire = self.moment_after(self.clock())

    def cancelled(self, id: str) -> None:
        raise NotImplementedError

    def store_fired(self, id: str) -> None:
        """The job of a moment, which may be stored already."""
        known = Known(type="a", queue="default", tenant="t", priority=0, max_attempts=5, key=None, run_at=0)
        self.jobs.setdefault(id, replace(known, run_at=self.clock(), scheduled=True))

    @rule()
    def fire_now(self) -> None:
        """It counts as a job of an earlier moment."""
        job = self.store.fire_now("t", "heartbeat")
        assert (Status.PENDING, "a", "t") == (job.status, job.type, job.tenant)
        assert job.id not in self.jobs
        self.store_fired(job.id)
        self.fired.add(job.id)

    @rule(n=st.integers(1, 2))
    def backfill(self, n: int) -> None:
        """Moments of the past, each of which may have its job. The next moment does not wait for these jobs."""
        last = self.moment_after(self.clock()) - self.every
        moments = {last - i * self.every: id_at(last - i * self.every, "t", "heartbeat") for i in range(n)}
        assert sum(id not in self.jobs for id in moments.values()) == self.store.backfill("t", "heartbeat", [*moments])
        for id in moments.values():
            self.store_fired(id)

    @rule()
    def pause_or_resume_schedule(self) -> None:
        if self.next_fire is None:
            self.store.resume_schedule("t", "heartbeat")
            self.next_fire = self.moment_after(self.clock())
        else:
            self.store.pause_schedule("t", "heartbeat", "ann", "")
            self.next_fire = None
