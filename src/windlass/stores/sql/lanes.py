"""What waits, (queue, type) by (queue, type), at a cost that does not grow with how much it is."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import NamedTuple

from windlass.job import Status
from windlass.stores.rows import LaneRow
from windlass.stores.sql.transaction import Transaction

MOST = 10_001
"""What is counted one by one is counted up to here."""
LEVELS = 2_000
"""Of so many (queue, type, priority) at the most."""


class _Level(NamedTuple):
    oldest: int | None
    next: int | None
    later: int


def lanes(tx: Transaction) -> list[LaneRow]:
    """How many wait is tallied. How many of those wait for a later time is counted, in ranges of the index."""
    levels: dict[tuple[str, str], list[_Level]] = defaultdict(list)
    for queue, type, *level in tx.execute(tx.sql.LEVELS, {"now": tx.now, "most": MOST, "levels": LEVELS}):
        levels[queue, type].append(_Level(*level))
    again = {(queue, type): n for queue, type, n in tx.execute(tx.sql.AGAIN, {"now": tx.now, "most": MOST})}
    limits = {row[0]: row[4] for row in tx.execute(tx.sql.POLICIES)}
    tallies: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    for status, type, queue, n in tx.execute(tx.sql.COUNTS):
        tallies[queue, type][status] += n
    return [
        _lane(queue, type, tally, levels[queue, type], again.get((queue, type), 0), limits.get(type))
        for (queue, type), tally in sorted(tallies.items())
    ]


def _lane(queue: str, type: str, tally: Counter[str], levels: list[_Level], again: int, limit: int | None) -> LaneRow:
    pending = tally[Status.PENDING]
    later = min(sum(level.later for level in levels), pending)
    retrying = min(again, later)
    return LaneRow(
        queue=queue,
        type=type,
        queued=pending - later,
        scheduled=later - retrying,
        retrying=retrying,
        processing=tally[Status.PROCESSING],
        completed=tally[Status.COMPLETED],
        failed=tally[Status.FAILED],
        cancelled=tally[Status.CANCELLED],
        oldest_due=min((level.oldest for level in levels if level.oldest is not None), default=None),
        next_due=min((level.next for level in levels if level.next is not None), default=None),
        limit=limit,
        exact=all(level.later < MOST for level in levels) and again < MOST,
    )
