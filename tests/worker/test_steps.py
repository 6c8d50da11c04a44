"""Durable handlers: they run again from the top, and what they have stored is not done again."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests import stores
from tests.conformance.helpers import check_consistency
from tests.eventually import eventually
from tests.worker import step_jobs
from tests.worker.helpers import ended, now, place, working
from treadle import Context, Dedupe, Job, LeaseLost, Status, Treadle
from treadle.errors import BadOption, BadStep, TransactionOver
from treadle.stores import open_store
from treadle.testing import ManualClock, drain


@pytest.fixture
def jobs(treadle_url: str) -> Iterator[Treadle]:
    """The app of `step_jobs`, on this test's database."""
    app, before = step_jobs.td, step_jobs.td.store
    app._use(open_store(treadle_url, **stores.quick(treadle_url)))
    yield app
    check_consistency(app.store)
    app.close()
    app._use(before)


def names(td: Treadle, job: Job) -> list[str]:
    return [step.name for step in td.steps(job.id)]


def error_of(td: Treadle, job: Job) -> str:
    return now(td, job).error or ""


# On the loop, in a thread, in a child process


@pytest.mark.parametrize("type", step_jobs.handlers("steps"))
def test_a_stored_step_does_not_run_again(jobs: Treadle, type: str, tmp_path: Path) -> None:
    path = tmp_path / "notes"
    job = jobs.enqueue(type, {"path": str(path)})
    with working(jobs):
        found = ended(jobs, job)
    assert (found.status, found.result, found.attempts) == (Status.COMPLETED, ["a", "b", "c", "d"], 2)
    assert sorted(step_jobs.notes(path)) == ["a", "b", "c", "d", "failed"]
    assert sorted(names(jobs, job)) == ["more", "more#2", "one", "one#2"]
    assert names(jobs, job)[:2] == ["one", "one#2"]
    assert {step.name: step.attempt for step in jobs.steps(job.id)} == {"one": 1, "one#2": 1, "more": 2, "more#2": 2}


@pytest.mark.parametrize("type", step_jobs.handlers("waits"))
def test_a_handler_sleeps_waits_and_gathers(jobs: Treadle, type: str, tmp_path: Path) -> None:
    path = tmp_path / "notes"
    job = jobs.enqueue(type, {"path": str(path)})
    with working(jobs):
        eventually(lambda: now(jobs, job).status is Status.BLOCKED)
        [wait] = jobs.waits(job.id)
        assert (wait.kind, wait.what, wait.met) == ("signal", "go", False)
        jobs.signal("go", {"by": "ann"}, by="ann")
        found = ended(jobs, job)
    assert found.result == [{"by": "ann"}, "timeout", [2, 4, 6], [], "failed"]
    assert (found.status, found.attempts) == (Status.COMPLETED, 1)
    assert step_jobs.notes(path) == ["run"] * 6
    kinds = [(step.name, step.kind) for step in jobs.steps(job.id)]
    assert kinds == [
        ("nap", "sleep"),
        ("go", "signal"),
        ("never", "timeout"),
        ("doubles", "gathered"),
        ("bad", "gathered"),
    ]
    subjobs = list(jobs.jobs(type="double"))
    assert {one.origin for one in subjobs} == {job.id}
    assert len(subjobs) == 5


def test_crashes_since_the_last_new_step_count(jobs: Treadle, tmp_path: Path) -> None:
    job = jobs.enqueue("dies_after_each_step", {"path": str(tmp_path / "notes")})
    with working(jobs):
        found = ended(jobs, job)
    assert (found.status, found.result) == (Status.COMPLETED, 5)
    assert [attempt.outcome for attempt in jobs.attempts(job.id)] == ["retried"] * 4


# Steps


def test_failures_since_the_last_new_step_count(td: Treadle) -> None:
    @td.job(max_attempts=2, backoff=[0])
    def flaky(ctx: Context) -> None:
        ctx.step(f"step {min(ctx.attempt, 4)}", int)
        raise ValueError("no")

    job = flaky.enqueue()
    with working(td):
        assert ended(td, job).attempts == 5


def test_values_come_back_as_the_function_annotates_them(td: Treadle) -> None:
    seen: list[object] = []

    def day() -> date:
        return date(2026, 11, 1)

    async def pair(n: int) -> tuple[int, str]:
        return n, "x"

    @td.job(backoff=[0])
    async def typed(ctx: Context) -> None:
        seen.extend([await ctx.astep("day", day), await ctx.astep("pair", pair, 1), await ctx.astep("n", lambda: 1)])
        if ctx.attempt == 1:
            raise ValueError("again")

    job = typed.enqueue()
    with working(td):
        assert ended(td, job).status is Status.COMPLETED
    assert seen == [date(2026, 11, 1), (1, "x"), 1] * 2


def test_a_value_that_cannot_be_stored_fails_the_job(td: Treadle) -> None:
    @td.job
    def unstorable(ctx: Context) -> None:
        ctx.step("pair", lambda: (1, 2))

    job = unstorable.enqueue()
    drain(td, raising=False)
    assert now(td, job).status is Status.FAILED
    assert "step 'pair' returned what cannot be stored" in error_of(td, job)
    assert "annotate what the function returns" in error_of(td, job)


@pytest.mark.parametrize(
    ("problem", "expected"),
    [
        ("arguments", "step 'one': an earlier run has called it with other arguments"),
        ("type", "step 'one': its stored value no longer fits what it returns: Expected `str`, got `int`"),
        ("kind", "step 'one': an earlier run has stored a step under this name"),
    ],
)
def test_changed_code_is_an_error_that_names_the_step(td: Treadle, problem: str, expected: str) -> None:
    def number(n: int) -> int:
        return n

    def text(n: int) -> str:
        return str(n)

    @td.job(backoff=[0], max_attempts=2)
    def changed(ctx: Context) -> None:
        again = ctx.attempt > 1
        if again and problem == "kind":
            ctx.sleep("one", 1)
        ctx.step("one", text if again and problem == "type" else number, 2 if again and problem == "arguments" else 1)
        raise ValueError("again")

    job = changed.enqueue()
    drain(td, raising=False)
    assert expected in error_of(td, job)


def test_threads_and_tasks_of_a_handler_share_commits(td: Treadle) -> None:
    sizes: list[int] = []
    save = td.store.save_steps

    def counted(done: Any) -> Any:
        sizes.append(len(done))
        return save(done)

    td.store.save_steps = counted  # type: ignore[method-assign]
    together = threading.Barrier(8)

    def wait(n: int) -> int:
        together.wait(10)
        return n

    @td.job
    def in_threads(ctx: Context) -> list[int]:
        with ThreadPoolExecutor(8) as pool:
            return list(pool.map(lambda n: ctx.step(f"step {n}", wait, n), range(8)))

    @td.job
    async def in_tasks(ctx: Context) -> list[int]:
        async def double(n: int) -> int:
            return 2 * n

        return await asyncio.gather(*(ctx.astep("double", double, n) for n in range(50)))

    with working(td):
        first, second = in_threads.enqueue(), in_tasks.enqueue()
        assert ended(td, first).result == list(range(8))
        assert ended(td, second).result == [2 * n for n in range(50)]
    assert sum(sizes) == 58
    assert len(sizes) < 30
    assert sorted(names(td, first)) == [f"step {n}" for n in range(8)]
    assert td.steps(second.id)[1].name.startswith("double#")


def test_a_step_in_another_step_or_in_a_transaction_is_an_error(td: Treadle) -> None:
    errors: list[str] = []

    def attempt(function: Any, *args: Any) -> None:
        try:
            function(*args)
        except (BadStep, TransactionOver) as error:
            errors.append(str(error))

    @td.job
    def nested(ctx: Context) -> None:
        ctx.step("outer", attempt, ctx.step, "inner", int)
        ctx.step("outer", attempt, ctx.sleep, "inner", 1)
        ctx.step("outer", attempt, ctx.transaction)
        thread = threading.Thread(target=attempt, args=(ctx.sleep, "nap", 1))
        thread.start()
        thread.join()
        with ctx.transaction():
            attempt(ctx.step, "late", int)
            attempt(ctx.wait_for, "go")
        attempt(ctx.step, "later", int)

    job = nested.enqueue()
    drain(td)
    assert now(td, job).status is Status.COMPLETED
    assert errors == [
        "step 'inner': it is inside of the step 'outer'; do one after the other",
        "step 'inner': it is inside of the step 'outer#2'; do one after the other",
        "ctx.transaction() and ctx.complete() end the job; use them after the step",
        "step 'nap': this is not the task or thread of the handler; wait in the handler itself, not in a task or "
        "thread that it has started",
        "step 'late': it is inside of ctx.transaction(), which ends the job; do the steps before",
        "step 'go': it is inside of ctx.transaction(), which ends the job; do the steps before",
        "step 'later': the run has ended; do the steps before",
    ]


def test_a_wait_in_a_task_that_the_handler_started_is_an_error(td: Treadle) -> None:
    @td.job(max_attempts=1)
    async def waits_elsewhere(ctx: Context) -> None:
        await asyncio.gather(ctx.asleep("nap", 1))

    job = waits_elsewhere.enqueue()
    drain(td, raising=False)
    assert "this is not the task or thread of the handler" in error_of(td, job)


def test_what_is_enqueued_in_a_step_is_stored_with_it(td: Treadle) -> None:
    @td.job
    def child(n: int) -> None: ...

    def start() -> None:
        child.enqueue(n=1)
        td.signal("in step")

    def start_and_fail() -> None:
        child.enqueue(n=2)
        td.signal("in a step that fails")
        raise ValueError("no")

    @td.job(max_attempts=1)
    def starts(ctx: Context) -> None:
        child.enqueue(n=3)
        td.signal("in the handler")
        ctx.step("start", start)
        child.using(detached=True).enqueue(n=4)
        ctx.step("fail", start_and_fail)

    job = starts.enqueue()
    drain(td, raising=False)
    found = list(td.jobs(type="child"))
    assert sorted(one.payload["n"] for one in found) == [1, 4]
    assert {one.origin for one in found} == {job.id}
    assert td.get_signal("in step") is not None
    assert td.get_signal("in the handler") is None
    assert td.get_signal("in a step that fails") is None


def test_a_signal_in_a_handler_is_stored_with_its_completion(td: Treadle) -> None:
    @td.job
    async def sends(ctx: Context) -> None:
        signal = await td.asignal("done", 7)
        assert signal.value == 7
        assert await td.aget_signal("done") is None

    sends.enqueue()
    drain(td)
    found = td.get_signal("done")
    assert found is not None
    assert found.value == 7


def test_a_run_that_lost_its_lease_stores_nothing(td: Treadle) -> None:
    errors: list[Exception] = []

    @td.job
    def loses(ctx: Context) -> None:
        td.store.declare_dead(background.worker.id, "a test")
        try:
            ctx.step("late", int)
        except LeaseLost as error:
            errors.append(error)
            raise

    with working(td) as background:
        job = loses.enqueue()
        eventually(lambda: errors)
    assert names(td, job) == []


def test_a_retry_goes_on_after_the_stored_steps(td: Treadle) -> None:
    done: list[str] = []

    @td.job(max_attempts=1)
    def work(ctx: Context) -> None:
        for name in "abc":
            ctx.step(name, done.append, name)
        if len(done) == 3:
            raise ValueError("no")

    job = work.enqueue()
    drain(td, raising=False)
    td.retry(job.id, from_step="b")
    drain(td)
    assert done == ["a", "b", "c", "b", "c"]
    td.retry(job.id)
    drain(td)
    assert len(done) == 8
    with pytest.raises(BadOption, match="'a', 'b', 'c'"):
        td.retry(job.id, from_step="d")


# Waits


def test_a_handler_that_swallows_the_suspension_is_suspended(timed: Treadle, treadle_clock: ManualClock) -> None:
    reached: list[str] = []

    @timed.job
    def follow_up() -> None: ...

    @timed.job
    def swallows(ctx: Context) -> None:
        follow_up.enqueue()
        try:
            ctx.sleep("nap", timedelta(hours=1))
        except BaseException:
            with suppress(BaseException):
                ctx.step("more", reached.append, "a step")
            with suppress(BaseException), ctx.transaction():
                reached.append("a transaction")
            raise ValueError("no") from None

    @timed.job
    async def swallows_async(ctx: Context) -> str:
        with suppress(BaseException):
            await ctx.asleep("nap", 3600)
            return "awake"
        return "swallowed"

    first, second = swallows.enqueue(), swallows_async.enqueue()
    report = drain(timed)
    assert (report.suspended, report.completed) == (2, 0)
    assert [place(timed, job) for job in (first, second)] == [(Status.PENDING, 0)] * 2
    assert timed.count("type:follow_up").value == 0
    treadle_clock.advance(3600)
    assert drain(timed).completed == 3
    assert reached == []
    assert now(timed, second).result == "awake"


def test_a_cancelled_wait_begins_again_when_it_is_retried(td: Treadle) -> None:
    @td.job
    def sub() -> int:
        return 1

    @td.job
    def waits(ctx: Context) -> list[Any]:
        return [ctx.wait_for("go"), ctx.gather("subs", [sub.using(queue="later").request()])]

    job = waits.enqueue()
    drain(td)
    td.cancel(job.id)
    td.retry(job.id)
    assert drain(td).suspended == 1
    assert now(td, job).status is Status.BLOCKED
    td.signal("go", 1)
    td.pause(queue="later")
    assert drain(td).suspended == 1
    td.cancel(job.id)
    td.retry(job.id)
    assert drain(td).suspended == 1
    assert now(td, job).status is Status.BLOCKED
    td.resume(queue="later")
    drain(td)
    assert now(td, job).result == [1, [1]]


def test_a_subjob_that_another_job_stands_for_is_that_job(td: Treadle) -> None:
    @td.job(dedupe=True)
    def once(n: int) -> int:
        return n

    @td.job
    def gathers(ctx: Context) -> list[int]:
        return ctx.gather("both", [once.request(n=1), once.request(n=1), once.request(n=2)])

    holder = once.using(queue="held").enqueue(n=1)
    td.pause(queue="held")
    job = gathers.enqueue()
    drain(td)
    assert now(td, job).status is Status.BLOCKED
    assert td.steps(job.id)[0].value[:2] == [holder.id, holder.id]
    td.resume(queue="held")
    drain(td)
    assert now(td, job).result == [1, 1, 2]


def test_results_that_are_too_large_for_a_step_are_read_again(td: Treadle) -> None:
    @td.job
    def large() -> str:
        return "x" * 600_000

    @td.job(max_attempts=2, backoff=[0])
    def gathers(ctx: Context) -> int:
        found = ctx.gather("large", [large.request(), large.request()])
        if ctx.attempt == 1:
            raise ValueError("again")
        return len("".join(found))

    job = gathers.enqueue()
    drain(td)
    assert now(td, job).result == 1_200_000
    assert [step.kind for step in td.steps(job.id)] == ["gather"]


def test_a_retry_looks_again_at_subjobs_of_which_one_had_failed(td: Treadle) -> None:
    allowed: list[int] = [1]

    @td.job(max_attempts=1)
    def sub(n: int) -> int:
        if n not in allowed:
            raise ValueError("not yet")
        return n

    @td.job(max_attempts=1)
    def gathers(ctx: Context) -> list[int]:
        return ctx.gather("both", [sub.request(n=1), sub.request(n=2)])

    job = gathers.enqueue()
    drain(td, raising=False)
    assert now(td, job).status is Status.FAILED
    allowed.append(2)
    [failed] = td.jobs(type="sub", status="failed")
    td.retry(job.id)
    td.retry(failed.id)
    drain(td)
    assert now(td, job).result == [1, 2]
    assert len(td.jobs(type="sub")) == 2


def test_an_async_function_needs_astep(td: Treadle) -> None:
    async def fetch() -> int:
        return 1

    @td.job(max_attempts=1)
    def fetches(ctx: Context) -> None:
        ctx.step("fetch", fetch)

    job = fetches.enqueue()
    drain(td, raising=False)
    assert "await ctx.astep" in (now(td, job).error or "")


def test_steps_after_a_gather_keep_their_order(td: Treadle) -> None:
    @td.job
    def sub() -> None: ...

    @td.job(backoff=[0])
    def gathers(ctx: Context) -> None:
        ctx.gather("subs", [sub.request()])
        ctx.step("z", int)
        if ctx.attempt == 1:
            raise ValueError("again")
        ctx.step("a", int)

    job = gathers.enqueue()
    drain(td, raising=False)
    assert names(td, job) == ["subs", "z", "a"]
    td.retry(job.id, from_step="a")
    assert names(td, job) == ["subs", "z"]


def test_a_gather_refuses_what_it_cannot_wait_for(td: Treadle) -> None:
    @td.job
    def sub() -> None: ...

    @td.job(max_attempts=1)
    def gathers(ctx: Context, which: str) -> None:
        requests: dict[str, list[Any]] = {
            "tenant": [sub.using(tenant="acme").request()],
            "type": ["sub"],
            "after": [sub.using(after=ctx.id).request()],
            "dedupe": [sub.using(dedupe=Dedupe("k", mode="reject")).request()],
        }
        ctx.gather("subs", requests[which])

    jobs = [gathers.enqueue(which=which) for which in ("tenant", "type", "after", "dedupe")]
    drain(td, raising=False)
    assert [error_of(td, job).partition(": ")[2] for job in jobs] == [
        "tenant='acme': a subjob has the tenant of its job: ''",
        "gather='sub': a list of requests: [ocr.request(page=1), …]",
        f"after='{jobs[2].id}': this job waits for its subjobs, so that none can wait for it",
        "gather='reject': nobody gets the error when it is stored; choose another dedupe mode",
    ]


def test_a_gather_that_would_wait_for_its_own_job_is_the_last_attempt(td: Treadle) -> None:
    @td.job(dedupe=Dedupe("k", mode="replace"))
    def index(ctx: Context, deep: bool = False) -> None:
        ctx.log("begins")
        if not deep:
            ctx.gather("parts", [index.request(deep=True)])

    job = index.enqueue()
    with working(td):
        found = ended(td, job)
        assert (found.status, found.attempts) == (Status.FAILED, 1)
        assert ended(td, index.enqueue(deep=True)).status is Status.COMPLETED
    text = r"this job would wait forever for its subjob of type 'index': .* held by this job itself; give the subjob "
    assert re.fullmatch(text + 'another key, or let that job hold its key until="started"', found.error or "")
    assert [line.message for line in td.logs(job.id)] == ["begins"]


# Dependencies


def test_a_child_sees_the_results_of_its_parents(td: Treadle) -> None:
    seen: list[Any] = []

    @td.job
    def parent(n: int) -> int:
        return 10 * n

    @td.job
    async def child(ctx: Context) -> None:
        seen.extend(job.result for job in ctx.parents)

    first = parent.enqueue(n=1)
    request = parent.request(n=2)
    job = child.using(after=[first, td.enqueue_many([request])[0].id]).enqueue()
    assert job.status is Status.BLOCKED
    drain(td)
    assert seen == [10, 20]
    assert td.enqueue("child", after=request, if_failed="cancel").status is Status.BLOCKED
    drain(td)


def test_a_follow_up_can_wait_for_another(td: Treadle) -> None:
    order: list[str] = []

    @td.job
    def first() -> None:
        order.append("first")

    @td.job
    def second() -> None:
        order.append("second")

    @td.job
    def starts(ctx: Context, parent: str = "") -> None:
        second.using(after=parent or first.using(delay=0.05).enqueue()).enqueue()

    starts.enqueue()
    with working(td):
        eventually(lambda: order == ["first", "second"])
    bad = starts.using(max_attempts=1).enqueue(parent="01890000-0000-7000-8000-000000000000")
    drain(td, raising=False)
    assert "there is no such job" in error_of(td, bad)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"after": 1}, "after=1: a job, a request, the id of a job, or a list of these"),
        ({"after": ["nonsense"]}, "after='nonsense': a job, a request"),
        ({"if_failed": "never"}, "if_failed='never': choose from hold, cancel, run"),
        (
            {"after": "01890000-0000-7000-8000-000000000000", "dedupe": Dedupe("k", mode="replace")},
            "after='01890000-0000-7000-8000-000000000000': a job that may replace another waits for that one",
        ),
    ],
)
def test_bad_dependencies_are_refused(td: Treadle, options: Any, expected: str) -> None:
    with pytest.raises(BadOption) as raised:
        td.request("any", **options)
    assert str(raised.value).startswith(expected)
