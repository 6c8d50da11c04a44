"""`treadle worker` and `tick`: run jobs until stopped, and run them once.

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
from typing import Literal, NoReturn

import click
import msgspec

import treadle as package
from treadle import units
from treadle.app import Treadle
from treadle.cli import completion, output
from treadle.cli.app_loader import app_name, load_app
from treadle.cli.base import Shared, command, duration, takes_app
from treadle.cli.errors import PROBLEMS, CommandError, refuse_json, refuse_windows
from treadle.cli.reload import Reloader, SourceFiles, load_or_wait
from treadle.error_text import nearest
from treadle.outcome import OutcomeKind
from treadle.worker import host
from treadle.worker.health import Health, ReportFile
from treadle.worker.inflight import Inflight
from treadle.worker.supervisor import Supervisor
from treadle.worker.worker import Worker

log = logging.getLogger("treadle")

HELP = """Run jobs until stopped.

APP is MODULE:NAME, as in app:td; without a NAME, the only Treadle in the module. SIGTERM or Ctrl-C lets running jobs
end within --grace and returns the others to the queue; a second signal ends it at once."""
TICK = """Run the jobs that are due, once, and end. For cron and serverless.

The exit code is 1 if a job has failed."""
QUEUES = "Only from this queue; may be repeated."
HEALTH = "Serve /livez, /readyz and /metrics there, as in 127.0.0.1:8081."
RELOAD = "For development: restart when the source files of the app change."
CONCURRENCY = "Jobs at once, per process."
LOG_FORMAT = "Lines for people, or a JSON object per line."


@command("worker", help=HELP, prints_data=False)
@takes_app
@click.option("-c", "--concurrency", type=click.IntRange(1), default=10, show_default=True, help=CONCURRENCY)
@click.option("-p", "--processes", type=click.IntRange(1), default=1, show_default=True, help="Worker processes.")
@click.option("-Q", "--queues", multiple=True, metavar="QUEUE", shell_complete=completion.queues, help=QUEUES)
@click.option("--grace", type=duration, default="30s", show_default=True, help="How long running jobs may take to end.")
@click.option("--health", metavar="HOST:PORT", help=HEALTH)
@click.option("--reload", is_flag=True, help=RELOAD)
@click.option("--burst", is_flag=True, help="Run what is due, then exit.")
@click.option("--log-format", type=click.Choice(["text", "json"]), default="text", show_default=True, help=LOG_FORMAT)
@click.option("-v", "--verbose", count=True, help="Log more; -vv even more.")
def worker(
    shared: Shared,
    concurrency: int,
    processes: int,
    queues: tuple[str, ...],
    grace: float,
    health: str | None,
    reload: bool,
    burst: bool,
    log_format: Literal["text", "json"],
    verbose: int,
) -> None:
    refuse_json(shared, "worker", "Its log goes to stderr.", "for what workers do now: treadle workers ls --json")
    refuse_windows("treadle worker")
    if reload and burst:
        raise CommandError("--reload and --burst exclude each other", "With --burst, the worker ends by itself.")
    name = app_name(shared)
    if (inflight := Inflight.inherited()) is not None:
        files = SourceFiles()
        may_wait = reload and inflight.has_predecessor
        loaded = load_or_wait(lambda: _load(shared, name), shared, files, may_wait=may_wait)
        output.set_up_logs(verbose, loaded.registry.types.values(), log_format)
        reloader = Reloader(files, shared.note) if reload else None
        made = _worker(shared, loaded, inflight, concurrency, queues, grace, burst)
        _work(made, burst, reloader)
    # The supervisor never imports the user's code: what kills a worker must not kill it.
    output.set_up_logs(verbose, format=log_format)
    settings = ["--concurrency", str(concurrency), "--grace", str(grace), "--log-format", log_format]
    settings += [word for queue in queues for word in ("--queues", queue)]
    if reload:
        os.environ["PYTHONDONTWRITEBYTECODE"] = "1"  # a change within the second that a .pyc notes would be missed
    is_quiet = shared.quiet or log_format == "json"
    settings += ["--reload"] * reload + ["--burst"] * burst + ["-v"] * verbose + ["--quiet"] * is_quiet
    settings += ["--db", shared.db] if shared.db else []
    command = [sys.executable, "-m", "treadle", "worker", name, *settings]
    supervisor = Supervisor(command, processes, 2 * concurrency, grace, health)
    if supervisor.health and log_format == "json":
        log.info("probes at %s", supervisor.health.url)
    elif supervisor.health:
        shared.note(("probes at ", "dim"), supervisor.health.url)
    click.get_current_context().exit(supervisor.run())


def _load(shared: Shared, name: str) -> Treadle:
    app = load_app(shared, name)
    if not app.registry.types:
        what, cause = f"{name} has no jobs", "Nothing is declared with @td.job when the module is imported."
        raise CommandError(what, cause, next="import the modules that declare them there, or name one of those instead")
    return app


def _worker(
    shared: Shared,
    app: Treadle,
    inflight: Inflight,
    concurrency: int,
    queues: tuple[str, ...],
    grace: float,
    burst: bool,
) -> Worker:
    """Make a worker. Report problems with the database before it claims any job."""
    types = sorted(app.registry.types)
    if burst or not inflight.has_predecessor:
        app.store.open()  # else it waits for the database, like workers that are running
        _warn_of_unknown_queues(shared, app, queues)
    parts = [app.store.where, f"{units.plural(len(types), 'type')}: {', '.join(types)}", f"{concurrency} at once"]
    parts += [f"queues {', '.join(queues)}"] if queues else []
    shared.note((f"treadle {package.__version__}", "bold"), " · ", " · ".join([*parts, f"pid {os.getpid()}"]))
    reports = ReportFile.inherited()
    health = Health(report_to=reports) if reports else None
    return Worker(app, concurrency=concurrency, queues=queues, grace=grace, inflight=inflight, health=health)


def _work(worker: Worker, burst: bool, reloader: Reloader | None) -> NoReturn:
    if reloader is not None:
        reloader.start()
    code = asyncio.run(_drain(worker)) if burst else worker.run()
    end_process(host.REPLACE_ME if reloader is not None and reloader.has_changed else code)


def _warn_of_unknown_queues(shared: Shared, app: Treadle, queues: Sequence[str]) -> None:
    """A queue that no type uses and no job is in is most likely misspelled."""
    if not queues:
        return
    known = {job_type.policy.queue for job_type in app.registry.types.values()}
    known |= {row.queue for row in app.queue_stats()}
    for queue in [queue for queue in queues if queue not in known]:
        near = nearest(queue, known)
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


def end_process(code: int) -> NoReturn:
    """End the process, even if a handler's thread was abandoned and never ends: Python would wait for it."""
    waits_for = [t for t in threading.enumerate() if not t.daemon and t is not threading.current_thread()]
    if waits_for:
        logging.shutdown()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)


@command("tick", help=TICK)
@takes_app
@click.option("--max-jobs", type=click.IntRange(1), default=100, show_default=True, help="Claim at most this many.")
@click.option("--max-seconds", type=duration, default="10s", show_default=True, help="Stop claiming after this time.")
def tick(shared: Shared, max_jobs: int, max_seconds: float) -> None:
    treadle = load_app(shared, app_name(shared))
    output.set_up_logs(0, treadle.registry.types.values())
    report = treadle.tick(max_jobs=max_jobs, max_seconds=max_seconds)
    if not shared.printed_json(msgspec.structs.replace(report, ok=not report.failed)):
        kinds = [*(kind.value for kind in OutcomeKind), "rescued"]
        parts = [f"{count} {kind}" for kind in kinds if (count := getattr(report, kind))]
        shared.print(f"ran {units.plural(report.ran, 'job')}", f": {', '.join(parts)}" if parts else "")
        if report.next_due_at:
            shared.note((f"next due {units.format_relative(report.next_due_at)}", "dim"))
        shared.note((f"in {treadle.store.where}", "dim"))
    if report.failed:
        click.get_current_context().exit(PROBLEMS)
