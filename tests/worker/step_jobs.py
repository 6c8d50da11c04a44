"""Durable handlers on the loop, in threads and in children, which find them by name at the top of a module."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from treadle import Context, JobFailed, Treadle

td = Treadle("sqlite:////nonexistent/never_used.db")
"""Each test gives it another database, and the worker sends its URL to its children."""

KINDS = ("loop", "thread", "process")


def note(path: str, what: str) -> str:
    """Write down that it was done."""
    with open(path, "a") as file:
        file.write(f"{what}\n")
    return what


async def anote(path: str, what: str) -> str:
    await asyncio.sleep(0)
    return note(path, what)


def notes(path: Path) -> list[str]:
    return path.read_text().split() if path.exists() else []


def fails_once(path: str) -> None:
    """Fail in the first run only."""
    if "failed" not in notes(Path(path)):
        note(path, "failed")
        raise RuntimeError("the first run fails")


@td.job(backoff=[0], max_attempts=2)
async def steps_loop(ctx: Context, path: str) -> list[str]:
    first = await ctx.astep("one", anote, path, "a")
    second = await ctx.astep("one", note, path, "b")
    fails_once(path)
    both = await asyncio.gather(*(ctx.astep("more", anote, path, what) for what in "cd"))
    return [first, second, *both]


@td.job(backoff=[0], max_attempts=2)
def steps_thread(ctx: Context, path: str) -> list[str]:
    return _steps(ctx, path)


@td.job(backoff=[0], max_attempts=2, run="process")
def steps_process(ctx: Context, path: str) -> list[str]:
    return _steps(ctx, path)


def _steps(ctx: Context, path: str) -> list[str]:
    first = ctx.step("one", note, path, "a")
    second = ctx.step("one", note, path, "b")
    fails_once(path)
    return [first, second, *(ctx.step("more", note, path, what) for what in "cd")]


@td.job
async def waits_loop(ctx: Context, path: str) -> list[object]:
    note(path, "run")
    await ctx.asleep("nap", 0.01)
    try:
        value = await ctx.await_for("go")
        late = await ctx.await_for("never", timeout=0.01)
    except TimeoutError:
        late = "timeout"
    results = await ctx.agather("doubles", [double.request(n=n) for n in (1, 2, 3)])
    try:
        await ctx.agather("bad", [double.request(n=1), double.request(n=-1)])
    except JobFailed as error:
        return [value, late, results, await ctx.agather("none", []), error.status]
    return []


@td.job
def waits_thread(ctx: Context, path: str) -> list[object]:
    return _waits(ctx, path)


@td.job(run="process")
def waits_process(ctx: Context, path: str) -> list[object]:
    return _waits(ctx, path)


def _waits(ctx: Context, path: str) -> list[object]:
    note(path, "run")
    ctx.sleep("nap", 0.01)
    try:
        value = ctx.wait_for("go")
        late = ctx.wait_for("never", timeout=0.01)
    except TimeoutError:
        late = "timeout"
    results = ctx.gather("doubles", [double.request(n=n) for n in (1, 2, 3)])
    try:
        ctx.gather("bad", [double.request(n=1), double.request(n=-1)])
    except JobFailed as error:
        return [value, late, results, ctx.gather("none", []), error.status]
    return []


@td.job(max_attempts=1)
def double(n: int) -> int:
    if n < 0:
        raise ValueError(n)
    return 2 * n


@td.job(run="process", max_attempts=2, backoff=[0])
def dies_after_each_step(ctx: Context, path: str) -> int:
    """Each run does one step, and then dies."""
    for n in range(4):
        if ctx.step("count", str, n) and str(n) not in notes(Path(path)):
            note(path, str(n))
            os._exit(1)
    return ctx.attempt


def handlers(name: str) -> list[str]:
    return [f"{name}_{kind}" for kind in KINDS]
