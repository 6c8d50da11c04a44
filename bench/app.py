"""The app of the worker processes: handlers that do nothing, so that only treadle is measured."""

from __future__ import annotations

import time

from treadle import Context, Limit, Rate, Treadle

td = Treadle()


@td.job
async def noop(n: int) -> None:
    """On the event loop."""


@td.job
def noop_thread(n: int) -> None:
    """In a thread."""


@td.job(run="process")
def noop_process(n: int) -> None:
    """In a child process."""


@td.job(concurrency=1)
async def limited(n: int) -> None:
    """Never runs here: its limit of one lease is used up."""


@td.job(limits=[Limit("rated", rate=Rate(100_000, burst=100_000))])
async def rated(n: int) -> None:
    """The rate stops no job: what it costs is the count."""


@td.job
async def stepper(ctx: Context, steps: int) -> None:
    """Stores steps, one after the other."""
    for n in range(steps):
        await ctx.astep(f"step {n}", _nothing)


async def _nothing() -> None: ...


@td.job
async def stamp() -> int:
    """The moment at which its handler started."""
    return time.time_ns()


@td.job
async def waiter(ctx: Context, name: str) -> int:
    """The moment at which a signal let its handler go on."""
    await ctx.await_for(name)
    return time.time_ns()
