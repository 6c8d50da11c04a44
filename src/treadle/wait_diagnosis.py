"""Why a job is blocked: which parents, subjobs or signals it waits for. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import NamedTuple

from treadle import clock
from treadle.job import STATE_OF, Job, Status, state_of
from treadle.reasons import Reason, ReasonCode
from treadle.units import format_microseconds, format_utc

MOST_WAITS = 20_000
"""What a job waits for, of which that much is looked at."""
VERY_LONG = 7 * 86_400 * clock.SECOND
"""A person may take some days to send a signal. After that, somebody may have forgotten it."""


class WaitGroup(NamedTuple):
    """Things of one kind that a job waits for in one step, and that are in the same state."""

    kind: str
    """parent, subjob or signal."""
    step: str
    state: str
    """over; waits; failed, of parents that hold it; gone, of jobs that were deleted by hand."""
    size: int
    what: str
    """The first of them: the id of a job, or the name of the signal."""
    since: int
    until: int | None
    job: Job | None = None
    """The first of them, if it is a job."""


class LongWait(NamedTuple):
    """Jobs that have waited very long for the same kind of thing."""

    kind: str
    """signal, subjob, or gone: a job that was deleted by hand."""
    jobs: int
    first: Job
    groups: tuple[WaitGroup, ...]
    """What the first of them waits for."""


class Held(NamedTuple):
    """Jobs that wait for parents that have failed."""

    jobs: int
    parents: tuple[str, ...]
    """Some of these."""
    long: tuple[LongWait, ...] = ()
    """Other jobs that may wait forever."""


def why_blocked(job: Job, groups: Sequence[WaitGroup], now: int) -> list[Reason]:
    """Every reason, those first that need somebody. None if all that it waits for has happened."""
    found = [group for group in groups if group.state != "over"]
    makers = ("failed", _parent_failed), ("gone", _parent_gone)
    reasons = [make(job, group, groups) for state, make in makers for group in found if group.state == state]
    waiting = [group for group in found if group.state == "waits"]
    signals = [_waits_for_signal(job, group, now) for group in waiting if group.kind == "signal"]
    return reasons + [_waits_for_jobs(group, groups, now) for group in waiting if group.kind != "signal"] + signals


def _total(group: WaitGroup, groups: Sequence[WaitGroup]) -> int:
    return sum(one.size for one in groups if (one.kind, one.step) == (group.kind, group.step))


def _name(group: WaitGroup) -> str:
    return f"{group.what} ({group.job.type})" if group.job else group.what


def _parent_failed(job: Job, group: WaitGroup, groups: Sequence[WaitGroup]) -> Reason:
    parent, total = group.job, _total(group, groups)
    ended = "was cancelled" if parent and parent.status is Status.CANCELLED else "failed"
    error = f": {parent.error}" if parent and parent.error not in (None, "cancelled") else ""
    which = f"{group.size:,} of its {total:,} parents failed; the first" if group.size > 1 else "its parent"
    text = f"it is held: {which} {_name(group)} {ended}{error}"
    way_out = f"fix the cause, then retry that one: treadle jobs retry {group.what}; to give up: {_cancel(job)}"
    return Reason(ReasonCode.PARENT_FAILED, text, way_out, _numbers("parent", group, total) | {"failed": group.size})


def _parent_gone(job: Job, group: WaitGroup, groups: Sequence[WaitGroup]) -> Reason:
    text = f"it waits for job {group.what}, which was deleted by hand"
    way_out = f"to give up: {_cancel(job)}; to run it without: treadle jobs clone {job.id}"
    return Reason(ReasonCode.PARENT_GONE, text, way_out, _numbers(group.kind, group, _total(group, groups)))


def _waits_for_jobs(group: WaitGroup, groups: Sequence[WaitGroup], now: int) -> Reason:
    total = _total(group, groups)
    step = f" in step {group.step!r}" if group.step else ""
    code = ReasonCode.WAITS_FOR_PARENT if group.kind == "parent" else ReasonCode.WAITS_FOR_SUBJOBS
    text = f"it waits{step} for its {group.kind} {_name(group)}, which {_doing(group.job, now)}"
    if total > 1:
        ended, most = total - group.size, "+" if total >= MOST_WAITS else ""
        text = f"it waits{step} for its {group.kind}s: {ended:,} of {total:,}{most} have ended; the first that has not "
        text += f"is {_name(group)}, which {_doing(group.job, now)}"
    way_out = f"to see why that one has not ended: treadle jobs why {group.what}"
    return Reason(code, text, way_out, _numbers(group.kind, group, total) | {"ended": total - group.size})


def _numbers(name: str, group: WaitGroup, total: int) -> dict[str, object]:
    status = {"status": group.job.status} if group.job else {}
    return {name: group.what, **status, f"{name}s": total, **({"step": group.step} if group.step else {})}


def _doing(job: Job | None, now: int) -> str:
    if job is None:
        return "is unknown"
    state = state_of(job, clock.moment(now))
    if state == "blocked":
        return "is blocked itself"
    label = STATE_OF[state].label.lower()
    return f"is {label}, until {format_utc(job.run_at)}" if state in ("scheduled", "retrying") else f"is {label}"


def _waits_for_signal(job: Job, group: WaitGroup, now: int) -> Reason:
    since, until = clock.moment(group.since), clock.optional_moment(group.until)
    waited = format_microseconds(now - group.since)
    text = f"it waits for the signal {group.what!r}, since {format_utc(since)}, for {waited}, in step {group.step!r}"
    text += f"; it waits until {format_utc(until)}" if until else ""
    way_out = f"to send it: treadle jobs signal {shlex.quote(group.what)} [JSON]"
    way_out += f" --tenant {shlex.quote(job.tenant)}" if job.tenant else ""
    data = {"signal": group.what, "step": group.step, "since": since, "until": until}
    return Reason(ReasonCode.WAITS_FOR_SIGNAL, text, way_out, data)


def _cancel(job: Job) -> str:
    return f"treadle jobs cancel {job.id}"
