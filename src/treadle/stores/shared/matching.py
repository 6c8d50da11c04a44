"""Matching: what has happened lets waiting jobs go.

A claim that comes to arrivals matches them first, in a transaction of its own. It takes no more than MOST_MATCHED of
them, and waits for no lock: what another transaction has locked stays for the next claim.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from collections.abc import Set as AbstractSet
from itertools import accumulate
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from treadle.codec import as_json
from treadle.errors import JobNotFound, StoreBusy, StoreRefused
from treadle.job import Status
from treadle.steps import NewStep
from treadle.stores.shared.closing import close
from treadle.stores.shared.ending import Ending, end_waiting
from treadle.stores.shared.expiry import lock_keys
from treadle.stores.shared.stats import tally
from treadle.stores.shared.steps import NewRow, add_steps
from treadle.stores.transaction import Connections, Transaction
from treadle.waits import Decision, WaitState, decide_wait

if TYPE_CHECKING:
    from treadle.stores.shared.store import SQLStore

_decode_ids = msgspec.json.Decoder(list[str]).decode

MOST_MATCHED = 500
"""Jobs that one transaction lets go: on SQLite others wait for it."""


class Arrival(NamedTuple):
    """Something that may end waits."""

    seq: int
    kind: str
    tenant: str
    what: str

    @property
    def whats(self) -> Sequence[str]:
        """The jobs that have ended, or what else it is about."""
        return _decode_ids(self.what) if self.kind == "ended" else (self.what,)


def match_arrivals(store: SQLStore[Any]) -> int:
    """`match`, in a transaction. What a batch enqueues may need a dedupe key that a user's transaction has locked, or
    be refused by a trigger: that must not stop all the others."""
    database: Connections = store.database
    try:
        return database.write("claim", match)
    except (StoreBusy, StoreRefused, JobNotFound):
        return database.write("claim", match, postpone=True)


def match(tx: Transaction, *, postpone: bool = False) -> int:
    """Let jobs go that wait for what has arrived, and close batches. Return how many arrivals are done.

    `postpone`: what a batch would enqueue could not be stored just now. It is tried again later.
    """
    taken = _arrivals(tx)
    if not taken:
        return 0
    whats = {what for one in taken if one.kind in ("ended", "signal") for what in one.whats}
    found = _waiters(tx, whats)
    whole = {one.what for one in taken if one.kind == "waiter"}
    busy = _match_waiters(tx, found, whole)
    left = {what for id, _, what in found if id in busy} | (whats if len(found) == MOST_MATCHED else set()) | busy
    batches = {(one.tenant, one.what) for one in taken if one.kind == "batch"}
    again, counted = close(tx, batches, postpone=postpone) if batches else (set(), 0)
    done = [one.seq for one in taken if not _stays(one, left, again)]
    tx.execute(tx.sql.DELETE_ARRIVALS, {"ids": as_json(done)})
    return len(done) or counted


def _stays(one: Arrival, left: AbstractSet[str], batches: Collection[tuple[str, str]]) -> bool:
    return (one.tenant, one.what) in batches if one.kind == "batch" else not left.isdisjoint(one.whats)


def _arrivals(tx: Transaction) -> list[Arrival]:
    """The first that are due, of about so many jobs."""
    found = [Arrival(*row) for row in tx.execute(tx.sql.ARRIVALS, {"now": tx.now, "limit": MOST_MATCHED})]
    sizes = accumulate(len(one.whats) for one in found)
    return [one for one, size in zip(found, sizes, strict=True) if size <= MOST_MATCHED] or found[:1]


def _waiters(tx: Transaction, whats: Collection[str]) -> list[tuple[str, str, str]]:
    """Jobs that wait for these: their ids and tenants, and what each waits for."""
    row = {"ids": as_json(sorted(whats)), "limit": MOST_MATCHED}
    return tx.execute(tx.sql.WAITERS, row).fetchall() if whats else []


def _match_waiters(tx: Transaction, found: Sequence[tuple[str, str, str]], whole: Collection[str]) -> set[str]:
    """Decide these waits, and all of the jobs in `whole`. Return the jobs that are locked."""
    ids = {id for id, *_ in found} | set(whole)
    if not ids:
        return set()
    these = {"ids": as_json(sorted(ids))}
    locked = {row[0]: row for row in tx.execute(tx.sql.LOCK_WAITING, these)}
    waiting = {row[0] for row in tx.execute(tx.sql.WAITING, these)} if len(locked) < len(ids) else locked.keys()
    states = _states(tx, [wait for wait in found if wait[0] in locked], [id for id in whole if id in locked])
    busy = _decide(tx, states, locked)
    _let_go(tx, [id for id in locked if id not in busy])
    return (waiting - locked.keys()) | busy


def _states(tx: Transaction, waits: Sequence[tuple[str, str, str]], whole: Sequence[str]) -> list[WaitState]:
    """The waits as they are now, after the locks."""
    rows = tx.execute(tx.sql.STATES_OF_WAITS, {"rows": as_json(waits)}).fetchall() if waits else []
    rows += tx.execute(tx.sql.STATES_OF_JOBS, {"ids": as_json(whole)}).fetchall() if whole else []
    return [WaitState(*row) for row in dict.fromkeys(rows)]


def _decide(tx: Transaction, states: Sequence[WaitState], locked: dict[str, Any]) -> set[str]:
    """Write which waits are over, and how. Return the jobs that could not be cancelled now."""
    over: list[tuple[str, str, str, str]] = []
    steps: list[NewRow] = []
    failed: dict[str, WaitState] = {}
    for state in states:
        decision = decide_wait(state, tx.now)
        if decision is Decision.CANCEL:
            failed[state.id] = state
        elif decision is not Decision.WAIT:
            over.append((state.id, state.tenant, state.what, state.step))
            if state.kind == "signal":
                kind = "timeout" if decision is Decision.TIMED_OUT else "signal"
                steps.append((state.id, state.tenant, NewStep(state.step, kind, state.value or "null"), 0, 0))
    if over:
        tx.execute(tx.sql.MEET, {"rows": as_json(over)})
    add_steps(tx, steps)
    return _cancel(tx, failed, locked) if failed else set()


def _cancel(tx: Transaction, failed: dict[str, WaitState], locked: dict[str, Any]) -> set[str]:
    """Cancel jobs because a parent has failed. Return those whose dedupe keys other transactions have locked."""
    keyed = [id for id in failed if locked[id][3]]
    ours = lock_keys(tx, keyed)
    busy = {id for id in keyed if id not in ours}
    endings = [
        Ending(
            id,
            locked[id][1],
            locked[id][2],
            Status.BLOCKED,
            Status.CANCELLED,
            f"its parent {state.what} {state.status}",
        )
        for id, state in failed.items()
        if id not in busy
    ]
    if endings:
        end_waiting(tx, endings)
    if ours:
        tx.release_keys(sorted(ours))
    return busy


def _let_go(tx: Transaction, ids: Sequence[str]) -> None:
    gone = Counter(tx.execute(tx.sql.LET_GO, {"ids": as_json(ids), "now": tx.now}).fetchall()) if ids else {}
    for queue in sorted({queue for _, queue in gone}):
        tx.job_waits(queue)
    moved = (Status.BLOCKED, -1), (Status.PENDING, 1)
    tally(tx, [(status, *key, sign * n) for key, n in gone.items() for status, sign in moved])
