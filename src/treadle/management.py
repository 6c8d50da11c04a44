"""Looking at stored jobs, and changing them: the verbs of `Treadle` that people and dashboards use."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Unpack

import msgspec

from treadle import clock, filters
from treadle.bulk import Bulk, changes_for
from treadle.clock import Duration, in_seconds
from treadle.diagnosis import explain
from treadle.errors import BadCursor, BadOption, JobNotFound
from treadle.filters import EVERYTHING, Filter
from treadle.function import Changes, make_reschedule
from treadle.ids import is_id
from treadle.job import STATE_NAMES, Attempt, Backlog, Count, FailureGroup, Job, Latency, Page, Status, Usage
from treadle.lineage import MOST_RELATED, Lineage
from treadle.log_lines import LogLine
from treadle.pauses import Pause
from treadle.pausing import Pausing
from treadle.problems import Problem, problems
from treadle.reasons import Why
from treadle.redact import OFF, Redactor
from treadle.results import twin
from treadle.schedule import LATE
from treadle.schedule_diagnosis import schedule_problems
from treadle.settings import at_least_one, checked_id, wanted_name
from treadle.stores.base import Store, WorkerRow
from treadle.stores.rows import QueueStats, Sampled

PAGE_LIMIT = 200
COUNT_LIMIT = 20_000
"""Jobs that are counted one by one where there is no tally: more than a page shows, and still quick."""
COUNTED_BY = ("status", "state", "type", "queue", "tenant", "subject")
USED_BY = ("type", "queue", "tenant")
FIELDS = {"type": "types", "queue": "queues", "tenant": "tenants", "subject": "subjects", "batch": "batches"}
"""The fields of a filter, by the names of single values."""
Statuses = Status | str | Sequence[Status | str]
"""One status, or several."""
RECENT_TYPES = 1_000
MOST_SCHEDULES = 1_000
"""Schedules that are looked at for problems."""
ONE_STEP = 60 << 34
"""Seconds, in whole minutes: so long that all of the time is one step."""


class Management(Pausing):
    """The part of `Treadle` that manages stored jobs."""

    redactor: Redactor

    def get(self, id: str) -> Job | None:
        """The job, or None."""
        job = self.store.get(checked_id(id))
        return None if job is None else self.registry.with_result(job)

    def jobs(
        self,
        filter: str | Filter | None = None,
        *,
        status: Statuses | None = None,
        type: str | None = None,
        queue: str | None = None,
        tenant: str | None = None,
        subject: str | None = None,
        batch: str | None = None,
        limit: int = 50,
        cursor: str | None = None,
    ) -> Page:
        """A page of jobs, newest first. Iterate over it; `.next` is the cursor of the next page.

        `filter`: `"status:failed type:send_* payload.user_id:42 since:1h"`. The other arguments must match too.
        """
        if not 1 <= limit <= PAGE_LIMIT:
            raise BadOption("limit", limit, f"from 1 to {PAGE_LIMIT}; for more, pass cursor=page.next")
        if cursor is not None and not is_id(cursor):
            raise BadCursor(cursor)
        named = {"type": type, "queue": queue, "tenant": tenant, "subject": subject, "batch": batch}
        given: dict[str, tuple[str, ...]] = {
            FIELDS[name]: (wanted_name(name, value),) for name, value in named.items() if value is not None
        }
        if status is not None:
            given["statuses"] = statuses(status)
        page = self.store.jobs(_both(filters.to_filter(filter), given), limit, cursor)
        return msgspec.structs.replace(page, jobs=[self.registry.with_result(job) for job in page])

    def count(self, filter: str | Filter | None = None, *, at_most: int = 10_000) -> Count:
        """How many jobs match. If they are more than `at_most`, or counting takes too long, `str()` is "10,000+"."""
        found = self.store.counts((), filters.to_filter(filter), COUNT_LIMIT)
        total = sum(row["count"] for row in found.rows)
        return Count(min(total, at_most), found.exact and total <= at_most)

    def counts_by_state(self, filter: str | Filter | None = None, *, at_most: int = 10_000) -> dict[str, Count]:
        """How many jobs match in each state, and in `all`. A status in the filter is ignored."""
        found = self.store.counts(("state",), filters.to_filter(filter).replace(statuses=()), COUNT_LIMIT)
        states = {row["state"]: row["count"] for row in found.rows}
        states = {"all": sum(states.values()), **{state: states.get(state, 0) for state in STATE_NAMES}}
        return {state: Count(min(n, at_most), found.exact and n <= at_most) for state, n in states.items()}

    def counts(
        self, by: Sequence[str] = ("status",), filter: str | Filter | None = None, *, at_most: int | None = None
    ) -> list[dict[str, Any]]:
        """Rows like `{"status": "pending", "type": "noop", "count": 3}`.

        Counts by status, type and queue are kept up to date. Others read every job, or the newest `at_most`.
        """
        return self.store.counts(_columns(by, COUNTED_BY), filters.to_filter(filter), at_most).rows

    def queue_stats(self) -> list[QueueStats]:
        """How many jobs are in each state, by queue and type; since when the oldest is due, and when the next is.

        If there are more than 1,000 queues and types, the last row has no names and sums the others.
        """
        return self.store.queue_stats()

    def usage(
        self,
        since: datetime | timedelta = timedelta(hours=1),
        until: datetime | None = None,
        *,
        by: Sequence[str] = ("type",),
        step: Duration = 60,
        tenant: str | None = None,
        type: str | None = None,
        at_most: int | None = None,
    ) -> list[Usage]:
        """Runs in steps of `step` seconds, grouped by some of type, queue and tenant. Exact at every commit.

        Usage is kept by the minute. Every minute between `since` and `until` counts, even partly. With `at_most`, only
        the groups with the most runs are returned.
        """
        first, last = self._minutes(since, until, step := in_seconds(step))
        return self.store.usage(first, last, int(step), _columns(by, USED_BY), tenant, type, at_most)

    def backlog(
        self, since: datetime | timedelta = timedelta(hours=1), until: datetime | None = None, *, step: Duration = 60
    ) -> list[Backlog]:
        """The most jobs that waited and ran in each step of `step` seconds. Workers sample them once a minute: a minute
        without a worker is left out. Samples are kept for 90 days."""
        step = in_seconds(step)
        return self.store.backlog(*self._minutes(since, until, step), int(step))

    def _minutes(self, since: datetime | timedelta, until: datetime | None, step: float) -> tuple[int, int]:
        """The first second of the first minute, and the second after the last one."""
        if step < 60 or step % 60:
            raise BadOption("step", step, "whole minutes, in seconds: 60, 300, 3600")
        end = self.store.now() + 1 if until is None else clock.from_datetime(until)
        start = clock.from_datetime(since) if isinstance(since, datetime) else end - clock.seconds(since)
        return start // clock.MINUTE * 60, -(-end // clock.SECOND)

    def latency(self) -> dict[str, Latency]:
        """How long the newest jobs of each type waited and ran: the median and the 95th percentile."""
        return latencies(self.store.latency_sample())

    def failures(self) -> list[FailureGroup]:
        """The newest failed jobs, and those that wait for a retry, by type and error; the latest first."""
        return self.store.failures()

    def problems(self) -> list[Problem]:
        """What is wrong now, each problem with the next step."""
        store = self.store
        return all_problems(store, store.queue_stats(), store.workers(), store.pauses(), self.redactor)

    def attempts(self, id: str) -> list[Attempt]:
        """The job's unsuccessful attempts, oldest first, each with its traceback."""
        return self.store.attempts(checked_id(id))

    def logs(self, id: str, after: int | None = 0, limit: int = 1_000) -> list[LogLine]:
        """What its handlers have logged, by `ctx.log` and with `@td.job(logs="INFO")`, oldest first. `after` skips that
        many lines, to go on where the last call ended; None: only the last `limit` lines."""
        if after is not None and after < 0:
            raise BadOption("after", after, "how many lines to skip, 0 or more; None for the last ones")
        return self.store.logs(checked_id(id), after, limit)

    def lineage(self, id: str, most: int = MOST_RELATED) -> Lineage:
        """The jobs that it comes from and that come from it, in any number of steps: parents and children, the job
        whose handler started it, subjobs and follow-ups. `cut` says if there are more than `most`. Raises JobNotFound.
        """
        found = self.store.lineage(checked_id(id), at_least_one("most", most))
        if found is None:
            raise JobNotFound(id)
        return found

    def why(self, id: str) -> Why:
        """Why the job is not running: every reason that holds, the deciding one first. Raises JobNotFound."""
        facts = self.store.job_facts(checked_id(id))
        if facts is None:
            raise JobNotFound(id)
        return explain(facts)

    def workers(self) -> list[WorkerRow]:
        """The registered workers, oldest first."""
        return self.store.workers()

    def retry(self, id: str, from_step: str | None = None) -> Job:
        """Run an ended job again now, with all of its attempts. Raises JobNotFound, WrongStatus or KeyHeld.

        A completed job starts over. Any other keeps its steps, or those before `from_step`.
        """
        return self._waking(self.store.retry(checked_id(id), from_step))

    def cancel(self, id: str) -> Job:
        """End a waiting job, or ask the worker of a running one to stop it. Raises JobNotFound or WrongStatus."""
        return self.store.cancel(checked_id(id))

    def delete(self, id: str) -> Job:
        """Delete a job that is not processing. Raises JobNotFound or WrongStatus."""
        return self.store.delete(checked_id(id))

    def run_now(self, id: str) -> Job:
        """Make a waiting job due now. Raises JobNotFound or WrongStatus."""
        return self._waking(self.store.run_now(checked_id(id)))

    def reschedule(self, id: str, **changes: Unpack[Changes]) -> Job:
        """Move a waiting job to another `run_at` (or `delay`), `priority` or `queue`. It keeps them through retries.

        At least one is needed. Raises JobNotFound or WrongStatus.
        """
        return self._waking(self.store.reschedule(checked_id(id), make_reschedule(changes)))

    def bulk(
        self, action: str, filter: str | Filter, *, expected: int | None = None, **changes: Unpack[Changes]
    ) -> Bulk:
        """Retry, run now, reschedule, cancel or delete all jobs that match. Iterate over it: each step changes some.

        With `expected`, it raises CountMoved and changes nothing if a different number matches. `changes` are for
        `td.bulk("reschedule", …)`, as in `td.reschedule`.
        """
        return Bulk(self.store, action, filters.to_filter(filter), expected, changes_for(action, changes))

    # Async twins

    aget = twin(get)
    ajobs = twin(jobs)
    acount = twin(count)
    acounts_by_state = twin(counts_by_state)
    acounts = twin(counts)
    aqueue_stats = twin(queue_stats)
    ausage = twin(usage)
    abacklog = twin(backlog)
    alatency = twin(latency)
    afailures = twin(failures)
    aproblems = twin(problems)
    aattempts = twin(attempts)
    alogs = twin(logs)
    alineage = twin(lineage)
    awhy = twin(why)
    aworkers = twin(workers)
    aretry = twin(retry)
    acancel = twin(cancel)
    adelete = twin(delete)
    arun_now = twin(run_now)
    areschedule = twin(reschedule)


def every_job(app: Management, filter: Filter = EVERYTHING) -> Iterator[Job]:
    """All jobs that match, newest first, page by page."""
    yield from (page := app.jobs(filter, limit=PAGE_LIMIT))
    while page.next is not None:
        yield from (page := app.jobs(filter, limit=PAGE_LIMIT, cursor=page.next))


def _both(wanted: Filter, given: Mapping[str, tuple[Any, ...]]) -> Filter:
    for field in given:
        if getattr(wanted, field):
            raise BadOption(field, given[field], "the filter has it too; say it once")
    return wanted.replace(**given)


def _columns(by: Sequence[str], known: Sequence[str]) -> tuple[str, ...]:
    columns = (by,) if isinstance(by, str) else tuple(by)
    if unknown := [name for name in columns if name not in known]:
        raise BadOption("by", unknown[0], f"choose from {', '.join(known)}")
    return columns


def statuses(status: Statuses) -> tuple[Status, ...]:
    try:
        return tuple(map(Status, (status,) if isinstance(status, str) else status))
    except (TypeError, ValueError):
        raise BadOption("status", status, f"choose from {', '.join(Status)}") from None


def all_problems(
    store: Store,
    queues: Sequence[QueueStats],
    workers: Sequence[WorkerRow],
    pauses: Sequence[Pause],
    redactor: Redactor = OFF,
) -> list[Problem]:
    """What is wrong with these, which a page may have read before, and with what they ran and the schedules."""
    now = store.now()
    held = store.held() if any(row.counts["blocked"] for row in queues) else None
    found = problems(queues, workers, recent_usage(store, now), now, pauses, store.full_limits(), held)
    found += schedule_problems(store.odd_schedules(LATE, MOST_SCHEDULES), workers, now)
    return [Problem(one.code, redactor.text(one.text), redactor.text(one.next), one.filter) for one in found]


def recent_usage(store: Store, now: int) -> list[Usage]:
    """Usage of the last quarter of an hour, by type: of those that ran most."""
    seconds = now // clock.SECOND
    return store.usage(seconds - 15 * 60, seconds + 1, ONE_STEP, ("type",), most=RECENT_TYPES)


def latencies(samples: Sequence[Sampled]) -> dict[str, Latency]:
    by_type: dict[str, list[Sampled]] = {}
    for sample in samples:
        by_type.setdefault(sample.type, []).append(sample)
    return {
        type: Latency(len(some), *_quantiles(one.waited for one in some), *_quantiles(one.ran for one in some))
        for type, some in sorted(by_type.items())
    }


def _quantiles(times: Iterable[int]) -> tuple[float, float]:
    """The median and the 95th percentile, in seconds."""
    ordered = sorted(max(0, time) / clock.SECOND for time in times)
    return ordered[len(ordered) // 2], ordered[len(ordered) * 95 // 100]
