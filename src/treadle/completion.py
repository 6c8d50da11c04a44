"""What ends a job from inside its handler: `ctx.transaction()`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any

from treadle.errors import TransactionOver
from treadle.outcome import Outcome, OutcomeKind, Suspend

if TYPE_CHECKING:
    from treadle.context import Run


def transaction(run: Run) -> AbstractContextManager[Any]:
    """A transaction of the store that ends the job."""
    return _ending(_outside_steps(run))


@asynccontextmanager
async def atransaction(run: Run) -> AsyncGenerator[Any]:
    """`transaction` without blocking the event loop."""
    loop, block = asyncio.get_running_loop(), transaction(run)
    # A thread of its own: in a pool, calls that wait for the writer could keep this one from committing.
    thread = ThreadPoolExecutor(1, "treadle-transaction")
    try:
        entering = loop.run_in_executor(thread, block.__enter__)
        try:
            connection = await asyncio.shield(entering)
        except asyncio.CancelledError as error:  # while it waits for the writer: roll back as soon as it has it
            thread.submit(block.__exit__, type(error), error, None)
            raise
        try:
            yield connection
        except BaseException as error:
            if not await loop.run_in_executor(thread, block.__exit__, type(error), error, error.__traceback__):
                raise
        else:
            await loop.run_in_executor(thread, block.__exit__, None, None, None)
    finally:
        thread.shutdown(wait=False)


def _outside_steps(run: Run) -> Run:
    """The run, which may be ended now."""
    if run.suspension is not None:
        raise Suspend
    if run.collecting is not run:
        raise TransactionOver("ctx.transaction() ends the job; use it after the step, not inside of it")
    return run


@contextmanager
def _ending(run: Run) -> Generator[Any]:
    if run.written:
        raise TransactionOver("ctx.transaction() has ended this job already; do all of its work in one block")
    collected = [(some, len(some)) for some in (run.follow_ups, run.signals, run.batches)]
    run.in_transaction = True
    try:
        with run.store.transaction(run.claimed, lambda: run.with_logs(run.completed(run.result))) as connection:
            yield connection
    except BaseException:
        for some, before in collected:  # rolled back, even if the handler continues
            del some[before:]
        raise
    finally:
        run.in_transaction = False
    run.written = Outcome(OutcomeKind.COMPLETED, written=True)
