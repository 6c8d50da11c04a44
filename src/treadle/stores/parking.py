"""What keeps claims from meeting the same rows again and again.

A claim takes nothing of what is paused. The jobs of a paused queue or type are ranges of the index that it leaves out.
The jobs of a paused tenant are among those of others: a claim that meets some parks them, which takes them out of the
index, so that each is met about once. When the pause is over they are put back, some at a time: by the one who resumes,
by claims, and by a chore of every worker, which finds what all of them left.

`ready.parked` is '' for a job in order, 'fair' for one by turns (turns.py), and else says what it is parked for.
"""

from __future__ import annotations

from collections.abc import Iterable

from treadle.clock import SECOND
from treadle.stores.rows import NOTHING_PAUSED, Due, Paused
from treadle.stores.transaction import Transaction

MOST_PARKED = 1_000
"""Rows that one transaction parks or puts back: on SQLite others wait for it."""
MOST_LOOKS = 20
"""Times that one claim looks at everything again because it has parked something."""
MOST_REASONS = 1_000
"""What rows are parked for, of which one transaction looks at that many."""

PauseRow = tuple[str, str, str, int | None]
"""A tenant, a queue, a type, and when the pause ends."""


def paused(rows: Iterable[PauseRow], now: int) -> Paused:
    """What of these holds now."""
    rows = list(rows)
    if not rows:
        return NOTHING_PAUSED
    active = [row for row in rows if row[3] is None or row[3] > now]
    tenants = frozenset(tenant for tenant, _, _, _ in active if tenant)
    return Paused(
        queues=frozenset(queue for _, queue, _, _ in active if queue),
        types=frozenset(type for _, _, type, _ in active if type),
        tenants=tenants,
        ended=tuple(tenant for tenant, _, _, _ in rows if tenant and tenant not in tenants),
        next_at=min((until for _, _, _, until in active if until is not None), default=None),
    )


def due_with_pauses(due: Due, paused: Paused, now: int, *, more: bool) -> Due:
    """The end of a pause is a moment to look. `more`: rows are left that another claim has to park, or to put back."""
    if more:
        return Due(True, due.next_at, 0.0)
    if paused.next_at is None or (due.next_at is not None and due.next_at <= paused.next_at):
        return due
    return Due(due.now, paused.next_at, max(0.0, (paused.next_at - now) / SECOND))


def for_tenant(tenant: str) -> str:
    """What a row of a paused tenant is parked for."""
    return f"tenant:{tenant}"


def put_back(tx: Transaction, parked_for: Iterable[str], most: int = MOST_PARKED) -> int:
    """Let rows that are parked for these be claimed again, up to `most` of them. Return their number."""
    back = 0
    for reason in parked_for:
        queues = [row[0] for row in tx.execute(tx.sql.UNPARK, {"parked": reason, "most": most - back})]
        for queue in sorted(set(queues)):
            tx.job_waits(queue)
        back += len(queues)
        if back >= most:
            break
    return back


def put_back_ended(tx: Transaction, tenants: Iterable[str]) -> int:
    """Put back rows of tenants whose pause is over. When none are left, nothing is left of the pause either."""
    back = put_back(tx, map(for_tenant, tenants))
    if not back:
        tx.execute(tx.sql.DROP_PAUSES, {"now": tx.now})
    return back
