"""Jobs that run in child processes. They must be found by name, so they are at the top of a module."""

from __future__ import annotations

import asyncio
import contextvars
import logging
import os
import time
from pathlib import Path

from treadle import Context, Fail, Registry, Treadle

SLOW = "TREADLE_TEST_SLOW_IMPORT"
"""A child that has this variable waits for that file while it imports this module."""


def _until(path: str) -> None:
    """Wait until the file exists."""
    while not Path(path).exists():
        time.sleep(0.005)


if gate := os.environ.get(SLOW):
    _until(gate)

td = Treadle("sqlite:////nonexistent/never_used.db")
"""Each test gives it another database, and the worker sends its URL to its children."""

apart = Registry()
"""Included in `td` by the test, and by no module that a child imports."""

mark: contextvars.ContextVar[str] = contextvars.ContextVar("mark", default="clean")


@td.job(run="process")
def own_pid() -> int:
    return os.getpid()


@td.job(run="process")
def completes(ctx: Context, result: str) -> str:
    ctx.complete(result)
    return "not this"


@td.job(run="process")
async def own_pid_async() -> int:
    await asyncio.sleep(0)
    return os.getpid()


loops: list[asyncio.AbstractEventLoop] = []
tasks: list[asyncio.Task[None]] = []


@td.job(run="process")
async def leaves_a_task() -> tuple[int, list[bool]]:
    """How many loops this process has had, and whether the tasks of earlier attempts have ended."""
    ended = [task.cancelled() for task in tasks]
    if asyncio.get_running_loop() not in loops:
        loops.append(asyncio.get_running_loop())
    tasks.append(asyncio.create_task(asyncio.sleep(3600)))
    return len(loops), ended


@td.job(run="process", timeout=3, max_attempts=1)
def hang_with_timeout(path: str) -> None:
    _hang(path)


@td.job(run="process")
def hang(path: str) -> None:
    _hang(path)


@td.job(run="process", max_attempts=2, backoff=0)
def die(code: int) -> None:
    os._exit(code)


@td.job(run="process", max_attempts=1)
def complain(about: str) -> None:
    raise ValueError(about)


@td.job(max_attempts=1)
def complains_here(about: str) -> None:
    raise ValueError(about)


@td.job(max_attempts=1)
async def complains_async(about: str) -> None:
    raise ValueError(about)


@td.job(run="process")
def report_progress(ctx: Context, path: str) -> None:
    """Reports progress, and ends when the file exists."""
    ctx.progress(0.25, "a quarter")
    _until(path)


@td.job(run="process", timeout=600)
def in_time(path: str) -> None:
    """Ends when the file exists."""
    _until(path)


@td.job(run="process")
def enqueue_follow_up() -> str:
    follow_up = own_pid.enqueue()
    assert td.get(follow_up.id) is None
    return follow_up.id


@td.job(run="process")
def write_and_complete(ctx: Context, word: str) -> None:
    with ctx.transaction() as connection:
        connection.execute(f"INSERT INTO words VALUES ('{word}')")
        own_pid.enqueue()
        ctx.result = word


@td.job(run="process")
def set_and_return() -> str:
    found = mark.get()
    mark.set("dirty")
    return found


@apart.job(run="process")
def declared_apart() -> str:
    return "ran"


def _hang(path: str) -> None:
    Path(f"{path}.new").write_text(str(os.getpid()))
    Path(f"{path}.new").rename(path)
    time.sleep(60)


@td.job(run="process", logs="INFO", max_attempts=1)
def log_apart(ctx: Context, lines: int) -> None:
    ctx.log("%d lines of pid %d", lines, os.getpid(), level="DEBUG")
    for n in range(lines):
        logging.getLogger("lib").info("line %d", n)
    raise Fail("after the last line")


@td.job(run="process", logs="INFO")
def log_in_transaction(ctx: Context) -> None:
    ctx.log("before")
    with ctx.transaction():
        ctx.log("inside")
