"""Expiry: jobs that were not started in time are cancelled, by a claim that meets them and by a chore."""

from __future__ import annotations

from collections import Counter

from treadle.codec import as_json
from treadle.job import Status, expired_error
from treadle.stores.shared.stats import tally
from treadle.stores.transaction import Transaction


def has_expired(tx: Transaction) -> bool:
    """Whether there is something to do for `expire`. Takes no lock."""
    return bool(tx.value(tx.sql.HAS_EXPIRED, {"now": tx.now}))


def expire(tx: Transaction, limit: int) -> int:
    """End the first `limit` jobs that were not started in time. Return their number.

    It waits for no other transaction: a claim does it, and must not stop because a user has locked a dedupe key.
    """
    found = tx.execute(tx.sql.EXPIRED, {"now": tx.now, "limit": limit}).fetchall()
    locked = _lock_keys(tx, [id for id, *_, keyed in found if keyed])
    ended = [row for row in found if not row[4] or row[0] in locked]
    if not ended:
        return 0
    ids = as_json([id for id, *_ in ended])
    rows = as_json([(id, expired_error(within)) for id, _, _, within, _ in ended])
    tx.execute(tx.sql.FINISH_EXPIRED, {"rows": rows, "now": tx.now})
    tx.execute(tx.sql.DELETE_READY, {"ids": ids})
    if locked:
        tx.release_keys(sorted(locked))
    counts = Counter((type, queue) for _, type, queue, _, _ in ended)
    signs = (Status.PENDING, -1), (Status.CANCELLED, 1)
    tally(tx, [(status, *key, sign * n) for key, n in counts.items() for status, sign in signs])
    return len(ended)


def _lock_keys(tx: Transaction, ids: list[str]) -> set[str]:
    """Of the jobs with a dedupe key those whose key is ours now, so that its release waits for nobody."""
    if not ids or not tx.sql.LOCK_FREE_KEYS:
        return set(ids)
    return {row[0] for row in tx.execute(tx.sql.LOCK_FREE_KEYS, {"ids": as_json(ids)})}
