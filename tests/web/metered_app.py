"""Handlers that keep their own journal of what ran, independent of the database."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Generator
from contextlib import contextmanager

from treadle import Context, Treadle

td = Treadle()
JOURNAL = "METERED_JOURNAL"


@contextmanager
def journalled(ctx: Context, type: str) -> Generator[None]:
    """One write per line: a kill leaves whole lines or none."""
    began = time.monotonic()
    _note("start", type, ctx.tenant, ctx.id, 0)
    yield
    _note("end", type, ctx.tenant, ctx.id, time.monotonic() - began)


def _note(*words: object) -> None:
    journal = os.open(os.environ[JOURNAL], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(journal, (" ".join(map(str, words)) + "\n").encode())
    os.close(journal)


@td.job
async def quick(ctx: Context) -> None:
    with journalled(ctx, "quick"):
        pass


@td.job(max_attempts=3, backoff=0)
async def shaky(ctx: Context) -> None:
    """Fails twice, then completes."""
    with journalled(ctx, "shaky"):
        if ctx.attempt < 3:
            raise ConnectionError("not yet")


@td.job(max_attempts=2, backoff=0)
async def hopeless(ctx: Context) -> None:
    with journalled(ctx, "hopeless"):
        raise ValueError("never")


@td.job(max_attempts=5, backoff=0)
async def deadly(ctx: Context) -> None:
    """Kills its process the first time."""
    with journalled(ctx, "deadly"):
        if ctx.attempt == 1:
            os.kill(os.getpid(), signal.SIGKILL)


@td.job(run="thread")
def slow(ctx: Context) -> None:
    with journalled(ctx, "slow"):
        time.sleep(0.05)
