"""The backlog over time: a sample each minute of how many jobs wait and run."""

from __future__ import annotations

from collections.abc import Iterable

from treadle.clock import MINUTE, moment
from treadle.job import Backlog
from treadle.stores.rows import QueueStats
from treadle.stores.transaction import Transaction


def is_sampled(tx: Transaction) -> bool:
    """Whether a worker has sampled this minute. Takes no lock."""
    return tx.value(tx.sql.IS_SAMPLED, {"minute": _minute(tx)}) is not None


def sample(tx: Transaction, queues: Iterable[QueueStats]) -> int:
    """Write what waits and runs now. Return 1, or 0 if another worker was first."""
    counts = {"queued": 0, "later": 0, "processing": 0}
    for row in queues:
        counts["queued"] += row.counts["queued"]
        counts["later"] += row.counts["scheduled"] + row.counts["retrying"]
        counts["processing"] += row.counts["processing"]
    return tx.execute(tx.sql.SAMPLE, {"minute": _minute(tx), **counts}).rowcount


def backlog(tx: Transaction, since: int, until: int, step: int) -> list[Backlog]:
    """`since`, `until` and the start of each step are seconds since 1970."""
    rows = tx.execute(tx.sql.BACKLOG, {"since": since, "until": until, "step": step})
    return [Backlog(moment(at * 1_000_000), *counts) for at, *counts in rows]


def _minute(tx: Transaction) -> int:
    return tx.now // MINUTE * 60
