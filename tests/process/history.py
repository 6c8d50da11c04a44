"""What must be true of a history: what was enqueued, what the handlers noted, what the database contains.

For runs that only kill -9 of their process has interrupted. Each rule returns the violations that it found.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from itertools import pairwise
from typing import Any, NamedTuple

from tests import stores
from tests.process.journal import Run

SQLITE = "BEGIN", "result ->> '$'", "SELECT value FROM treadle_meta WHERE key = 'lease'"
POSTGRES = "BEGIN ISOLATION LEVEL REPEATABLE READ", "result #>> '{}'", "SELECT last_value FROM treadle_lease"
"""How to begin a snapshot, the SQL for the text of a result, and the SQL for the number of the last lease."""


class Ended(NamedTuple):
    """A row of `finished`."""

    id: str
    lease: int
    status: str
    attempts: int
    result: str | None


class Lost(NamedTuple):
    """A row of `attempts`."""

    id: str
    lease: int
    attempt: int
    outcome: str
    error: str


class Records(NamedTuple):
    """All that the database contains, read at one moment."""

    jobs: list[str]
    waiting: list[str]
    leased: list[str]
    ended: list[Ended]
    lost: list[Lost]
    tallies: dict[str, int]
    runs: int
    failures: int
    last_lease: int


class History(NamedTuple):
    """Everything that is known about what happened."""

    acked: list[str]
    """The jobs whose enqueue returned."""
    runs: list[Run]
    """In the order in which they started."""
    kills: Mapping[int, int]
    """The processes killed, and when."""
    records: Records


def read(url: str) -> Records:
    """The records of a database."""
    begin, text_of_result, last_lease = POSTGRES if stores.is_postgres(url) else SQLITE

    with closing(stores.connect(url)) as connection:

        def rows(query: str) -> list[Any]:
            return connection.execute(stores.in_dialect(url, query)).fetchall()

        connection.execute(begin)
        runs, failures = rows("SELECT coalesce(sum(runs), 0), coalesce(sum(failures), 0) FROM treadle_usage")[0]
        return Records(
            jobs=[str(id) for (id,) in rows("SELECT id FROM treadle_jobs")],
            waiting=[str(id) for (id,) in rows("SELECT id FROM treadle_ready")],
            leased=[str(id) for (id,) in rows("SELECT id FROM treadle_leases")],
            ended=[
                Ended(str(id), *row)
                for id, *row in rows(f"SELECT id, lease, status, attempts, {text_of_result} FROM treadle_finished")
            ],
            lost=[
                Lost(str(id), *row)
                for id, *row in rows("SELECT id, lease, attempt, outcome, error FROM treadle_attempts")
            ],
            tallies={
                status: count
                for status, count in rows("SELECT status, sum(count) FROM treadle_tallies GROUP BY 1")
                if count
            },
            runs=runs,
            failures=failures,
            last_lease=rows(last_lease)[0][0],
        )


def breaches(history: History) -> list[str]:
    """Every rule that was broken, with the jobs that broke it."""
    return [f"{rule.__name__}: {breach}" for rule in RULES for breach in rule(history)]


def none_lost(h: History) -> Iterator[str]:
    """Every job that was enqueued exists, and has completed."""
    there, ended = set(h.records.jobs), {row.id: row for row in h.records.ended}
    for id in h.acked:
        if id not in there:
            yield f"{id} was enqueued, and there is no row of it"
        elif id not in ended:
            yield f"{id} never ended"
        elif ended[id].status != "completed":
            yield f"{id} is {ended[id].status}"


def none_invented(h: History) -> Iterator[str]:
    """No job exists or ran that was not enqueued."""
    asked = set(h.acked)
    yield from (f"{id} was never enqueued" for id in h.records.jobs if id not in asked)
    yield from (f"{run.token} ran {run.id}, which was never enqueued" for run in h.runs if run.id not in asked)


def in_one_place(h: History) -> Iterator[str]:
    """A job waits, is leased, or has ended: exactly one of these."""
    places = Counter([*h.records.waiting, *h.records.leased, *(row.id for row in h.records.ended)])
    yield from (f"{id} is in {places[id]} places" for id in h.records.jobs if places[id] != 1)
    yield from (f"{id} has a place but no job" for id in places.keys() - set(h.records.jobs))


def ended_by_a_run(h: History) -> Iterator[str]:
    """The stored result is that of a run that finished, and the attempts are counted up to that run."""
    runs = {run.token: run for run in h.runs}
    for row in h.records.ended:
        run = runs.get(row.result or "")
        if run is None or run.id != row.id:
            yield f"{row.id} has the result {row.result!r}, and no run of it has that"
        elif run.ended is None:
            yield f"{row.id} has the result of {run.token}, which never ended"
        elif run.attempt != row.attempts:
            yield f"{row.id} ended with {row.attempts} attempts, by the run of attempt {run.attempt}"


def every_run_is_recorded(h: History) -> Iterator[str]:
    """A run has completed its job, or it died before that was committed and is among the attempts."""
    completing = {row.result for row in h.records.ended}
    lost = Counter((row.id, row.attempt) for row in h.records.lost)
    for run in h.runs:
        if run.token in completing:
            continue
        if run.pid not in h.kills:
            yield f"{run.token} of {run.id} did not count, and its process was not killed"
        elif run.last_seen > h.kills[run.pid] + SHUDDER:
            yield f"{run.token} of {run.id} went on after its process was killed"
        else:
            lost[run.id, run.attempt] -= 1
            if lost[run.id, run.attempt] < 0:
                yield f"{run.token} of {run.id} was killed in attempt {run.attempt}, and nothing says so"


def every_lost_attempt_has_a_kill(h: History) -> Iterator[str]:
    """An attempt that is recorded as lost was lost with a process; and it is counted."""
    ended = {row.id: row for row in h.records.ended}
    for row in h.records.lost:
        if row.outcome != "retried" or "killed by SIGKILL" not in row.error:
            yield f"attempt {row.attempt} of {row.id} was {row.outcome}: {row.error}"
    for id, n in Counter(row.id for row in h.records.lost).items():
        if id in ended and ended[id].attempts != n + 1:
            yield f"{id} lost {n} attempts and completed in attempt {ended[id].attempts}"


def one_lease_one_number(h: History) -> Iterator[str]:
    """No two leases share a number, and the one that ended the job is its newest."""
    numbers = Counter(row.lease for row in (*h.records.ended, *h.records.lost))
    for number, n in numbers.items():
        if n > 1 or not 0 < number <= h.records.last_lease:
            yield f"lease {number} is recorded {n} times, and the counter at {h.records.last_lease}"
    newest = {row.id: row.lease for row in h.records.ended}
    for row in h.records.lost:
        if row.lease > newest.get(row.id, row.lease):
            yield f"{row.id} ended by lease {newest[row.id]}, after lease {row.lease} had been given"


def one_at_a_time(h: History) -> Iterator[str]:
    """A job runs again only when the run before has ended or its process is dead."""
    of_job = defaultdict(list)
    for run in h.runs:
        of_job[run.id].append(run)
    for id, runs in of_job.items():
        for before, after in pairwise(runs):
            over = before.ended or h.kills.get(before.pid)
            if over is None or over > after.started:
                yield f"{id} ran as {after.token} while {before.token} was running"


def counts_add_up(h: History) -> Iterator[str]:
    """Tallies and usage equal a count of the rows."""
    counted = Counter(row.status for row in h.records.ended)
    counted["all"] = len(h.records.waiting) + len(h.records.leased) + len(h.records.ended)
    if +counted != h.records.tallies:
        yield f"the tallies are {h.records.tallies}, a count gives {dict(+counted)}"
    retried = sum(row.outcome == "retried" for row in h.records.lost)
    if (h.records.runs, h.records.failures) != (len(h.records.ended) + retried, len(h.records.lost)):
        recorded = f"usage has {h.records.runs} runs, {h.records.failures} failures"
        yield f"{recorded}: {len(h.records.ended)} ended, {retried} retried"


SHUDDER = 1_000_000_000
"""Nanoseconds that a process may live after the kill: one that waits for the disk dies when the disk responds."""

RULES: Sequence[Callable[[History], Iterator[str]]] = (
    none_lost,
    none_invented,
    in_one_place,
    ended_by_a_run,
    every_run_is_recorded,
    every_lost_attempt_has_a_kill,
    one_lease_one_number,
    one_at_a_time,
    counts_add_up,
)


def summary(h: History) -> str:
    """The figures. "None lost" is meaningful only if runs were in flight at a kill."""
    unfinished = sum(run.ended is None for run in h.runs)
    return (
        f"{len(h.acked)} jobs, {len(h.kills)} kills, {len(h.runs)} runs: {unfinished} killed on the way, "
        f"{len(h.runs) - len(h.acked) - unfinished} done but not settled; {len(h.records.lost)} attempts charged"
    )
