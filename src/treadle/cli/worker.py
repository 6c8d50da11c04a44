"""`treadle worker`: a supervisor, and the workers that it keeps alive."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import threading
from typing import TYPE_CHECKING, NoReturn

import click

import treadle as package
from treadle import units
from treadle.cli import logs
from treadle.cli.app_loader import app_name, load_app
from treadle.cli.base import Shared, command, pass_shared
from treadle.cli.errors import Problem
from treadle.cli.params import Duration
from treadle.worker.inflight import VARIABLE, Inflight

if TYPE_CHECKING:
    from treadle.app import Treadle
    from treadle.worker.worker import Worker

HELP = """Run jobs until stopped.

APP is MODULE:NAME, as in app:td; without a NAME, the only Treadle in the module. SIGTERM or Ctrl-C lets running jobs
end within --grace and gives back the rest; a second one hurries.
"""


@command("worker", help=HELP)
@click.argument("target", metavar="[APP]", required=False)
@click.option("-a", "--app", metavar="MODULE:NAME", allow_from_autoenv=False, help="The same as APP.  [$TREADLE_APP]")
@click.option(
    "-c", "--concurrency", type=click.IntRange(1), default=10, show_default=True, help="Jobs at once, per process."
)
@click.option("-p", "--processes", type=click.IntRange(1), default=1, show_default=True, help="Worker processes.")
@click.option("-q", "--queues", multiple=True, metavar="QUEUE", help="Only from this queue; may be repeated.")
@click.option("--grace", type=Duration(), default=30, help="How long running jobs may take to end.  [default: 30s]")
@click.option("--burst", is_flag=True, help="Run what is due, then exit.")
@click.option("-v", "--verbose", count=True, help="Log more; -vv even more.")
@pass_shared
def worker(
    shared: Shared,
    target: str | None,
    app: str | None,
    concurrency: int,
    processes: int,
    queues: tuple[str, ...],
    grace: float,
    burst: bool,
    verbose: int,
) -> None:
    name = app_name(target or app)
    if VARIABLE in os.environ:
        loaded = load_app(shared, name)
        logs.set_up(verbose)
        _work(shared, loaded, name, concurrency, queues, grace, burst)
    # The supervisor never imports the user's code: what kills a worker must not kill it.
    from treadle.worker.supervisor import supervise

    logs.set_up(verbose)
    settings = ["--concurrency", str(concurrency), "--grace", str(grace)]
    settings += [word for queue in queues for word in ("--queues", queue)]
    settings += ["--burst"] * burst + ["-v"] * verbose + ["--quiet"] * shared.quiet
    settings += ["--db", shared.db] if shared.db else []
    command = [sys.executable, "-m", "treadle", "worker", name, *settings]
    click.get_current_context().exit(supervise(command, processes, cells=2 * concurrency))


def _work(
    shared: Shared, app: Treadle, name: str, concurrency: int, queues: tuple[str, ...], grace: float, burst: bool
) -> NoReturn:
    """Be a worker. What is wrong with the app or the database is said before anybody counts on this one."""
    from treadle.worker.worker import Worker

    types = sorted(app.registry.types)
    if not types:
        raise Problem(f"{name} has no jobs", "Nothing is declared with @td.job when the module is imported.")
    inflight = Inflight.inherited()
    if burst or not (inflight and inflight.in_turn):  # else it waits for the database, as those do who work
        app.store.open()
    from_queues = f" · queues {', '.join(queues)}" if queues else ""
    shared.note(
        (f"treadle {package.__version__}", "bold"),
        f" · {app.store.where} · {units.plural(len(types), 'type')}: {', '.join(types)}"
        f" · {concurrency} at once{from_queues} · pid {os.getpid()}",
    )
    made = Worker(app, concurrency=concurrency, queues=queues, grace=grace, inflight=inflight)
    code = asyncio.run(_drain(made)) if burst else made.run()
    _leave(code)


async def _drain(worker: Worker) -> int:
    """Until nothing is due, or a signal."""
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    async with worker:
        waits = {loop.create_task(worker.drained()), loop.create_task(stop.wait())}
        _, pending = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        for task in pending:
            task.cancel()
    return 0


def _leave(code: int) -> NoReturn:
    """End the process, even if a handler's thread was given up and never ends: Python would wait for it."""
    waits_for = [t for t in threading.enumerate() if not t.daemon and t is not threading.current_thread()]
    if waits_for:
        logging.shutdown()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)
