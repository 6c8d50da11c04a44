"""How rows move in SQLite: one writer at a time, so that what was read cannot change before it is written."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from itertools import groupby
from operator import attrgetter, itemgetter
from typing import TYPE_CHECKING, Any

import msgspec

from treadle.clock import SECOND
from treadle.errors import WorkerLost
from treadle.job import ClaimedJob, NewJob, Status
from treadle.outcome import UNSUCCESSFUL, OutcomeKind
from treadle.stores.base import RECLAIM_AFTER, ClaimRequest, Due
from treadle.stores.sql.claim_order import Candidate, Found, Lane, Range, allowed, find
from treadle.stores.sql.insert import as_json, tally
from treadle.stores.sql.rescue import forget
from treadle.stores.sql.settle import count, still_held, waiting_again
from treadle.stores.sql.transaction import Ended, Rows
from treadle.stores.sqlite import statements as sql

if TYPE_CHECKING:
    from treadle.stores.sqlite.connection import Transaction

_decode_claimed = msgspec.json.Decoder(list[ClaimedJob]).decode
_decode_lanes = msgspec.json.Decoder(list[Lane]).decode
_decode_range = msgspec.json.Decoder(list[tuple[int, str]]).decode
_decode_room = msgspec.json.Decoder(dict[str, int]).decode
_decode_held = msgspec.json.Decoder(list[tuple[int, int]]).decode


# Into `jobs` and `ready`

_PLACE = ("type", "queue", "tenant", "subject", "priority", "max_attempts", "dedupe", "traceparent", "run_at")


def store(tx: Transaction, jobs: Sequence[NewJob]) -> None:
    """Jobs that differ in their payloads only go together."""
    alike: defaultdict[tuple[Any, ...], dict[str, str]] = defaultdict(dict)
    for j in jobs:
        place = (j.type, j.queue, j.tenant, j.subject, j.priority, j.max_attempts, j.dedupe, j.traceparent)
        alike[*place, j.due(tx.now)][j.id] = j.payload
    moved: Counter[tuple[str, str]] = Counter()
    for place, payloads in alike.items():
        row = {**dict(zip(_PLACE, place, strict=True)), "now": tx.now, "rows": as_json(payloads)}
        tx.execute(sql.INSERT_JOBS, row)
        tx.execute(sql.INSERT_READY, row)
        moved[place[0], place[1]] += len(payloads)
    tally(tx, [(Status.PENDING, type, queue, n) for (type, queue), n in moved.items()])
    tx.tick()


# From `ready` to `leases`


def lanes(tx: Transaction) -> list[tuple[Lane, int | None]]:
    room_json, lanes_json = _answers(*_look(tx))
    room = _decode_room(room_json)
    return [(lane, room.get(lane.type)) for lane in _decode_lanes(lanes_json)]


def due(tx: Transaction, wanted: ClaimRequest) -> Due:
    now = tx.now
    latest, *looked = _answers(tx.execute(sql.CLOCK), *_look(tx))
    tx.now = max(now, latest)  # if the clock stepped back, a claim will set right what was due before
    found = _find(tx, msgspec.structs.replace(wanted, limit=1), *looked)
    seconds = None if found.next_at is None else max(0.0, (found.next_at - now) / SECOND)
    return Due(bool(found.jobs), found.next_at, seconds)


def take(tx: Transaction, worker: str, wanted: ClaimRequest) -> list[ClaimedJob]:
    alive, latest, *looked = _answers(tx.execute(sql.IS_ALIVE, {"worker": worker}), tx.execute(sql.CLOCK), *_look(tx))
    if worker and alive is None:
        raise WorkerLost(worker)
    _mind_the_clock(tx, latest)
    found = _find(tx, wanted, *looked)
    return _take(tx, worker, wanted, found.jobs) if found.jobs else []


def _answers(*asked: Rows) -> list[Any]:
    """The value of each. All are asked before the first is looked at: on a server, that is one journey."""
    rows = [rows.fetchone() for rows in asked]
    return [row[0] if row else None for row in rows]


def _mind_the_clock(tx: Transaction, latest: int) -> None:
    """If the clock stepped back, what should run at once would wait until it has caught up."""
    if tx.now < latest:
        tx.execute(sql.CATCH_UP, {"now": tx.now, "step": latest - tx.now})
        tx.execute(sql.SET_CLOCK, {"now": tx.now})


def _look(tx: Transaction) -> tuple[Rows, Rows]:
    """The room of limited types, and the lanes."""
    return tx.execute(sql.ROOM, {"now": tx.now, "grace": RECLAIM_AFTER}), tx.execute(sql.LANES)


def _find(tx: Transaction, wanted: ClaimRequest, room_json: str, lanes_json: str) -> Found:
    room = _decode_room(room_json)
    lanes = allowed(_decode_lanes(lanes_json), wanted, room)
    return find(lanes, wanted.limit, room, lambda heads: _ranges(tx, heads))


def _ranges(tx: Transaction, heads: Sequence[tuple[Lane, int]]) -> list[Range]:
    asked = [tx.execute(sql.RANGE, {**lane._asdict(), "now": tx.now, "limit": limit}) for lane, limit in heads]
    found = [rows.fetchone() for rows in asked]
    return [Range(_decode_range(due), next_at, lower) for due, next_at, lower in found]


def _take(tx: Transaction, worker: str, wanted: ClaimRequest, jobs: Sequence[Candidate]) -> list[ClaimedJob]:
    together: defaultdict[int | None, list[str]] = defaultdict(list)
    for lane, some in groupby(jobs, itemgetter(2)):
        together[wanted.deadline(tx.now, lane.type)] += [id for _, id, _ in some]
    for deadline, ids in together.items():
        row = {"worker": worker, "now": tx.now, "deadline": deadline, "rows": as_json(ids)}
        tx.execute(sql.INSERT_LEASES, row)
        tx.execute(sql.NUMBERS, {"n": len(ids)})
    rows = {"ids": as_json([id for _, id, _ in jobs])}
    tx.execute(sql.DELETE_READY, rows)
    claimed = _decode_claimed(tx.value(sql.CLAIMED, rows))
    if len(claimed) < len(jobs):
        forget(tx, Status.PENDING)
    moved = Counter(map(attrgetter("type", "queue"), claimed))
    tally(
        tx,
        [(Status.PENDING, type, queue, -n) for (type, queue), n in moved.items()]
        + [(Status.PROCESSING, type, queue, n) for (type, queue), n in moved.items()],
    )
    tx.tick()
    return claimed


# From `leases` to `finished`, or back to `ready`


def leave(tx: Transaction, ended: Sequence[Ended]) -> dict[int, int]:
    tx.tick()
    all_final = all(kind.final for kind in {outcome.kind for _, outcome in ended})
    if all_final and _finish(tx, ended) == len(ended):  # as nearly always: the fence has let all of them through
        _leave(tx, ended)
        return {c.number: 0 for c, _ in ended}
    held = dict(_decode_held(tx.value(sql.HELD, {"rows": as_json([(c.id, c.number) for c, _ in ended])})))
    if ours := still_held(ended, held):
        if not all_final:
            _finish(tx, [e for e in ours if e[1].kind.final])
            _give_back(tx, [e for e in ours if not e[1].kind.final])
        _leave(tx, ours)
    return held


def _finish(tx: Transaction, ended: Sequence[Ended]) -> int:
    """Write how jobs have ended, as far as their leases are held. How many."""
    plain = {c.id: c.number for c, o in ended if o.kind is OutcomeKind.COMPLETED and o.result is None}
    written = tx.execute(sql.COMPLETE, {"now": tx.now, "rows": as_json(plain)}).rowcount if plain else 0
    if len(plain) < len(ended):
        others = [(c, o) for c, o in ended if c.id not in plain]
        rows = as_json([(c.id, c.number, o.kind, o.charged, o.result, o.error) for c, o in others])
        written += tx.execute(sql.FINISH, {"now": tx.now, "rows": rows}).rowcount
    return written


def _give_back(tx: Transaction, ended: Iterable[Ended]) -> None:
    """Let jobs wait again."""
    rows = as_json([(c.id, *waiting_again(tx.now, c, o)) for c, o in ended])
    tx.execute(sql.GIVE_BACK, {"now": tx.now, "rows": rows})


def _leave(tx: Transaction, ended: Sequence[Ended]) -> None:
    if failures := [(c, o) for c, o in ended if o.kind in UNSUCCESSFUL]:
        rows = as_json([(c.id, o.kind, o.error, o.traceback) for c, o in failures])
        tx.execute(sql.INSERT_ATTEMPTS, {"now": tx.now, "rows": rows})
    tx.execute(sql.DELETE_LEASES, {"ids": as_json([c.id for c, _ in ended])})
    count(tx, ended)
