"""What type checkers must see in users' code. Never run: `test_types.py` has mypy and pyright check it.

A line that must be an error has comments that both checkers reject once it is no error.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Generator, Sequence
from datetime import datetime, timedelta
from typing import Any, assert_type

from alembic import context as alembic_context

from treadle import (
    Context,
    Dedupe,
    Event,
    Job,
    Limit,
    Rate,
    RateLimited,
    Registry,
    Retry,
    Snooze,
    Status,
    Treadle,
    exponential,
    fixed,
)
from treadle.contrib.alembic import include_name
from treadle.function import Enqueuer
from treadle.job import NewJob, Progress
from treadle.schedule import Schedule
from treadle.testing import ManualClock, assert_enqueued, drain, enqueued, refute_enqueued, temporary
from treadle.worker.tick import TickReport

td = Treadle("sqlite:///jobs.db")
registry = Registry()


# Declared bare, called, async, with a context, on a registry


@td.job
def bare(podcast_id: str, retries: int = 3) -> dict[str, int]:
    return {podcast_id: retries}


@td.job(concurrency=3, max_attempts=5, timeout=300, backoff=exponential(base=30, cap=600))
def called(podcast_id: str) -> int:
    return len(podcast_id)


@td.job()
async def asynchronous(podcast_id: str) -> int:
    return len(podcast_id)


@td.job
def with_context(ctx: Context, operation_id: str, *, force: bool = False) -> str:
    return ctx.id + operation_id


@td.job(run="process", backoff=[1, 5, 25], dedupe=True, priority=1, queue="slow", type="other", fair="tenant")
async def async_with_context(ctx: Context, operation_id: str) -> None:
    async with ctx.atransaction() as connection:
        connection.execute("…")


async def pages_of(url: str, *, limit: int = 3) -> list[str]:
    return [url] * limit


def size_of(url: str) -> int:
    return len(url)


@td.job
async def durable(ctx: Context, url: str) -> int:
    assert_type(ctx.step("size", size_of, url), int)
    assert_type(await ctx.astep("size", size_of, url), int)
    assert_type(await ctx.astep("pages", pages_of, url, limit=2), list[str])
    ctx.step("size", size_of, 1)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    await ctx.asleep("nap", timedelta(hours=1))
    assert_type(await ctx.await_for("go", timeout=60), Any)
    assert_type(await ctx.agather("parts", [bare.request("p1")]), list[Any])
    assert_type(ctx.parents, list[Job])
    parent = bare.enqueue("p1")
    bare.using(after=[parent, parent.id, bare.request("p2")], if_failed="cancel").enqueue("p3")
    bare.using(if_failed="never")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    return 1


def key_of(n: int) -> str:
    return f"key-{n}"


@td.job(backoff=lambda failures: failures * 2.0, dedupe=key_of)
def without_arguments() -> None: ...


@registry.job(backoff=fixed(3))
def apart(ctx: Context, n: int) -> int:
    return n


# Schedules


@td.job(cron="0 3 * * *", zone="Europe/Berlin")
def nightly(ctx: Context) -> datetime | None:
    return ctx.fired_at


bare.schedule("weekday", cron="0 8 * * 1-5", zone="Europe/Berlin", payload={"podcast_id": "p"}, missed="once")
bare.schedule("often", every=timedelta(minutes=15), payload={"podcast_id": "p"}, overlap="queue_one", queue="slow")
assert_type(td.schedules.put("digest", bare, every=900, payload={"podcast_id": "p"}, tenant="acme"), Schedule)
assert_type(td.schedules.get("digest"), Schedule | None)
assert_type(td.schedules.run_now("digest"), Job)
bare.schedule("never", every=60, missed="never")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
bare.schedule("red", every=60, colour="red")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]


async def schedule_async() -> None:
    assert_type(await td.schedules.aput("digest", "anything", cron="0 3 * * *"), Schedule)
    assert_type(await td.schedules.apause("digest", reason="invoice"), Schedule)


# Hooks stay what they are


@td.on("job_failed")
async def alert(event: Event) -> None: ...


@td.on("job_completed")
@td.on("job_retried")
def meter(event: Event) -> float:
    return event.busy


def call_hook(event: Event) -> None:
    assert_type(meter(event), float)


# Still ordinary functions

assert_type(bare("p1"), dict[str, int])
assert_type(called(podcast_id="p1"), int)
assert_type(without_arguments(), None)


def call_with_context(ctx: Context) -> None:
    assert_type(with_context(ctx, "o1", force=True), str)
    assert_type(apart(ctx, 1), int)


async def call_async(ctx: Context) -> None:
    assert_type(await asynchronous("p1"), int)
    await async_with_context(ctx, "o1")


# Enqueued with the handler's own arguments, without the context

assert_type(bare.enqueue("p1"), Job[dict[str, int]])
assert_type(bare.enqueue(podcast_id="p1", retries=1), Job[dict[str, int]])
assert_type(with_context.enqueue("o1", force=True), Job[str])
assert_type(apart.enqueue(n=1), Job[int])
assert_type(bare.using(delay=60, priority=5, tenant="acme", subject="call-7").enqueue("p1"), Job[dict[str, int]])
assert_type(bare.using(run_at=datetime.now()).using(dedupe="k").request("p1"), NewJob)
assert_type(with_context.request(operation_id="o1"), NewJob)
assert_type(td.enqueue("anything", {"a": 1}, tenant="acme"), Job)
assert_type(td.enqueue_many([bare.request(podcast_id="p1"), called.request("p2")]), list[Job])


async def enqueue_async() -> None:
    assert_type(await bare.aenqueue(podcast_id="p1"), Job[dict[str, int]])
    assert_type(await asynchronous.using(detached=True).aenqueue("p1"), Job[int])
    assert_type(await async_with_context.aenqueue(operation_id="o1"), Job[None])
    assert_type(await td.aenqueue("anything"), Job)
    assert_type(await td.aenqueue_many([called.request("p2")]), list[Job])


# Results have the type that the handler says; a coroutine's is what it returns

assert_type(td.result(bare.enqueue("p1")), dict[str, int])
assert_type(td.result(asynchronous.enqueue("p1"), timeout=timedelta(seconds=5)), int)
assert_type(td.result("id"), Any)
assert_type(bare.enqueue("p1").result, dict[str, int] | None)
assert_type(asynchronous.using(priority=1).enqueue("p1").result, int | None)


async def result_async() -> None:
    assert_type(await td.aresult(await asynchronous.aenqueue("p1")), int)
    assert_type(await td.aresult("id"), Any)


# A timedelta wherever seconds are taken


@td.job(timeout=timedelta(minutes=5), backoff=exponential(timedelta(seconds=30), timedelta(minutes=10)))
def timed(ctx: Context) -> None:
    if ctx.attempt == 1:
        raise Snooze(timedelta(hours=1))
    if ctx.attempt == 2:
        raise RateLimited(timedelta(minutes=1))
    raise Retry("again", delay=timedelta(minutes=1))


timed.using(delay=timedelta(minutes=1), start_within=timedelta(hours=1)).enqueue()
timed.using(dedupe=Dedupe("k", mode="throttle", period=timedelta(hours=1)))
Limit("openai", rate=Rate(500, per=timedelta(minutes=1)))
td.worker(grace=timedelta(seconds=30))


# Around handlers


@td.middleware
def plain_middleware(ctx: Context) -> Generator[None]:
    assert_type(ctx.state["http"], Any)
    yield


@td.middleware
async def async_middleware(ctx: Context) -> AsyncIterator[None]:
    yield


@td.lifespan
async def resources() -> AsyncIterator[dict[str, Any]]:
    yield {"http": 1}


@registry.lifespan
def nothing_to_share() -> Generator[None]:
    yield


td.middleware(size_of)  # type: ignore[type-var]  # pyright: ignore[reportArgumentType]


def takes_an_enqueuer(job: Enqueuer[[str]]) -> Job:
    return job.enqueue("p1")


takes_an_enqueuer(called)
takes_an_enqueuer(called.using(priority=1))


# Managed

assert_type(td.get("id"), Job | None)
assert_type(td.retry("id").status, Status)
assert_type(td.retry("id").progress, Progress | None)
assert_type([job.type for job in td.jobs(status="failed")], list[str])
assert_type(td.counts(by=("status", "type")), list[dict[str, Any]])
assert_type(td.tick(max_jobs=5), TickReport)
assert_type(td.claim(5, types=["bare"])[0].job, Job)


async def manage_async() -> None:
    """A twin takes the same parameters and gives the same, awaited."""
    assert_type(await td.aget("id"), Job | None)
    assert_type(await td.aretry("id"), Job)
    assert_type([job.type for job in await td.ajobs("type:bare", status="failed", limit=5)], list[str])
    assert_type(await td.acounts(("status", "type"), "type:bare", at_most=5), list[dict[str, Any]])
    assert_type(await td.aclone("id", {"n": 1}, priority=5), Job)
    assert_type(await td.aprune(older_than=60, status="failed"), int)
    assert_type(await td.atick(max_jobs=5), TickReport)
    [lease] = await td.aclaim(1, types=["bare"], lease=60)
    assert_type(await lease.afail("no", retry_in=5), None)
    await td.aget(5)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    await td.ajobs(limt=5)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    await td.aclone("id", prioriti=5)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]


@bare.already_done
def exists(jobs: Sequence[Job]) -> Collection[Job]:
    return [job for job in jobs if job.payload["podcast_id"]]


# Tested

with temporary(td) as clock:
    assert_type(clock, ManualClock)
    assert_type(drain(td), TickReport)
    assert_type(enqueued(td, bare, podcast_id="p1"), list[Job])
    assert_type(assert_enqueued(td, with_context.using(priority=1), operation_id="o1"), Job)
    refute_enqueued(td, "anything", a=1)


# In Alembic's env.py, whichever kinds of names it knows

alembic_context.configure(include_name=include_name)


# Refused

td.on("job_complete", alert)  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]
td.on("job_failed", bare)  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]
bare.enqueue()  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
bare.enqueue(podcast_id=7)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
bare.enqueue("p1", retires=1)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
bare.request(podcast_id=None)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
bare.using(delay=1).enqueue(7)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
bare.using(priorty=1)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
bare.using(delay="soon")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
with_context.enqueue()  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
with_context.enqueue("o1", True)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
with_context("o1")  # type: ignore[call-arg, arg-type]  # pyright: ignore[reportCallIssue]
td.enqueue("anything", {"a": 1}, tenat="acme")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
td.enqueue_many([bare])  # type: ignore[list-item]  # pyright: ignore[reportArgumentType]
td.job(concurency=3)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
td.job(run="fiber")  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]
takes_an_enqueuer(without_arguments)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


async def refused() -> None:
    await bare.aenqueue(7)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    await asynchronous.aenqueue()  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
