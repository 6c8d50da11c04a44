"""What ends a job from inside its handler: `ctx.transaction()`, and `ctx.complete()` in a transaction of the user."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any

from treadle.errors import BadConnection, TransactionOver
from treadle.outcome import COMPLETED, Outcome, OutcomeKind, Suspend
from treadle.stores.user_connections import is_async, is_connection, run_on_async

if TYPE_CHECKING:
    from treadle.context import Run

ONCE = "this attempt has completed already; call ctx.complete() or ctx.transaction() once"


def check_named(call: str, result: Any, more: tuple[object, ...]) -> None:
    """Refuse a connection that was passed without its name."""
    way_out = f"name it: {call}(result, connection=…)"
    if more:
        raise BadConnection(more[0], "it was passed without its name", way_out)
    if is_connection(result):
        raise BadConnection(result, "it was passed as the result", way_out)


def complete(run: Run, result: Any, connection: Any) -> None:
    """The handler has done its work. With a connection, that is stored in its transaction."""
    _check_once(run)
    if connection is None:
        run.result, run.completes = result, True
    else:
        _complete_within(run, result, connection)


async def acomplete(run: Run, result: Any, connection: Any) -> None:
    run.unawaited = None
    if connection is None or not is_async(connection):
        complete(run, result, connection)
        return
    _check_once(run)
    await run_on_async(connection, lambda theirs: _complete_within(run, result, theirs))


def _check_once(run: Run) -> None:
    if run.written or run.completes:
        raise TransactionOver(ONCE)


def _complete_within(run: Run, result: Any, connection: Any) -> None:
    """Whether the user's transaction commits is known after the handler has ended."""
    _outside_steps(run).store.complete_within(run.claimed, run.with_logs(run.completed(result)), connection)
    run.written, run.joined = COMPLETED, True


def transaction(run: Run) -> AbstractContextManager[Any]:
    return _ending(_outside_steps(run))


@asynccontextmanager
async def atransaction(run: Run) -> AsyncGenerator[Any]:
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
    if run.collecting is not run.collected:
        raise TransactionOver("ctx.transaction() and ctx.complete() end the job; use them after the step")
    return run


@contextmanager
def _ending(run: Run) -> Generator[Any]:
    if run.written:
        raise TransactionOver("ctx.transaction() has ended this job already; do all of its work in one block")
    made = run.collected
    collected = [(some, len(some)) for some in (made.follow_ups, made.signals, made.batches)]
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
