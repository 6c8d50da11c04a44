"""The model of a store, with handlers that store steps and wait, with parents and signals."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule

from tests.conformance.helpers import FINAL_OUTCOMES, ids, new_job
from tests.conformance.known import Known, KnownStep, KnownWait
from tests.conformance.model_keys import KEYS, RULES
from tests.conformance.store_machine import OUTCOMES, QUEUES, TENANTS, TYPES, WORKERS, StoreMachine
from treadle.clock import SECOND
from treadle.codec import as_json
from treadle.errors import BadOption, LeaseLost
from treadle.job import ClaimedJob, NewJob, Status
from treadle.outcome import COMPLETED, Outcome, OutcomeKind
from treadle.steps import NewStep
from treadle.waits import IF_FAILED, NewSignal, NewWait

SIGNALS = ("go", "stop")
VALUES = st.integers(1, 3)
TIMEOUTS = (None, 0, 4 * SECOND, 4 * SECOND)


class DurableMachine(StoreMachine):
    """Also knows parents, steps, waits and signals."""

    @initialize()
    def begin_with_some(self) -> None:
        for tenant in TENANTS:
            self.store.insert(new := [new_job("b", queue="q", tenant=tenant, max_attempts=2) for _ in range(2)])
            for job in new:
                self.add(job, self.known(job))

    # Parents and signals

    @precondition(lambda self: self.jobs)
    @rule(
        data=st.data(),
        type=st.sampled_from(TYPES),
        queue=st.sampled_from(QUEUES),
        delay=st.sampled_from([0, 0, 3 * SECOND]),
        key=st.sampled_from([None, None, *KEYS]),
        rule=st.sampled_from(RULES),
        within=st.sampled_from([None, None, None, 4 * SECOND]),
        if_failed=st.sampled_from(IF_FAILED),
        again=st.booleans(),
        batched=st.booleans(),
    )
    def insert_child(
        self, data: st.DataObject, delay: int, key: str | None, within: int | None, batched: bool, **options: Any
    ) -> None:
        again, if_failed, rule = (options.pop(name) for name in ("again", "if_failed", "rule"))
        parents = data.draw(st.lists(st.sampled_from(list(self.jobs)), min_size=1, max_size=3, unique=True))
        options |= {"tenant": self.jobs[parents[0]].tenant, "priority": 1, "max_attempts": 2}
        if any(self.jobs[id].tenant != options["tenant"] for id in parents):
            with pytest.raises(BadOption):
                self.store.insert([new_job(after=tuple(parents), **options)])
            return
        options["batch"] = self.open_batch(options["tenant"]) if batched else None
        how = {"dedupe": key, "dedupe_rule": key and rule, "delay": delay, "start_within": within}
        due = self.clock() + delay
        known = Known(key=key, run_at=due, start_by=within and due + within, status=Status.BLOCKED, **options)
        waits = {(id, ""): KnownWait("parent", if_failed) for id in parents}
        new = new_job(after=tuple(parents), if_failed=if_failed, **how, **options)
        if if_failed != "run" and self.replaces_a_parent(new):
            with pytest.raises(BadOption):
                self.store.insert([new])
            return
        self.enqueue(new, replace(known, waits=waits), again=again)

    @rule(name=st.sampled_from(SIGNALS), tenant=st.sampled_from(TENANTS), value=VALUES)
    def signal(self, name: str, tenant: str, value: int) -> None:
        stored = self.store.signal(NewSignal(name, as_json(value), tenant))
        assert self.signalled(tenant, name, value) == stored.value

    def signalled(self, tenant: str, name: str, value: int) -> int:
        """The value that counts: the first one."""
        return self.signals.setdefault((tenant, name), value)

    # Handlers

    @rule(
        data=st.data(),
        most=st.integers(1, 4),
        worker=st.sampled_from(WORKERS),
        matched=st.booleans(),
        later=st.sampled_from([0, 0, 5]),
    )
    def work(self, data: st.DataObject, most: int, worker: str, matched: bool, later: int) -> None:
        """Claim jobs, and let each handler do something."""
        self.clock.advance(later)
        before = len(self.leases)
        self.claim(most=most, worker=worker, types=None, matched=matched)
        for claimed in self.leases[before:]:
            if data.draw(st.booleans()):
                self.save_step(data, claimed)
            self.handle(data, claimed)

    @precondition(lambda self: self.leases)
    @rule(data=st.data(), stale=st.booleans())
    def go_on(self, data: st.DataObject, stale: bool) -> None:
        self.handle(data, data.draw(st.sampled_from(self.leases)) if stale else self.lease(data))

    def handle(self, data: st.DataObject, claimed: ClaimedJob) -> None:
        """One of the things that handlers do."""
        do = (self.end_it, self.end_it, self.save_step, self.gather, self.sleep, self.wait_for, self.start_gather)
        data.draw(st.sampled_from((*do, self.complete_with_more)))(data, claimed)

    def end_it(self, data: st.DataObject, claimed: ClaimedJob) -> None:
        self.settled(claimed, data.draw(st.sampled_from((*FINAL_OUTCOMES, *OUTCOMES))))

    def save_step(self, data: st.DataObject, claimed: ClaimedJob) -> None:
        """With a job and a signal. Its commit may be repeated."""
        name, value = data.draw(st.sampled_from(["plan", "send"])), data.draw(VALUES)
        new = self.subjob(claimed) if data.draw(st.booleans()) else None
        signal = data.draw(st.sampled_from([None, None, *SIGNALS]))
        signals = (NewSignal(signal, as_json(value), claimed.tenant),) if signal else ()
        step = NewStep(name, value=as_json(value), follow_ups=(new,) if new else (), signals=signals)
        errors = [self.store.save_steps([(claimed, step)])[0] for _ in range(1 + data.draw(st.booleans()))]
        if not self.holds(claimed):
            assert all(isinstance(error, LeaseLost) for error in errors)
            return
        assert not any(errors)
        self.store_step(claimed.id, name, KnownStep("step", value))
        if new is not None:
            self.add(new, self.known(new))
        if signal is not None:
            self.signalled(claimed.tenant, signal, value)

    def gather(self, data: st.DataObject, claimed: ClaimedJob) -> None:
        """Store what subjobs have returned, or that one has failed."""
        steps = self.jobs[claimed.id].steps if self.holds(claimed) else {}
        for name in [name for name, step in steps.items() if step.kind == "gather"][:1]:
            value: Any = {"jobs": steps[name].value} if data.draw(st.booleans()) else {"results": [1]}
            assert [None] == self.store.save_steps([(claimed, NewStep(name, "gathered", as_json(value)))])
            self.store_step(claimed.id, name, KnownStep("gathered", value))

    def sleep(self, data: st.DataObject, claimed: ClaimedJob) -> None:
        seconds = data.draw(st.sampled_from([0, 3]))
        step = NewStep(self.new_name(claimed, "sleep"), "sleep", as_json(seconds))
        if self.suspend(claimed, delay=seconds * SECOND, steps=(step,)):
            self.add_step(claimed.id, step.name, KnownStep("sleep", seconds))

    def wait_for(self, data: st.DataObject, claimed: ClaimedJob) -> None:
        name, timeout = data.draw(st.sampled_from(SIGNALS)), data.draw(st.sampled_from(TIMEOUTS))
        step = self.new_name(claimed, name)
        if self.suspend(claimed, waits=(NewWait("signal", name, step, timeout=timeout),)):
            until = None if timeout is None else self.clock() + timeout
            self.add_waits(claimed.id, {(name, step): KnownWait("signal", until=until)})

    def start_gather(self, data: st.DataObject, claimed: ClaimedJob) -> None:
        keys = data.draw(st.lists(st.sampled_from([None, "l"]), min_size=1, max_size=2))
        jobs, name = [self.subjob(claimed, key) for key in keys], self.new_name(claimed, "all")
        step = NewStep(name, "gather", as_json(ids(jobs)))
        waits = tuple(NewWait("subjob", job.id, name) for job in jobs)
        endless = not self.behind(claimed.id).isdisjoint(self.answer_to(job) for job in jobs)
        written = Outcome(OutcomeKind.FAILED) if endless else None
        suspended = self.suspend(claimed, written, steps=(step,), waits=waits, follow_ups=tuple(jobs))
        if endless or not suspended:
            return
        stored: list[str] = []
        for job in jobs:
            stored.append(self.answer_to(job) or "")
            if stored[-1] == job.id:
                self.add(job, self.known(job))
        self.add_step(claimed.id, name, KnownStep("gather", stored))
        self.add_waits(claimed.id, {(id, name): KnownWait("subjob") for id in stored})

    def complete_with_more(self, data: st.DataObject, claimed: ClaimedJob) -> None:
        """What a handler has enqueued and sent is stored with its completion. The job may wait for its origin."""
        name, value, waits = data.draw(st.sampled_from(SIGNALS)), data.draw(VALUES), data.draw(st.booleans())
        new = msgspec.structs.replace(self.subjob(claimed), after=(claimed.id,) if waits else ())
        signal = NewSignal(name, as_json(value), claimed.tenant)
        if not self.settled(claimed, msgspec.structs.replace(COMPLETED, follow_ups=(new,), signals=(signal,))):
            return
        self.add(new, replace(self.known(new), status=Status.BLOCKED if waits else Status.PENDING))
        if waits:
            self.add_waits(new.id, {(claimed.id, ""): KnownWait("parent", "hold")})
        self.signalled(claimed.tenant, name, value)

    def behind(self, id: str) -> set[str]:
        """A job, and those that cannot go on before it has ended: they wait for it, or come next under its key."""
        found: set[str] = set()
        new = {id}
        while new:
            found |= new
            new = {key.successor for key in self.keys.values() if key.successor and key.holder in found}
            for id, k in self.jobs.items():
                if any(w.kind != "signal" and not w.met and what in found for (what, _), w in k.waits.items()):
                    new.add(id)
            new -= found
        return found

    def suspend(self, claimed: ClaimedJob, instead: Outcome | None = None, **what: Any) -> bool:
        """Whether it was written: the job waits. `instead`: how it ends, because it would wait forever."""
        written = self.holds(claimed) and not self.jobs[claimed.id].cancelled
        self.settled(claimed, Outcome(OutcomeKind.SUSPENDED, charged=0, **what), instead if written else None)
        if written and instead is None:
            self.jobs[claimed.id] = replace(self.jobs[claimed.id], forgiven=self.jobs[claimed.id].attempts)
        return written

    def subjob(self, claimed: ClaimedJob, key: str | None = None) -> NewJob:
        return new_job("b", queue="q", tenant=claimed.tenant, max_attempts=2, dedupe=key).started_by(claimed.id)

    def new_name(self, claimed: ClaimedJob, name: str) -> str:
        known = self.jobs.get(claimed.id)
        return f"{name} {len(known.steps) if known else 0}"

    # What the model remembers of it

    def known(self, new: NewJob) -> Known:
        common: dict[str, Any] = {"priority": 0, "max_attempts": 2, "key": new.dedupe, "run_at": self.clock()}
        return Known(type=new.type, queue=new.queue, tenant=new.tenant, **common)

    def store_step(self, id: str, name: str, step: KnownStep) -> None:
        self.add_step(id, name, step)
        self.jobs[id] = replace(self.jobs[id], forgiven=self.jobs[id].attempts - 1)

    def add_step(self, id: str, name: str, step: KnownStep) -> None:
        self.jobs[id] = replace(self.jobs[id], steps={**self.jobs[id].steps, name: step})

    def add_waits(self, id: str, waits: dict[tuple[str, str], KnownWait]) -> None:
        self.jobs[id] = replace(self.jobs[id], waits=self.jobs[id].waits | waits)
