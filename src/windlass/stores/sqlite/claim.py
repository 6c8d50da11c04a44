"""Claim: due jobs become leases.

A type at its limit, unknown to the claimer, or not yet due must cost the others nothing. So nothing is scanned: each
(queue, type, priority) is a range of the index, read from its start for as many jobs as are wanted.
"""

from __future__ import annotations

import heapq
from collections import Counter
from typing import NamedTuple

import msgspec

from windlass import codec
from windlass.clock import SECOND
from windlass.errors import WorkerLost
from windlass.job import Claimed, Status
from windlass.stores.base import RECLAIM_AFTER, Due, Wanted
from windlass.stores.sqlite import statements as sql
from windlass.stores.sqlite.connection import Transaction
from windlass.stores.sqlite.insert import tally

_decode_claimed = msgspec.json.Decoder(list[Claimed]).decode
_decode_lanes = msgspec.json.Decoder(list[tuple[str, str, int]]).decode
_decode_range = msgspec.json.Decoder(list[tuple[int, str]]).decode
_decode_room = msgspec.json.Decoder(dict[str, int]).decode


class Found(NamedTuple):
    """Jobs in the order in which they should run, and when the next one is due."""

    jobs: list[tuple[str, str]]  # id, type
    next_at: int | None


def due(tx: Transaction, wanted: Wanted) -> Due:
    """Whether `claim` would find something."""
    now = tx.now
    tx.now = max(now, tx.value(sql.CLOCK))  # if the clock stepped back, a claim will set right what was due before
    found = _find(tx, msgspec.structs.replace(wanted, limit=1))
    seconds = None if found.next_at is None else max(0.0, (found.next_at - now) / SECOND)
    return Due(bool(found.jobs), found.next_at, seconds)


def claim(tx: Transaction, worker: str, wanted: Wanted) -> list[Claimed]:
    """Take the most urgent jobs that may run."""
    if worker and tx.value(sql.IS_ALIVE, (worker,)) is None:
        raise WorkerLost(worker)
    _mind_the_clock(tx)
    found = _find(tx, wanted)
    return _take(tx, worker, wanted, found.jobs) if found.jobs else []


def _mind_the_clock(tx: Transaction) -> None:
    """If the clock stepped back, what should run at once would wait until it has caught up."""
    latest = tx.value(sql.CLOCK)
    if tx.now < latest:
        tx.execute(sql.CATCH_UP, {"now": tx.now, "step": latest - tx.now})
        tx.execute(sql.SET_CLOCK, {"now": tx.now})


def _find(tx: Transaction, wanted: Wanted) -> Found:
    """Merge the lanes by priority, then run_at, then id."""
    room = _decode_room(tx.value(sql.ROOM, {"now": tx.now, "grace": RECLAIM_AFTER}))
    lanes = [
        (-priority, queue, type)
        for queue, type, priority in _decode_lanes(tx.value(sql.LANES))
        if (wanted.types is None or type in wanted.types)
        and (not wanted.queues or queue in wanted.queues)
        and room.get(type, 1) > 0
    ]
    heapq.heapify(lanes)
    jobs: list[tuple[str, str]] = []
    next_at: int | None = None
    while lanes and len(jobs) < wanted.limit:
        level = lanes[0][0]
        candidates: list[tuple[int, str, str]] = []
        while lanes and lanes[0][0] == level:
            _, queue, type = heapq.heappop(lanes)
            limit = min(wanted.limit - len(jobs), room.get(type, wanted.limit))
            place = {"queue": queue, "type": type, "priority": -level, "now": tx.now, "limit": limit}
            rows, later = tx.execute(sql.RANGE, place).fetchone()
            candidates += [(run_at, id, type) for run_at, id in _decode_range(rows)]
            next_at = later if next_at is None else min(next_at, later or next_at)
            lower = tx.value(sql.NEXT_PRIORITY, (queue, type, -level))
            if lower is not None:
                heapq.heappush(lanes, (-lower, queue, type))
        jobs += _fitting(sorted(candidates), wanted.limit - len(jobs), room)
    return Found(jobs, next_at)


def _fitting(candidates: list[tuple[int, str, str]], limit: int, room: dict[str, int]) -> list[tuple[str, str]]:
    """The first of the candidates that there is room for. A type that is found in several queues has one limit."""
    if room.keys().isdisjoint({type for _, _, type in candidates}):
        return [(id, type) for _, id, type in candidates[:limit]]
    jobs: list[tuple[str, str]] = []
    for _, id, type in candidates:
        if len(jobs) < limit and room.get(type, 1) > 0:
            jobs.append((id, type))
            if type in room:
                room[type] -= 1
    return jobs


def _take(tx: Transaction, worker: str, wanted: Wanted, jobs: list[tuple[str, str]]) -> list[Claimed]:
    deadlines = {type: _deadline(tx.now, type, wanted) for type in {type for _, type in jobs}}
    first: int = tx.value(sql.NUMBERS, (len(jobs),)) - len(jobs) + 1
    for deadline in set(deadlines.values()):
        ids = [id for id, type in jobs if deadlines[type] == deadline]
        row = {"first": first, "worker": worker, "now": tx.now, "deadline": deadline, "rows": _json(ids)}
        tx.execute(sql.INSERT_LEASES, row)
        first += len(ids)
    rows = _json([id for id, _ in jobs])
    tx.execute(sql.DELETE_READY, (rows,))
    claimed = _decode_claimed(tx.value(sql.CLAIMED, (rows,)))
    if len(claimed) < len(jobs):
        forget(tx, Status.PENDING)
    moved = Counter((c.type, c.queue) for c in claimed)
    tally(
        tx,
        [(Status.PENDING, type, queue, -n) for (type, queue), n in moved.items()]
        + [(Status.PROCESSING, type, queue, n) for (type, queue), n in moved.items()],
    )
    tx.execute(sql.TICK, {"now": tx.now})
    return claimed


def forget(tx: Transaction, counted_as: Status) -> None:
    """Drop the leases of jobs that somebody deleted by hand."""
    gone = Counter(tx.execute(sql.FORGET_LEASES).fetchall())
    tally(tx, [(counted_as, type, queue, -n) for (type, queue), n in gone.items()])


def _json(ids: list[str]) -> str:
    return codec.encode(ids).decode()


def _deadline(now: int, type: str, wanted: Wanted) -> int | None:
    limit = wanted.lease_for if wanted.types is None or wanted.lease_for is not None else wanted.types.get(type)
    return None if limit is None else now + limit
