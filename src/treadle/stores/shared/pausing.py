"""Pause, resume, and what a drain waits for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from treadle import clock
from treadle.pauses import NewPause, Pause, Target
from treadle.stores.parking import MOST_REASONS, for_tenant, put_back
from treadle.stores.transaction import Transaction

_TENANT = for_tenant("")
_AFTER_TENANT = "tenant;"
"""What sorts after all of those."""


def pause(tx: Transaction, new: NewPause) -> Pause:
    """Store it. It may have ended already: this has waited for other transactions."""
    row = {"who": new.by, "reason": new.reason, "until": new.until, "draining": int(new.draining)}
    tx.execute(tx.sql.PAUSE, {**_names(new.target), **row, "now": tx.now})
    return next(found for row in tx.execute(tx.sql.PAUSES) if (found := _pause(row)).target == new.target)


def resume(tx: Transaction, target: Target) -> Pause | None:
    """End it. Its row stays as long as rows are parked for it, so that claims put them back."""
    ended = next((found for found in pauses(tx) if found.target == target), None)
    if ended is not None:
        tx.execute(tx.sql.END_PAUSE, {**_names(target), "now": tx.now})
        tx.execute(tx.sql.DROP_PAUSES, {"now": tx.now})
        for queue in _queues(tx, target):
            tx.job_waits(queue)
    return ended


def pauses(tx: Transaction) -> list[Pause]:
    rows = tx.execute(tx.sql.PAUSES).fetchall()
    return [_pause(row) for row in rows if row[6] is None or row[6] > tx.now]


def put_back_parked(tx: Transaction) -> int:
    """Put back some of the rows that are parked for a pause that is over, and drop what is left of such pauses."""
    held = {for_tenant(found.tenant) for found in pauses(tx) if found.tenant}
    parked = [
        row[0]
        for row in tx.execute(tx.sql.PARKED_FOR, {"after": _TENANT, "before": _AFTER_TENANT, "most": MOST_REASONS})
    ]
    back = put_back(tx, [reason for reason in parked if reason not in held])
    if not back:
        tx.execute(tx.sql.DROP_PAUSES, {"now": tx.now})
    return back


def running_of(tx: Transaction, target: Target) -> int:
    count: int = tx.value(tx.sql.RUNNING_OF, {kind: name or None for kind, name in _names(target).items()})
    return count


def claiming(tx: Transaction) -> frozenset[str]:
    return frozenset(row[0] for row in tx.execute(tx.sql.CLAIMING))


def _queues(tx: Transaction, target: Target) -> set[str]:
    """The queues in which its jobs may wait."""
    if target.queue:
        return {target.queue}
    return {range.queue for range, _ in tx.ready_ranges() if target.tenant or range.type == target.type}


def _names(target: Target) -> dict[str, Any]:
    return {"tenant": target.tenant, "queue": target.queue, "type": target.type}


def _pause(row: Sequence[Any]) -> Pause:
    """A row of PAUSES."""
    names, (since, until, draining) = zip(("tenant", "queue", "type", "by", "reason"), row, strict=False), row[5:]
    times: dict[str, Any] = {"since": clock.moment(since), "until": clock.optional_moment(until)}
    return Pause(**dict(names), **times, draining=bool(draining))
