"""Jobs that are claimed before a slot is free: they start in order, or are released unstarted."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterable
from typing import Any
from unittest.mock import Mock

import pytest

from tests.eventually import eventually
from tests.worker.helpers import working
from treadle import Context, Job, Limit, Status, Treadle
from treadle.worker import ahead
from treadle.worker.ahead import Ahead

WAITING = 5
JOBS = 12


@pytest.fixture(autouse=True)
def _claims_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if jobs had been short so far: five may wait, and not only for a moment."""

    def measure(self: Any) -> None:
        self._most = WAITING if self._not_before == 0 else 0

    monkeypatch.setattr(Ahead, "_measure", measure)
    monkeypatch.setattr(ahead, "PATIENCE", 600)


def found(td: Treadle, ids: Iterable[str]) -> list[Job]:
    return [job for id in ids if (job := td.get(id)) is not None]


def has_released(background: Any) -> bool:
    """Whether it has claimed ahead, and given that back."""
    return bool(background.worker._ahead._not_before)


class Held:
    """A type whose handlers run until the test lets them go."""

    def __init__(self, td: Treadle, **options: Any) -> None:
        self.go = threading.Event()
        self.started: list[str] = []

        @td.job(type="held", **options)
        def held(ctx: Context) -> None:
            self.started.append(ctx.id)
            assert self.go.wait(20)

        self._td = td
        self.jobs = td.enqueue_many([held.request() for _ in range(JOBS)])

    def are(self, processing: int) -> bool:
        return self._td.count("status:processing").value == processing

    def unstarted(self) -> list[Job]:
        return [job for job in found(self._td, [job.id for job in self.jobs]) if job.id not in self.started]


def test_what_waits_starts_in_order_and_never_more_at_once_than_slots(td: Treadle) -> None:
    held = Held(td)
    with working(td, concurrency=2):
        eventually(lambda: held.are(2 + WAITING))
        eventually(lambda: len(held.started) == 2)
        held.go.set()
        for job in held.jobs:
            td.result(job.id, timeout=30)
    ids = [job.id for job in held.jobs]
    assert sorted(held.started[:2]) == ids[:2]
    assert sorted(held.started) == ids
    assert {job.attempts for job in found(td, ids)} == {1}


def test_what_waits_when_the_worker_stops_is_released_unstarted(td: Treadle) -> None:
    held = Held(td)
    with working(td, concurrency=2) as background:
        eventually(lambda: held.are(2 + WAITING) and len(held.started) == 2)
        background.stop_soon()
        eventually(lambda: held.are(2))  # while the handlers still run
        held.go.set()
    assert len(held.started) == 2
    assert {(job.status, job.attempts) for job in held.unstarted()} == {(Status.PENDING, 0)}


def test_what_waits_when_the_worker_is_made_quiet_is_released_unstarted(td: Treadle) -> None:
    held = Held(td)
    with working(td, concurrency=2, beat=0.1) as background:
        eventually(lambda: held.are(2 + WAITING) and len(held.started) == 2)
        td.quiet(background.worker.id)
        eventually(lambda: held.are(2))
        assert {(job.status, job.attempts) for job in held.unstarted()} == {(Status.PENDING, 0)}
        held.go.set()


def test_what_waits_too_long_is_released_unstarted(td: Treadle, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ahead, "PATIENCE", 0.05)
    held = Held(td)
    with working(td, concurrency=2) as background:
        eventually(lambda: has_released(background) and len(held.started) == 2 and held.are(2))
        assert {(job.status, job.attempts) for job in held.unstarted()} == {(Status.PENDING, 0)}
        held.go.set()
        for job in held.jobs:
            td.result(job.id, timeout=30)
    assert {job.attempts for job in found(td, held.started)} == {1}


def test_the_heartbeat_may_give_up_what_waits_while_the_event_loop_looks_at_it(monkeypatch: Any) -> None:
    """They are two threads."""
    given_up: list[int] = []

    async def add() -> list[Any]:
        made: Any = Ahead(Mock(), Mock(), free=lambda: 0, start=lambda _: True, allowed=True)

        def is_plain(_: object) -> bool:
            heartbeat = threading.Thread(target=lambda: given_up.extend(made.give_up()))
            heartbeat.start()
            heartbeat.join()
            return True

        monkeypatch.setattr(ahead, "is_plain", is_plain)
        assert made.add([Mock(**{"run.claimed.number": number}) for number in (1, 2, 3)], may_wait=True)
        return list(made.waiting)

    assert asyncio.run(add()) == []
    assert given_up == [1, 2, 3]


def test_jobs_that_may_not_wait_are_claimed_in_vain_less_and_less_often(monkeypatch: Any) -> None:
    """A worker may have no others."""
    monkeypatch.setattr(ahead, "time", Mock(monotonic=lambda: 1000.0))

    async def cool_downs(*answers: bool) -> list[float]:
        made: Any = Ahead(Mock(), Mock(), free=lambda: 0, start=lambda _: True, allowed=True)
        found: list[float] = []
        for is_plain in answers:
            monkeypatch.setattr(ahead, "is_plain", lambda _, answer=is_plain: answer)
            made._not_before = 1000.0
            made.add([Mock()], may_wait=True)
            found.append(made._not_before - 1000.0)
            made.waiting.clear()
        return found

    assert asyncio.run(cool_downs(*[False] * 8, True, False)) == [1, 2, 4, 8, 16, 32, 60, 60, 0, 1]


def test_what_waits_while_the_event_loop_is_blocked_is_released_by_the_heartbeat(td: Treadle) -> None:
    go, started = threading.Event(), []

    @td.job(type="held")
    async def blocks(ctx: Context) -> None:
        started.append(ctx.id)
        if len(started) == 2:  # the first one lets the worker claim ahead
            assert go.wait(20)

    jobs = td.enqueue_many([blocks.request() for _ in range(JOBS)])
    with working(td, concurrency=1, beat=0.1):
        eventually(lambda: len(started) == 2 and td.count("status:processing").value <= 2)
        pending = [job for job in found(td, [job.id for job in jobs]) if job.status is Status.PENDING]
        assert {job.attempts for job in pending} == {0}
        go.set()
        for job in jobs:
            td.result(job.id, timeout=30)
    assert sorted(started) == sorted(job.id for job in jobs)


@pytest.mark.parametrize(
    "options", [{"timeout": 60}, {"concurrency": 20}, {"limits": [Limit("wide", concurrency=20)]}, {"fair": "tenant"}]
)
def test_a_type_that_holds_something_is_not_claimed_ahead(td: Treadle, options: dict[str, Any]) -> None:
    held = Held(td, **options)
    with working(td, concurrency=2) as background:
        eventually(lambda: has_released(background) and len(held.started) == 2 and held.are(2))
        assert {(job.status, job.attempts) for job in held.unstarted()} == {(Status.PENDING, 0)}
        held.go.set()
        for job in held.jobs:
            td.result(job.id, timeout=30)
    assert {job.attempts for job in found(td, held.started)} == {1}


def test_a_job_that_is_cancelled_while_it_waits_never_starts(td: Treadle) -> None:
    held = Held(td)
    with working(td, concurrency=2) as background:
        eventually(lambda: held.are(2 + WAITING))
        cancelled = held.jobs[4]
        td.cancel(cancelled.id)
        running = background.worker._attempts.running
        eventually(lambda: cancelled.id in [a.run.claimed.id for a in list(running.values()) if a.run.stop_reason])
        held.go.set()
        eventually(lambda: [Status.CANCELLED] == [job.status for job in found(td, [cancelled.id])])
    assert cancelled.id not in held.started


def test_only_jobs_that_end_fast_are_claimed_ahead(monkeypatch: pytest.MonkeyPatch, td: Treadle) -> None:
    """Without the fixture's help: a worker that has run a few jobs claims one for each slot."""
    monkeypatch.undo()
    held = Held(td)
    with working(td, concurrency=2):
        eventually(lambda: len(held.started) == 2 and held.are(2))
        held.go.set()
        for job in held.jobs:
            td.result(job.id, timeout=30)
