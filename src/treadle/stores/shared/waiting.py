"""Waiting for jobs and signals: parents of new jobs, suspended handlers, and signals.

Who has to wait writes a row of `waits` for each thing that it waits for. Whatever may end a wait appends an arrival,
and locks nothing: the transaction may be a user's, and stay open for long. A claim turns arrivals into jobs that may
run (matching.py). Two transactions that do not see each other lose nothing: the one who begins to wait appends an
arrival, too.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from typing import Any

from msgspec.structs import replace

from treadle import clock, codec
from treadle.codec import as_json
from treadle.dedupe import Place
from treadle.error_text import hashed
from treadle.errors import BadOption
from treadle.ids import is_id
from treadle.job import Job, NewJob, Status
from treadle.steps import NewStep
from treadle.stores.shared import read
from treadle.stores.shared.steps import add_steps
from treadle.stores.transaction import LeaseOutcome, Transaction, WaitsForever
from treadle.waits import NewSignal, NewWait, Signal, Wait, refuse_parent

MOST_WAITS = 1_000
"""What a job waits for, of which that much is shown."""

# Parents


def check_parents(tx: Transaction, children: Sequence[NewJob], jobs: Sequence[NewJob]) -> None:
    """Raise BadOption if a parent does not exist, or belongs to another tenant. `jobs`: all that are stored now, which
    may be parents, too."""
    tenants = {job.id: job.tenant for job in jobs}
    wanted = sorted({id for child in children for id in child.after if id not in tenants and is_id(id)})
    for tenant, ids in tx.execute(tx.sql.PARENTS_OF_NEW, {"ids": as_json(wanted)}) if wanted else ():
        tenants.update(dict.fromkeys(codec.decode(ids), tenant))
    for child in children:
        for id in child.after:
            refuse_parent(id, tenants.get(id), child)


def refuse_cycles(children: Sequence[NewJob], jobs: Sequence[NewJob]) -> None:
    """Raise BadOption if a parent waits for its child. Only new jobs can: a stored one has its parents already."""
    new = {job.id for job in jobs}
    try:
        TopologicalSorter({child.id: [id for id in child.after if id in new] for child in children}).prepare()
    except CycleError as error:
        way_out = "each of these jobs waits for the one before it, and the first for the last; leave one parent out"
        raise BadOption("after", error.args[1], way_out) from None


def wait_for_parents(tx: Transaction, children: Sequence[NewJob], jobs: Sequence[NewJob]) -> None:
    """Write what these stored jobs wait for."""
    fresh, alike = {job.id for job in jobs}, defaultdict[tuple[str, str, tuple[str, ...]], list[str]](list)
    for child in children:
        alike[child.tenant, child.if_failed, child.after].append(child.id)
    tx.execute(tx.sql.ADD_PARENTS, {"rows": as_json([(*key, ids) for key, ids in alike.items()]), "now": tx.now})
    # A parent that is stored already may have ended, or end before we commit.
    arrive(tx, [(tx.now, "waiter", c.tenant, c.id) for c in children if not fresh.issuperset(c.after)])


def parents(tx: Transaction, id: str) -> list[Job]:
    """The parents of a job, as they are now, in the order of their ids."""
    rows = tx.execute(tx.sql.WAITS, {"id": id, "limit": MOST_WAITS}) if is_id(id) else ()
    found = [read.get(tx, what) for what in sorted(what for kind, what, *_ in rows if kind == "parent")]
    return [job for job in found if job is not None]


# Suspended handlers


def forgive(tx: Transaction, suspended: Sequence[LeaseOutcome]) -> None:
    """The attempts of these jobs do not count: they have started, and will go on."""
    tx.execute(tx.sql.FORGIVE_SUSPENDED, {"ids": as_json([c.id for c, _ in suspended])})


def suspend(tx: Transaction, suspended: Sequence[LeaseOutcome], stored: Mapping[str, str]) -> None:
    """Write what the handlers of these jobs have begun to wait for. Their rows are in `ready` already. `stored`: which
    job each of their subjobs is, as its dedupe key may have decided."""
    found = [(c, _renamed(step, stored)) for c, o in suspended for step in o.steps]
    add_steps(tx, [(c.id, c.tenant, step, c.number, c.attempt) for c, step in found])
    waiting = [(c, wait) for c, o in suspended for wait in o.waits]
    waits = [replace(wait, what=stored.get(wait.what, wait.what)) for _, wait in waiting]
    _add_waits(tx, [(c.id, c.tenant) for c, _ in waiting], waits)
    # What is not new may be there already, or end before we commit. A new subjob has ended if another replaced it.
    keyed = {job.id for _, o in suspended for job in o.follow_ups if job.dedupe is not None}
    old = [(c, wait) for c, wait in waiting if stored.get(wait.what) != wait.what or wait.what in keyed]
    moments = {(tx.now + after, "waiter", c.tenant, c.id) for c, wait in old for after in (0, wait.timeout or 0)}
    arrive(tx, sorted(moments))


def refuse_endless(tx: Transaction, suspended: Sequence[LeaseOutcome], stored: Mapping[str, str]) -> None:
    """Raise WaitsForever if one of these jobs waits for a subjob that cannot go on before the job itself has ended: the
    subjob is that job, or waits for it, or for its key, or for a job that does. `stored`: as in `suspend`."""
    for claimed, outcome in suspended:
        subjobs = [job for job in outcome.follow_ups if job.dedupe is not None or job.after]
        behind = _behind(tx, claimed.id) if subjobs else ()
        for job in subjobs:
            if stored.get(job.id, job.id) in behind:
                raise WaitsForever(claimed.id, _endless(tx, claimed.id, job))


def _behind(tx: Transaction, id: str) -> set[str]:
    """A job, and all that cannot go on before it has ended."""
    found, new = {id}, {id}
    while new:
        rows = tx.execute(tx.sql.BEHIND, {"ids": as_json(sorted(new))})
        new = {row[0] for row in rows if row[0] is not None} - found
        found |= new
    return found


def _endless(tx: Transaction, id: str, subjob: NewJob) -> str:
    problem = f"this job would wait forever for its subjob of type {subjob.type!r}"
    held = None
    if subjob.dedupe is not None:
        held = tx.execute(tx.sql.KEY_STATE, {"tenant": subjob.tenant, "key": subjob.dedupe}).fetchone()
    if held is None or held[0] == subjob.id:  # its key is its own
        return f"{problem}: one of the subjob's parents waits for this job; leave that parent out"
    assert subjob.dedupe is not None
    holder, _, _, expires_at, _, place = held
    whose = "this job itself" if holder == id else f"job {holder}, which waits for this job"
    way_out = "give the subjob another key"
    if place == Place.RUNNING and expires_at is None:
        way_out += ', or let that job hold its key until="started"'
    return f"{problem}: the subjob's dedupe key ({hashed(subjob.dedupe)}) is held by {whose}; {way_out}"


def _renamed(step: NewStep, stored: Mapping[str, str]) -> NewStep:
    """The step, with the ids of the subjobs that it waits for."""
    if step.kind != "gather" or all(id == other for id, other in stored.items()):
        return step
    return replace(step, value=as_json([stored.get(id, id) for id in codec.decode(step.value)]))


def _add_waits(tx: Transaction, jobs: Sequence[tuple[str, str]], waits: Sequence[NewWait]) -> None:
    """`jobs`: the id and the tenant of the one that waits, for each of the waits."""
    keyed = {(job, w.what, w.step): (w.kind, w.if_failed, w.timeout) for job, w in zip(jobs, waits, strict=True)}
    rows = [(*job, kind, what, step, *rest) for (job, what, step), (kind, *rest) in keyed.items()]
    if rows:
        tx.execute(tx.sql.ADD_WAITS, {"rows": as_json(rows), "now": tx.now})


def arrive(tx: Transaction, arrivals: Sequence[tuple[int, str, str, str]]) -> None:
    if arrivals:
        tx.execute(tx.sql.ADD_ARRIVALS, {"rows": as_json(arrivals)})
        tx.job_waits("")


def waits(tx: Transaction, id: str) -> list[Wait]:
    """What a job waits for, and has waited for."""
    rows = tx.execute(tx.sql.WAITS, {"id": id, "limit": MOST_WAITS}) if is_id(id) else ()
    return [
        Wait(
            kind=kind,
            what=what,
            step=step,
            if_failed=if_failed,
            met=bool(met),
            since=clock.moment(since),
            until=clock.optional_moment(until),
            status=None if status is None else Status(status),
        )
        for kind, what, step, if_failed, met, since, until, status in rows
    ]


# Signals


def signal(tx: Transaction, new: NewSignal) -> Signal:
    """Store a signal, unless there is one of its name. Return the one that counts."""
    tx.act_for(new.tenant)
    row = {"tenant": new.tenant, "name": new.name}
    if tx.execute(tx.sql.ADD_SIGNAL, {**row, "value": new.value, "by": new.by, "now": tx.now}).fetchall():
        arrive(tx, [(tx.now, "signal", new.tenant, new.name)])
    found = get_signal(tx, new.name, new.tenant)
    assert found is not None
    return found


def get_signal(tx: Transaction, name: str, tenant: str = "") -> Signal | None:
    tx.act_for(tenant)
    row = tx.execute(tx.sql.SIGNAL, {"tenant": tenant, "name": name}).fetchone()
    return None if row is None else as_signal(row)


def as_signal(row: tuple[Any, ...]) -> Signal:
    name, value, tenant, by, at = row
    return Signal(name=name, value=codec.decode(value), tenant=tenant, by=by, at=clock.moment(at))
