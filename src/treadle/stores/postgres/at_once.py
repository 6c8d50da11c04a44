"""Insert, claim, settle, steps, signals and beat in one round trip: one statement, which commits itself.

That is how nearly all of them go. `None` says that this one is not as simple, and that nothing has happened, or nothing
that the verb in `shared` would not do again.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import msgspec

from treadle import clock
from treadle.clock import FIRST, LAST, SECOND
from treadle.codec import as_json
from treadle.errors import LeaseLost, TreadleError, WorkerLost
from treadle.ids import is_id
from treadle.job import ClaimedJob, Job, NewJob
from treadle.outcome import COMPLETED
from treadle.steps import NewStep
from treadle.stores.base import ClaimRequest
from treadle.stores.claim_order import LOOKED_AT
from treadle.stores.postgres import at_once_sql as sql
from treadle.stores.postgres.connection import Database
from treadle.stores.postgres.insert_claim_settle import ORPHANED
from treadle.stores.postgres.insert_claim_settle_sql import DROP_ORPHANED_LEASES
from treadle.stores.postgres.row_values import fences, new_rows
from treadle.stores.postgres.sql import PostgresStatements
from treadle.stores.rows import Claim, Count, Due, Flags, Settled
from treadle.stores.transaction import DRIFT, LeaseOutcome, step_row
from treadle.waits import NewSignal

log = logging.getLogger("treadle")

AGAIN = Due(True, None, 0.0)
"""When to claim again, if others were faster: there may be more of other types."""

_STATE = len(ClaimedJob.__struct_fields__) - 1  # `limited` is not read
_PAYLOAD = ClaimedJob.__struct_fields__.index("payload")
_decode_state = msgspec.json.Decoder(tuple[bool, bool, bool, float, bool, int, int | None]).decode
_decode_flags = msgspec.json.Decoder(list[Flags]).decode
_decode_workers = msgspec.json.Decoder(list[Count]).decode


def insert(database: Database, jobs: Sequence[NewJob]) -> list[Job] | None:
    """Store jobs that need nothing but their own rows, if our role need not name a tenant first."""
    if database.scope is not None or [job for job in jobs if not (job.is_plain and _has_date(job))]:
        return None
    if len(jobs) == 1 and _is_due_at_once(jobs[0]):
        statement, notifying, rows = sql.INSERT_ONE, sql.INSERT_ONE_AND_NOTIFY, _new_row(jobs[0])
    else:
        statement, notifying, rows = sql.INSERT, sql.INSERT_AND_NOTIFY, new_rows(jobs)
    notices = database.budget.notices({job.queue for job in jobs})
    if notices.texts:
        inserted = database.write_at_once("insert", notifying, {**rows, "notices": as_json(notices.texts)})
    else:
        inserted = database.write_at_once("insert", statement, rows)
    database.notified(notices)
    now = inserted.fetchone()[0]
    database.cursors.stale = True
    created = clock.to_datetime(now)
    return [job.as_stored(now, created) for job in jobs]


def _is_due_at_once(job: NewJob) -> bool:
    return job.run_at is None and job.delay is None and job.start_within is None


def _new_row(job: NewJob) -> Mapping[str, Any]:
    """A new job that is due at once, as INSERT_ONE takes it."""
    return {**msgspec.structs.asdict(job), "parked": job.parked(0)}


def _has_date(job: NewJob) -> bool:
    """Whether its time can be represented: what cannot must be refused before it is stored."""
    return (job.delay is None and job.run_at is None) or FIRST <= job.due(clock.now()) <= LAST


def claim(database: Database, worker: str, request: ClaimRequest) -> Claim | None:
    """Claim, if looks are cheap and nothing is in the way, such as a job of a limited type, or of a paused tenant."""
    if not may_claim(database, request):
        return None
    found = database.write_at_once("claim", *claim_statement(database, worker, request)).fetchall()
    claimed = read_claim(database, request, found)
    if claimed is not None and claimed.orphaned:
        with suppress(TreadleError):  # a rescue drops them, too
            database.write_at_once("claim", DROP_ORPHANED_LEASES)
    return claimed


def may_claim(database: Database, request: ClaimRequest) -> bool:
    return request.lease_for is None and database.cursors.may_claim_at_once()


def claim_statement(database: Database, worker: str, request: ClaimRequest) -> tuple[str, Mapping[str, Any]]:
    known = database.cursors.known
    return sql.CLAIM, {
        **_wanted(request),
        "worker": worker,
        "limit": request.limit,
        "limits": known.version,
        "limited": as_json(list(known.limits.types)),
        "looked_at": LOOKED_AT,
        "token": secrets.randbits(63),
    }


def read_claim(database: Database, request: ClaimRequest, found: Sequence[tuple[Any, ...]]) -> Claim | None:
    """What the statement has claimed; or None, if something was in its way."""
    ok, arrived, signalled, seconds, was_late, now, next_at = _decode_state(found[0][_STATE])
    database.cursors.claimed_at_once(seconds, succeeded=ok)
    leased = [row for row in found if row[0] is not None]
    if not ok or (was_late and not leased):
        return None
    claimed = Claim(ClaimedJob(*row[:_STATE]) for row in leased if row[_PAYLOAD] is not None)
    claimed.arrived, claimed.signalled = arrived, signalled
    claimed.orphaned = len(leased) - len(claimed)
    if claimed.orphaned:
        log.warning(ORPHANED, claimed.orphaned)
    if len(claimed) < request.limit:
        in_seconds = None if next_at is None else max(0.0, (next_at - now) / SECOND)
        claimed.due = AGAIN if was_late else Due(arrived, next_at, in_seconds)
    return claimed


def _wanted(request: ClaimRequest) -> Mapping[str, str | None]:
    return {
        "timeouts": None if request.types is None else as_json(request.types),
        "queues": as_json(request.queues) if request.queues else None,
    }


def match_signals(database: Database, request: ClaimRequest, free: int, most: int) -> int:
    """Let jobs go that wait for a signal that has arrived. `free`: as many of them as this worker can claim now. Return
    how much of it is done: the rest is for `match`."""
    row = {**_wanted(request), "free": free, "most": most}
    done, let_go, *_ = database.write_at_once("claim", sql.MATCH_SIGNALS, row).fetchone()
    database.cursors.stale = database.cursors.stale or let_go > 0
    return int(done + let_go)


def settle(database: Database, ended: Sequence[LeaseOutcome]) -> Settled | None:
    """Write completions from which nothing follows. If a lease is lost, the next settle finds what was written now."""
    if not ended:
        return None
    for claimed, outcome in ended:
        if claimed.keyed or claimed.batch is not None or (outcome is not COMPLETED and outcome != COMPLETED):
            return None
    statement: str = sql.COMPLETE_ALL
    parameters: dict[str, str | None] = {**fences(ended)}
    alike = database.cursors.known.limits.alike(c.type for c, _ in ended)
    if alike or any(c.limited for c, _ in ended):
        ids = [c.id for c, _ in ended if c.limited > 1]
        keyed = None if len(ids) == len(ended) else as_json(ids)
        statement, parameters = sql.COMPLETE_LIMITED, parameters | {"keyed": keyed, "types": as_json(alike)}
    notices = database.budget.notices({""})
    parameters["notices"] = as_json(notices.texts)
    held, now, woken, _ = database.write_at_once("settle", statement, parameters).fetchone()
    if woken:
        database.notified(notices)
    return Settled(now, ended) if held == len(ended) else None


def save_steps(database: Database, done: Sequence[tuple[ClaimedJob, NewStep]]) -> list[Exception | None] | None:
    """Store steps with which nothing else is stored, each if the lease of its run is still held."""
    if any(step.follow_ups or step.signals or step.batches for _, step in done):
        return None
    parameters = {
        "leases": as_json([(c.id, *c.fence) for c, _ in done]),
        "ids": as_json([c.id for c, _ in done]),
        "rows": as_json([(*step_row(c.id, c.tenant, step, c.number, c.attempt), c.token) for c, step in done]),
    }
    held = set(database.write_at_once("settle", sql.SAVE_STEPS, parameters).fetchall())
    return [None if c.fence in held else LeaseLost(c.id, c.number) for c, _ in done]


def steps(database: Database, id: str) -> Iterable[Any]:
    return database.read_at_once("insert", PostgresStatements.STEPS, {"id": id}) if is_id(id) else ()


def signal(database: Database, new: NewSignal) -> tuple[Any, ...] | None:
    """Store a signal, if our role need not name a tenant first. None also if another one is stored just now."""
    if database.scope is not None:
        return None
    row = {"tenant": new.tenant, "name": new.name, "value": new.value, "by": new.by}
    notices = database.budget.notices({""})
    stored = database.write_at_once("insert", sql.SIGNAL, {**row, "notices": as_json(notices.texts)}).fetchone()
    if stored is not None and stored[-1] == len(notices.texts):  # it is new
        database.notified(notices)
    database.cursors.stale = True
    return None if stored is None else stored[:-1]


def beat(
    database: Database, worker: str, time_left: Sequence[tuple[ClaimedJob, int]], stalled_for: int
) -> tuple[list[Flags], list[Count]]:
    """Count up, and vouch for leases whose deadline is no longer right. Return the worker's leases, and all workers."""
    left = as_json([(c.id, *c.fence, time) for c, time in time_left])
    row = {"worker": worker, "stalled_for": stalled_for or None, "left": left, "drift": DRIFT}
    found = database.write_at_once("beat", sql.BEAT, row).fetchone()
    if found is None:
        raise WorkerLost(worker)
    leases, workers = found
    return _decode_flags(leases), _decode_workers(workers)
