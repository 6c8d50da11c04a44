"""Counts of jobs, which every verb that moves rows keeps, and statistics: usage, latency, failures, what waits."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from treadle.clock import MINUTE, moment
from treadle.codec import as_json
from treadle.job import STATES, FailureGroup, Status, Usage
from treadle.outcome import UNSUCCESSFUL, OutcomeKind
from treadle.stores.limiting import load
from treadle.stores.rows import QueueStats, Sampled
from treadle.stores.shared.filter_sql import Term
from treadle.stores.statements.parts import MOST
from treadle.stores.transaction import LeaseOutcome, Moved, Transaction

SAMPLE = 2_000
SAMPLED_FROM = 10_000
"""A million jobs that were cancelled before they ran are no reason to read them all."""
FAILED = 10_000
"""How many of the newest jobs are grouped."""
MOST_COUNTED = 10_001
"""Rows that are counted one by one are counted up to here."""
MOST_QUEUES = 1_000
"""At most that many (queue, type) have a row of their own."""
MOST_LEVELS = 2_000
"""At most that many (queue, type, priority) are read."""
Tally = Mapping[Status, int]
"""How many jobs have each status."""


# Written with the rows that they count


def tally(tx: Transaction, moved: Moved) -> None:
    """Count all jobs, and those that are blocked or have ended. What is leased is counted in `leases`, and the rest is
    pending: a claim counts nothing."""
    counts: Counter[tuple[str, str, str]] = Counter()
    for status, type, queue, n in moved:
        counts["all", type, queue] += n
        if status not in (Status.PENDING, Status.PROCESSING):
            counts[status, type, queue] += n
    if rows := [(*key, n) for key, n in counts.items() if n]:
        tx.execute(tx.sql.ADD_TALLIES, {"rows": as_json(rows)})


def count_ended(tx: Transaction, ended: Sequence[LeaseOutcome]) -> None:
    """Add tallies and usage of what was just written. This runs for every job, so it adds up first."""
    now = tx.now
    sums: dict[tuple[OutcomeKind, bool, str, str, str], list[int]] = {}
    for c, outcome in ended:
        sum = sums.setdefault((outcome.kind, not outcome.waits, c.type, c.queue, c.tenant), [0, 0, 0])
        sum[0] += 1
        sum[1] += now - c.started_at
        sum[2] += c.started_at - c.run_at
    counted: Counter[tuple[str, str, str]] = Counter()
    minute = now // MINUTE * 60
    usage: list[tuple[object, ...]] = []
    for (kind, due, type, queue, tenant), (runs, busy, waiting) in sums.items():
        if status := kind.final or (None if due else Status.BLOCKED):
            counted[status, type, queue] += runs
        if kind is not OutcomeKind.RELEASED:
            completed, failures = runs * (kind is OutcomeKind.COMPLETED), runs * (kind in UNSUCCESSFUL)
            busy = busy if 0 <= busy < MOST else 0  # a time broken by hand is not counted
            waiting = waiting if 0 <= waiting < MOST else 0
            usage.append((minute, type, queue, tenant, runs, completed, failures, busy, waiting))
    tx.add_counts([(*key, n) for key, n in counted.items()], usage)


# Read


def usage(
    tx: Transaction,
    since: int,
    until: int,
    step: int,
    by: Sequence[str],
    tenant: str | None = None,
    type: str | None = None,
    most: int | None = None,
) -> list[Usage]:
    """`since`, `until` and the start of each step are seconds since 1970."""
    names, parameters = ", ".join(by), {"since": since, "until": until, "step": step, "tenant": tenant, "type": type}
    which = "true"
    if by and most is not None:
        which, parameters["most"] = f"({names}) IN ({tx.sql.MOST_USED.format(names=names)})", most
    statement = tx.sql.USAGE.format(by=f"{names}, " if by else "", which=which, group=", ".join(["1", *by]))
    rows = tx.execute(statement, parameters)
    return [
        Usage(
            at=moment(at * 1_000_000),
            key=tuple(key),
            runs=runs,
            completed=completed,
            failures=failures,
            busy=busy / 1e6,
            waiting=waiting / 1e6,
        )
        for at, *key, runs, completed, failures, busy, waiting in rows
    ]


def latency_sample(tx: Transaction) -> list[Sampled]:
    rows = tx.execute(tx.sql.LATENCY_SAMPLE, {"limit": SAMPLE, "looked_at": SAMPLED_FROM})
    return [Sampled(type, queue, started - due, ended - started) for type, queue, due, started, ended in rows]


def failures(tx: Transaction) -> list[FailureGroup]:
    rows = tx.execute(tx.sql.FAILURES, {"limit": FAILED, "now": tx.now})
    return [
        FailureGroup(
            type=type,
            error=error,
            count=failed,
            retrying=retrying,
            first_at=moment(first),
            last_at=moment(last),
            sample=id,
        )
        for type, error, failed, retrying, first, last, id in rows
    ]


class _Level(NamedTuple):
    oldest: int | None
    next: int | None
    later: int


def queue_stats(tx: Transaction, which: Term = ("true", {}), queues: int = MOST_QUEUES) -> list[QueueStats]:
    """What waits, runs and has ended, by queue and type, at a cost that does not grow with how much it is.

    `which`: a condition on the tallies. How many wait is tallied. How many of those wait for a later time is counted,
    in ranges of the index. After the largest `queues`, by queue and type, one row sums the others.
    """
    with tx.snapshot():  # what is counted is part of what is tallied
        return _queue_stats(tx, which, queues)


def _queue_stats(tx: Transaction, which: Term, queues: int) -> list[QueueStats]:
    where, parameters = which
    largest = tx.execute(tx.sql.LARGEST_QUEUES.format(which=where), {**parameters, "queues": queues}).fetchall()
    tallies = {(queue, type): dict(zip(Status, counts, strict=True)) for _, queue, type, *counts in largest}
    most = {"now": tx.now, "most": MOST_COUNTED}
    levels: dict[tuple[str, str], list[_Level]] = defaultdict(list)
    pairs = as_json([pair for pair, tally in tallies.items() if tally[Status.PENDING]])
    waiting = tx.sql.WAITING_BY_PRIORITY.format(pairs=tx.sql.PAIRS)
    found = tx.execute(waiting, {**most, "pairs": pairs, "levels": MOST_LEVELS + 1}).fetchall()
    for queue, type, *level in found[:MOST_LEVELS]:
        levels[queue, type].append(_Level(*level))
    for queue, type, oldest in tx.execute(tx.sql.OLDEST_BY_TURNS.format(pairs=tx.sql.PAIRS), {**most, "pairs": pairs}):
        levels[queue, type].append(_Level(oldest, None, 0))
    again = tx.execute(tx.sql.RETRYING, most).fetchall()
    retrying = {(queue, type): later for queue, type, _, later in again}
    whole = len(found) <= MOST_LEVELS and sum(failed_before for _, _, failed_before, _ in again) < MOST_COUNTED
    limits = load(tx)
    rows = [
        _stats_of(key, tally, levels[key], retrying.get(key, 0), limits.of_type(key[1]), whole=whole)
        for key, tally in sorted(tallies.items())
    ]
    others = largest[0][0] - len(rows) if largest else 0
    return [*rows, _sum_of_others(tx, which, tallies.values(), others)] if others else rows


def _sum_of_others(tx: Transaction, which: Term, shown: Collection[Tally], others: int) -> QueueStats:
    """The row for those without one. Since when the oldest of them is due, and how many are for later, is not known."""
    where, parameters = which
    totals = dict(tx.execute(tx.sql.TALLIED.format(by="status, ", which=where, group="status"), parameters))
    rest = {status: totals.get(status, 0) - sum(tally[status] for tally in shown) for status in Status}
    return _stats_of(("", ""), rest, [], 0, None, whole=False, others=others)


def _stats_of(
    key: tuple[str, str],
    tally: Tally,
    levels: list[_Level],
    retrying: int,
    limit: int | None,
    *,
    whole: bool,
    others: int = 0,
) -> QueueStats:
    pending = tally[Status.PENDING]
    later = min(sum(level.later for level in levels), pending)
    retrying = min(retrying, later)
    waiting = {"queued": pending - later, "scheduled": later - retrying, "retrying": retrying}
    return QueueStats(
        queue=key[0],
        type=key[1],
        counts={state.name: tally[state.status] for state in STATES} | waiting,
        oldest_due=min((level.oldest for level in levels if level.oldest is not None), default=None),
        next_due=min((level.next for level in levels if level.next is not None), default=None),
        limit=limit,
        exact=not pending or (whole and all(level.later < MOST_COUNTED for level in levels)),
        others=others,
    )
