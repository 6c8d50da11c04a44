"""What waits, (queue, type) by (queue, type), at a cost that does not grow with how much it is."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import NamedTuple

from treadle.job import STATES, Status
from treadle.stores.rows import QueueStats
from treadle.stores.sql.transaction import Transaction

MOST = 10_001
"""What is counted one by one is counted up to here."""
LEVELS = 2_000
"""Of so many (queue, type, priority) at the most."""


class _Level(NamedTuple):
    oldest: int | None
    next: int | None
    later: int


class _Again(NamedTuple):
    failed_before: int
    later: int


def lanes(tx: Transaction) -> list[QueueStats]:
    """How many wait is tallied. How many of those wait for a later time is counted, in ranges of the index."""
    tx.execute(tx.sql.SNAPSHOT)  # what is counted is some of what is tallied
    try:
        return _lanes(tx)
    finally:
        tx.execute(tx.sql.SNAPSHOT_OVER)


def _lanes(tx: Transaction) -> list[QueueStats]:
    levels: dict[tuple[str, str], list[_Level]] = defaultdict(list)
    found = tx.execute(tx.sql.LEVELS, {"now": tx.now, "most": MOST, "levels": LEVELS + 1}).fetchall()
    for queue, type, *level in found[:LEVELS]:
        levels[queue, type].append(_Level(*level))
    again = {(queue, type): _Again(*n) for queue, type, *n in tx.execute(tx.sql.AGAIN, {"now": tx.now, "most": MOST})}
    whole = len(found) <= LEVELS and sum(n.failed_before for n in again.values()) < MOST
    limits = {row[0]: row[4] for row in tx.execute(tx.sql.POLICIES)}
    tallies: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    for status, type, queue, n in tx.execute(tx.sql.COUNTS):
        tallies[queue, type][status] += n
    return [
        _lane(lane, tally, levels[lane], again.get(lane, _Again(0, 0)).later, limits.get(lane[1]), whole=whole)
        for lane, tally in sorted(tallies.items())
    ]


def _lane(
    lane: tuple[str, str], tally: Counter[str], levels: list[_Level], again: int, limit: int | None, *, whole: bool
) -> QueueStats:
    pending = tally[Status.PENDING]
    later = min(sum(level.later for level in levels), pending)
    retrying = min(again, later)
    waiting = {"queued": pending - later, "scheduled": later - retrying, "retrying": retrying}
    return QueueStats(
        queue=lane[0],
        type=lane[1],
        counts={state.name: tally[state.status] for state in STATES} | waiting,
        oldest_due=min((level.oldest for level in levels if level.oldest is not None), default=None),
        next_due=min((level.next for level in levels if level.next is not None), default=None),
        limit=limit,
        exact=not pending or (whole and all(level.later < MOST for level in levels)),
    )
