"""`treadle worker`, `tick` and `workers`: run jobs until stopped, run them once, and list who runs them.

`treadle worker` is a supervisor that keeps worker processes alive; each of them is the same command, started by it.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, NoReturn

import click
import msgspec
from rich.text import Text

import treadle as package
from treadle import clock, units, views
from treadle.cli import output
from treadle.cli.app_loader import app_name, database, load_app
from treadle.cli.base import Duration, Shared, command, pass_shared
from treadle.cli.errors import PROBLEMS, CommandError, refuse_json
from treadle.outcome import OutcomeKind
from treadle.views import WorkerOut
from treadle.worker.inflight import VARIABLE, Inflight

if TYPE_CHECKING:
    from treadle.app import Treadle
    from treadle.worker.worker import Worker

HELP = """Run jobs until stopped.

APP is MODULE:NAME, as in app:td; without a NAME, the only Treadle in the module. SIGTERM or Ctrl-C lets running jobs
end within --grace and returns the others to the queue; a second signal ends it at once.
"""
TICK = """Run the jobs that are due, once, and end. For cron and serverless.

The exit code is 1 if a job failed for good.
"""
HEADS = ("WORKER", "BUSY", "DOING", "QUEUES", "TYPES", "VERSION", "UP", "HEARTBEAT")


@command("worker", help=HELP, prints_data=False)
@click.argument("target", metavar="[APP]", required=False)
@click.option("-a", "--app", metavar="MODULE:NAME", allow_from_autoenv=False, help="The same as APP.  [$TREADLE_APP]")
@click.option(
    "-c", "--concurrency", type=click.IntRange(1), default=10, show_default=True, help="Jobs at once, per process."
)
@click.option("-p", "--processes", type=click.IntRange(1), default=1, show_default=True, help="Worker processes.")
@click.option("-Q", "--queues", multiple=True, metavar="QUEUE", help="Only from this queue; may be repeated.")
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
    refuse_json(shared, "worker", "Its log goes to stderr.", "for what workers do now: treadle workers --json")
    name = app_name(target or app)
    if VARIABLE in os.environ:
        loaded = load_app(shared, name)
        output.set_up_logs(verbose)
        _work(shared, loaded, name, concurrency, queues, grace, burst)
    # The supervisor never imports the user's code: what kills a worker must not kill it.
    from treadle.worker.supervisor import supervise

    output.set_up_logs(verbose)
    settings = ["--concurrency", str(concurrency), "--grace", str(grace)]
    settings += [word for queue in queues for word in ("--queues", queue)]
    settings += ["--burst"] * burst + ["-v"] * verbose + ["--quiet"] * shared.quiet
    settings += ["--db", shared.db] if shared.db else []
    command = [sys.executable, "-m", "treadle", "worker", name, *settings]
    click.get_current_context().exit(supervise(command, processes, cells=2 * concurrency))


def _work(
    shared: Shared, app: Treadle, name: str, concurrency: int, queues: tuple[str, ...], grace: float, burst: bool
) -> NoReturn:
    """Be a worker. What is wrong with the app or the database is reported before it takes any job."""
    from treadle.worker.worker import Worker

    types = sorted(app.registry.types)
    if not types:
        raise CommandError(f"{name} has no jobs", "Nothing is declared with @td.job when the module is imported.")
    inflight = Inflight.inherited()
    if burst or not (
        inflight and inflight.has_predecessor
    ):  # else it waits for the database, like workers that are running
        app.store.open()
        _warn_of_unknown_queues(shared, app, queues)
    from_queues = f" · queues {', '.join(queues)}" if queues else ""
    shared.note(
        (f"treadle {package.__version__}", "bold"),
        f" · {app.store.where} · {units.plural(len(types), 'type')}: {', '.join(types)}"
        f" · {concurrency} at once{from_queues} · pid {os.getpid()}",
    )
    made = Worker(app, concurrency=concurrency, queues=queues, grace=grace, inflight=inflight)
    code = asyncio.run(_drain(made)) if burst else made.run()
    _exit(code)


def _warn_of_unknown_queues(shared: Shared, app: Treadle, queues: Sequence[str]) -> None:
    """A queue that no type uses and no job is in is most likely misspelled."""
    if not queues:
        return
    known = {job_type.policy.queue for job_type in app.registry.types.values()}
    known |= {row.queue for row in app.queue_stats()}
    for queue in queues:
        if queue not in known:
            near = output.nearest(queue, known)
            way_out = f"did you mean {near}?" if near else f"the queues are: {', '.join(sorted(known))}"
            shared.warn(f"no type uses queue {queue}, and no job is in it", way_out)


async def _drain(worker: Worker) -> int:
    """Until nothing is due, or a signal arrives."""
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    async with worker:
        waits = {loop.create_task(worker.drained()), loop.create_task(stop.wait())}
        _, pending = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        for task in pending:
            task.cancel()
    return 0


def _exit(code: int) -> NoReturn:
    """End the process, even if a handler's thread was abandoned and never ends: Python would wait for it."""
    waits_for = [t for t in threading.enumerate() if not t.daemon and t is not threading.current_thread()]
    if waits_for:
        logging.shutdown()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)


@command("tick", help=TICK)
@click.argument("target", metavar="[APP]", required=False)
@click.option(
    "-a", "--app", metavar="MODULE:NAME", allow_from_autoenv=False, help="The app, as in app:td.  [$TREADLE_APP]"
)
@click.option("--max-jobs", type=click.IntRange(1), default=100, show_default=True, help="Claim no more than this.")
@click.option("--max-seconds", type=Duration(), default=10, help="Stop claiming after this time.  [default: 10s]")
@pass_shared
def tick(shared: Shared, target: str | None, app: str | None, max_jobs: int, max_seconds: float) -> None:
    treadle = load_app(shared, app_name(target or app))
    output.set_up_logs(0)
    report = treadle.tick(max_jobs=max_jobs, max_seconds=max_seconds)
    if shared.json:
        shared.data(msgspec.structs.replace(report, ok=not report.failed))
    else:
        kinds = {kind.value: getattr(report, kind.value) for kind in OutcomeKind}
        parts = [f"{count} {kind}" for kind, count in kinds.items() if count]
        parts += [f"{report.rescued} rescued"] if report.rescued else []
        shared.print(f"ran {units.plural(report.ran, 'job')}", f": {', '.join(parts)}" if parts else "")
        if report.next_due_at:
            shared.note((f"next due {units.format_relative(report.next_due_at)}", "dim"))
        shared.note((f"in {treadle.store.where}", "dim"))
    if report.failed:
        click.get_current_context().exit(PROBLEMS)


@command("workers", help="List workers: their heartbeat, and what they run.")
@pass_shared
def workers(shared: Shared) -> None:
    app = database(shared)
    now = app.store.now()
    rows = [views.worker(row, now) for row in app.workers()]
    if shared.json:
        shared.data({"items": rows})
    elif not rows:
        shared.note("no worker is running on this database")
        shared.note(("→ ", "dim"), "treadle worker app:td")
    else:
        table = output.table(*HEADS, right=("BUSY", "UP"), clip="TYPES")
        for row in rows:
            table.add_row(*_cells(row, now))
        output.show(shared, table)


def _cells(row: WorkerOut, now: int) -> list[Text]:
    name, busy, heartbeat = output.worker(row)
    up = (clock.to_datetime(now) - row.started_at).total_seconds()
    return [
        name,
        busy,
        Text(output.doing(row, now) or "-", style="" if row.doing else "dim"),
        Text(output.clean(", ".join(row.queues)) or "all"),
        Text(output.clean(", ".join(row.types))),
        Text(row.version),
        Text(units.format_duration(up)),
        heartbeat,
    ]
