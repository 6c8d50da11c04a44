"""What the model knows of limits: places at once, token buckets, what people change, and keys that are held back."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from math import ceil
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import rule

from tests.conformance.helpers import limit
from tests.conformance.known import Known
from treadle import Limit, Rate
from treadle.clock import SECOND, from_datetime
from treadle.codec import as_json
from treadle.job import Status
from treadle.limits import LimitChange
from treadle.outcome import Outcome, OutcomeKind
from treadle.stores.base import TypePolicy

AT_ONCE = 2
"""Of type `b`."""
PER_TENANT = Limit("per tenant", concurrency=1, per="tenant")
"""Of type `a`."""
CALLS = Limit("calls", rate=Rate(1, per=4, burst=2), per="tenant")
"""Of type `rated`."""
NAMES = {"a": PER_TENANT.name, "b": "type:b", "rated": CALLS.name}
DECLARED = {"type:b": AT_ONCE, PER_TENANT.name: PER_TENANT.concurrency, CALLS.name: CALLS.rate}
CHANGES: tuple[tuple[tuple[str, str], Any], ...] = (
    (("type:b", ""), 1),
    (("type:b", ""), 2),
    ((PER_TENANT.name, "t"), 2),
    ((CALLS.name, ""), Rate(1, per=2, burst=1)),
    ((CALLS.name, "t"), Rate(2, per=2, burst=3)),
)
HELD_BACK = tuple(Outcome(OutcomeKind.SNOOZED, delay=5 * SECOND, charged=0, holds=name) for name in ("", CALLS.name))

LimitKey = tuple[str, str]
"""The name of a limit, and the tenant that it is counted by, or ''."""


@dataclass(frozen=True)
class KnownBucket:
    full_at: int = 0
    """The time at which all of its burst may start again, but for the starts that were given back."""
    given_back: int = 0

    def missing(self, rate: Rate, now: int) -> int:
        """The time that it takes to be full."""
        return max(0, self.full_at - self.given_back * interval(rate) - now)


def interval(rate: Rate) -> int:
    return int(rate.per * SECOND) // rate.count


class Limits:
    """The part of a machine that knows limits."""

    clock: Any
    store: Any
    jobs: dict[str, Known]

    def __init__(self) -> None:
        super().__init__()
        self.changed: dict[LimitKey, Any] = {}
        self.buckets: dict[LimitKey, KnownBucket] = {}
        self.held_back: dict[LimitKey, int] = {}

    def declare_limits(self) -> None:
        limit(self.store, "b", AT_ONCE)
        self.store.publish([TypePolicy(type="a", limits=as_json([PER_TENANT]))])
        self.store.publish([TypePolicy(type="rated", limits=as_json([CALLS]))])

    def limit_of(self, k: Known) -> LimitKey | None:
        return (NAMES[k.type], "" if k.type == "b" else k.tenant) if k.type in NAMES else None

    def bounds(self, key: LimitKey) -> Any:
        """How many at once, or a rate: what was set for the key, for all keys, or by the code."""
        return self.changed.get(key) or self.changed.get((key[0], "")) or DECLARED[key[0]]

    def running(self, key: LimitKey) -> int:
        return sum(k.status is Status.PROCESSING and self.limit_of(k) == key for k in self.jobs.values())

    def places(self, key: LimitKey) -> int:
        """How many jobs may start now."""
        bounds, bucket = self.bounds(key), self.buckets.get(key, KnownBucket())
        if self.held_back.get(key, 0) > self.clock():
            return 0
        if not isinstance(bounds, Rate):
            return max(0, bounds - self.running(key))
        return max(0, bounds.burst - ceil(bucket.missing(bounds, self.clock()) / interval(bounds)))

    def in_order(self, due: list[str], most: int) -> list[str]:
        """What a claim takes of these, if no type is fair."""
        chosen: list[str] = []
        taken: Counter[LimitKey | None] = Counter()
        for id in due:
            key = self.limit_of(self.jobs[id])
            if len(chosen) < most and (key is None or taken[key] < self.places(key)):
                chosen.append(id)
                taken[key] += 1
        return chosen

    def spend(self, k: Known) -> None:
        """A job has started."""
        key = self.limit_of(k)
        if key is not None and isinstance(rate := self.bounds(key), Rate):
            missing = self.buckets.get(key, KnownBucket()).missing(rate, self.clock())
            self.buckets[key] = KnownBucket(self.clock() + missing + interval(rate))

    def hold_back_or_give_back(self, k: Known, outcome: Outcome) -> None:
        """A run has ended: it was rate limited, or was not started."""
        key = self.limit_of(k)
        if key is None:
            return
        if outcome.holds in ("", key[0]):
            self.held_back[key] = max(self.held_back.get(key, 0), self.clock() + outcome.delay)
        elif not outcome.started and outcome.holds is None and key in self.buckets:
            self.buckets[key] = replace(self.buckets[key], given_back=self.buckets[key].given_back + 1)

    @rule(change=st.sampled_from(CHANGES))
    def change_limit(self, change: tuple[LimitKey, Any]) -> None:
        """By a person. What runs goes on."""
        (name, key), bounds = change
        what = {"rate": bounds} if isinstance(bounds, Rate) else {"concurrency": bounds}
        self.store.change_limit(LimitChange(name=name, key=key, **what))
        self.changed[name, key] = bounds

    @rule(key=st.sampled_from(sorted({key for key, _ in CHANGES} | {(name, "") for name in DECLARED})))
    def unset_limit(self, key: LimitKey) -> None:
        """As the code has it again. A key that is held back is let go."""
        was_held = self.held_back.pop(key, 0) > self.clock()
        was_changed = self.changed.pop(key, None) is not None
        assert (was_held or was_changed) == self.store.unset_limit(*key)

    @rule()
    def look_at_limits(self) -> None:
        """What people see of them: how many run, and what is held back."""
        states = {(state.name, state.key): state for state in self.store.limits()}
        held = {key: until for key, until in self.held_back.items() if until > self.clock()}
        assert held == {key: from_datetime(s.held_until) for key, s in states.items() if s.held_until is not None}
        assert states.keys() == {*held, *self.changed, *((name, "") for name in DECLARED)}
        for key, state in states.items():
            of_all = [k for k in self.jobs.values() if k.status is Status.PROCESSING and NAMES.get(k.type) == key[0]]
            whole = state.per is not None and not key[1]
            assert state.running == (len(of_all) if whole else self.running(key))
            assert self.bounds(key) == (state.rate or state.concurrency)
