"""How rows move in PostgreSQL: many writers at once, each of whom locks what it takes by taking it."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from treadle.clock import SECOND
from treadle.errors import WorkerLost
from treadle.job import ClaimedJob, NewJob, Status
from treadle.outcome import UNSUCCESSFUL, OutcomeKind
from treadle.stores.base import RECLAIM_AFTER, ClaimRequest, Due
from treadle.stores.postgres import session_sql
from treadle.stores.postgres import statements as sql
from treadle.stores.sql.claim_order import Candidate, Lane, Levels, Range, allowed, find, merged
from treadle.stores.sql.insert import as_json
from treadle.stores.sql.rescue import forget
from treadle.stores.sql.settle import count, still_held, waiting_again
from treadle.stores.sql.transaction import Ended

if TYPE_CHECKING:
    from treadle.stores.postgres.connection import Transaction
    from treadle.stores.postgres.cursor import Position

_PAYLOAD = ClaimedJob.__struct_fields__.index("payload")
_decode_range = msgspec.json.Decoder(list[tuple[int, str]]).decode
_decode_held = msgspec.json.Decoder(list[tuple[int, int]]).decode


# Into `jobs` and `ready`


def store(tx: Transaction, jobs: Sequence[NewJob]) -> None:
    now = tx.now
    rows = [
        (
            j.id,
            j.type,
            j.queue,
            j.tenant,
            j.subject,
            j.payload,
            j.priority,
            j.max_attempts,
            j.dedupe,
            j.traceparent,
            j.due(now),
        )
        for j in jobs
    ]
    tx.execute(sql.INSERT_JOBS, {"rows": as_json(rows), "now": now})
    for queue in {job.queue for job in jobs}:
        tx.waiting(queue)


# From `ready` to `leases`


def lanes(tx: Transaction) -> list[tuple[Lane, int | None]]:
    began = time.monotonic()
    rows = tx.execute(sql.LANES, {"grace": RECLAIM_AFTER, "now": tx.now}).fetchall()
    found = [(Lane(queue, type, priority), room) for queue, type, priority, _, _, room in rows]
    heads = [(run_at, id) for _, _, _, run_at, id, _ in rows]
    tx.cursors.looked(time.monotonic() - began, found, heads)
    return found


def due(tx: Transaction, wanted: ClaimRequest) -> Due:
    lanes, room = _look(tx, wanted)
    found = find(lanes, 1, room, lambda heads: _ranges(tx, heads))
    seconds = None if found.next_at is None else max(0.0, (found.next_at - tx.now) / SECOND)
    return Due(bool(found.jobs), found.next_at, seconds)


def take(tx: Transaction, worker: str, wanted: ClaimRequest) -> list[ClaimedJob]:
    if worker and tx.value(sql.IS_ALIVE, {"worker": worker}) is None:
        raise WorkerLost(worker)
    look = tx.cursors.look_first()
    claimed = _take_from(tx, worker, wanted, *(_look(tx, wanted) if look else _allowed(tx.cursors.lanes, wanted)))
    if len(claimed) < wanted.limit and not look and tx.cursors.may_look():
        rest = msgspec.structs.replace(wanted, limit=wanted.limit - len(claimed))
        claimed += _take_from(tx, worker, rest, *_look(tx, wanted))
    return claimed


def _take_from(
    tx: Transaction, worker: str, wanted: ClaimRequest, lanes: list[Lane], room: dict[str, int]
) -> list[ClaimedJob]:
    if room:
        lanes, room = _with_limits_held(tx, lanes, wanted, room)
    levels, claimed = Levels(lanes), list[ClaimedJob]()
    while len(claimed) < wanted.limit and (level := levels.next()):
        limit = wanted.limit - len(claimed)
        if (
            len(level) == 1 and level[0].type not in room
        ):  # as nearly always: nothing to merge, so nothing to read first
            claimed += _take_lane(tx, worker, wanted, level[0], limit)
            if len(claimed) < wanted.limit:
                levels.go_on(level, _ranges(tx, [(level[0], 0)]))
            continue
        starts = _ranges(tx, [(lane, min(limit, room.get(lane.type, limit))) for lane in level])
        levels.go_on(level, starts)
        if jobs := merged(level, starts, limit, room):
            claimed += _take(tx, worker, wanted, _heads(jobs))
    return claimed


def _take_lane(tx: Transaction, worker: str, wanted: ClaimRequest, lane: Lane, limit: int) -> list[ClaimedJob]:
    start = tx.cursors.start(lane)
    return [] if start[0] > tx.now else _take(tx, worker, wanted, [(lane, limit, start)])  # if it begins in the future


def _look(tx: Transaction, wanted: ClaimRequest) -> tuple[list[Lane], dict[str, int]]:
    return _allowed(lanes(tx), wanted)


def _allowed(lanes: Iterable[tuple[Lane, int | None]], wanted: ClaimRequest) -> tuple[list[Lane], dict[str, int]]:
    rooms = {lane.type: room for lane, room in lanes if room is not None}
    fitting = allowed((lane for lane, _ in lanes), wanted, rooms)
    return fitting, {lane.type: rooms[lane.type] for lane in fitting if lane.type in rooms}


def _with_limits_held(
    tx: Transaction, lanes: Sequence[Lane], wanted: ClaimRequest, room: dict[str, int]
) -> tuple[list[Lane], dict[str, int]]:
    """The room of the limited types, once nobody else can take any of it."""
    types = sorted(room)
    tx.execute(session_sql.LOCK_TYPES, {"types": types})
    rows = tx.execute(sql.ROOM, {"types": types, "grace": RECLAIM_AFTER, "now": tx.now})
    exact: dict[str, int] = dict(rows.fetchall())
    return allowed(lanes, wanted, exact), {type: n for type, n in exact.items() if n > 0}


def _ranges(tx: Transaction, heads: Sequence[tuple[Lane, int]]) -> list[Range]:
    lanes = as_json([(*lane, limit, *tx.cursors.start(lane)) for lane, limit in heads])
    rows = tx.execute(sql.RANGE, {"lanes": lanes, "now": tx.now}).fetchall()
    return [Range(_decode_range(due), next_at, lower) for due, next_at, lower in rows]


def _heads(jobs: Sequence[Candidate]) -> list[tuple[Lane, int, Position]]:
    """How many to take of each lane, and from where on: others may have taken these very jobs meanwhile."""
    counts = Counter(lane for _, _, lane in jobs)
    first: dict[Lane, Position] = {}
    for run_at, id, lane in jobs:
        first.setdefault(lane, (run_at, id))
    return [(lane, n, first[lane]) for lane, n in counts.items()]


def _take(
    tx: Transaction, worker: str, wanted: ClaimRequest, heads: Sequence[tuple[Lane, int, Position]]
) -> list[ClaimedJob]:
    now = tx.now
    rows = as_json([(*lane, limit, *position) for lane, limit, position in heads])
    deadlines = as_json({lane.type: wanted.deadline(now, lane.type) for lane, _, _ in heads})
    parameters = {"lanes": rows, "now": now, "worker": worker, "deadlines": deadlines}
    found = tx.execute(sql.INSERT_LEASES, parameters).fetchall()
    claimed = [ClaimedJob(*row) for row in found if row[_PAYLOAD] is not None]
    if len(claimed) < len(found):
        forget(tx, Status.PROCESSING)
    if len(heads) == 1 and claimed:  # of several lanes, a claim does not say which had which job's priority
        tx.cursors.passed(heads[0][0], max((c.run_at, c.id) for c in claimed))
    return claimed


# From `leases` to `finished`, or back to `ready`


def leave(tx: Transaction, ended: Sequence[Ended]) -> dict[int, int]:
    now = tx.now
    if all(outcome.kind is OutcomeKind.COMPLETED and outcome.result is None for _, outcome in ended):
        ids, numbers = ",".join([c.id for c, _ in ended]), ",".join([str(c.number) for c, _ in ended])
        parameters = {"ids": f"{{{ids}}}", "numbers": f"{{{numbers}}}", "now": now}  # as texts, which cost the least
        return {number: 0 for (number,) in tx.execute(sql.COMPLETE, parameters)}
    rows = [
        (
            c.id,
            c.number,
            o.kind.final,
            o.charged,
            o.result,
            o.error,
            *_back(now, c, o),
            o.kind if o.kind in UNSUCCESSFUL else None,
            o.traceback,
        )
        for c, o in ended
    ]
    for claimed, outcome in ended:
        if not outcome.kind.final:
            tx.waiting(claimed.queue)
    held = dict(_decode_held(tx.value(sql.LEAVE, {"rows": as_json(rows), "now": now})))
    if ours := still_held(ended, held):
        count(tx, ours)
    return held


def _back(now: int, claimed: ClaimedJob, outcome: Any) -> tuple[int | None, int, int | None]:
    run_at, _, snoozed, suspicion = waiting_again(now, claimed, outcome)
    return run_at, snoozed, suspicion
