"""What keeps jobs from running: whether a worker is alive, and why one job waits. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from treadle import clock
from treadle.error_text import nearest
from treadle.ids import worker_name
from treadle.job import EXPIRED, Job, Status, expired_error
from treadle.limits import OF_TYPE, FullLimit
from treadle.pauses import Pause
from treadle.reasons import Reason, ReasonCode, Why
from treadle.units import format_duration, format_microseconds, format_utc, plural
from treadle.wait_diagnosis import WaitGroup, why_blocked

if TYPE_CHECKING:
    from treadle.stores.base import WorkerRow

# Which workers are alive

BEAT = 5.0
"""Seconds between two heartbeats of a worker."""
SILENT = 4 * BEAT
"""Seconds without a heartbeat after which a worker is shown as lost. Workers that watch each other's counts declare one
dead after three beats; a reader of one moment sees only a time, so it allows for one beat more."""
UNBLOCK = "a handler blocks its event loop: make it a plain def, or await what it waits for"
RETURNED = "another worker returns its jobs after three heartbeats (15 s), a tick after one: treadle tick app:td"
NOBODY_RETURNS = "start a worker, which returns its jobs: treadle worker app:td"


def silence(worker: WorkerRow, now: int) -> float:
    """Seconds since its last heartbeat. `now` is the database's, as is the heartbeat."""
    return max(0.0, (now - worker.seen_at) / clock.SECOND)


def is_alive(worker: WorkerRow, now: int) -> bool:
    """The one rule for why, problems, the command line, the API and the pages."""
    return silence(worker, now) <= SILENT


def stalled_for(worker: WorkerRow, now: int) -> float | None:
    """Seconds for which its event loop has been blocked. None if it is not, or if the worker is lost."""
    if worker.stalled_at is None or not is_alive(worker, now):
        return None
    return max(0.0, (now - worker.stalled_at) / clock.SECOND)


def alive(workers: Iterable[WorkerRow], now: int) -> list[WorkerRow]:
    return [worker for worker in workers if is_alive(worker, now)]


def after_loss(workers: Iterable[WorkerRow], now: int) -> str:
    """What happens to the jobs of a lost worker, or has to happen first."""
    return RETURNED if alive(workers, now) else NOBODY_RETURNS


def serves(worker: WorkerRow, queue: str) -> bool:
    return not worker.queues or queue in worker.queues


def handles(worker: WorkerRow, queue: str, type: str) -> bool:
    return type in worker.types and serves(worker, queue)


# Why a job is not running

MOST_AHEAD = 10_000
"""Jobs ahead are counted up to here."""


MOST_TENANTS = 1_000
"""... and so are tenants."""


class Turns(NamedTuple):
    """How tenants take turns with the one of a job."""

    tenants: int
    """How many have due jobs, up to MOST_TENANTS + 1."""
    before: int
    """How many jobs of its own tenant come before it."""
    last: str | None = None
    """The tenant that was served last, if its job still runs."""
    next: str | None = None
    """Whose turn it is after that one."""


class JobFacts(msgspec.Struct, frozen=True, kw_only=True):
    """All that the answer depends on, at one moment of the database."""

    job: Job
    now: int
    workers: tuple[WorkerRow, ...]
    places: tuple[str, ...] | None = None
    """If its rows were broken by hand: the tables that it is in, which are none or several."""
    limits: tuple[FullLimit, ...] = ()
    """Those of its limits that keep it from starting."""
    pauses: tuple[Pause, ...] = ()
    """What keeps it from being claimed: of its queue, its type, its tenant."""
    waits: tuple[WaitGroup, ...] = ()
    """What it waits for, if it is blocked."""
    sleeps_in: str | None = None
    """The step of its handler that lets it sleep."""
    waits_for: str | None = None
    """The job that holds its dedupe key, and has to end first."""
    ahead: int = 0
    """How many due jobs come first, up to MOST_AHEAD + 1."""
    turns: Turns | None = None
    """If tenants of its type take turns."""
    cancelled: bool = False
    deadline: int | None = None
    stuck: bool = False


def explain(facts: JobFacts) -> Why:
    """Every reason that holds, the deciding one first."""
    job = facts.job
    if job.status.is_final:
        reasons = [_ended(job)]
    elif job.status is Status.PROCESSING:
        stalled = _stalled(facts, [holder] if (holder := _holder(facts)) else [])
        lost = list(_worker_lost(facts))
        reasons = [*_overdue(facts), *lost, *stalled, *_cancelling(facts), *([] if lost else [_running(facts)])]
    else:
        reasons = _blocked(facts) if job.status is Status.BLOCKED else _waiting(facts)
    return Why(id=job.id, status=job.status, reasons=(*_broken(facts), *reasons))


def _broken(facts: JobFacts) -> Iterator[Reason]:
    if facts.places is None:
        return
    text, way_out = f"it is in {' and in '.join(facts.places)}", "a worker that gets to it removes what contradicts"
    if not facts.places:
        text, way_out = "it does not wait or run, and has not ended", f"to run it: treadle jobs run-now {facts.job.id}"
    yield Reason(ReasonCode.BROKEN, f"its rows were broken by hand: {text}", way_out, {"places": facts.places})


def for_tenant(why: Why, job: Job) -> Why:
    """The same for a reader bound to the job's tenant: without the queues, types, jobs and workers of others."""
    plain = {
        ReasonCode.PAUSED: ("it is paused", "it waits until it is resumed"),
        ReasonCode.WORKERS_QUIET: ("its workers are quiet", "it waits until one of them claims again"),
        ReasonCode.NO_WORKER_FOR_QUEUE: (f"no live worker takes jobs from queue {job.queue!r}", "start one that does"),
        ReasonCode.NO_WORKER_FOR_TYPE: (f"no live worker knows type {job.type!r}", "start one that does"),
        ReasonCode.LIMIT_FULL: (f"its type {job.type!r} is at its limit", "it starts when a job of this type ends"),
        ReasonCode.RATE_LIMITED: (f"a rate of its type {job.type!r} is used up", "it starts when its turn comes"),
        ReasonCode.HELD_BACK: (f"a limit of its type {job.type!r} is held back", "it starts when that is over"),
        ReasonCode.WORKER_STALLED: (
            "a handler blocks the event loop of its worker",
            "it goes on when that handler ends",
        ),
        ReasonCode.TURNS: ("the tenants of its type take turns", "wait for its turn"),
        ReasonCode.JOBS_AHEAD: ("other jobs come first: higher priority, or due for longer", "wait for them"),
        ReasonCode.NEXT_LOOK: ("nothing is in its way", "a worker claims it within a second"),
    }
    tenant = {"tenant": job.tenant}  # jobs under a key that is its own tenant are its own
    own = tuple(
        reason
        for reason in why.reasons
        if (reason.code is ReasonCode.PAUSED and reason.data.get("tenant")) or reason.data.get("key") == tenant
    )
    reasons = (
        Reason(reason.code, *plain[reason.code]) if reason.code in plain and reason not in own else reason
        for reason in why.reasons
    )
    return msgspec.structs.replace(why, reasons=tuple(reasons))


def _ended(job: Job) -> Reason:
    when = f"at {format_utc(job.completed_at)}" if job.completed_at else "before"
    if job.status is Status.FAILED and job.attempts >= job.max_attempts:
        text = f"it failed {when}, after {job.attempts} of {plural(job.max_attempts, 'attempt')}: {job.error}"
        way_out = f"fix the cause, then retry it: treadle jobs retry {job.id}"
        data = {"attempts": job.attempts, "max_attempts": job.max_attempts, "error": job.error}
        return Reason(ReasonCode.OUT_OF_ATTEMPTS, text, way_out, data)
    if job.status is Status.CANCELLED and (job.error or "").startswith(EXPIRED):
        way_out = f"if it is still needed, retry it: treadle jobs retry {job.id}"
        return Reason(ReasonCode.EXPIRED, f"it was cancelled {when}: {job.error}", way_out, {"error": job.error})
    error = f": {job.error}" if job.error and job.status is Status.FAILED else ""
    if job.status is Status.CANCELLED and job.error not in (None, "cancelled"):
        error = f": {job.error}"
    text = f"it {'was cancelled' if job.status is Status.CANCELLED else job.status} {when}{error}"
    again = f"to run it again: treadle jobs retry {job.id}"
    way_out = "nothing is left to do" if job.status is Status.COMPLETED else again
    return Reason(ReasonCode.FINISHED, text, way_out, {"status": job.status})


def _overdue(facts: JobFacts) -> Iterator[Reason]:
    if facts.stuck and facts.deadline is not None:
        text = f"it is stuck: its deadline passed {format_microseconds(facts.now - facts.deadline)} ago"
        way_out = "any worker or tick returns it within seconds: treadle tick app:td"
        yield Reason(ReasonCode.OVERDUE, text, way_out, {"deadline": clock.moment(facts.deadline)})


def _worker_lost(facts: JobFacts) -> Iterator[Reason]:
    job, holder = facts.job, _holder(facts)
    if job.worker_id is None or (holder is not None and is_alive(holder, facts.now)):
        return
    silent = f"has been silent for {format_duration(silence(holder, facts.now))}" if holder else "has no row any more"
    text = f"it is held by worker {holder.name if holder else worker_name(job.worker_id)}, which {silent}"
    data = {"worker": job.worker_id, "seen_at": clock.moment(holder.seen_at) if holder else None}
    yield Reason(ReasonCode.WORKER_LOST, text, after_loss(facts.workers, facts.now), data)


def _stalled(facts: JobFacts, workers: Sequence[WorkerRow]) -> Iterator[Reason]:
    """If all of these workers are stalled: what they run makes no progress, and they claim nothing."""
    waits = [stalled_for(worker, facts.now) for worker in workers]
    if waits and all(wait is not None for wait in waits):
        longest = format_duration(max(wait or 0.0 for wait in waits))
        text = f"the event loop of {workers[0].name} has been blocked for {longest}"
        yield Reason(ReasonCode.WORKER_STALLED, text, UNBLOCK, {"workers": [worker.id for worker in workers]})


def _quiet(workers: Sequence[WorkerRow]) -> Iterator[Reason]:
    """If all of these workers are to claim nothing."""
    if workers and all(worker.quiet_at is not None for worker in workers):
        text = f"every live worker that could take it is quiet: {', '.join(worker.name for worker in workers[:3])}"
        way_out = f"let one claim again: treadle workers resume {workers[0].id}"
        yield Reason(ReasonCode.WORKERS_QUIET, text, way_out, {"workers": [worker.id for worker in workers]})


def _cancelling(facts: JobFacts) -> Iterator[Reason]:
    if facts.cancelled:
        text = "it was cancelled, and its worker is asked to stop it"
        yield Reason(ReasonCode.CANCELLING, text, "a handler in a thread has to check ctx.cancelled itself")


def _running(facts: JobFacts) -> Reason:
    job, holder = facts.job, _holder(facts)
    worker = holder.name if holder else worker_name(job.worker_id or "")
    by = f"worker {worker}" if worker else "a caller that claimed it by hand"
    since = format_microseconds(facts.now - clock.from_datetime(job.started_at)) if job.started_at else "now"
    text = f"it is running: attempt {job.attempts} of {job.max_attempts}, for {since}, by {by}"
    data = {"worker": job.worker_id, "started_at": job.started_at}
    return Reason(ReasonCode.RUNNING, text, f"to stop it: treadle jobs cancel {job.id}", data)


def _waiting(facts: JobFacts) -> list[Reason]:
    living = alive(facts.workers, facts.now)
    early = list(_not_due(facts)) if facts.waits_for is None else [_key_held(facts, facts.waits_for)]
    unserved, full = (
        list(why_unserved(facts.job, living)),
        [one for limit in facts.limits for one in _limited(facts, limit)],
    )
    own = [worker for worker in living if handles(worker, facts.job.queue, facts.job.type)]
    if expired := list(_expired(facts)):
        return expired
    reasons = [*early, *map(_paused, facts.pauses), *unserved, *full, *_quiet(own), *_stalled(facts, own)]
    if not early and not unserved and not facts.pauses:
        reasons += [*_turns(facts), *([_jobs_ahead(facts.ahead)] if facts.ahead else [])]
    way_out, data = "a worker claims it within a second", {"workers": [worker.id for worker in living]}
    reasons = reasons or [Reason(ReasonCode.NEXT_LOOK, "nothing is in its way", way_out, data)]
    return [*reasons, *_expires(facts)]


def _blocked(facts: JobFacts) -> list[Reason]:
    """Once all that it waits for has happened, any claim lets it go."""
    living = alive(facts.workers, facts.now)
    let_go = Reason(ReasonCode.NEXT_LOOK, "all that it waited for has happened", "a worker lets it go within a second")
    reasons = why_blocked(facts.job, facts.waits, facts.now) or (
        [let_go] if living else list(why_unserved(facts.job, []))
    )
    return list(_expired(facts)) or [*reasons, *_expires(facts)]


def _expired(facts: JobFacts) -> Iterator[Reason]:
    job = facts.job
    if job.start_by is not None and clock.from_datetime(job.start_by) <= facts.now:
        text = expired_error(clock.from_datetime(job.start_by) - clock.from_datetime(job.run_at))
        way_out = (
            f"a worker or tick cancels it within seconds; to prevent it: treadle jobs reschedule {job.id} --delay 0"
        )
        yield Reason(ReasonCode.EXPIRED, f"it is about to be cancelled: {text}", way_out, {"start_by": job.start_by})


def _expires(facts: JobFacts) -> Iterator[Reason]:
    """It keeps the job from nothing yet, so that it comes last."""
    job = facts.job
    if job.start_by is not None and not job.waits_for_key:
        left = format_microseconds(clock.from_datetime(job.start_by) - facts.now)
        text = f"if it is not started by {format_utc(job.start_by)}, in {left}, it is cancelled"
        way_out = f"to give it more time: treadle jobs reschedule {job.id} --delay 0"
        yield Reason(ReasonCode.EXPIRES, text, way_out, {"start_by": job.start_by})


def _key_held(facts: JobFacts, holder: str) -> Reason:
    text = f"it waits until job {holder} has ended, which holds its dedupe key"
    return Reason(ReasonCode.KEY_HELD, text, f"to stop that one: treadle jobs cancel {holder}", {"holder": holder})


def _not_due(facts: JobFacts) -> Iterator[Reason]:
    job = facts.job
    due_in = clock.from_datetime(job.run_at) - facts.now
    if due_in > 0 and facts.sleeps_in is not None:
        left = format_microseconds(due_in)
        text = f"it sleeps in step {facts.sleeps_in!r} until {format_utc(job.run_at)}, for {left} more"
        data = {"step": facts.sleeps_in, "run_at": job.run_at, "seconds": due_in / clock.SECOND}
        way_out = f"wait until then; to let it go on now: treadle jobs run-now {job.id}"
        yield Reason(ReasonCode.SLEEPING, text, way_out, data)
    elif due_in > 0:
        again = f" (again, after {plural(job.attempts, 'attempt')}: {job.error})" if job.error else ""
        until = "debounced until" if job.dedupe_mode == "debounce" and not job.error else "at"
        text = f"it is not due yet: {until} {format_utc(job.run_at)}, in {format_microseconds(due_in)}{again}"
        data = {"run_at": job.run_at, "seconds": due_in / clock.SECOND}
        yield Reason(ReasonCode.NOT_DUE, text, "wait until then", data)


def _paused(pause: Pause) -> Reason:
    data = msgspec.structs.asdict(pause)
    return Reason(ReasonCode.PAUSED, f"its {pause}", f"to resume it: {pause.resume_command}", data)


def why_unserved(job: Job, living: Sequence[WorkerRow]) -> Iterator[Reason]:
    """Why no live worker would take it, whenever it is due."""
    serving = [worker for worker in living if serves(worker, job.queue)]
    if not living:
        yield Reason(ReasonCode.NO_WORKER, "no worker is running on this database", "start one: treadle worker app:td")
    elif not serving:
        queues = sorted({queue for worker in living for queue in worker.queues})
        text = f"no live worker takes jobs from queue {job.queue!r}: they take {', '.join(queues)}"
        way_out = f"start one that does: treadle worker app:td --queues {shlex.quote(job.queue)}"
        yield Reason(ReasonCode.NO_WORKER_FOR_QUEUE, text, way_out, {"queue": job.queue, "queues": queues})
    elif not any(job.type in worker.types for worker in serving):
        types = sorted({type for worker in serving for type in worker.types})
        text = f"no live worker knows type {job.type!r}: they know {', '.join(types) or 'none'}"
        near = nearest(job.type, types)
        way_out = f"did you mean {near}?" if near else "add it to the app, and restart the workers"
        yield Reason(ReasonCode.NO_WORKER_FOR_TYPE, text, way_out, {"type": job.type, "types": types})


def _limited(facts: JobFacts, limit: FullLimit) -> Iterator[Reason]:
    """A key is shown as NAME='value', so that redaction hides it where it is a secret."""
    where = "" if limit.per is None else f" for {limit.per}={limit.key!r}"
    data: dict[str, Any] = {"name": limit.name, "key": {} if limit.per is None else {limit.per: limit.key}}
    if limit.is_full:
        subject = f"its limit {limit.name!r} is full{where}"
        if limit.name.startswith(OF_TYPE):
            subject = f"its type {facts.job.type!r} is at its limit"
        jobs = ", ".join(limit.jobs) + (", …" if limit.running > len(limit.jobs) else "")
        text = f"{subject}, {limit.running} of {limit.concurrency}: {_holders(facts, limit)} ({jobs})"
        way_out = f"it starts when one of them ends; to raise it: {limit.set_command}--concurrency N"
        used = {"limit": limit.concurrency, "running": limit.running, "holders": limit.holders, "jobs": limit.jobs}
        yield Reason(ReasonCode.LIMIT_FULL, text, way_out, data | used)
    if limit.next_at is not None:
        text = (
            f"its limit {limit.name!r} starts no more{where} now, {limit.rate}: the next {_then(facts, limit.next_at)}"
        )
        way_out = f"it starts in its turn; to raise it: {limit.set_command}--rate COUNT/TIME"
        at = {"rate": limit.rate, "next_at": clock.moment(limit.next_at)}
        yield Reason(ReasonCode.RATE_LIMITED, text, way_out, data | at)
    if limit.held_until is not None:
        text = f"its limit {limit.name!r} is held back{where}: a job was rate limited, and the next starts "
        text += _then(facts, limit.held_until)
        way_out = f"wait until then; to let it go: {limit.unset_command}"
        yield Reason(ReasonCode.HELD_BACK, text, way_out, data | {"until": clock.moment(limit.held_until)})


def _then(facts: JobFacts, moment: int) -> str:
    return f"at {format_utc(clock.moment(moment))}, in {format_microseconds(moment - facts.now)}"


def _turns(facts: JobFacts) -> Iterator[Reason]:
    turns = facts.turns or Turns(0, 0)
    if turns.tenants > 1 or turns.before:
        own = f"{turns.before:,} of its own jobs come first" if turns.before != 1 else "1 of its own jobs comes first"
        more = turns.tenants > MOST_TENANTS
        tenants = f"more than {MOST_TENANTS:,} tenants" if more else plural(turns.tenants, "tenant")
        text = f"the tenants of type {facts.job.type!r} take turns: {tenants} with due jobs, and {own}"
        if turns.next is not None:
            text += f"; tenant {turns.last!r} was served last, and the next turn is that of {turns.next!r}"
        way_out = "wait for its turn, start more workers, or give this job a higher priority"
        data = {"tenants": min(turns.tenants, MOST_TENANTS), "more": more, "before": turns.before}
        yield Reason(ReasonCode.TURNS, text, way_out, data | {"last": turns.last, "next": turns.next})


def _jobs_ahead(ahead: int) -> Reason:
    jobs = f"more than {MOST_AHEAD:,} jobs" if ahead > MOST_AHEAD else plural(ahead, "job")
    comes, it = ("comes", "it") if ahead == 1 else ("come", "them")
    text = f"{jobs} {comes} first: higher priority, or due for longer"
    way_out = f"wait for {it}, start more workers, or give this job a higher priority"
    return Reason(ReasonCode.JOBS_AHEAD, text, way_out, {"ahead": min(ahead, MOST_AHEAD), "more": ahead > MOST_AHEAD})


def _holder(facts: JobFacts) -> WorkerRow | None:
    return next((worker for worker in facts.workers if worker.id == facts.job.worker_id), None)


def _holders(facts: JobFacts, limit: FullLimit) -> str:
    names = {worker.id: worker.name for worker in facts.workers}
    each = [f"{n} by {names.get(id, worker_name(id)) or 'hand'}" for id, n in sorted(limit.holders.items())]
    return ", ".join(each[:3]) + (f" and {len(each) - 3} more" if len(each) > 3 else "")
