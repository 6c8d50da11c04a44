"""The backlog over time: a sample each minute of how many jobs wait and run."""

from __future__ import annotations

from treadle.clock import MINUTE, moment
from treadle.job import Backlog
from treadle.stores.transaction import Transaction

MOST_LATER = 100_000
"""How many jobs for later are counted: the others count as queued."""


def is_sampled(tx: Transaction) -> bool:
    """Whether a worker has sampled this minute. Takes no lock."""
    return tx.value(tx.sql.IS_SAMPLED, {"minute": _minute(tx)}) is not None


def count(tx: Transaction) -> tuple[int, int, int]:
    """How many jobs are pending, for later and processing. Takes no lock."""
    pending, later, processing = tx.execute(tx.sql.BACKLOG_NOW, {"now": tx.now, "most": MOST_LATER}).fetchone()
    return pending, min(later, pending), processing


def sample(tx: Transaction, counts: tuple[int, int, int]) -> int:
    """Write what waits and runs now. Return 1, or 0 if another worker was first."""
    pending, later, processing = counts
    row = {"minute": _minute(tx), "queued": pending - later, "later": later, "processing": processing}
    return tx.execute(tx.sql.SAMPLE, row).rowcount


def backlog(tx: Transaction, since: int, until: int, step: int) -> list[Backlog]:
    """`since`, `until` and the start of each step are seconds since 1970."""
    rows = tx.execute(tx.sql.BACKLOG, {"since": since, "until": until, "step": step})
    return [Backlog(moment(at * 1_000_000), *counts) for at, *counts in rows]


def _minute(tx: Transaction) -> int:
    return tx.now // MINUTE * 60
