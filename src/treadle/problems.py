"""What is wrong with the queue as a whole, each problem with the next step. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from treadle import clock
from treadle.diagnosis import UNBLOCK, after_loss, alive, handles, is_alive, silence, stalled_for
from treadle.filters import Filter
from treadle.job import Status, Usage
from treadle.limits import FullLimit
from treadle.pauses import Pause, forgotten_text, is_forgotten
from treadle.program import as_called
from treadle.reasons import ReasonCode
from treadle.units import format_duration, format_microseconds, format_utc, plural
from treadle.wait_diagnosis import Held, LongWait, why_blocked

if TYPE_CHECKING:
    from treadle.stores.base import WorkerRow
    from treadle.stores.rows import QueueStats

LONG = 300
"""Seconds after which a job that is due should have been started."""
OFTEN = 5
"""This many failures, and half of all runs, are more than bad luck."""
MOST_PROBLEMS = 20  # of jobs that wait, and of types that fail: no page, terminal or reader can use a thousand


class Problem(msgspec.Struct, frozen=True):
    """Something that is wrong with the queue as a whole, and what to do about it."""

    code: str
    text: str
    next: str
    filter: str = ""
    """The jobs that it is about."""

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "next", as_called(self.next))


def unhandled(counts: Iterable[Mapping[str, Any]], living: Sequence[WorkerRow]) -> list[dict[str, Any]]:
    """Types in queues that no live worker takes, and how many of their jobs wait. `counts`: by status, type, queue."""
    waiting = [row for row in counts if row["status"] == Status.PENDING]
    missed = [row for row in waiting if not any(handles(worker, row["queue"], row["type"]) for worker in living)]
    return [{"queue": row["queue"], "type": row["type"], "pending": row["count"]} for row in missed]


def problems(
    queues: Sequence[QueueStats],
    workers: Sequence[WorkerRow],
    recent: Sequence[Usage],
    now: int,
    pauses: Sequence[Pause] = (),
    limits: Sequence[FullLimit] = (),
    held: Held | None = None,
) -> list[Problem]:
    """The problems of the whole queue. `recent`: usage of the last 15 minutes, by type. `limits`: those without a free
    place."""
    living = alive(workers, now)
    found: list[Problem | None] = [_lost(worker, workers, now) for worker in workers if not is_alive(worker, now)]
    found += [_blocked(worker, seconds) for worker in workers if (seconds := stalled_for(worker, now)) is not None]
    found += [_unreadable(worker) for worker in workers if worker.broken]
    found += [_forgotten(pause, now) for pause in pauses if is_forgotten(pause, now)]
    due = [stats for stats in queues if stats.counts["queued"] and not _is_paused(stats, pauses)]
    if due and not living:
        found.append(_no_worker(due))
    elif due:
        found += _some([_waits(stats, living, now, limits) for stats in due if not stats.others])
        found += _some(list(_full_keys(limits, now)))
    found += _some([_failing(used) for used in recent])
    if held is not None:
        found += [_held(held)] if held.jobs else []
        found += [_long_wait(wait, now) for wait in held.long]
    return [problem for problem in found if problem is not None]


def _some(problems: Sequence[Problem | None]) -> list[Problem]:
    """The first, and how many more there are."""
    found = [problem for problem in problems if problem is not None]
    more = len(found) - MOST_PROBLEMS
    if more <= 0:
        return found
    text = f"{plural(more, 'more type')} {'has' if more == 1 else 'have'} such a problem"
    return [*found[:MOST_PROBLEMS], Problem("more", text, "see all of them: treadle queues ls")]


def _lost(worker: WorkerRow, workers: Sequence[WorkerRow], now: int) -> Problem:
    silent = format_duration(silence(worker, now))
    text = f"worker {worker.name} is lost: no heartbeat for {silent}, {plural(worker.leases, 'job')} leased"
    filter = str(Filter(statuses=(Status.PROCESSING.value,), workers=(worker.id,)))
    return Problem("lost_worker", text, after_loss(workers, now), filter)


def _blocked(worker: WorkerRow, seconds: float) -> Problem:
    text = f"worker {worker.name} is stalled: its event loop has been blocked for {format_duration(seconds)}"
    return Problem("stalled_worker", text, UNBLOCK, str(Filter(statuses=("processing",), workers=(worker.id,))))


def _unreadable(worker: WorkerRow) -> Problem:
    text = f"the row of worker {worker.name} was broken by hand: its {' and '.join(worker.broken)} cannot be read"
    return Problem("broken_worker", text, "restart it: it writes a new row")


def _forgotten(pause: Pause, now: int) -> Problem:
    """A pause of more than a day, or a drain of more than an hour: somebody may have forgotten it."""
    names: dict[str, Any] = {f"{pause.kind}s": (pause.name,)}
    next = f"if it is over, resume it: {pause.resume_command}"
    return Problem("paused", forgotten_text(pause, now), next, str(Filter(statuses=("pending",), **names)))


def _held(held: Held) -> Problem:
    """The jobs that it is about are the parents: one of them has to be retried, or those who wait cancelled."""
    text = f"{_jobs_wait(held.jobs)} for parents that failed or were cancelled"
    next = f"fix the cause, then retry the parents: treadle jobs retry {' '.join(held.parents)}"
    return Problem("held", text, next, str(Filter(ids=held.parents)))


_WAITS_FOR = {
    "signal": ("for a signal, for more than a week", ReasonCode.WAITS_FOR_SIGNAL),
    "subjob": ("for subjobs, for more than a week", ReasonCode.WAITS_FOR_SUBJOBS),
    "gone": ("for jobs that were deleted by hand", ReasonCode.PARENT_GONE),
}


def _long_wait(wait: LongWait, now: int) -> Problem | None:
    """Why the first of them waits says what to do. None if it has just gone on."""
    what, code = _WAITS_FOR[wait.kind]
    first = next((one for one in why_blocked(wait.first, wait.groups, now) if one.code is code), None)
    if first is None:
        return None
    text = f"{_jobs_wait(wait.jobs)} {what}; the first is {wait.first.id}: {first.text}"
    return Problem("waits_long", text, first.way_out, str(Filter(ids=(wait.first.id,))))


def _is_paused(stats: QueueStats, pauses: Iterable[Pause]) -> bool:
    return any(pause.holds(stats.queue, stats.type, "") for pause in pauses if not pause.tenant)


def _no_worker(due: Sequence[QueueStats]) -> Problem:
    text = f"{_jobs_wait(sum(stats.counts['queued'] for stats in due))} and no worker is running"
    return Problem("no_worker", text, "start one: treadle worker app:td", "status:queued")


def _waits(stats: QueueStats, living: Sequence[WorkerRow], now: int, limits: Sequence[FullLimit]) -> Problem | None:
    filter = str(Filter(statuses=("queued",), types=(stats.type,), queues=(stats.queue,)))
    queue = "" if stats.queue == "default" else f' in queue "{stats.queue}"'
    jobs = _jobs_wait(stats.counts["queued"], f' of type "{stats.type}"{queue}')
    if not any(handles(worker, stats.queue, stats.type) for worker in living):
        next = "start a worker whose app has the type, or restart old ones"
        return Problem("unhandled", f"{jobs} and no live worker handles it", next, filter)
    waited = 0 if stats.oldest_due is None else now - stats.oldest_due
    if waited <= LONG * clock.SECOND:
        return None
    next = "more slots or more workers: treadle worker app:td --concurrency 50 --processes 2"
    if full := [one for one in limits if stats.type in one.types and one.per is None]:
        next = "its {}: {}".format(*_why_full(full[0], now))
    return Problem("slow", f"{jobs}, the oldest for {format_microseconds(waited)}", next, filter)


def _full_keys(limits: Iterable[FullLimit], now: int) -> Iterator[Problem]:
    """Of each limit the key whose jobs have waited longest, if that is too long, and how many more such keys it has."""
    found: dict[str, list[FullLimit]] = {}
    for one in limits:
        if one.oldest is not None and now - one.oldest > LONG * clock.SECOND:
            found.setdefault(one.name, []).append(one)
    for keys in found.values():
        first = min(keys, key=lambda one: one.oldest or 0)
        reason, next = _why_full(first, now)
        more = f", as do jobs of {plural(len(keys) - 1, 'more key')}" if len(keys) > 1 else ""
        text = f"jobs wait, the oldest for {format_microseconds(now - (first.oldest or 0))}{more}: {reason}"
        names: dict[str, Any] = {f"{first.per}s": (first.key,)} if first.per in ("tenant", "subject") else {}
        yield Problem("limited", text, next, str(Filter(statuses=("queued",), types=first.types, **names)))


def _why_full(limit: FullLimit, now: int) -> tuple[str, str]:
    where = "" if limit.per is None else f" for {limit.per}={limit.key!r}"
    moment = limit.held_until or limit.next_at
    then = "" if moment is None else f"at {format_utc(clock.moment(moment))}, in {format_microseconds(moment - now)}"
    if limit.held_until is not None:
        reason = f"limit {limit.name!r} is held back{where}: a job was rate limited, and the next starts {then}"
        return reason, f"wait until then; to let it go: {limit.unset_command}"
    if limit.is_full:
        reason = f"limit {limit.name!r} of {limit.concurrency} is full{where}"
        return reason, f"make its runs shorter, or raise it: {limit.set_command}--concurrency N"
    reason = f"limit {limit.name!r} starts no more{where} now, {limit.rate}: the next {then}"
    return reason, f"wait until then, or raise it: {limit.set_command}--rate COUNT/TIME"


def _jobs_wait(count: int, which: str = "") -> str:
    return f"{plural(count, 'job')}{which} {'waits' if count == 1 else 'wait'}"


def _failing(used: Usage) -> Problem | None:
    ended = used.completed + used.failures  # a snoozed run says nothing of how often it fails
    if used.failures < OFTEN or used.failures * 2 < ended:
        return None
    [type] = used.key
    text = f'{used.failures:,} of {ended:,} runs of type "{type}" failed in the last 15 minutes'
    filter = str(Filter(statuses=("failed", "retrying"), types=(type,)))
    return Problem("failing", text, "look at its newest errors", filter)
