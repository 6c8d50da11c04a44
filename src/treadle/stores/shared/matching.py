"""Matching: what has happened lets waiting jobs go.

A claim that comes to arrivals matches them first, in a transaction of its own. It takes no more than MOST_MATCHED of
them, and waits for no lock: what another transaction has locked stays for the next claim.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Collection, Sequence
from collections.abc import Set as AbstractSet
from itertools import accumulate
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from treadle.codec import as_json
from treadle.errors import JobNotFound, StoreBusy, StoreRefused, WorkerLost
from treadle.job import Status
from treadle.steps import NewStep
from treadle.stores.base import ClaimRequest
from treadle.stores.rows import Claim, Due
from treadle.stores.shared.closing import close
from treadle.stores.shared.ending import Ending, end_waiting
from treadle.stores.shared.expiry import lock_keys
from treadle.stores.shared.keys import drop_successors, lock_successors
from treadle.stores.shared.stats import tally
from treadle.stores.shared.steps import NewRow, add_steps
from treadle.stores.transaction import Connections, Transaction
from treadle.waits import Decision, WaitState, decide_wait

if TYPE_CHECKING:
    from treadle.stores.shared.store import SQLStore

log = logging.getLogger("treadle")

_decode_ids = msgspec.json.Decoder(list[str]).decode

MOST_MATCHED = 500
"""Jobs that one transaction lets go: on SQLite others wait for it."""
LOCKED_FOR = 0.05
"""Seconds after which a claim looks again at arrivals whose waiting jobs others have locked."""


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


def claim_more(store: SQLStore[Any], worker: str, request: ClaimRequest, claimed: Claim) -> Claim:
    """Match what has arrived, and claim what that lets go, until there are jobs."""
    goes_on = True
    while goes_on:
        try:
            goes_on = _claim_once_more(store, worker, request, claimed)
        except WorkerLost:  # what was claimed is another worker's now
            raise
        except Exception as error:
            if not claimed:
                raise
            log.warning("%d claimed; the next claim lets waiting jobs go: %s", len(claimed), error)
            break
    return claimed


def _claim_once_more(store: SQLStore[Any], worker: str, request: ClaimRequest, claimed: Claim) -> bool:
    """Match once, and claim what that lets go. Return whether to go on: claimed jobs wait for no other match."""
    if not store._match(request, claimed):
        claimed.due = claimed.due and _not_at_once(claimed.due)
        return False
    if len(claimed) == request.limit:
        return False
    more = store._claim(worker, msgspec.structs.replace(request, limit=request.limit - len(claimed)))
    claimed.extend(more)
    claimed.due, claimed.signalled = more.due, more.signalled
    return more.arrived and not claimed


def _not_at_once(due: Due) -> Due:
    """The same, if what has arrived could not be matched: a claim at once would find it still locked."""
    is_arrival = due.next_at is not None and due.in_seconds == 0
    return msgspec.structs.replace(due, in_seconds=LOCKED_FOR) if is_arrival else due


def match_arrivals(store: SQLStore[Any]) -> int:
    """`match`, in a transaction. What a batch enqueues may need a dedupe key that a user's transaction has locked, or
    be refused by a trigger: that must not stop all the others."""
    database: Connections = store.database
    try:
        return database.write("claim", match)
    except (StoreBusy, StoreRefused, JobNotFound):
        return database.write("claim", match, postpone=True)


def match(tx: Transaction, *, postpone: bool = False) -> int:
    """Let jobs go that wait for what has arrived, and close batches. Return how much of it is done.

    `postpone`: what a batch would enqueue could not be stored just now. It is tried again later.
    """
    taken = _arrivals(tx)
    if not taken:
        return 0
    waiters = _waiters(tx, taken)
    busy, decided = _match_waiters(tx, waiters)
    left = (waiters.whats if waiters.has_more else _whats_of(tx, waiters, busy)) | busy
    batches = {(one.tenant, one.what) for one in taken if one.kind == "batch"}
    again, counted = close(tx, batches, postpone=postpone) if batches else (set(), 0)
    done = [one.seq for one in taken if not _stays(one, left, again)]
    tx.execute(tx.sql.DELETE_ARRIVALS, {"ids": as_json(done)})
    return len(done) or counted or decided


def _stays(one: Arrival, left: AbstractSet[str], batches: Collection[tuple[str, str]]) -> bool:
    return (one.tenant, one.what) in batches if one.kind == "batch" else not left.isdisjoint(one.whats)


def _arrivals(tx: Transaction) -> list[Arrival]:
    """The first that are due, of about so many jobs."""
    found = [Arrival(*row) for row in tx.execute(tx.sql.ARRIVALS, {"now": tx.now, "limit": MOST_MATCHED})]
    sizes = accumulate(len(one.whats) for one in found)
    return [one for one, size in zip(found, sizes, strict=True) if size <= MOST_MATCHED] or found[:1]


class Waiters(NamedTuple):
    """The jobs that wait for what has arrived."""

    ids: set[str]
    ended: set[str]
    """The jobs that have ended."""
    waits: list[tuple[str, str, str]]
    """Waits to be decided one by one: the ids and tenants of the jobs, and what each waits for."""
    whole: set[str]
    """Jobs of which all waits are to be decided."""
    whats: set[str]
    has_more: bool
    """Whether more jobs than these wait for them."""


def _waiters(tx: Transaction, taken: Sequence[Arrival]) -> Waiters:
    """Nearly always, those who wait need not be told one from another: all that they wait for has completed."""
    ended, signals, whole = (
        {what for one in taken if one.kind == kind for what in one.whats} for kind in ("ended", "signal", "waiter")
    )
    row = {"whats": as_json(sorted(ended)), "limit": MOST_MATCHED + 1}
    found = tx.execute(tx.sql.WAITERS_OF_ENDED, row).fetchall() if ended else []
    whats, waits = ended | signals, list[tuple[str, str, str]]()
    if signals or any(is_odd for _, _, is_odd in found):
        row = {"ids": as_json(sorted(whats)), "limit": MOST_MATCHED + 1}
        waits = tx.execute(tx.sql.WAITERS, row).fetchall()
    ids = {id for id, *_ in found} | {id for id, *_ in waits} | whole
    has_more = max(sum(n for _, n, _ in found), len(waits)) > MOST_MATCHED
    return Waiters(ids, ended, waits, whole, whats, has_more)


def _whats_of(tx: Transaction, waiters: Waiters, ids: Collection[str]) -> set[str]:
    """What of it these jobs wait for."""
    these = {"ids": as_json(sorted(ids)), "whats": as_json(sorted(waiters.whats))}
    return {row[0] for row in tx.execute(tx.sql.WHATS_OF_WAITERS, these)} if ids else set()


def _match_waiters(tx: Transaction, waiters: Waiters) -> tuple[set[str], int]:
    """Decide the waits. Return the jobs that are locked or have more waits that are over, and how much was decided."""
    ids = waiters.ids
    if not ids:
        return set(), 0
    these = {"ids": as_json(sorted(ids))}
    locked = {row[0]: row for row in tx.execute(tx.sql.LOCK_WAITING, these)}
    behind, passed_on = lock_successors(tx, [id for id, row in locked.items() if row[3] == "successor"])
    for id in passed_on:
        del locked[id]
    waiting = {row[0] for row in tx.execute(tx.sql.WAITING, these)} if len(locked) < len(ids) else locked.keys()
    if waiters.ended:
        row = {"ids": as_json(list(locked)), "whats": as_json(sorted(waiters.ended)), "limit": MOST_MATCHED + 1}
        tx.execute(tx.sql.MEET_ENDED, row)
    states = _states(tx, [wait for wait in waiters.waits if wait[0] in locked])
    some = _states_of_jobs(tx, [id for id in waiters.whole if id in locked])
    busy = _decide(tx, list(dict.fromkeys(states + some)), locked, behind)
    _let_go(tx, [id for id in locked if id not in busy], behind)
    more = {id for id in waiters.whole if id >= some[-1].id} if len(some) == MOST_MATCHED else set[str]()
    left = (waiting - locked.keys()) | busy | more
    return left, len(ids - left) + sum(state.id not in busy for state in some)


def _states(tx: Transaction, waits: Sequence[tuple[str, str, str]]) -> list[WaitState]:
    """The waits as they are now, after the locks."""
    return [WaitState(*row) for row in tx.execute(tx.sql.STATES_OF_WAITS, {"rows": as_json(waits)})] if waits else []


def _states_of_jobs(tx: Transaction, ids: Sequence[str]) -> list[WaitState]:
    """Those of their waits that are over, of the first jobs if these have many."""
    row = {"ids": as_json(ids), "now": tx.now, "limit": MOST_MATCHED}
    return [WaitState(*row) for row in tx.execute(tx.sql.STATES_OF_JOBS, row)] if ids else []


def _decide(tx: Transaction, states: Sequence[WaitState], locked: dict[str, Any], behind: AbstractSet[str]) -> set[str]:
    """Write which waits are over, and how. Return the jobs that could not be cancelled now. `behind`: the successors of
    those that hold their dedupe keys."""
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
    return _cancel(tx, failed, locked, behind) if failed else set()


def _cancel(
    tx: Transaction, failed: dict[str, WaitState], locked: dict[str, Any], behind: AbstractSet[str]
) -> set[str]:
    """Cancel jobs because a parent has failed. Return those whose dedupe keys other transactions have locked."""
    keyed = [id for id in failed if locked[id][3] and id not in behind]
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
    drop_successors(tx, behind & failed.keys())
    if ours:
        tx.release_keys(sorted(ours))
    return busy


def _let_go(tx: Transaction, ids: Sequence[str], behind: AbstractSet[str]) -> None:
    """Those that wait for nothing else may run, or wait `behind` others for their dedupe keys."""
    may_run = _gone(tx, tx.sql.LET_GO, [id for id in ids if id not in behind])
    for queue in sorted({queue for _, queue in may_run}):
        tx.job_waits(queue)
    gone = may_run + _gone(tx, tx.sql.LET_GO_BEHIND, [id for id in ids if id in behind])
    moved = (Status.BLOCKED, -1), (Status.PENDING, 1)
    tally(tx, [(status, *key, sign * n) for key, n in gone.items() for status, sign in moved])


def _gone(tx: Transaction, how: str, ids: Sequence[str]) -> Counter[tuple[str, str]]:
    return Counter(tx.execute(how, {"ids": as_json(ids), "now": tx.now}).fetchall() if ids else ())
