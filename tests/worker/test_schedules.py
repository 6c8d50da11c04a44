"""A worker fires schedules and runs their jobs; ticks do, too; what code declares is stored."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.eventually import eventually
from tests.worker.helpers import working
from treadle import Context, Registry, Treadle, clock
from treadle.errors import BadArguments, BadOption, ScheduleNotFound, UnknownOption
from treadle.testing import ManualClock, drain


def test_a_worker_fires_and_runs_what_its_code_declares(td: Treadle) -> None:
    seen: list[datetime | None] = []

    @td.job
    def beat(ctx: Context, n: int) -> None:
        seen.append(ctx.fired_at)

    beat.schedule("each-second", every=1, payload={"n": 1}, overlap="allow", missed="all")

    with working(td):
        eventually(lambda: len(seen) >= 3)

    moments = sorted(moment for moment in seen if moment)
    assert len(set(moments)) == len(seen)
    assert all(moment.microsecond == 0 for moment in moments)
    assert moments[2] - moments[0] == timedelta(seconds=2)


def test_a_tick_fires_and_runs_and_says_when_the_next_moment_is(timed: Treadle, treadle_clock: ManualClock) -> None:
    ran: list[datetime | None] = []

    @timed.job(cron="*/5 * * * *")
    def report(ctx: Context) -> None:
        ran.append(ctx.fired_at)

    first = timed.tick()
    assert (first.fired, ran) == (0, [])
    treadle_clock.advance(301)

    second = timed.tick()

    assert (second.fired, second.completed) == (1, 1)
    assert ran[0] is not None
    assert ran[0].minute % 5 == 0
    assert second.next_due_at == ran[0] + timedelta(minutes=5)


def test_a_drain_reports_what_schedules_have_fired(timed: Treadle, treadle_clock: ManualClock) -> None:
    @timed.job(cron="*/5 * * * *")
    def report() -> None: ...

    first = drain(timed)
    assert first.fired == 0
    assert first.next_due_at is not None
    treadle_clock.advance(first.next_due_at - treadle_clock.now())

    second = drain(timed)

    assert (second.fired, second.completed) == (1, 1)
    assert second.next_due_at == first.next_due_at + timedelta(minutes=5)


def test_a_change_of_a_declared_schedule_needs_no_worker(timed: Treadle, treadle_clock: ManualClock) -> None:
    @timed.job(cron="0 3 * * *")
    def sweep() -> None: ...

    with pytest.raises(ScheduleNotFound):
        timed.schedules.run_now("sweep", tenant="acme")
    assert timed.schedules.run_now("sweep").schedule == "sweep"
    assert drain(timed).completed == 1

    for change in (timed.schedules.pause, timed.schedules.resume):
        timed.schedules.delete("sweep")
        assert change("sweep").name == "sweep"
    timed.schedules.delete("sweep")
    now = treadle_clock.now()
    assert timed.schedules.backfill("sweep", now - timedelta(days=2), now).stored == 2
    with pytest.raises(ScheduleNotFound, match="no schedule has the name 'swep'"):
        timed.schedules.run_now("swep")


@pytest.mark.sqlite_only
def test_the_name_of_a_cron_job_is_its_type(td: Treadle) -> None:
    @td.job(type="nightly", cron="0 3 * * *", zone="Europe/Berlin")
    def run() -> None: ...

    td.tick()

    schedule = td.schedules.get("nightly")
    assert schedule is not None
    assert (schedule.cron, schedule.zone, schedule.source) == ("0 3 * * *", "Europe/Berlin", "code")
    assert len(schedule.upcoming) == 10
    assert schedule.upcoming[0] == schedule.next_at


@pytest.mark.sqlite_only
@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"cron": "bad"}, BadOption),
        ({"every": 60, "payload": {"who": "ann"}}, BadArguments),
        ({"every": 60, "payload": {"n": "one"}}, Exception),
        ({"every": 60, "payload": [1]}, BadArguments),
        ({"every": 60}, BadArguments),  # n is missing
        ({"every": 60, "payload": {"n": 1}, "missed": "never"}, BadOption),
        ({"every": 60, "payload": {"n": 1}, "overlap": "both"}, BadOption),
        ({"every": 60, "payload": {"n": 1}, "priority": 10**9}, BadOption),
        ({"every": 60, "payload": {"n": 1}, "colour": "red"}, UnknownOption),
    ],
)
def test_what_does_not_fit_is_refused_when_it_is_declared_and_when_it_is_put(
    td: Treadle, options: dict[str, Any], error: type[Exception]
) -> None:
    @td.job
    def work(n: int) -> None: ...

    with pytest.raises(error):
        work.schedule("s", **options)
    with pytest.raises(error):
        td.schedules.put("s", work, **options)
    with pytest.raises(error):
        td.schedules.put("s", "work", **options)
    assert td.registry.schedules == {}
    assert len(td.schedules.list()) == 0


@pytest.mark.sqlite_only
def test_two_schedules_of_one_app_have_two_names(td: Treadle) -> None:
    @td.job
    def work() -> None: ...

    others = Registry()

    @others.job
    def more() -> None: ...

    work.schedule("s", every=60)
    more.schedule("s", every=60)
    with pytest.raises(BadOption, match="'work' has a schedule of this name"):
        work.schedule("s", every=60)
    with pytest.raises(BadOption, match="'work' has a schedule of this name"):
        td.include(others)
    with pytest.raises(BadOption, match="belongs to cron"):
        td.job(type="x", zone="UTC")(lambda: None)


def test_schedules_at_run_time(timed: Treadle, treadle_clock: ManualClock) -> None:
    @timed.job
    def digest(to: str) -> None: ...

    put = timed.schedules.put("digest:acme", digest, every=timedelta(minutes=15), payload={"to": "a"}, tenant="acme")
    assert (put.every, put.payload, put.source, put.orphaned) == (900, {"to": "a"}, "runtime", False)
    assert timed.schedules.get("digest:acme") is None  # it is acme's

    paused = timed.schedules.pause("digest:acme", tenant="acme", by="ann", reason="invoice")
    assert paused.pause is not None
    assert (paused.pause.by, paused.pause.reason, paused.next_at) == ("ann", "invoice", None)
    treadle_clock.advance(1800)
    why = timed.schedules.why("digest:acme", tenant="acme").reasons[0]
    assert why.code == "paused"
    assert why.text.startswith("did not fire at 2")
    assert why.text.endswith("paused by ann at " + paused.pause.at.strftime("%Y-%m-%d %H:%M:%S UTC") + ": invoice")

    now = timed.store.now()
    paused = timed.schedules.pause("digest:acme", tenant="acme", until=timedelta(hours=2))
    assert paused.pause is not None
    assert paused.pause.until == clock.moment(now + 7200 * clock.SECOND)
    assert paused.pause.by == timed.pause(queue="mail").by  # the user of the operating system, and the host
    for until in (clock.moment(now), timedelta(0), "tomorrow"):
        with pytest.raises(BadOption, match="until="):
            timed.schedules.pause("digest:acme", tenant="acme", until=until)  # type: ignore[arg-type]

    job = timed.schedules.run_now("digest:acme", tenant="acme")
    assert (job.tenant, job.schedule, job.payload) == ("acme", "digest:acme", {"to": "a"})
    assert timed.schedules.resume("digest:acme", tenant="acme").next_at is not None
    assert [s.name for s in timed.schedules.list("acme")] == ["digest:acme"]
    assert timed.schedules.delete("digest:acme", tenant="acme").name == "digest:acme"
    with pytest.raises(ScheduleNotFound, match=r"td\.schedules\.list"):
        timed.schedules.run_now("digest:acme", tenant="acme")


@pytest.mark.sqlite_only
def test_pages_of_schedules(td: Treadle) -> None:
    for n in range(5):
        td.schedules.put(f"s{n}", "noop", every=60)

    first = td.schedules.list(limit=3)
    second = td.schedules.list(limit=3, cursor=first.next)

    assert [s.name for s in [*first, *second]] == [f"s{n}" for n in range(5)]
    assert second.next is None
    with pytest.raises(ValueError, match="cursor"):
        td.schedules.list(cursor="x")


def test_a_backfill_stores_each_moment_once_and_reports_progress(timed: Treadle, treadle_clock: ManualClock) -> None:
    timed.schedules.put("s", "noop", every=60)
    end = treadle_clock.now()
    seen: list[tuple[int, int]] = []

    first = timed.schedules.backfill("s", end - timedelta(hours=4), end, progress=lambda *done: seen.append(done))
    again = timed.schedules.backfill("s", end - timedelta(hours=4), end)

    assert (first.moments, first.stored) == (240, 240)
    assert (again.moments, again.stored) == (240, 0)
    assert seen == [(100, 240), (200, 240), (240, 240)]
    assert timed.count("schedule:s").value == 240


@pytest.mark.sqlite_only
@pytest.mark.parametrize(
    ("start", "end", "problem"),
    [
        (timedelta(0), timedelta(hours=-1), "before the end"),
        (timedelta(hours=-1), timedelta(hours=1), "in the past"),
        (timedelta(days=-30), timedelta(0), "more than 10,000 moments"),
    ],
)
def test_a_bad_backfill_stores_nothing(
    timed: Treadle, treadle_clock: ManualClock, start: timedelta, end: timedelta, problem: str
) -> None:
    timed.schedules.put("s", "noop", every=60)

    with pytest.raises(BadOption, match=problem):
        timed.schedules.backfill("s", treadle_clock.now() + start, treadle_clock.now() + end)
    with pytest.raises(BadOption, match="a datetime"):
        timed.schedules.backfill("s", "yesterday", treadle_clock.now())  # type: ignore[arg-type]

    assert timed.count().value == 0


@pytest.mark.sqlite_only
def test_problems_and_why_name_what_nobody_fires(timed: Treadle, treadle_clock: ManualClock) -> None:
    timed.schedules.put("late", "noop", every=60)
    treadle_clock.advance(600)

    [problem] = timed.problems()
    assert problem.code == "overdue_schedules"
    assert "1 schedule is overdue" in problem.text
    assert "late" in problem.text
    codes = [reason.code for reason in timed.schedules.why("late").reasons]
    assert codes == ["overdue", "no_worker"]


@pytest.mark.sqlite_only
def test_problems_and_why_name_what_no_live_worker_declares(td: Treadle, treadle_url: str) -> None:
    @td.job(cron="0 3 * * *")
    def gone() -> None: ...

    td.tick()
    schedule = td.schedules.get("gone")
    assert schedule is not None
    assert not schedule.orphaned  # no worker is alive: nobody knows

    with working(Treadle(treadle_url)):
        orphan = td.schedules.get("gone")
        assert orphan is not None
        assert orphan.orphaned
        assert [problem.code for problem in td.problems()] == ["orphaned_schedules"]
        codes = [reason.code for reason in td.schedules.why("gone").reasons]
        assert codes == ["orphaned", "no_worker_for_type", "waits"]
        assert td.schedules.delete("gone").name == "gone"


@pytest.mark.sqlite_only
def test_the_async_twins(timed: Treadle, treadle_clock: ManualClock) -> None:
    asyncio.run(_twins(timed, treadle_clock))


async def _twins(timed: Treadle, treadle_clock: ManualClock) -> None:
    await timed.schedules.aput("s", "noop", every=60)
    await timed.schedules.apause("s", reason="later", until=treadle_clock.now() + timedelta(hours=1))
    paused = await timed.schedules.aget("s")
    assert paused is not None
    assert paused.pause is not None
    assert paused.next_at is not None
    assert paused.next_at > treadle_clock.now() + timedelta(minutes=59)
    await timed.schedules.aresume("s")
    assert len(await timed.schedules.alist()) == 1
    assert (await timed.schedules.arun_now("s")).schedule == "s"
    day = datetime(2026, 1, 1, tzinfo=UTC)
    assert (await timed.schedules.abackfill("s", day, day + timedelta(hours=1))).stored == 60
    assert (await timed.schedules.adelete("s")).name == "s"


@pytest.mark.sqlite_only
def test_a_schedule_says_which_moment_overlapped(timed: Treadle, treadle_clock: ManualClock) -> None:
    timed.schedules.put("s", "noop", every=60)
    for _ in range(2):
        treadle_clock.advance(60)
        timed.store.fire(10)

    why = timed.schedules.why("s").reasons[0]
    [job] = timed.jobs("schedule:s")

    assert why.code == "skipped"
    assert f"job {job.id} has not ended (overlap='skip')" in why.text
