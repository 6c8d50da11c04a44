"""Rows become jobs, attempts and workers, and all that `why` needs to know of a job."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import isfinite
from typing import Any

import msgspec

from treadle import clock, codec
from treadle.dedupe import PLAIN, read_rule
from treadle.diagnosis import MOST_AHEAD, MOST_TENANTS, JobFacts, Turns, alive, handles, serves
from treadle.errors import JobNotFound
from treadle.ids import is_id
from treadle.job import Attempt, Job, Progress, Status
from treadle.limits import OF_TYPE, FullLimit, Limits
from treadle.pauses import Pause
from treadle.stores.base import RECLAIM_AFTER, WorkerRow
from treadle.stores.claim_order import KnownLimits
from treadle.stores.limiting import LimitedClaim, load
from treadle.stores.shared.limits import without_place
from treadle.stores.shared.pausing import pauses
from treadle.stores.transaction import Transaction
from treadle.stores.turns import AFTER_ALL
from treadle.wait_diagnosis import MOST_WAITS, VERY_LONG, Held, LongWait, WaitGroup

# The columns of JOB: those of the job, and those of the three tables of which one has it.
_COMMON = ("id", "type", "queue", "tenant", "subject", "payload", "priority", "max_attempts", "created_at")
_WAITING = ("run_at", "attempts", "snoozes", "updated_at", "start_by")
_LEASED = ("run_at", "attempts", "snoozes", "worker_id", "started_at")
_FINISHED = (*_LEASED, "completed_at", "error", "result")
_JSON_OF_WORKER: dict[str, type[Any]] = {"queues": tuple[str, ...], "types": dict[str, str], "host": dict[str, Any]}
_JSON_OF_WORKER |= {"schedules": dict[str, str]}
_MOMENTS = {"created_at", "run_at", "updated_at", "started_at", "completed_at", "start_by", "fired_at"}


def get(tx: Transaction, id: str) -> Job | None:
    row = tx.execute(tx.sql.GET, {"id": id}).fetchone() if is_id(id) else None
    return to_job(row) if row else None


def ids_between(tx: Transaction, first: str, last: str, limit: int) -> list[str]:
    rows = tx.execute(tx.sql.IDS_BETWEEN, {"first": first, "last": last, "limit": limit})
    return [str(id) for (id,) in rows]


def job(tx: Transaction, id: str) -> Job:
    """The job. Raises JobNotFound."""
    found = get(tx, id)
    if found is None:
        raise JobNotFound(id)
    return found


def to_job(row: tuple[Any, ...]) -> Job:
    """A row of JOB. If its payload is not an object, it was broken by hand, and is shown as it is."""
    job: dict[str, Any] = dict(zip(_COMMON, row, strict=False))
    (*waiting, parked), (lease, *leased), (status, *finished) = row[9:15], row[15:23], row[23:32]
    last_error, rule, job["schedule"], job["fired_at"], job["origin"], job["batch"] = row[32:38]
    if status is not None:
        job.update(zip(_FINISHED, finished, strict=True), status=Status(status))
        job.update(updated_at=job["completed_at"], result=None if job["result"] is None else _value(job["result"]))
    elif lease is not None:
        *values, fraction, message = leased
        job.update(zip(_LEASED, values, strict=True), status=Status.PROCESSING)
        progress = None if fraction is None or not isfinite(fraction) else Progress(fraction, message or "")
        job.update(updated_at=job["started_at"], progress=progress)
    else:
        if waiting[0] is None:  # its row was deleted by hand
            waiting = [job["created_at"], 0, 0, job["created_at"], None]
        job.update(zip(_WAITING, waiting, strict=True), error=last_error, waits_for_key=parked == "key")
        job["status"] = Status.BLOCKED if parked == "wait" else Status.PENDING
    moments = {name: clock.moment(at) for name, at in job.items() if name in _MOMENTS and at is not None}
    job.update(moments, payload=_payload(job["payload"]), worker_id=job.get("worker_id") or None)
    return Job(**job, dedupe_mode=None if rule is None else read_rule(rule).mode)


def plain_key(tx: Transaction, id: str) -> str | None:
    """The dedupe key of a job, if it has one without further rules."""
    found = tx.execute(tx.sql.DEDUPE_KEY, {"id": id}).fetchone()
    return str(found[1]) if found is not None and read_rule(found[2]) == PLAIN else None


def attempts(tx: Transaction, id: str) -> list[Attempt]:
    rows = tx.execute(tx.sql.ATTEMPTS, {"id": id}) if is_id(id) else ()
    found = [dict(zip(Attempt.__struct_fields__, row, strict=True)) for row in rows]
    moments = ("started_at", "ended_at")
    return [Attempt(**{**a, **{name: clock.moment(a[name]) for name in moments}}) for a in found]


def workers(tx: Transaction) -> list[WorkerRow]:
    rows = tx.execute(tx.sql.WORKERS)
    doing: dict[str, list[tuple[str, int, int]]] = {}
    for worker, type, n, since in tx.execute(tx.sql.LEASES_BY_WORKER):
        doing.setdefault(worker, []).append((type, n, since))
    return [_worker(dict(zip(WorkerRow.__struct_fields__, row, strict=False)), doing) for row in rows]


def _worker(row: dict[str, Any], doing: dict[str, list[tuple[str, int, int]]]) -> WorkerRow:
    """One worker. What cannot be read was changed by hand: it must not hide the other workers."""
    found = {name: codec.decode_as(row[name], kind) for name, kind in _JSON_OF_WORKER.items()}
    broken = tuple(name for name, value in found.items() if value is None)
    row.update({name: kind() if found[name] is None else found[name] for name, kind in _JSON_OF_WORKER.items()})
    row["declared"], row["types"] = row["types"], tuple(row["types"])
    return WorkerRow(**row, doing=tuple(doing.get(row["id"], ())), broken=broken)


def _payload(text: str) -> dict[str, Any]:
    value = _value(text)
    return value if isinstance(value, dict) else {"(broken)": value}


def _value(text: str) -> Any:
    try:
        return codec.decode(text)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return text


# What `why` needs to know

MOST_SHOWN = 3
"""Jobs that run under a full limit, and parents that have failed."""
MOST_FAILED = 1_000
"""Failed parents that are looked at, and jobs that each of them holds; blocked jobs that may wait very long."""


def job_facts(tx: Transaction, id: str) -> JobFacts | None:
    """At a cost that does not grow with the number of waiting jobs."""
    job = get(tx, id)
    if job is None:
        return None
    found = JobFacts(job=job, now=tx.now, workers=tuple(workers(tx)))
    if len(there := places(tx, id)) != 1:
        found = msgspec.structs.replace(found, places=there)
    if job.status is Status.PROCESSING:
        flags = tx.execute(tx.sql.LEASE_FLAGS, {"id": id, "grace": RECLAIM_AFTER, "now": tx.now}).fetchone()
        cancelled, deadline, stuck = flags or (0, None, 0)
        return msgspec.structs.replace(found, cancelled=bool(cancelled), deadline=deadline, stuck=bool(stuck))
    if job.status is Status.BLOCKED:
        return msgspec.structs.replace(found, waits=tuple(_wait_groups(tx, id)))
    if job.status is not Status.PENDING:
        return found
    paused, limits, turns = pauses(tx), load(tx), _turns(tx, job)
    return msgspec.structs.replace(
        found,
        limits=tuple(_full_limits(tx, job, limits)),
        sleeps_in=tx.value(tx.sql.SLEEPS_IN, {"id": id, "now": tx.now}),
        waits_for=None if job.dedupe_mode is None else tx.value(tx.sql.KEY_BEFORE, {"id": id}),
        pauses=tuple(pause for pause in paused if pause.holds(job.queue, job.type, job.tenant)),
        ahead=_ahead(tx, job, found.workers, paused, limits, by_turns=turns is not None),
        turns=turns,
    )


def _wait_groups(tx: Transaction, id: str) -> Iterator[WaitGroup]:
    for row in tx.execute(tx.sql.WAIT_GROUPS, {"id": id, "now": tx.now, "limit": MOST_WAITS}).fetchall():
        group = WaitGroup(*row)
        yield group if group.state == "over" or group.kind == "signal" else group._replace(job=get(tx, group.what))


def held(tx: Transaction) -> Held:
    """Jobs that wait for parents that have failed: of the newest of these. And the oldest jobs that wait very long."""
    found = [row for row in tx.execute(tx.sql.HELD_BY_PARENTS, {"limit": MOST_FAILED}) if row[1]]
    oldest = {"before": tx.now - VERY_LONG, "limit": MOST_FAILED, "waits": MOST_WAITS}
    long = [
        LongWait(kind, jobs, job, tuple(_wait_groups(tx, first)))
        for kind, jobs, first in tx.execute(tx.sql.LONG_WAITS, oldest).fetchall()
        if (job := get(tx, first))
    ]
    return Held(sum(n for _, n in found), tuple(id for id, _ in found[:MOST_SHOWN]), tuple(long))


def places(tx: Transaction, id: str) -> tuple[str, ...]:
    """The tables that a job is in: one of the three, unless its rows were broken by hand."""
    row = tx.execute(tx.sql.PLACES, {"id": id}).fetchone() or ()
    return tuple(table for table, there in zip(("ready", "leases", "finished"), row, strict=False) if there)


def _full_limits(tx: Transaction, job: Job, limits: Limits) -> Iterator[FullLimit]:
    """Those of its limits without a free place now, whether a claim has met it and parked it or not."""
    values = {path: _member(job.payload, path) for path in limits.paths([job.type])}
    whole = tuple((name, "") for name in limits.whole.get(job.type, ()))
    for limit in without_place(tx, limits, whole + limits.keys(job.type, job.tenant, job.subject, values)):
        yield _with_holders(tx, limit) if limit.is_full else limit


def _member(payload: Any, path: str) -> Any:
    for name in path.split(".")[1:]:
        payload = payload.get(name) if isinstance(payload, dict) else None
    return payload


def _with_holders(tx: Transaction, limit: FullLimit) -> FullLimit:
    parameters = {"grace": RECLAIM_AFTER, "now": tx.now}
    if limit.name.startswith(OF_TYPE):
        rows = tx.execute(tx.sql.HOLDERS_OF_TYPE, {"type": limit.name.removeprefix(OF_TYPE), **parameters}).fetchall()
    else:
        rows = tx.execute(tx.sql.HOLDERS_OF_KEY, {"name": limit.name, "key": limit.key, **parameters}).fetchall()
    some = sorted({id for _, _, *ids in rows for id in ids})
    return msgspec.structs.replace(limit, holders={row[0]: row[1] for row in rows}, jobs=tuple(some[:MOST_SHOWN]))


def _turns(tx: Transaction, job: Job) -> Turns | None:
    row = {name: getattr(job, name) for name in ("id", "queue", "type", "priority", "tenant")}
    found = tx.execute(tx.sql.LAST_TURN, row).fetchone()
    if found is None:
        return None
    [last] = found
    bounds = {"last": AFTER_ALL if last is None else last, "tenants": MOST_TENANTS + 2, "limit": MOST_AHEAD + 1}
    turns = tx.execute(tx.sql.TURNS, {**row, **bounds, "run_at": clock.from_datetime(job.run_at)}).fetchone()
    tenants, before, next = turns
    return Turns(min(tenants, MOST_TENANTS + 1), before, last, None if last is None else next)


def _ahead(
    tx: Transaction, job: Job, workers: Sequence[WorkerRow], paused: Sequence[Pause], limits: Limits, *, by_turns: bool
) -> int:
    """How many due jobs come before it, of those that its own workers would take. `by_turns`: it waits for its turn,
    and not for older jobs of its own type."""
    rivals = [worker for worker in alive(workers, tx.now) if handles(worker, job.queue, job.type)]
    types = {type for worker in rivals for type in worker.types}
    place = {"priority": job.priority, "run_at": clock.from_datetime(job.run_at), "id": job.id, "now": tx.now}
    ahead = 0
    found = tx.ready_ranges()
    slots = LimitedClaim(tx, KnownLimits(limits)).slots({range.type for range, _ in found}, lock=False)
    for range, _ in found:
        if ahead > MOST_AHEAD:
            break
        if any(pause.holds(range.queue, range.type, "") for pause in paused if not pause.tenant):
            continue
        if range.type in types and any(serves(w, range.queue) for w in rivals) and slots.has(range.type):
            row = {**place, "queue": range.queue, "type": range.type, "limit": MOST_AHEAD + 1 - ahead}
            own = by_turns and (range.queue, range.type) == (job.queue, job.type)
            places = [(tx.sql.AHEAD_ABOVE, tx.sql.AHEAD_EQUAL), (tx.sql.ABOVE_BY_TURNS, tx.sql.EQUAL_BY_TURNS)]
            statements = [one for two in places[: 1 + range.fair] for one in two[: 2 - own]]
            ahead += sum(int(tx.value(statement, row) or 0) for statement in statements)
    return ahead
