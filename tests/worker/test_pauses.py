"""`td.pause`, `resume`, `drain` and `quiet`, while workers run."""

from __future__ import annotations

import asyncio
import threading
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.eventually import eventually
from tests.worker.helpers import Background, ended, working
from treadle import Status, Treadle
from treadle.errors import BadOption, NoSuchWorker
from treadle.pauses import Target
from treadle.testing import ManualClock, drain


def declare(td: Treadle, ran: list[str]) -> None:
    @td.job(queue="mail")
    def send(to: str) -> None:
        ran.append(to)

    @td.job
    def embed(to: str) -> None:
        ran.append(to)


WHAT: list[dict[str, str]] = [{"queue": "mail"}, {"type": "send"}, {"tenant": "acme"}]


@pytest.mark.parametrize("what", WHAT, ids=str)
def test_a_paused_job_waits_until_it_is_resumed(td: Treadle, what: dict[str, Any]) -> None:
    ran: list[str] = []
    declare(td, ran)
    pause = td.pause(**what, reason="provider down", by="ann")
    held = td.enqueue("send", {"to": "held"}, tenant="acme")

    with working(td):
        assert Status.COMPLETED == ended(td, td.enqueue("embed", {"to": "free"})).status
        assert ["free"] == ran
        assert [pause] == td.pauses()
        assert pause == td.resume(**what)
        assert Status.COMPLETED == ended(td, held).status
    assert [] == td.pauses()
    assert td.resume(**what) is None


@pytest.mark.parametrize("what", WHAT, ids=str)
def test_a_tick_obeys_a_pause_and_its_end(timed: Treadle, treadle_clock: ManualClock, what: dict[str, Any]) -> None:
    ran: list[str] = []
    declare(timed, ran)
    timed.enqueue("send", {"to": "held"}, tenant="acme")
    pause = timed.pause(**what, until=timedelta(minutes=5))
    assert timedelta(minutes=5) == pause.until - pause.since

    report = timed.tick()
    assert (0, pause.until) == (report.ran, report.next_due_at)
    assert [] == timed.claim()
    treadle_clock.advance(301)
    assert 1 == timed.tick().ran


def test_who_paused_is_the_user_and_the_host(td: Treadle) -> None:
    assert "@" in td.pause(queue="mail").by


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({}, "exactly one of queue=, type= and tenant="),
        ({"queue": "mail", "type": "send"}, "exactly one of queue=, type= and tenant="),
        ({"tenant": ""}, "cannot be empty"),
        ({"queue": ""}, "cannot be empty"),
        ({"type": "x" * 201}, "at most 200 characters"),
        ({"queue": "mail", "until": datetime(2020, 1, 1, tzinfo=UTC)}, "a moment in the future"),
        ({"queue": "mail", "until": timedelta(0)}, "a moment in the future"),
        ({"queue": "mail", "until": timedelta.max}, "a moment in the future"),
        ({"queue": "mail", "until": 300}, "a timedelta from now"),
        ({"queue": "mail", "reason": "x" * 1001}, "at most 1,000 characters"),
        ({"queue": "mail", "by": "a\0b"}, "without NUL"),
        ({"queue": "mail", "reason": "a\ud800b"}, "half of a surrogate pair"),
        ({"queue": "a\ud800b"}, "half of a surrogate pair"),
    ],
    ids=str,
)
def test_bad_options_are_refused_and_nothing_is_paused(td: Treadle, options: dict[str, Any], problem: str) -> None:
    with pytest.raises(BadOption, match=problem):
        td.pause(**options)
    assert [] == td.pauses()


def test_a_drain_waits_for_what_runs(td: Treadle) -> None:
    started, finish = threading.Event(), threading.Event()

    @td.job(queue="mail")
    def slow() -> None:
        started.set()
        finish.wait(30)

    job = slow.enqueue()
    with working(td):
        assert started.wait(30)
        first = td.drain(queue="mail", timeout=0)
        assert (1, False) == (first.running, first.done)
        waiting = slow.enqueue()
        looks = td.draining(Target(queue="mail"), reason="deploy")
        assert 1 == next(looks).running
        finish.set()
        *_, last = looks
        assert (0, True) == (last.running, last.done)
        assert Status.COMPLETED == ended(td, job).status
        assert Status.PENDING == td.get(waiting.id).status
        [pause] = td.pauses()
        assert (True, "deploy") == (pause.draining, pause.reason)
        td.resume(queue="mail")
        ended(td, waiting)


def test_the_async_twins(td: Treadle) -> None:
    async def main() -> None:
        await td.apause(queue="mail", by="ann")
        assert ["ann"] == [pause.by for pause in await td.apauses()]
        assert (await td.adrain(queue="mail")).done
        assert await td.aresume(queue="mail") is not None

    asyncio.run(main())


def test_a_quiet_worker_finishes_what_runs_and_claims_again_when_it_may(td: Treadle) -> None:
    started, finish = threading.Event(), threading.Event()
    ran: list[str] = []
    declare(td, ran)

    @td.job
    def slow() -> None:
        started.set()
        finish.wait(30)

    job = slow.enqueue()
    worker = Background(td, beat=0.05).start()
    try:
        assert started.wait(30)
        td.quiet(worker.worker.id)
        held = td.enqueue("send", {"to": "held"})
        finish.set()
        assert Status.COMPLETED == ended(td, job).status
        eventually(lambda: worker.worker._quiet)
        assert ([], 1) == (ran, len(td.workers()))
        td.unquiet(worker.worker.id)
        assert Status.COMPLETED == ended(td, held).status
    finally:
        worker.stop_soon()
        worker.join()
    with pytest.raises(NoSuchWorker, match="treadle workers ls"):
        td.quiet(worker.worker.id)


def test_another_worker_takes_the_jobs_of_a_quiet_one(td: Treadle) -> None:
    ran: list[str] = []
    declare(td, ran)
    with working(td):
        [worker] = td.workers()
        td.quiet(worker.id)
        held = td.enqueue("send", {"to": "held"})
        drain(td)
        assert Status.COMPLETED == ended(td, held).status


def test_a_forgotten_pause_is_a_problem(timed: Treadle, treadle_clock: ManualClock) -> None:
    timed.enqueue("send", {"to": "x"}, queue="mail")
    timed.pause(queue="mail", by="ann", reason="provider down")
    treadle_clock.advance(1)
    timed.drain(type="embed", by="bob")
    assert [] == timed.problems()

    treadle_clock.advance(2 * 3600)
    [problem] = timed.problems()
    assert ("paused", "type 'embed' has been drained for 2h by bob") == (problem.code, problem.text)
    treadle_clock.advance(86_400)
    first, _ = timed.problems()
    assert "queue 'mail' has been paused for 1d 2h by ann (provider down)" == first.text
    assert "treadle queues resume mail" in first.next
