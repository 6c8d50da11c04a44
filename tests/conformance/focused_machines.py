"""Machines that know all, and do only what belongs to one idea: so they come often to its rare cases."""

from __future__ import annotations

from collections.abc import Callable
from inspect import getmembers
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RULE_MARKER, initialize, precondition, rule

from tests.conformance.durable_machine import DurableMachine
from tests.conformance.helpers import RETRIED, ids, new_job
from tests.conformance.known import Known
from tests.conformance.model_keys import REPLACING, RULES
from tests.conformance.model_limits import HELD_BACK
from tests.conformance.store_machine import OUTCOMES, TENANTS, StoreMachine
from treadle.clock import SECOND
from treadle.outcome import COMPLETED, UNSTARTED
from treadle.waits import IF_FAILED

RATE_OUTCOMES = (COMPLETED, RETRIED, UNSTARTED, UNSTARTED, *HELD_BACK)


def only(*names: str) -> Callable[[type[StoreMachine]], type[StoreMachine]]:
    """A machine whose rules are its own and these. The others are methods that its rules can call."""

    def leave_out(machine: type[StoreMachine]) -> type[StoreMachine]:
        kept = {*names, *vars(machine)}
        for name, method in getmembers(machine, lambda member: hasattr(member, RULE_MARKER)):
            if name not in kept:
                setattr(machine, name, as_plain_method(method))
        return machine

    return leave_out


def as_plain_method(method: Callable[..., Any]) -> Callable[..., Any]:
    return lambda self, **arguments: method(self, **arguments)


class Working(StoreMachine):
    """Has workers that claim and settle at once, some seconds later."""

    def claim_and_settle(self, data: st.DataObject, most: int, later: int, outcomes: tuple[Any, ...]) -> None:
        self.clock.advance(later)
        before = len(self.leases)
        self.claim(most=most, worker="", types=None, matched=True)
        for claimed in self.leases[before:]:
            if data.draw(st.integers(0, 3)):
                self.settled(claimed, data.draw(st.sampled_from(outcomes)))


@only("change_limit", "unset_limit", "look_at_limits", "settle")
class LimitMachine(Working):
    @initialize()
    def begin_with_some(self) -> None:
        for type in ("rated", "rated", "a", "b"):
            self.insert_some(n=3, type=type, tenant="t")

    @rule(type=st.sampled_from(["rated", "rated", "a", "b"]), tenant=st.sampled_from(TENANTS), n=st.integers(1, 4))
    def insert_some(self, n: int, **options: Any) -> None:
        options |= {"queue": "q", "priority": 0, "max_attempts": 9}
        for id in ids(self.store.insert([new_job(**options) for _ in range(n)])):
            self.jobs[id] = Known(key=None, run_at=self.clock(), **options)

    @rule(data=st.data(), most=st.integers(1, 4), later=st.sampled_from([0, 0, 0, 1, 2, 4]))
    def work(self, data: st.DataObject, most: int, later: int) -> None:
        self.claim_and_settle(data, most, later, RATE_OUTCOMES)


@only("settle", "cancel", "delete", "retry", "expire", "prune")
class KeyMachine(Working):
    @initialize(favored=st.lists(st.sampled_from(RULES), min_size=1, max_size=2))
    def begin_with_favored(self, favored: list[str | None]) -> None:
        """Whoever uses one key has one rule for it, or two."""
        self.favored = favored

    @rule(
        data=st.data(),
        n=st.integers(1, 4),
        type=st.sampled_from(["plain", "b"]),
        delay=st.sampled_from([0, 0, 2 * SECOND]),
        later=st.sampled_from([0, 1, 2, 6]),
        within=st.sampled_from([None, None, 4 * SECOND]),
        again=st.booleans(),
    )
    def call(self, data: st.DataObject, n: int, later: int, **how: Any) -> None:
        """Enqueue with the one key, some times in a row."""
        how |= {"key": "k", "tenant": "", "priority": 0, "batched": False}
        for _ in range(n):
            self.insert_with_key(rule=data.draw(st.sampled_from(self.favored)), **how)
            self.clock.advance(later)

    @rule(data=st.data(), most=st.integers(1, 2), later=st.sampled_from([0, 0, 1, 3]))
    def work(self, data: st.DataObject, most: int, later: int) -> None:
        self.claim_and_settle(data, most, later, OUTCOMES)


@only("match", "settle", "cancel", "retry", "expire")
class SuccessorMachine(Working, DurableMachine):
    """Jobs wait for their parents and for one key."""

    @rule(
        data=st.data(),
        n=st.integers(1, 3),
        within=st.sampled_from([None, None, 4 * SECOND]),
        if_failed=st.sampled_from(IF_FAILED),
        again=st.booleans(),
    )
    def call(self, data: st.DataObject, n: int, if_failed: str, **how: Any) -> None:
        """Enqueue with the key, some times in a row: children, and jobs without parents."""
        how |= {"key": "k", "type": "plain", "delay": 0, "batched": False}
        for _ in range(n):
            rule = data.draw(st.sampled_from(RULES[-len(REPLACING) :]))
            if data.draw(st.integers(0, 2)):
                self.insert_child(data=data, rule=rule, if_failed=if_failed, queue="q", **how)
            else:
                self.insert_with_key(rule=rule, tenant="", priority=1, **how)

    @rule(most=st.integers(1, 3), later=st.sampled_from([0, 0, 1, 3]))
    def start(self, most: int, later: int) -> None:
        """Let jobs run while others are enqueued."""
        self.clock.advance(later)
        self.claim(most=most, worker="", types=None, matched=True)

    @rule(data=st.data(), most=st.integers(1, 3), later=st.sampled_from([0, 0, 1, 3]))
    def work(self, data: st.DataObject, most: int, later: int) -> None:
        self.claim_and_settle(data, most, later, OUTCOMES)


@only("insert", "insert_some_by_turns", "pause", "resume", "put_back_parked", "reschedule", "run_now", "expire")
class OrderMachine(Working):
    @rule(data=st.data(), most=st.integers(1, 4), later=st.sampled_from([0, 0, 1, 5]))
    def work(self, data: st.DataObject, most: int, later: int) -> None:
        self.claim_and_settle(data, most, later, OUTCOMES)


@only("fire", "fire_now", "backfill", "pause_or_resume_schedule", "advance", "settle", "retry", "delete")
class ScheduleMachine(Working):
    @rule(data=st.data(), later=st.sampled_from([0, 5, 600]))
    def work(self, data: st.DataObject, later: int) -> None:
        self.claim_and_settle(data, 2, later, OUTCOMES)

    @rule(later=st.sampled_from([5, 600, 1800]))
    def fire_later(self, later: int) -> None:
        self.clock.advance(later)
        self.fire()


@only("match", "cancel", "delete", "retry", "complete", "settle", "prune", "expire")
class BatchMachine(Working):
    @rule(within=st.sampled_from([None, None, 4 * SECOND]), tenant=st.sampled_from(TENANTS))
    def insert_member(self, within: int | None, tenant: str) -> None:
        options: dict[str, Any] = {"type": "plain", "tenant": tenant, "queue": "q", "priority": 0, "max_attempts": 2}
        self.insert(again=False, delay=0, within=within, fair="", batched=True, **options)

    @rule(data=st.data(), most=st.integers(1, 4), later=st.sampled_from([0, 0, 5]))
    def work(self, data: st.DataObject, most: int, later: int) -> None:
        self.claim_and_settle(data, most, later, OUTCOMES)


@only("work", "go_on", "signal", "insert_child", "retry", "declare_dead", "advance")
class StepMachine(DurableMachine):
    @precondition(lambda self: self.leases)
    @rule(data=st.data())
    def save_late(self, data: st.DataObject) -> None:
        """A worker that may have lost the job saves a step."""
        self.save_step(data, data.draw(st.sampled_from(self.leases)))
