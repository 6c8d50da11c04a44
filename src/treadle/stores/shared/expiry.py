"""Expiry: jobs that were not started in time are cancelled, by a claim that meets them and by a chore."""

from __future__ import annotations

from treadle.codec import as_json
from treadle.job import Status, expired_error
from treadle.stores.shared import keys
from treadle.stores.shared.ending import Ending, end_waiting, waiting_status
from treadle.stores.transaction import Transaction


def has_expired(tx: Transaction) -> bool:
    """Whether there is something to do for `expire`. Takes no lock."""
    return bool(tx.value(tx.sql.HAS_EXPIRED, {"now": tx.now}))


def expire(tx: Transaction, limit: int) -> int:
    """End the first `limit` jobs that were not started in time. Return their number.

    It waits for no other transaction: a claim does it, and must not stop because a user has locked a dedupe key.
    """
    found = tx.execute(tx.sql.EXPIRED, {"now": tx.now, "limit": limit}).fetchall()
    keyed = [id for id, *_, keyed in found if keyed]
    behind, busy = keys.lock_successors(tx, keyed)
    locked = lock_keys(tx, [id for id in keyed if id not in behind | busy])
    ended = [
        Ending(id, type, queue, waiting_status(parked), Status.CANCELLED, expired_error(within))
        for id, type, queue, parked, within, keyed in found
        if not keyed or id in locked | behind
    ]
    if ended:
        end_waiting(tx, ended)
    keys.drop_successors(tx, behind)
    if locked:
        tx.release_keys(sorted(locked))
    return len(ended)


def lock_keys(tx: Transaction, ids: list[str]) -> set[str]:
    """Of the jobs that hold a dedupe key those whose key is ours now, so that its release waits for nobody."""
    if not ids or not tx.sql.LOCK_FREE_KEYS:
        return set(ids)
    return {row[0] for row in tx.execute(tx.sql.LOCK_FREE_KEYS, {"ids": as_json(ids)})}
