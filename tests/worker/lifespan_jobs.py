"""Jobs with middleware and a lifespan, in child processes. They append what happens to a file."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Generator
from pathlib import Path
from typing import Any

from treadle import Context, Treadle

td = Treadle("sqlite:////nonexistent/never_used.db")
JOURNAL = "TREADLE_TEST_JOURNAL"
FAILS = "TREADLE_TEST_LIFESPAN_FAILS_IN_CHILDREN"
PARENT = "TREADLE_TEST_LIFESPAN_PARENT"


def write(line: str) -> None:
    where = "worker" if os.environ[PARENT] == str(os.getpid()) else "child"
    with Path(os.environ[JOURNAL]).open("a") as file:
        file.write(f"{where}: {line}\n")


@td.lifespan
async def resources() -> AsyncGenerator[dict[str, Any]]:
    if FAILS in os.environ and os.environ[PARENT] != str(os.getpid()):
        write("lifespan fails")
        raise ConnectionError("no route to the mail server")
    write("lifespan opens")
    yield {"pid": os.getpid(), "loop": asyncio.get_running_loop()}
    await asyncio.sleep(0)
    write("lifespan closes")


@td.middleware
def around(ctx: Context) -> Generator[None]:
    write(f"before {ctx.type}")
    try:
        yield
    finally:
        write(f"after {ctx.type}")


@td.job(run="process")
def plain(ctx: Context) -> bool:
    write("plain runs")
    return bool(ctx.state["pid"] == os.getpid())


@td.job(run="process")
async def asynchronous(ctx: Context) -> bool:
    write("asynchronous runs")
    return ctx.state["loop"] is asyncio.get_running_loop()
