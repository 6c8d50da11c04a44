"""The app of the tests. Its handlers note each run in a journal, because Redis does not keep all of them."""

from __future__ import annotations

import asyncio
import os
import time

from treadle import Context, Fail, Retry, Snooze, Treadle, fixed
from treadle.contrib.bullmq import Relay

td = Treadle(os.environ.get("TREADLE_URL"))


def note(ctx: Context, word: str) -> None:
    with open(os.environ["JOURNAL"], "a") as journal:
        journal.write(f"{ctx.id} {word} {ctx.attempt} {ctx.snoozes}\n")


@td.job(max_attempts=3, backoff=fixed(0.05))
def work(ctx: Context, n: int, how: str = "") -> dict[str, int]:
    note(ctx, f"work-{n}")
    if how == "fail":
        raise Fail("not this one")
    if how == "retry" and ctx.attempt == 1:
        raise Retry("once more", delay=0.1)
    if how == "never":
        raise ValueError("never")
    if how == "snooze":
        raise Snooze(0.05, at_most=2)
    if how == "slow":
        ctx.progress(0.5, "halfway")
        time.sleep(float(os.environ.get("SLOW", "0.3")))
    return {"n": n}


@td.job(max_attempts=1, timeout=0.2)
async def sleepy(ctx: Context) -> None:
    note(ctx, "sleepy")
    await asyncio.sleep(60)


@td.job(max_attempts=1, timeout=0.2)
def sleepy_thread(ctx: Context) -> None:
    note(ctx, "sleepy_thread")
    deadline = time.monotonic() + 30
    while not ctx.cancelled and time.monotonic() < deadline:
        time.sleep(0.01)


@td.job(max_attempts=1)
async def waiting(ctx: Context) -> None:
    note(ctx, "waiting")
    await asyncio.sleep(float(os.environ["SLOW"]))


@td.job
def patient(ctx: Context) -> None:
    note(ctx, "patient")
    deadline = time.monotonic() + 60
    while not ctx.cancelled and time.monotonic() < deadline:
        time.sleep(0.01)


@td.job
def first(ctx: Context, n: int) -> None:
    note(ctx, "first")
    second.using(tenant=ctx.tenant, subject="s").enqueue(n=n + 1)


@td.job
async def second(ctx: Context, n: int) -> str:
    note(ctx, "second")
    return f"{ctx.tenant}/{ctx.subject}/{n}"


# A worker that starts reads the code of handlers, but not of what they call.


@td.job(max_attempts=1)
def stepping(ctx: Context) -> None:
    use_step(ctx)


@td.job(max_attempts=1)
def committing(ctx: Context) -> None:
    use_transaction(ctx)


@td.job(max_attempts=1)
def signalling(ctx: Context) -> None:
    use_signal()


def use_step(ctx: Context) -> None:
    ctx.step("one", lambda: 1)


def use_transaction(ctx: Context) -> None:
    with ctx.transaction():
        pass


def use_signal() -> None:
    td.signal("approve", 1)


relay = Relay(td, os.environ.get("REDIS", "redis://127.0.0.1:1"), types=[work, "of_node"])
