"""Insert, claim, settle and beat in one round trip: one statement, which commits itself.

That is how nearly all of them go. `None` says that this one is not as simple, and that nothing has happened, or nothing
that the verb in `shared` would not do again.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from treadle import clock
from treadle.clock import FIRST, LAST, SECOND
from treadle.codec import as_json
from treadle.errors import WorkerLost
from treadle.job import ClaimedJob, Job, NewJob
from treadle.outcome import COMPLETED
from treadle.stores.base import ClaimRequest
from treadle.stores.claim_order import LOOKED_AT, Cursors
from treadle.stores.postgres import at_once_sql as sql
from treadle.stores.postgres.connection import Database
from treadle.stores.postgres.insert_claim_settle import ORPHANED, fences, new_rows
from treadle.stores.postgres.insert_claim_settle_sql import COMPLETE, DROP_ORPHANED_LEASES
from treadle.stores.postgres.sql import PostgresStatements
from treadle.stores.rows import Claim, Count, Due, Flags, Settled
from treadle.stores.transaction import LeaseOutcome

log = logging.getLogger("treadle")

AGAIN = Due(True, None, 0.0)
"""When to claim again, if others were faster: there may be more of other types."""

_STATE = len(ClaimedJob.__struct_fields__) - 1  # `limited` is not read
_PAYLOAD = ClaimedJob.__struct_fields__.index("payload")
_decode_state = msgspec.json.Decoder(tuple[bool, bool, float, bool, int, int | None]).decode
_decode_flags = msgspec.json.Decoder(list[Flags]).decode
_decode_workers = msgspec.json.Decoder(list[Count]).decode


def insert(database: Database, jobs: Sequence[NewJob]) -> list[Job] | None:
    """Store jobs that need nothing but their own rows, if our role need not name a tenant first."""
    if not all(job.is_plain and _has_date(job) for job in jobs) or database.scope is not None:
        return None
    rows, notices = new_rows(jobs), database.notices({job.queue for job in jobs})
    if notices:
        inserted = database.write_at_once("insert", sql.INSERT_AND_NOTIFY, {**rows, "notices": as_json(notices)})
    else:
        inserted = database.write_at_once("insert", sql.INSERT, rows)
    now = inserted.fetchone()[0]
    database.cursors.stale = True
    return [job.as_stored(now) for job in jobs]


def _has_date(job: NewJob) -> bool:
    """Whether its time can be represented: what cannot must be refused before it is stored."""
    return (job.delay is None and job.run_at is None) or FIRST <= job.due(clock.now()) <= LAST


def claim(database: Database, worker: str, request: ClaimRequest) -> Claim | None:
    """Claim, if looks are cheap and nothing is in the way, such as a limit or a pause.

    What has arrived has to be matched first: then this claims nothing, and says so.
    """
    cursors = database.cursors
    if request.lease_for is not None or not cursors.may_claim_at_once():
        return None
    found = database.write_at_once("claim", sql.CLAIM, _claim_row(cursors, worker, request)).fetchall()
    ok, arrived, seconds, was_late, now, next_at = _decode_state(found[0][_STATE])
    cursors.claimed_at_once(seconds, succeeded=ok)
    leased = [row for row in found if row[0] is not None]
    if not ok or (was_late and not leased):
        return None
    if arrived:
        nothing = Claim()
        nothing.arrived = True
        return nothing
    claimed = Claim(ClaimedJob(*row[:_STATE]) for row in leased if row[_PAYLOAD] is not None)
    if len(claimed) < len(leased):
        log.warning(ORPHANED, len(leased) - len(claimed))
        database.write_at_once("claim", DROP_ORPHANED_LEASES)
    if len(claimed) < request.limit:
        in_seconds = None if next_at is None else max(0.0, (next_at - now) / SECOND)
        claimed.due = AGAIN if was_late else Due(False, next_at, in_seconds)
    return claimed


def _claim_row(cursors: Cursors, worker: str, request: ClaimRequest) -> Mapping[str, Any]:
    return {
        "worker": worker,
        "limit": request.limit,
        "timeouts": None if request.types is None else as_json(request.types),
        "queues": as_json(request.queues) if request.queues else None,
        "unlimited": cursors.known.unlimited,
        "looked_at": LOOKED_AT,
        "token": secrets.randbits(63),
    }


def settle(database: Database, ended: Sequence[LeaseOutcome]) -> Settled | None:
    """Write completions from which nothing follows. If a lease is lost, the next settle finds what was written now."""
    if not ended or not all(map(_is_simple, ended)):
        return None
    held = database.write_at_once("settle", COMPLETE, fences(ended))
    return Settled(held.fetchone()[2], ended) if held.rowcount == len(ended) else None


def _is_simple(one: LeaseOutcome) -> bool:
    claimed, outcome = one
    if claimed.keyed or claimed.limited or claimed.batch is not None:
        return False
    return outcome is COMPLETED or outcome == COMPLETED


def beat(database: Database, worker: str, stalled_for: int) -> tuple[int, list[Flags], list[Count]]:
    """Count up. Return when, the worker's leases, and all workers."""
    row = {"worker": worker, "stalled_for": stalled_for or None}
    found = database.write_at_once("beat", sql.BEAT, row).fetchone()
    if found is None:
        raise WorkerLost(worker)
    now, leases, workers = found
    return now, _decode_flags(leases), _decode_workers(workers)


def move_deadlines(database: Database, wrong: Sequence[tuple[str, int, int, int]]) -> None:
    database.write_at_once("beat", PostgresStatements.MOVE_DEADLINES, {"rows": as_json(wrong)})
