"""What handlers have logged. Lines are stored under the lease of their run, or not at all."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from treadle import clock
from treadle.codec import as_json
from treadle.ids import is_id
from treadle.job import ClaimedJob
from treadle.log_lines import LogLine, NewLine
from treadle.stores.shared.steps import lock_held
from treadle.stores.transaction import Transaction

Logged = tuple[ClaimedJob, Sequence[NewLine]]


def save_logs(tx: Transaction, logged: Sequence[Logged]) -> None:
    """Store these lines, where the lease of their run is still held."""
    held = lock_held(tx, [claimed for claimed, _ in logged])
    add_logs(tx, [one for one in logged if one[0].fence in held])


def add_logs(tx: Transaction, logged: Iterable[Logged]) -> None:
    rows = [(c.id, c.tenant, c.number, c.attempt, n.line, n.ago, n.level, n.message) for c, new in logged for n in new]
    if rows:
        tx.execute(tx.sql.ADD_LOGS, {"rows": as_json(rows), "now": tx.now})


def logs(tx: Transaction, id: str, after: int | None = 0, limit: int = 1_000) -> list[LogLine]:
    """Without `after`, the last ones."""
    if not is_id(id):
        return []
    if after is None:
        rows = tx.execute(tx.sql.LAST_LOGS, {"id": id, "limit": limit}).fetchall()[::-1]
    else:
        rows = tx.execute(tx.sql.LOGS, {"id": id, "after": after, "limit": limit}).fetchall()
    return [
        LogLine(attempt=attempt, line=line, at=clock.moment(at), level=level, message=message)
        for attempt, line, at, level, message in rows
    ]
