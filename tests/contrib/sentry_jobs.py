"""An app that reports to Sentry, in a process of its own: `python -m tests.contrib.sentry_jobs URL`."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import threading

import sentry_sdk

from treadle import Context, Fail, Retry, Snooze, Treadle
from treadle.contrib.sentry import instrument

sentry_sdk.init(traces_sample_rate=1.0, debug=False)  # the DSN is in the environment
td = Treadle("sqlite:////nonexistent/never_used.db")
instrument(td)


@td.job(max_attempts=1)
def plain(customer: str) -> None:
    logging.getLogger("app").warning("looking for %s", customer)
    raise LookupError(customer)


@td.job(max_attempts=1)
async def asynchronous() -> None:
    await asyncio.sleep(0)
    raise Fail("no such customer")


@td.job(max_attempts=1, run="process")
def in_child() -> None:
    raise ZeroDivisionError("in a child")


@td.job(max_attempts=1, run="process")
def dies() -> None:
    os._exit(3)


@td.job(max_attempts=1, timeout=0.1)
def hangs() -> None:
    threading.Event().wait(60)


@td.job
def later(how: str) -> None:
    raise Retry("not yet") if how == "retry" else Snooze(60)


@td.job(max_attempts=1)
def gives_up() -> None:
    raise Retry("the partner does not answer")


@td.job
def never_ready() -> None:
    raise Snooze(60, at_most=0)


@td.job
def completes(ctx: Context) -> None:
    after.enqueue()


@td.job
def after() -> None: ...


def main(url: str) -> None:
    from treadle.stores import open_store

    td._use(open_store(url))
    with sentry_sdk.start_transaction(op="http.server", name="POST /orders"):
        plain.using(tenant="acme").enqueue("acme")
        completes.enqueue()
    for job in (asynchronous, in_child, dies, hangs, gives_up, never_ready):
        job.enqueue()
    later.enqueue("retry")
    later.enqueue("snooze")
    td.tick(max_seconds=60)
    td.tick(max_seconds=60)
    sentry_sdk.flush(10)


if __name__ == "__main__":
    from tests.contrib import sentry_jobs  # under the name that children import

    sentry_jobs.main(sys.argv[1])
