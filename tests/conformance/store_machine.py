"""A model of a store, one dictionary of jobs, and calls of a store whose answers it knows."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import replace
from itertools import takewhile
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from tests.conformance.helpers import (
    DAY,
    EVERY_OUTCOME,
    FakeClock,
    check_consistency,
    enlist,
    everything,
    ids,
    new_job,
    select,
    take,
)
from tests.conformance.known import Known, KnownStep
from tests.conformance.model_batches import ENDED, Batches
from tests.conformance.model_keys import KEYS, RULES, Keys
from tests.conformance.model_limits import HELD_BACK, Limits
from tests.conformance.model_schedules import Schedules
from treadle import stores
from treadle.clock import SECOND, from_datetime
from treadle.codec import decode
from treadle.errors import BadOption, KeyHeld, WrongStatus
from treadle.job import ClaimedJob, Reschedule, Status, Suspicion, can_retry
from treadle.outcome import COMPLETED, UNSTARTED, Outcome, OutcomeKind
from treadle.pauses import NewPause, Target
from treadle.stores.base import TypePolicy

TYPES, QUEUES, TENANTS, WORKERS = ("a", "b", "fair", "rated"), ("q", "r"), ("", "t"), ("w1", "w2", "")
TARGETS = (Target(queue="q"), Target(type="a"), Target(tenant="t"))
OUTCOMES = (
    *EVERY_OUTCOME,
    *HELD_BACK,
    UNSTARTED,
    Outcome(OutcomeKind.RETRIED, delay=5 * SECOND, error="later"),
    Outcome(OutcomeKind.COMPLETED, result="[1]"),
)


SIGNALS_KEPT = 80 * DAY
"""No sequence takes longer: after 90 days, signals are pruned."""
STEPS_AND_WAITS = """
    SELECT 'step', id, name, kind, CAST(value AS text), position FROM treadle.steps
     UNION ALL SELECT 'wait', id, what, step, '', met FROM treadle.waits ORDER BY 2, 6
"""


class StoreMachine(Keys, Limits, Schedules, Batches, RuleBasedStateMachine):
    @staticmethod
    def new_url() -> str:
        """The URL of a database without jobs."""
        raise NotImplementedError

    def __init__(self) -> None:
        super().__init__()
        self.clock = FakeClock()
        self.clock.start = self.clock.advance(2 * 86_400)  # ids by the model's time sort after those by the real time
        self.store: Any = stores.open_store(self.new_url(), clock=self.clock)
        self.jobs: dict[str, Known] = {}
        self.leases: list[ClaimedJob] = []  # every lease that ever existed, stale ones too
        self.workers = {name: name for name in WORKERS}
        self.keys = {}
        self.paused: dict[Target, int | None] = {}
        self.runs = 0
        self.signals: dict[tuple[str, str], Any] = {}

    @initialize()
    def begin(self) -> None:
        self.declare_limits()
        self.store.publish([TypePolicy(type="fair", fair="tenant")])
        for worker in WORKERS[:2]:
            enlist(self.store, worker)

    def teardown(self) -> None:
        self.store.close()

    # What the model answers

    def due(self, types: set[str] | None) -> list[str]:
        """What may be claimed, but for limits, the most urgent first."""
        pending = ((id, k) for id, k in self.jobs.items() if k.status is Status.PENDING and not k.parked)
        wanted = ((id, k) for id, k in pending if k.run_at <= self.clock() and (types is None or k.type in types))
        return [id for *_, id in sorted((-k.priority, k.run_at, id) for id, k in wanted if not self.is_paused(k))]

    def check_turns(self, due: list[str], expected: list[str], claimed: list[str]) -> None:
        """As many of each priority as in order, of each tenant the oldest, and nobody more than one turn ahead."""
        assert [self.jobs[id].priority for id in expected] == [self.jobs[id].priority for id in claimed]
        assert set(claimed) <= set(due)
        groups: defaultdict[tuple[Any, ...], dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
        for id in due:
            if (k := self.jobs[id]).type == "fair":
                groups[k.queue, k.priority][k.tenant].append(id)
        for tenants in groups.values():
            taken = {tenant: [id for id in ids if id in claimed] for tenant, ids in tenants.items()}
            assert all(ids[: len(taken[tenant])] == taken[tenant] for tenant, ids in tenants.items())
            fewest = min((len(taken[tenant]) for tenant, ids in tenants.items() if ids != taken[tenant]), default=99)
            assert max(map(len, taken.values())) <= fewest + 1

    def matched(self) -> dict[str, Known]:
        """The jobs, after all that waits has seen what has happened."""
        jobs = dict(self.jobs)
        while changed := {id: new for id, k in jobs.items() if (new := self.after_its_waits(id, k, jobs)) != k}:
            jobs |= changed
        return jobs

    def after_its_waits(self, id: str, k: Known, jobs: dict[str, Known]) -> Known:
        if k.status is not Status.BLOCKED:
            return k
        waits, steps = dict(k.waits), dict(k.steps)
        for (what, step), wait in k.waits.items():
            ended = wait.kind != "signal" and jobs[what].status.is_final
            failed = ended and jobs[what].status is not Status.COMPLETED
            came = wait.kind == "signal" and (k.tenant, what) in self.signals
            late = wait.until is not None and wait.until <= self.clock()
            if wait.met:
                continue
            if failed and wait.if_failed == "cancel":
                return k.ended(Status.CANCELLED, self.clock())
            if came or late or (ended and not (failed and wait.if_failed == "hold")):
                waits[what, step] = replace(wait, met=True)
            if came or late:
                steps[step] = KnownStep("signal", self.signals[k.tenant, what]) if came else KnownStep("timeout", None)
        k = replace(k, waits=waits, steps=steps)
        if not all(wait.met for wait in waits.values()):
            return k
        return replace(k, status=Status.PENDING, parked=any(key.successor == id for key in self.keys.values()))

    def is_paused(self, k: Known) -> bool:
        held = (target for target, until in self.paused.items() if until is None or until > self.clock())
        return any(target.holds(k.queue, k.type, k.tenant) for target in held)

    def end(self, id: str, outcome: Outcome) -> None:
        """End a held lease with this outcome."""
        k = self.jobs[id]
        stopped = k.cancelled and not outcome.kind.final
        kind = OutcomeKind.CANCELLED if stopped else outcome.kind
        if not stopped:
            self.hold_back_or_give_back(k, outcome)
        self.runs += kind is not OutcomeKind.RELEASED
        k = replace(
            k,
            attempts=k.attempts - 1 + (0 if stopped else outcome.charged),
            cancelled=False,
            failures=k.failures + (kind in (OutcomeKind.RETRIED, OutcomeKind.FAILED)),
        )
        if kind.final:
            ended = (k.number, kind.final)
            self.jobs[id] = replace(k, status=kind.final, ended_by=ended, completed_at=self.clock())
            self.release(id, k)
            return
        suspicion = k.suspicion if outcome.suspicion is None else outcome.suspicion
        run_at = k.run_at if kind is OutcomeKind.RELEASED else self.clock() + outcome.delay
        snoozes = k.snoozes + (kind is OutcomeKind.SNOOZED)
        start_by = None if outcome.started else k.start_by
        k = replace(k, suspicion=suspicion, run_at=run_at, snoozes=snoozes, start_by=start_by)
        self.jobs[id] = replace(k, status=Status.BLOCKED if outcome.waits else Status.PENDING, worker="")

    # What happens

    @rule(
        type=st.sampled_from(TYPES),
        queue=st.sampled_from(QUEUES),
        tenant=st.sampled_from(TENANTS),
        priority=st.integers(0, 2),
        delay=st.sampled_from([0, 0, 0, 3 * SECOND]),
        within=st.sampled_from([None, None, 4 * SECOND]),
        max_attempts=st.integers(1, 3),
        again=st.booleans(),
        fair=st.sampled_from(["", "tenant"]),
        batched=st.booleans(),
    )
    def insert(self, again: bool, delay: int, within: int | None, fair: str, batched: bool, **options: Any) -> None:
        fair = fair if options["type"] == "fair" else ""  # its producer may not know
        options["batch"] = self.open_batch(options["tenant"]) if batched else None
        new, due = new_job(delay=delay, start_within=within, fair=fair, **options), self.clock() + delay
        self.enqueue(new, Known(key=None, run_at=due, start_by=within and due + within, **options), again=again)

    @rule(
        type=st.sampled_from(TYPES),
        tenant=st.sampled_from(TENANTS),
        priority=st.integers(0, 2),
        delay=st.sampled_from([0, 0, 3 * SECOND]),
        within=st.sampled_from([None, None, 4 * SECOND]),
        key=st.sampled_from(KEYS),
        rule=st.sampled_from(RULES),
        again=st.booleans(),
        batched=st.booleans(),
    )
    def insert_with_key(
        self, again: bool, delay: int, within: int | None, key: str, rule: str | None, batched: bool, **options: Any
    ) -> None:
        options["batch"] = self.open_batch(options["tenant"]) if batched else None
        options |= {"queue": "q", "max_attempts": 2}
        new = new_job(delay=delay, start_within=within, dedupe=key, dedupe_rule=rule, **options)
        due = self.clock() + delay
        self.enqueue(new, Known(key=key, run_at=due, start_by=within and due + within, **options), again=again)

    @rule()
    def match(self) -> None:
        while self.store.match():
            pass
        after = self.matched()
        ended = [id for id, k in after.items() if k.status is not self.jobs[id].status and k.status.is_final]
        self.jobs = after
        for id in ended:
            self.release(id, after[id])
        self.close_batches()

    def forget(self, id: str) -> Known:
        k = self.jobs.pop(id)
        self.left_batch(k)
        for other, known in self.jobs.items():  # those who have waited for it have ended
            left = {key: wait for key, wait in known.waits.items() if key[0] != id}
            self.jobs[other] = replace(known, waits=left)
        return k

    def is_needed(self, id: str) -> bool:
        return any(k.waits_for(id) for k in self.jobs.values())

    @rule(tenant=st.sampled_from(TENANTS), n=st.integers(1, 4), knows=st.booleans())
    def insert_some_by_turns(self, tenant: str, n: int, knows: bool) -> None:
        options: dict[str, Any] = {"type": "fair", "queue": "q", "tenant": tenant, "priority": 0, "max_attempts": 5}
        for id in ids(self.store.insert([new_job(fair="tenant" if knows else "", **options) for _ in range(n)])):
            self.jobs[id] = Known(key=None, run_at=self.clock(), **options)

    @rule(
        most=st.integers(1, 4),
        worker=st.sampled_from(WORKERS),
        types=st.none() | st.sets(st.sampled_from(TYPES)),
        matched=st.booleans(),
    )
    def claim(self, most: int, worker: str, types: set[str] | None, matched: bool) -> None:
        if matched:
            self.match()
        due, late, arrived = self.due(types), self.late(), bool(self.closing() or self.matched() != self.jobs)
        expected, by_turns = self.in_order(due, most), any(self.jobs[id].type == "fair" for id in due)
        worker = self.workers[worker]
        self.store.open_limits()  # a job that was let go for a free place may be cancelled, paused or of another type
        claimed = take(self.store, most, worker, types=None if types is None else dict.fromkeys(types))

        if arrived:  # whether it lets one job go before it takes another differs by the store
            self.expired({id for id in late if self.store.get(id).status is Status.CANCELLED})
            self.match()
            assert set(ids(claimed)) <= {*due, *self.due(types)} - late
        elif by_turns and late.isdisjoint(due):
            self.check_turns(due, expected, ids(claimed))
        elif by_turns:  # whether it meets them depends on whose turn it is
            assert set(ids(claimed)) <= set(due) - late
            self.expired({id for id in late if self.store.get(id).status is Status.CANCELLED})
        elif late.isdisjoint(expected):
            # What PostgreSQL takes in place of the jobs of a paused tenant comes last.
            order = sorted if self.paused else list
            assert order(expected) == order(ids(claimed))
        else:  # what is claimed instead differs by the store
            assert {id for id in expected if id not in late} <= set(ids(claimed))
            assert late.isdisjoint(ids(claimed))
            self.expired(late)
        if late:
            self.match()  # an expired job may have been a parent, or the last of a batch
        for c in claimed:
            k = self.jobs[c.id]
            self.spend(k)
            assert (k.attempts + 1, k.snoozes, k.suspicion) == (c.attempt, c.snoozes, c.suspicion)
            assert k.forgiven == c.forgiven
            self.jobs[c.id] = replace(
                k, status=Status.PROCESSING, attempts=k.attempts + 1, worker=worker, number=c.number, ended_by=None
            )
        self.leases += claimed

    def late(self) -> set[str]:
        """The jobs that were not started in time."""
        waiting = ((id, k) for id, k in self.jobs.items() if k.is_waiting and not k.parked)
        return {id for id, k in waiting if k.start_by is not None and k.start_by <= self.clock()}

    def expired(self, late: set[str]) -> None:
        for id in late:
            self.jobs[id] = self.jobs[id].ended(Status.CANCELLED, self.clock())
            self.release(id, self.jobs[id])

    @rule(most=st.integers(1, 3))
    def expire(self, most: int) -> None:
        late = sorted(self.late(), key=lambda id: self.jobs[id].start_by or 0)
        assert len(late[:most]) == self.store.expire(most)
        self.expired({id for id in late if self.store.get(id).status is Status.CANCELLED})

    @precondition(lambda self: self.jobs)
    @rule(
        data=st.data(),
        delay=st.sampled_from([None, 0, 3 * SECOND]),
        priority=st.none() | st.integers(0, 2),
        queue=st.none() | st.sampled_from(QUEUES),
    )
    def reschedule(self, data: st.DataObject, delay: int | None, **place: Any) -> None:
        id = data.draw(st.sampled_from(list(self.jobs)))
        k, changes = self.jobs[id], Reschedule(delay=delay, **place)
        if not k.is_waiting:
            with pytest.raises(WrongStatus):
                self.store.reschedule(id, changes)
            return
        self.store.reschedule(id, changes)
        moved = k.moved(k.run_at if delay is None else self.clock() + delay)
        self.jobs[id] = replace(moved, **{name: value for name, value in place.items() if value is not None})

    @precondition(lambda self: self.jobs)
    @rule(data=st.data())
    def run_now(self, data: st.DataObject) -> None:
        """Not of a successor: it would run beside the holder of its key."""
        id = data.draw(st.sampled_from(list(self.jobs)))
        k = self.jobs[id]
        if k.status is not Status.PENDING:
            with pytest.raises(WrongStatus):
                self.store.run_now(id)
        elif not k.parked:
            self.store.run_now(id)
            self.jobs[id] = k.moved(min(k.run_at, self.clock()))

    @precondition(lambda self: self.leases)
    @rule(data=st.data(), outcome=st.sampled_from(OUTCOMES))
    def settle(self, data: st.DataObject, outcome: Outcome) -> None:
        self.settled(self.lease(data), outcome)

    def lease(self, data: st.DataObject) -> ClaimedJob:
        """One that is held, more often than a stale one."""
        held = [c for c in self.leases if self.holds(c)]
        return data.draw(st.sampled_from(held[-4:] * 3 + self.leases[-6:]))

    def settled(self, claimed: ClaimedJob, outcome: Outcome, written: Outcome | None = None) -> bool:
        """Settle it. Return whether the lease was held. `written`: what is stored, if that is another outcome."""
        lost = self.store.settle([(claimed, outcome)]).lost
        if self.holds(claimed):
            assert [] == lost
            self.end(claimed.id, written or outcome)
            return True
        known = self.jobs.get(claimed.id)
        before = known is not None and known.ended_by == (claimed.number, outcome.kind.final)
        assert ([] if before else [claimed]) == lost
        return False

    def holds(self, c: ClaimedJob) -> bool:
        k = self.jobs.get(c.id)
        return k is not None and k.status is Status.PROCESSING and k.number == c.number

    @rule(worker=st.sampled_from(WORKERS[:2]), outside=st.booleans(), data=st.data())
    def declare_dead(self, worker: str, outside: bool, data: st.DataObject) -> None:
        name = self.workers[worker]
        held = {id: k for id, k in self.jobs.items() if k.status is Status.PROCESSING and k.worker == name}
        started = data.draw(st.sets(st.sampled_from(sorted(k.number for k in held.values())))) if held else set()

        assert len(held) == self.store.declare_dead(name, "crash", started=started, outside=outside)

        for id, k in held.items():
            self.end(id, self.after_crash(k, len(started) == 1, outside) if k.number in started else UNSTARTED)
        self.workers[worker] = enlist(self.store, f"{name}'")

    def after_crash(self, k: Known, alone: bool, outside: bool) -> Outcome:
        if outside:
            kind = OutcomeKind.FAILED if k.runs_that_count >= k.max_attempts else OutcomeKind.RETRIED
            return Outcome(kind)
        if not alone and k.suspicion == Suspicion.NONE:
            return Outcome(OutcomeKind.RETRIED, suspicion=Suspicion.SUSPECTED, charged=0)
        charged = 2 if k.suspicion == Suspicion.SUSPECTED else 1
        kind = OutcomeKind.FAILED if k.runs_that_count - 1 + charged >= k.max_attempts else OutcomeKind.RETRIED
        return Outcome(kind, suspicion=Suspicion.GUILTY, charged=charged)

    @precondition(lambda self: self.jobs)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        id = data.draw(st.sampled_from(list(self.jobs)))
        k = self.jobs[id]
        if k.status.is_final:
            with pytest.raises(WrongStatus):
                self.store.cancel(id)
            return
        self.store.cancel(id)
        self.cancelled(id)

    def cancelled(self, id: str) -> None:
        k = self.jobs[id]
        if k.status is Status.PROCESSING:
            self.jobs[id] = replace(k, cancelled=True)
        else:
            self.jobs[id] = k.ended(Status.CANCELLED, self.clock())
            self.release(id, k)

    @precondition(lambda self: self.jobs)
    @rule(data=st.data())
    def retry(self, data: st.DataObject) -> None:
        with_steps = [id for id, k in self.jobs.items() if k.steps and k.status.is_final]
        id = data.draw(st.sampled_from(with_steps or list(self.jobs)))
        k = self.jobs[id]
        from_step = data.draw(st.sampled_from([None, *k.steps, "no step"])) if k.steps else None
        if not k.status.is_final:
            with pytest.raises(WrongStatus):
                self.store.retry(id)
        elif not self.can_retake(id):
            with pytest.raises(KeyHeld):
                self.store.retry(id)
        elif from_step == "no step":
            with pytest.raises(BadOption):
                self.store.retry(id, from_step)
        else:
            self.retake(id)
            self.reopen_batch(k)
            self.fired |= {id} if k.scheduled else set()
            self.store.retry(id, from_step)
            k = replace(k, steps=self.kept_steps(k, from_step))
            fresh = replace(
                k, status=Status.PENDING, attempts=0, snoozes=0, suspicion=0, run_at=self.clock(), start_by=None
            )
            self.jobs[id] = replace(fresh, worker="", ended_by=None, forgiven=0 if k.steps else None)
            assert can_retry(Status.PENDING, 0, k.max_attempts)

    def kept_steps(self, k: Known, from_step: str | None) -> dict[str, KnownStep]:
        """A completed job starts over. A gather that has failed is looked at again."""
        forgotten = k.status is Status.COMPLETED and from_step is None
        names = [] if forgotten else list(takewhile(lambda name: name != from_step, k.steps))
        steps = {name: k.steps[name] for name in names}
        again = {n: s.value["jobs"] for n, s in steps.items() if s.kind == "gathered" and "jobs" in s.value}
        return steps | {name: KnownStep("gather", jobs) for name, jobs in again.items()}

    @precondition(lambda self: self.jobs)
    @rule(data=st.data())
    def delete(self, data: st.DataObject) -> None:
        id = data.draw(st.sampled_from(list(self.jobs)))
        if self.jobs[id].status is Status.PROCESSING or self.is_needed(id):
            with pytest.raises(WrongStatus):
                self.store.delete(id)
            return
        self.store.delete(id)
        self.release(id, self.forget(id))

    @precondition(lambda self: self.jobs)
    @rule(data=st.data())
    def complete(self, data: st.DataObject) -> None:
        id = data.draw(st.sampled_from(list(self.jobs)))
        k = self.jobs[id]
        assert int(k.status is not Status.COMPLETED) == self.store.complete([id])
        if k.status is Status.PROCESSING:
            self.end(id, COMPLETED)
        elif k.is_waiting:
            self.release(id, k)
        if k.status is not Status.COMPLETED:
            self.jobs[id] = replace(
                self.jobs[id],
                status=Status.COMPLETED,
                ended_by=None,
                completed_at=self.clock(),
                cancelled=False,
                parked=False,
                waits=k.ended(Status.COMPLETED, 0).waits,
            )

    @rule(
        statuses=st.sampled_from([(), ENDED, ENDED, ENDED[:1], ENDED[1:]]),
        most=st.integers(1, 3),
        later=st.booleans(),
    )
    def prune(self, statuses: tuple[Status, ...], most: int, later: bool) -> None:
        if later and self.clock() < self.clock.start + SIGNALS_KEPT:
            self.clock.advance(2 * 86_400)
        until = self.clock() - DAY
        ended = [id for id, k in self.jobs.items() if k.status in statuses and k.completed_at < until]
        old = sorted(id for id in ended if not self.is_needed(id) and not self.is_throttled(id))[:most]

        assert len(old) == self.store.prune(statuses, DAY, most)
        for id in old:
            self.forget(id)

    @rule(what=st.sampled_from(TARGETS), seconds=st.sampled_from([None, None, 3, 10]))
    def pause(self, what: Target, seconds: int | None) -> None:
        until = None if seconds is None else self.clock() + seconds * SECOND
        self.store.pause(NewPause(target=what, by="model", until=until))
        self.paused[what] = until

    @rule(what=st.sampled_from(TARGETS))
    def resume(self, what: Target) -> None:
        until = self.paused.pop(what, 0)
        held = until is None or until > self.clock()
        assert held == (self.store.resume(what) is not None)

    @rule()
    def put_back_parked(self) -> None:
        self.store.put_back_parked()

    @precondition(lambda self: self.clock() < self.clock.start + SIGNALS_KEPT)
    @rule(seconds=st.sampled_from([1, 2, 5, 600, 2 * 86400]))
    def advance(self, seconds: int) -> None:
        self.clock.advance(seconds)

    @rule()
    def compact(self) -> None:
        self.store.compact()

    # What must always be true

    @invariant()
    def every_job_is_as_the_model_has_it(self) -> None:
        jobs = everything(self.store)
        stored = {job.id: (job.status, job.attempts, job.queue, job.priority) for job in jobs}
        assert {id: (k.status, k.attempts, k.queue, k.priority) for id, k in self.jobs.items()} == stored
        waiting = [job for job in jobs if self.jobs[job.id].is_waiting]
        times = {job.id: (from_datetime(job.run_at), job.start_by and from_datetime(job.start_by)) for job in waiting}
        assert {id: (k.run_at, k.start_by) for id, k in self.jobs.items() if k.is_waiting} == times
        assert {id for id, k in self.jobs.items() if k.parked} == {job.id for job in waiting if job.waits_for_key}

    @invariant()
    def the_records_are_consistent(self) -> None:
        expected = Counter((k.status, k.type, k.queue) for k in self.jobs.values())
        rows = self.store.counts(("status", "type", "queue")).rows
        tallied = {(row["status"], row["type"], row["queue"]): row["count"] for row in rows}
        assert dict(expected) == tallied
        check_consistency(self.store)
        assert [(self.runs,)] == select(self.store, "SELECT coalesce(sum(runs), 0) FROM treadle.usage")
        failures = {str(id): n for id, n in select(self.store, "SELECT id, count(*) FROM treadle.attempts GROUP BY id")}
        assert {id: k.failures for id, k in self.jobs.items() if k.failures} == failures

    @invariant()
    def steps_and_waits_are_as_the_model_has_them(self) -> None:
        rows = select(self.store, STEPS_AND_WAITS)
        steps = [(str(id), name, kind, decode(value)) for row, id, name, kind, value, _ in rows if row == "step"]
        known = [(id, name, s.kind, s.value) for id, k in sorted(self.jobs.items()) for name, s in k.steps.items()]
        assert known == steps
        waits = {(str(id), what, step): bool(met) for row, id, what, step, _, met in rows if row == "wait"}
        assert waits == {(id, *key): wait.met for id, k in self.jobs.items() for key, wait in k.waits.items()}

    @invariant()
    def the_pauses_are_as_the_model_has_them(self) -> None:
        held = {target for target, until in self.paused.items() if until is None or until > self.clock()}
        assert held == {pause.target for pause in self.store.pauses()}
