"""What the statements take that move rows: new jobs, ranges, leases and outcomes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import Any

from treadle.codec import as_json
from treadle.job import ClaimedJob, NewJob
from treadle.outcome import UNSUCCESSFUL, Outcome
from treadle.stores.ranges import Candidate, Head, Position, ReadyRange
from treadle.stores.transaction import LeaseOutcome, requeued

_ALWAYS = attrgetter("id", "type", "queue", "tenant", "subject", "priority", "max_attempts")
_RARELY = attrgetter(
    *("dedupe", "dedupe_rule", "traceparent", "schedule", "fired_at", "origin", "batch", "run_at", "delay"),
    *("start_within", "fair", "after"),
)
_PLAIN = _RARELY(NewJob(id="", type=""))


def new_rows(jobs: Sequence[NewJob]) -> Mapping[str, Any]:
    """New jobs, as NEW_JOBS takes them. A plain one ends early: to read what it has not costs the server as much as the
    rest."""
    rows = [_ALWAYS(job) if (rare := _RARELY(job)) == _PLAIN else _ALWAYS(job) + rare for job in jobs]
    return {"rows": as_json(rows), "payloads": f"[{','.join([job.payload for job in jobs])}]"}


def fences(ended: Sequence[LeaseOutcome]) -> Mapping[str, str]:
    """These leases, as COMPLETE takes them: as arrays in texts, which cost the least."""
    ids, numbers = ",".join([c.id for c, _ in ended]), ",".join([str(c.number) for c, _ in ended])
    tokens = ",".join([str(c.token) for c, _ in ended])
    return {"ids": f"{{{ids}}}", "numbers": f"{{{numbers}}}", "tokens": f"{{{tokens}}}"}


def settle_row(now: int, c: ClaimedJob, o: Outcome) -> tuple[object, ...]:
    """An outcome, as SETTLE takes it."""
    run_at, charged, snoozed, suspicion, started, parked = requeued(now, o)
    failure = o.kind if o.kind in UNSUCCESSFUL else None
    ends = c.id, c.number, c.token, o.kind.final, charged, o.result, o.error
    return *ends, run_at, snoozed, suspicion, failure, o.traceback, started, parked, int(c.limited > 1)


def starts_of(jobs: Sequence[Candidate], batch: Sequence[Head]) -> list[tuple[ReadyRange, int, Position]]:
    """How many jobs to take of each range, and after which: others may have taken these very jobs by now."""
    counts, after = Counter(range for _, _, range in jobs), {head.range: head.after for head in batch}
    return [(range, n, after[range]) for range, n in counts.items()]
