"""Which workers are alive, what is wrong with the queue as a whole, and how fast it is."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from treadle import redact, views
from treadle.clock import SECOND, moment
from treadle.diagnosis import SILENT, JobFacts, explain, for_tenant, handles, is_alive, silence
from treadle.filters import parse
from treadle.ids import new_id
from treadle.job import STATE_NAMES, NewJob, Usage
from treadle.limits import FullLimit, Rate
from treadle.management import latencies
from treadle.pauses import Pause
from treadle.problems import LONG, MOST_PROBLEMS, OFTEN, Problem, problems, unhandled
from treadle.reasons import Reason, ReasonCode, Why
from treadle.stores.base import WorkerRow
from treadle.stores.rows import QueueStats, Sampled

NOW = 1_800_000_000 * SECOND


def stats(
    queued: int = 1,
    waited: float = 1,
    queue: str = "default",
    type: str = "mail",
    limit: int | None = None,
    **states: int,
) -> QueueStats:
    counts = dict.fromkeys(STATE_NAMES, 0) | {"queued": queued} | states
    due = NOW - int(waited * SECOND) if queued else None
    return QueueStats(queue=queue, type=type, counts=counts, oldest_due=due, next_due=None, limit=limit, exact=True)


def worker(name: str = "w", *types: str, silent: float = 0, queues: tuple[str, ...] = (), leases: int = 0) -> WorkerRow:
    seen = NOW - int(silent * SECOND)
    return WorkerRow(
        id=f"id-{name}",
        name=name,
        concurrency=1,
        types=types or ("mail",),
        queues=queues,
        seen_at=seen,
        doing=(("mail", leases, seen),),
    )


def used(runs: int, failures: int, snoozes: int = 0) -> Usage:
    numbers = {"runs": runs + snoozes, "completed": runs - failures, "failures": failures}
    return Usage(at=datetime(2026, 1, 1, tzinfo=UTC), key=("mail",), busy=1, waiting=1, **numbers)


def test_snoozed_runs_do_not_hide_that_most_others_fail() -> None:
    [problem] = found(lately=[used(10, 9, snoozes=1000)])
    assert '9 of 10 runs of type "mail" failed' in problem.text


def found(*rows: QueueStats, workers: Any = (), lately: Any = (), limits: Any = ()) -> list[Problem]:
    every = problems(rows, workers, lately, NOW, (), limits)
    for problem in every:
        assert problem.next
        parse(problem.filter)  # it can be opened
    return every


def test_a_healthy_queue_has_no_problems() -> None:
    assert found() == []
    assert found(stats(), stats(0), workers=[worker()], lately=[used(10, 1)]) == []


def test_scheduled_jobs_need_no_worker_yet() -> None:
    assert found(stats(0, scheduled=5, retrying=1)) == []


def test_waiting_jobs_without_any_worker_are_a_problem() -> None:
    [problem] = found(stats(2), stats(3, type="resize"))

    assert (problem.code, problem.text) == ("no_worker", "5 jobs wait and no worker is running")
    assert problem.filter == "status:queued"


def test_the_text_for_one_waiting_job_is_singular() -> None:
    [problem] = found(stats(1))

    assert problem.text == "1 job waits and no worker is running"


@pytest.mark.parametrize(
    ("one", "who", "text"),
    [
        (stats(212, type="resize"), worker(), '212 jobs of type "resize" wait and no live worker handles it'),
        (
            stats(1, queue="img"),
            worker(queues=("a",)),
            '1 job of type "mail" in queue "img" waits and no live worker handles it',
        ),
    ],
)
def test_a_type_or_queue_that_no_worker_handles_is_a_problem(one: QueueStats, who: WorkerRow, text: str) -> None:
    [problem] = found(one, workers=[who])

    assert (problem.code, problem.text) == ("unhandled", text)
    wanted = parse(problem.filter)
    assert (wanted.statuses, wanted.types, wanted.queues) == (("queued",), (one.type,), (one.queue,))


def test_a_lost_worker_is_named_with_what_it_holds() -> None:
    [problem] = found(workers=[worker("host-2", silent=92, leases=2), worker("host-1")])

    assert problem.code == "lost_worker"
    assert problem.text == "worker host-2 is lost: no heartbeat for 1m 32s, 2 jobs leased"
    assert parse(problem.filter).workers == ("id-host-2",)


def test_a_lost_worker_needs_a_living_one_that_returns_its_jobs() -> None:
    [problem, _] = found(stats(), workers=[worker(silent=92)])
    assert problem.next == "start a worker, which returns its jobs: treadle worker app:td"
    [problem] = found(stats(), workers=[worker(silent=92), worker("v")])
    assert problem.next.startswith("another worker returns its jobs")


def test_a_lost_worker_handles_nothing() -> None:
    assert [p.code for p in found(stats(), workers=[worker(silent=92)])] == ["lost_worker", "no_worker"]


def test_jobs_that_wait_too_long_are_a_problem() -> None:
    assert found(stats(waited=LONG), workers=[worker()]) == []

    [problem] = found(stats(7, waited=LONG + 242), workers=[worker()])

    assert (problem.code, problem.text) == ("slow", '7 jobs of type "mail" wait, the oldest for 9m 2s')
    assert "more workers" in problem.next


def test_jobs_that_wait_too_long_because_of_a_limit_name_the_limit() -> None:
    full = FullLimit(name="type:mail", types=("mail",), concurrency=3, running=3)
    [problem] = found(stats(waited=900, limit=3, processing=3), workers=[worker()], limits=[full])

    assert "its limit 'type:mail' of 3 is full" in problem.next


@pytest.mark.parametrize(
    ("runs", "failures", "bad"), [(OFTEN, OFTEN, True), (10, 5, True), (11, 5, False), (4, 4, False), (100, 49, False)]
)
def test_a_type_that_fails_often_is_a_problem(runs: int, failures: int, bad: bool) -> None:
    codes = [problem.code for problem in found(lately=[used(runs, failures)])]

    assert codes == (["failing"] if bad else [])


def test_of_many_problems_of_a_kind_some_are_named_and_the_others_counted() -> None:
    types = [stats(type=f"type-{n}") for n in range(MOST_PROBLEMS + 5)]
    *named, more = found(*types, workers=[worker()])

    assert [problem.code for problem in named] == ["unhandled"] * MOST_PROBLEMS
    assert (more.code, more.text) == ("more", "5 more types have such a problem")
    assert [problem.code for problem in found(*types)] == ["no_worker"]


def test_odd_names_make_filters_that_can_be_read() -> None:
    [problem] = found(stats(type='a "b", *', queue="c d"), workers=[worker()])

    assert parse(problem.filter).types == ('a "b", *',)


def test_a_worker_is_alive_if_its_heartbeat_is_recent() -> None:
    assert is_alive(worker(silent=SILENT), NOW)
    assert not is_alive(worker(silent=SILENT + 0.1), NOW)
    assert silence(worker(silent=-5), NOW) == 0.0


def test_a_worker_handles_its_types_in_its_queues() -> None:
    assert handles(worker("w", "a"), "any", "a")
    assert not handles(worker("w", "a"), "any", "b")
    assert not handles(worker("w", "a", queues=("q",)), "r", "a")
    rows = [{"status": s, "type": "b", "queue": "q", "count": 2} for s in ("pending", "failed")]
    assert [row["pending"] for row in unhandled(rows, [worker("w", "a")])] == [2]


# What a tenant may know

OWN = {
    ReasonCode.EXPIRED,
    ReasonCode.EXPIRES,
    *(ReasonCode.FINISHED, ReasonCode.OUT_OF_ATTEMPTS, ReasonCode.RUNNING, ReasonCode.CANCELLING),
    *(ReasonCode.OVERDUE, ReasonCode.WORKER_LOST, ReasonCode.NOT_DUE, ReasonCode.NO_WORKER),
    *(ReasonCode.BROKEN, ReasonCode.KEY_HELD, ReasonCode.SLEEPING, ReasonCode.WAITS_FOR_SIGNAL),
    *(ReasonCode.WAITS_FOR_PARENT, ReasonCode.WAITS_FOR_SUBJOBS, ReasonCode.PARENT_FAILED, ReasonCode.PARENT_GONE),
}
"""Reasons that are about the job itself, its attempts and its worker, or a job of its tenant."""


@pytest.mark.parametrize("code", ReasonCode)
def test_for_a_tenant_a_reason_is_about_its_own_job_or_without_details(code: ReasonCode) -> None:
    job = NewJob(id=new_id(), type="mine", queue="mine").as_stored(NOW)
    reason = Reason(code, "umbrella has 7", "ask umbrella", {"umbrella": 7})
    [shown] = for_tenant(Why(id=job.id, status=job.status, reasons=(reason,)), job).reasons

    assert shown.code == code
    assert shown == reason if code in OWN else not re.search(r"umbrella|\d", str(shown))


def test_a_tenant_sees_its_own_pause_and_no_other() -> None:
    job = NewJob(id=new_id(), type="mine", queue="mine", tenant="acme").as_stored(NOW)
    own, of_queue = (
        Pause(by="ann", reason="umbrella", since=moment(NOW), **names)
        for names in ({"tenant": "acme"}, {"queue": "mine"})
    )
    why = explain(JobFacts(job=job, now=NOW, workers=(), pauses=(own, of_queue)))

    first, second, *_ = for_tenant(why, job).reasons
    assert "tenant 'acme' is paused by ann" in first.text
    assert (ReasonCode.PAUSED, "it is paused", {}) == (second.code, second.text, second.data)


FULL = FullLimit(name="api", concurrency=2, rate=Rate(1), running=2, next_at=NOW + 1, held_until=NOW + 1)


@pytest.mark.parametrize(
    ("per", "key", "own"), [("tenant", "acme", True), ("subject", "acme", False), (None, "", False)]
)
def test_a_tenant_sees_how_full_its_own_key_is_and_no_other(per: str | None, key: str, own: bool) -> None:
    job = NewJob(id=new_id(), type="mine", queue="mine", tenant="acme").as_stored(NOW)
    limit = msgspec.structs.replace(FULL, per=per, key=key, holders={"umbrella": 2}, jobs=("umbrella",))
    why = explain(JobFacts(job=job, now=NOW, workers=(worker("w", "mine"),), limits=(limit,)))
    shown = for_tenant(why, job)

    assert [ReasonCode.LIMIT_FULL, ReasonCode.RATE_LIMITED, ReasonCode.HELD_BACK] == [one.code for one in why.reasons]
    assert own == (shown == why)
    assert own or not re.search(r"umbrella|api|\d", str(shown))
    assert own or [{}, {}, {}] == [one.data for one in shown.reasons]


def test_a_key_that_is_a_secret_is_not_shown() -> None:
    job = NewJob(id=new_id(), type="mine", queue="mine").as_stored(NOW)
    limit = msgspec.structs.replace(FULL, per="payload.api_key", key="s3cr3t", holders={"": 2})
    why = views.why(explain(JobFacts(job=job, now=NOW, workers=(), limits=(limit,))), redact.DEFAULT)
    assert 4 == len(why.reasons)
    assert "s3cr3t" not in repr(why)


# How fast


def test_latencies_are_by_type() -> None:
    sample = [Sampled("a", "q", n * SECOND, 2 * n * SECOND) for n in range(100)] + [Sampled("b", "q", -5, SECOND)]

    found = latencies(sample)

    assert list(found) == ["a", "b"]
    a = found["a"]
    assert (a.jobs, a.wait_p50, a.wait_p95, a.run_p50, a.run_p95) == (100, 50.0, 95.0, 100.0, 190.0)
    assert (found["b"].wait_p50, found["b"].run_p95) == (0.0, 1.0)
    assert latencies([]) == {}
