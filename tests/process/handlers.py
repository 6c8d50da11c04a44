"""The handlers of these tests, in the workers' processes. Each records its runs in the journal."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import resource
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import Any

from tests.process.journal import FOLDER, journalled, note
from treadle import Context, Limit, Rate, Retry, Snooze, Treadle, fixed

td = Treadle()


def is_open(gate: str) -> bool:
    """Gates are files beside the journals: a test opens them. The one without a name is open."""
    return (Path(os.environ[FOLDER]).parent / gate).exists()


async def through(gate: str) -> None:
    while not is_open(gate):  # noqa: ASYNC110 - opened by another process
        await asyncio.sleep(0.01)


# Storms


@td.job(max_attempts=1000)
async def storm_async(ctx: Context) -> str:
    with journalled(ctx) as token:
        await asyncio.sleep(0.005)
    return token


@td.job(max_attempts=1000)
def storm_thread(ctx: Context) -> str:
    with journalled(ctx) as token:
        time.sleep(0.005)
    return token


@td.job(max_attempts=1000)
async def storm_slow(ctx: Context, seconds: float) -> str:
    with journalled(ctx) as token:
        await asyncio.sleep(seconds)
    return token


@td.job(max_attempts=1000)
async def storm_retried(ctx: Context, seconds: float) -> str:
    """Its first attempt fails, before it is journalled."""
    if ctx.attempt == 1:
        raise Retry("later", delay=seconds)
    with journalled(ctx) as token:
        await asyncio.sleep(0.005)
    return token


@td.job(max_attempts=1000)
async def storm_suspended(ctx: Context, name: str) -> str:
    await ctx.await_for(name)
    with journalled(ctx) as token:
        await asyncio.sleep(0.005)
    return token


# Zombies: the first worker waits at one gate, its successor at another


class Role:
    """Which of the two this process is, from its environment."""

    name = os.environ.get("TREADLE_TEST_ROLE", "")
    is_victim = name == "victim"


@td.job
async def zombie(ctx: Context, how: str, waits: bool) -> str:
    """The victim continues after it was declared dead, and tries to settle a job that another worker has now."""
    note("start", ctx.id, ctx.attempt, f"{Role.name}:{ctx.id}")
    if Role.is_victim:
        await through("victim")
        note("woke", how)
        if how == "fail":
            raise Retry("by a zombie", delay=0)
        if how == "snooze":
            raise Snooze(0)
        if how == "progress":
            ctx.progress(0.75, "by a zombie")
            await asyncio.sleep(1.5)  # the worker stores it within half a second
    elif waits:
        await through("second")
    return f"{Role.name} {how}"


@td.job
def zombie_in_a_transaction(ctx: Context, how: str, waits: bool) -> str:
    note("start", ctx.id, ctx.attempt, f"{Role.name}:{ctx.id}")
    while not is_open("victim" if Role.is_victim else "second" if waits else ""):
        time.sleep(0.01)
    if Role.is_victim:
        note("woke", how)
        with ctx.transaction() as connection:
            ctx.result = "by a zombie"
            connection.execute(f"INSERT INTO effects VALUES ('{ctx.id}')")
    return f"{Role.name} {how}"


@td.job(queue="victim")
async def which_worker_runs_this() -> str:
    return Role.name


# Limits


@td.job(concurrency=3, max_attempts=1000)
async def three_at_once(ctx: Context, seconds: float) -> str:
    with journalled(ctx) as token:
        await asyncio.sleep(seconds)
    return token


async def _keyed(ctx: Context, seconds: float) -> str:
    with journalled(ctx) as token:
        await asyncio.sleep(seconds)
    return token


KEYED = {
    limit: td.job(
        type=f"keyed_{limit}", limits=[Limit(f"keyed_{limit}", concurrency=limit, per="tenant")], max_attempts=1000
    )(_keyed)
    for limit in (1, 3, 10)
}
"""By how many may run at once for each tenant."""

RATE = Rate(20, per=1, burst=5)


@td.job(limits=[Limit("rated", rate=RATE, per="tenant")], max_attempts=1000)
async def rated(ctx: Context) -> str:
    with journalled(ctx) as token:
        return token


# One file


@td.job
async def quick(ctx: Context) -> None:
    note("ran", ctx.id)


@td.job
def slow(ctx: Context, seconds: float) -> None:
    with journalled(ctx):
        time.sleep(seconds)


@td.job
async def slow_async(ctx: Context, seconds: float) -> None:
    with journalled(ctx):
        await asyncio.sleep(seconds)


@td.job
async def waits_at_a_gate(ctx: Context, gate: str) -> None:
    with journalled(ctx):
        await through(gate)


@td.job
def waits_at_a_gate_in_a_thread(ctx: Context, gate: str) -> None:
    with journalled(ctx):
        while not is_open(gate):
            time.sleep(0.01)


@td.job
def counts_until_stopped(ctx: Context, rows: int) -> int:
    """The pattern that the guide recommends."""
    done = 0
    with journalled(ctx):
        while done < rows and not ctx.cancelled:
            time.sleep(0.01)
            done += 1
    return done


# Poison


def die(how: str) -> None:
    """What a handler can do that kills its process. (A MemoryError does not, if it is handled.)"""
    if how.startswith("exit"):
        os._exit(int(how.removeprefix("exit ")))
    elif how == "segfault":
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        ctypes.string_at(0)
    elif how == "memory":
        resource.setrlimit(resource.RLIMIT_AS, (1 << 39, -1))  # much, so that no other code in this process meets it
        bytearray(1 << 40)
    elif how == "all memory":
        hoard = []
        while True:
            hoard.append(b"x" * (1 << 24))


@td.job(max_attempts=2, backoff=fixed(0.05))
async def dose_async(ctx: Context, poison: str, seconds: float = 0.05) -> None:
    with journalled(ctx):
        await asyncio.sleep(seconds)
        die(poison)


@td.job(max_attempts=2, backoff=fixed(0.05))
def dose_thread(ctx: Context, poison: str, seconds: float = 0.05) -> None:
    with journalled(ctx):
        time.sleep(seconds)
        die(poison)


@td.job(max_attempts=2, backoff=fixed(0.05), run="process")
def dose_process(ctx: Context, poison: str, seconds: float = 0.05) -> None:
    with journalled(ctx):
        time.sleep(seconds)
        die(poison)


# Poison that kills after its handler has returned


def leave_a_thread_behind() -> None:
    """It kills the process when the handler's outcome is about to be committed, and not sooner."""
    from tests import stores  # it imports pytest and the servers: every start of a worker would take twice as long

    lock = stores.nobody_can_write(td.store.url)
    lock.__enter__()  # as long as this process lives

    def exit_when_settling(_: object) -> None:
        while not is_settling():
            time.sleep(0.001)
        os._exit(7)

    threading.Thread(target=exit_when_settling, args=(lock,), daemon=True).start()


def is_settling() -> bool:
    """Whether some thread of this process is in the store's `settle`."""
    frames = [frame for top in sys._current_frames().values() for frame, _ in traceback.walk_stack(top)]
    return any(frame.f_code.co_name == "settle" for frame in frames)


def out_of_reach() -> list[Any]:
    """Not at the top of the module, where a child could find them, so that every attempt runs in the worker itself."""

    @td.job(max_attempts=3)
    async def leaves_a_thread_async(ctx: Context) -> None:
        with journalled(ctx):
            leave_a_thread_behind()

    @td.job(max_attempts=3)
    def leaves_a_thread(ctx: Context) -> None:
        with journalled(ctx):
            leave_a_thread_behind()

    return [leaves_a_thread_async, leaves_a_thread]


LEAVERS = out_of_reach()


# Ends


@td.job(run="process")
def slow_process(ctx: Context, seconds: float) -> None:
    with journalled(ctx):
        time.sleep(seconds)


@td.job(timeout=2, backoff=fixed(0))
def stuck(ctx: Context, seconds: float) -> None:
    """In a thread, which cannot be stopped; but only at its first attempt."""
    with journalled(ctx):
        if ctx.attempt == 1:
            time.sleep(seconds)


@td.job
async def ignores_its_cancellation(ctx: Context) -> None:
    with journalled(ctx):
        while True:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(60)


@td.job
async def blocks_the_loop_once(ctx: Context) -> None:
    with journalled(ctx):
        if ctx.attempt == 1:
            time.sleep(600)  # noqa: ASYNC251


@td.job
async def blocks_the_loop(ctx: Context, seconds: float) -> None:
    with journalled(ctx):
        await asyncio.sleep(0.2)  # so that the next claim is under way
        time.sleep(seconds)  # noqa: ASYNC251 - what must not be done


@td.job
def holds_the_interpreter(ctx: Context, seconds: float) -> None:
    with journalled(ctx):
        ctypes.PyDLL(None).usleep(int(seconds * 1_000_000))


@td.job(max_attempts=2, timeout=8, backoff=fixed(0.05))
async def within_eight_seconds(ctx: Context, poison: str) -> None:
    with journalled(ctx):
        await asyncio.sleep(1.2)
        die(poison)


@td.job
async def ends_in_a_transaction(ctx: Context) -> None:
    with journalled(ctx):
        async with ctx.atransaction() as connection:
            connection.execute(f"INSERT INTO effects VALUES ('{ctx.id}')")


@td.job
async def slow_in_a_pool(ctx: Context, seconds: float) -> None:
    with journalled(ctx):
        await asyncio.to_thread(time.sleep, seconds)


# Steps and waits


async def noted_step(id: str, number: int) -> int:
    note("step", id, number)
    await asyncio.sleep(0)
    return number


@td.job(max_attempts=1000)
async def ten_steps(ctx: Context) -> int:
    """Notes when a step runs, and when it is stored."""
    total = 0
    for number in range(10):
        total += await ctx.astep(f"step {number}", noted_step, ctx.id, number)
        note("stored", ctx.id, number)
    return total


@td.job(max_attempts=1000)
async def waits_for_a_signal(ctx: Context, name: str, timeout: float) -> str:
    try:
        outcome = str(await ctx.await_for(name, timeout=timeout))
    except TimeoutError:
        outcome = "timeout"
    note("outcome", ctx.id, outcome)
    return outcome


@td.job(max_attempts=1000)
async def node(ctx: Context) -> None:
    """Notes which of its parents have not ended: none, at any time."""
    early = sum(not parent.status.is_final for parent in await asyncio.to_thread(lambda: ctx.parents))
    note("early", ctx.id, early)
    with journalled(ctx):
        await asyncio.sleep(0)


@td.job(max_attempts=1000)
async def member(ctx: Context) -> None:
    await asyncio.sleep(0)


@td.job(max_attempts=1000)
async def after_the_batch(ctx: Context, name: str) -> None:
    with journalled(ctx):
        note("batch", name)
