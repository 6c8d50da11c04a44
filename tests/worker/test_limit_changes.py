"""`td.limits`: what people change at run time, while workers run."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from tests import stores
from tests.eventually import eventually
from tests.worker.helpers import ended, working
from treadle import Limit, Rate, RateLimited, Snooze, Status, Treadle
from treadle.errors import BadOption, UnknownLimit
from treadle.testing import ManualClock


def declare(td: Treadle, *limits: Limit, **options: Any) -> threading.Event:
    go_on = threading.Event()

    @td.job(limits=limits, **options)
    def call() -> None:
        go_on.wait(20)

    return go_on


API = Limit("api", concurrency=1, per="tenant")


def test_a_change_holds_at_once_and_until_it_is_unset(td: Treadle) -> None:
    go_on = declare(td, API)
    jobs = [td.enqueue("call", tenant=tenant) for tenant in ("acme", "acme", "acme", "umbrella", "umbrella")]
    with working(td):
        eventually(lambda: td.count("status:processing").value == 2)
        changed = td.limits.set("api", key="acme", concurrency=3, by="ann")
        assert ("api", "acme", 3, None, API, "ann") == (
            changed.name,
            changed.key,
            changed.concurrency,
            changed.rate,
            changed.declared,
            changed.changed_by,
        )
        eventually(lambda: td.count("status:processing").value == 4)
        assert [("", None, 4), ("acme", "ann", 3)] == [
            (state.key, state.changed_by, state.running) for state in td.limits.list()
        ]
        assert (True, False) == (td.limits.unset("api", key="acme"), td.limits.unset("api", key="acme"))
        go_on.set()
        assert {ended(td, job).status for job in jobs} == {Status.COMPLETED}


def test_a_type_without_a_limit_is_limited_at_run_time(td: Treadle) -> None:
    go_on = declare(td)
    td.limits.set("type:call", concurrency=2)
    jobs = [td.enqueue("call") for _ in range(5)]
    with working(td):
        eventually(lambda: td.count("status:processing").value == 2)
        [state] = td.limits.list()
        assert ("type:call", 2, 2, None, ("call",)) == (
            state.name,
            state.concurrency,
            state.running,
            state.declared,
            state.types,
        )
        assert {2} == {row.limit for row in td.queue_stats()}
        td.limits.unset("type:call")
        eventually(lambda: td.count("status:processing").value == 5)
        assert [] == td.limits.list()
        assert {None} == {row.limit for row in td.queue_stats()}
        go_on.set()
        assert {ended(td, job).status for job in jobs} == {Status.COMPLETED}


def test_a_change_of_the_concurrency_of_a_type_is_what_statistics_show(td: Treadle) -> None:
    declare(td, concurrency=5).set()
    td.tick()
    td.enqueue("call")
    td.limits.set("type:call", concurrency=2)
    assert [2] == [row.limit for row in td.queue_stats()]
    td.limits.unset("type:call")
    assert [5] == [row.limit for row in td.queue_stats()]


def test_what_is_left_out_of_a_change_stays(td: Treadle) -> None:
    declare(td, API)
    td.limits.set("api", concurrency=4)
    changed = td.limits.set("api", rate=Rate(100))
    assert (4, Rate(100)) == (changed.concurrency, changed.rate)
    assert "@" in (changed.changed_by or "")


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"name": "api"}, "pass concurrency=, rate="),
        ({"name": "api", "concurrency": 0}, "at least 1"),
        ({"name": "api", "concurrency": "3"}, "at least 1"),
        ({"name": "api", "rate": 500}, "a Rate, such as"),
        ({"name": "", "concurrency": 1}, "printable characters"),
        ({"name": "a\0", "concurrency": 1}, "without NUL"),
        ({"name": "api", "key": 7, "concurrency": 1}, "at most 200 characters"),
        ({"name": "api", "key": "x" * 201, "concurrency": 1}, "at most 200 characters"),
        ({"name": "type:call", "key": "acme", "concurrency": 1}, "counts all its jobs together; leave the key out"),
        ({"name": "api", "concurrency": 1, "by": "x" * 1001}, "at most 1,000 characters"),
    ],
    ids=str,
)
def test_bad_options_are_refused_and_nothing_is_changed(td: Treadle, options: dict[str, Any], problem: str) -> None:
    declare(td, API)
    with pytest.raises(BadOption, match=problem):
        td.limits.set(**options)
    assert [] == td.limits.list()


def test_an_unknown_limit_is_refused_with_those_that_exist(td: Treadle) -> None:
    with pytest.raises(UnknownLimit, match="declare one with @"):
        td.limits.set("api", concurrency=1)
    declare(td, API)
    with pytest.raises(UnknownLimit, match="did you mean 'api'"):
        td.limits.set("apy", concurrency=1)
    with pytest.raises(UnknownLimit, match="there are api, type:call"):
        td.limits.set("something else", concurrency=1)
    with pytest.raises(UnknownLimit, match="did you mean 'type:call'"):
        td.limits.set("type:cal", concurrency=1)
    assert [] == td.limits.list()


def test_the_async_twins(td: Treadle) -> None:
    declare(td, API)

    async def change() -> tuple[Any, ...]:
        await td.limits.aset("api", concurrency=9)
        return [state.concurrency for state in await td.limits.alist()], await td.limits.aunset("api")

    assert ([9], True) == asyncio.run(change())


def test_a_worker_lets_jobs_go_whose_limit_is_gone(td: Treadle, treadle_url: str) -> None:
    """No code declares the limit any more, and no job that ends says that its key is free: a chore does."""
    declare(td, API).set()
    first, second = (td.enqueue("call", tenant="acme") for _ in range(2))
    td.store.publish([td.registry.types["call"].policy])
    [lease] = td.claim(1)
    assert lease.job.id == first.id
    assert [] == td.claim(1)
    newer = Treadle(treadle_url)
    declare(newer).set()
    with working(newer, beat=0.05):
        assert Status.COMPLETED == ended(newer, second).status
    lease.release()
    newer.close()


def test_rate_limited_holds_the_key_back(timed: Treadle, treadle_clock: ManualClock) -> None:
    refused = ["acme"]

    @timed.job(limits=[Limit("api", concurrency=5, per="tenant")])
    def call(tenant: str) -> None:
        if refused and tenant == refused.pop():
            raise RateLimited(30)

    for tenant in ("acme", "acme", "umbrella"):
        call.using(tenant=tenant).enqueue(tenant=tenant)
    report = timed.tick(max_jobs=1)
    assert 1 == report.snoozed
    assert 1 == timed.tick().completed
    treadle_clock.advance(31)
    assert 2 == timed.tick().completed


def test_the_newest_declaration_of_a_live_worker_wins(td: Treadle, treadle_url: str) -> None:
    def app(limit: int) -> Treadle:
        made = Treadle(treadle_url, **stores.quick(treadle_url))
        declare(made, Limit("openai", concurrency=limit), concurrency=limit)
        return made

    def in_force() -> set[int | None]:
        return {limit.concurrency for limit in td.limits.list()}

    old, newer = app(5), app(20)
    with working(old, beat=0.05):
        eventually(lambda: in_force() == {5})
        with working(newer, beat=0.05):
            eventually(lambda: in_force() == {20})
            restarted = app(5)
            restarted.tick()  # one more worker with the old code
            assert in_force() == {20}
        eventually(lambda: in_force() == {5})
    for each in (old, newer, restarted):
        each.close()


def test_a_limit_that_the_type_does_not_have_cannot_be_held_back(td: Treadle) -> None:
    @td.job(limits=[Limit("mailer", concurrency=5)], max_attempts=1)
    def held_back(limit: str) -> None:
        raise RateLimited(30, limit=limit)

    jobs = [td.enqueue("held_back", {"limit": limit}) for limit in ("mailr", "other", "mailer", "type:held_back")]

    report = td.tick()

    assert (report.failed, report.snoozed) == (2, 2)
    typo, other = (ended(td, job).error for job in jobs[:2])
    assert typo == "BadOption: limit='mailr': did you mean 'mailer'?"
    assert other == "BadOption: limit='other': type 'held_back' has mailer"
    [attempt] = td.attempts(jobs[0].id)
    assert "raise RateLimited(30, limit=limit)" in (attempt.traceback or "")


@pytest.mark.parametrize("error", [RateLimited, Snooze])
def test_a_delay_that_is_no_number_is_refused(error: Any) -> None:
    with pytest.raises(BadOption, match="='soon': a delay is 0 seconds or more"):
        error("soon")
