"""What the model knows of dedupe keys: who holds one, for how long, and what an enqueue does that finds it held."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest

from tests.conformance.helpers import ids
from tests.conformance.known import Known
from treadle import Dedupe
from treadle.dedupe import Rule, read_rule, rule_text
from treadle.errors import KeyHeld
from treadle.job import NewJob, Status

KEYS = ("k", "l")
DAYS = 3 * 86_400
REPLACING = (
    {"mode": "replace"},
    {"mode": "replace", "until": "started"},
    {"mode": "debounce", "wait": 3, "at_most": 7},
)
OTHERS = (
    {"mode": "return"},
    {"until": "started"},
    {"mode": "reject"},
    {"mode": "reject", "until": "started"},
    {"mode": "throttle", "period": 6},
    {"mode": "throttle", "period": DAYS},
)


def as_text(options: dict[str, Any]) -> str | None:
    """A rule, as it is stored with a job."""
    return rule_text(Dedupe("k", **options))


RULES = tuple(map(as_text, (*OTHERS, *REPLACING)))


@dataclass(frozen=True)
class KnownKey:
    holder: str
    until_started: bool = False
    since: int | None = None
    """The first call of the debounce that the waiting job belongs to."""
    expires_at: int | None = None
    """Of a throttled key."""
    successor: str | None = None


class Keys:
    """The part of a machine that knows dedupe keys."""

    clock: Any
    store: Any
    jobs: dict[str, Known]
    keys: dict[tuple[str, str], KnownKey]

    def held(self, tenant: str, name: str | None) -> KnownKey | None:
        """A key, if a job holds it."""
        key = None if name is None else self.keys.get((tenant, name))
        if key is None or key.holder not in self.jobs:
            return None
        holder = self.jobs[key.holder]
        if key.successor is not None:
            return key
        if key.expires_at is not None:
            return key if key.expires_at > self.clock() else None
        return None if holder.status.is_final or (key.until_started and not holder.is_fresh) else key

    def is_throttled(self, id: str) -> bool:
        """Whether it has to be kept, because it holds its key even if it has ended."""
        key = self.held(self.jobs[id].tenant, self.jobs[id].key)
        return key is not None and key.holder == id and key.expires_at is not None

    def answer_to(self, new: NewJob) -> str | None:
        """The id of the job that an enqueue returns. None: it is rejected."""
        key, rule = self.held(new.tenant, new.dedupe), read_rule(new.dedupe_rule)
        if key is None or (rule.replaces and not self.jobs[key.holder].status.is_final):
            return new.id
        return None if rule.mode == "reject" else key.holder

    def replaces_a_parent(self, new: NewJob) -> bool:
        """Whether it would end one of its own parents."""
        key, rule = self.held(new.tenant, new.dedupe), read_rule(new.dedupe_rule)
        if key is None or not rule.replaces or self.jobs[key.holder].status.is_final:
            return False
        return key.successor in new.after or (not self.jobs[key.holder].has_begun and key.holder in new.after)

    def enqueue(self, new: NewJob, known: Known, *, again: bool = False) -> None:
        """Insert a job, and check the answer. `again`: the call is repeated."""
        answer = self.answer_to(new)
        for _ in range(1 + again):
            if answer is not None:
                assert [answer] == ids(self.store.insert([new]))
                continue
            with pytest.raises(KeyHeld) as refused:
                self.store.insert([new])
            assert refused.value.holder == self.keys[new.tenant, new.dedupe or ""].holder
        if answer == new.id:
            self.add(new, known)

    def add(self, new: NewJob, known: Known) -> None:
        """A job is stored: it takes its key, or waits behind the holder."""
        if new.dedupe is None:
            self.jobs[new.id] = known
            return
        rule, place, key = read_rule(new.dedupe_rule), (new.tenant, new.dedupe), self.held(new.tenant, new.dedupe)
        behind = key is not None and self.jobs[key.holder].has_begun
        since = None if key is None or (behind and key.successor is None) else key.since
        for id in (None if behind or key is None else key.holder, key and key.successor):
            if id is not None:
                self.jobs[id] = self.jobs[id].ended(Status.CANCELLED, self.clock())
        own = self.taken(new.id, rule, since)
        self.keys[place] = replace(key, successor=new.id, since=own.since) if key is not None and behind else own
        due = known.run_at
        if own.since is not None:
            due = max(self.clock(), min(self.clock() + rule.wait, own.since + rule.at_most))
        parked = behind and known.status is Status.PENDING
        self.jobs[new.id] = replace(known.moved(due), parked=parked, rule=new.dedupe_rule)

    def taken(self, id: str, rule: Rule, since: int | None = None) -> KnownKey:
        now = self.clock()
        return KnownKey(
            id,
            until_started=rule.until == "started",
            since=(now if since is None else since) if rule.mode == "debounce" else None,
            expires_at=now + rule.period if rule.mode == "throttle" else None,
        )

    def release(self, id: str, ended: Known) -> None:
        """A job has ended. Its successor takes the key, until it has ended; a throttled key stays."""
        place = (ended.tenant, ended.key or "")
        key = self.keys.get(place)
        if key is not None and key.successor == id:
            self.keys[place] = replace(key, successor=None)
        elif key is not None and key.holder == id and key.successor is not None:
            self.keys[place] = replace(key, holder=key.successor, successor=None, expires_at=None)
            self.jobs[key.successor] = replace(self.jobs[key.successor], parked=False)
        elif key is not None and key.holder == id and (key.expires_at or 0) <= self.clock():
            del self.keys[place]

    def can_retake(self, id: str) -> bool:
        """Whether a job can take its key again, to be retried."""
        key = self.held(self.jobs[id].tenant, self.jobs[id].key)
        return key is None or key.holder == id

    def retake(self, id: str) -> None:
        """A retried job holds its key, as its rule says. It is not debounced again."""
        k = self.jobs[id]
        if k.key is not None and self.held(k.tenant, k.key) is None:
            self.keys[k.tenant, k.key] = replace(self.taken(id, read_rule(k.rule)), since=None)
