"""`treadle demo`: a real queue for a few seconds. What it shows was read from the database."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from treadle.app import Treadle
from treadle.cli import demo_live, demo_show
from treadle.cli.app_loader import url_to_show
from treadle.cli.base import Shared, command, pass_shared
from treadle.cli.errors import PROBLEMS, Problem
from treadle.job import NewJob
from treadle.settings import URL_VARIABLE, database_url
from treadle.stores import open_store

if TYPE_CHECKING:
    from treadle.stores.base import WorkerRow

PROCESSES, CONCURRENCY = 2, 4
PATIENCE = 60.0
"""Seconds after which the demo gives up. It takes about five."""
LOOK = 0.05
WORKER = [sys.executable, "-m", "treadle", "worker", "treadle.cli.demo_app:td", "--grace", "5"]


@command("demo", help="A real queue on a SQLite file for a few seconds: two workers, one of them killed on the way.")
@click.option("--keep", is_flag=True, help="Keep the database, to look around in it.")
@click.option("--dashboard/--no-dashboard", default=None, help="Show it in a browser too. Default: in a terminal.")
@pass_shared
def demo(shared: Shared, keep: bool, dashboard: bool | None) -> None:
    live = dashboard if dashboard is not None else shared.out.is_terminal and not shared.json
    signal.signal(signal.SIGTERM, _interrupt)  # so that the workers are stopped, too
    with _place(shared, keep) as url:
        app = Treadle(url)
        stage = demo_show.DemoScreen(shared, app)
        app.enqueue_many(_requests(app))
        stage.opened(url)
        with contextlib.ExitStack() as stack:
            up = live and stack.enter_context(demo_live.dashboard(stage, url, _others(), browse=dashboard is None))
            supervisor = stack.enter_context(_workers(url))
            with stage.progress():
                _watch(app, stage, supervisor)
            report = stage.report()
            stage.closed(report, url_to_show(app.store) if keep or shared.db else None)
            if up:
                demo_live.keep_up(app, stage)
        app.close()
    if report.unfinished:
        click.get_current_context().exit(PROBLEMS)


def _requests(app: Treadle) -> list[NewJob]:
    """352 jobs, in mixed order; the posts add 5 mails each."""
    wanted: list[tuple[str, dict[str, Any]]] = [
        *(("publish_post", {"post": n, "followers": 5}) for n in range(12)),
        *(("charge_card", {"order": n}) for n in range(60)),
        *(("resize_image", {"image": f"{n}.png"}) for n in range(80)),
        *(("send_mail", {"to": f"user-{n}@example.org"}) for n in range(200)),
    ]
    random.Random(1).shuffle(wanted)
    return [app.request(type, payload) for type, payload in wanted]


def _watch(app: Treadle, stage: demo_show.DemoScreen, supervisor: subprocess.Popen[bytes]) -> None:
    """Look until all is done, and kill a worker when a third is."""
    deadline, watching = time.monotonic() + PATIENCE, True
    while watching:
        if supervisor.poll() is not None:
            raise Problem(f"the workers ended with exit code {supervisor.returncode}", code=PROBLEMS)
        if time.monotonic() > deadline:
            stage.say("✗", f"not all jobs were done after {PATIENCE:g} s")
            return
        time.sleep(LOOK)
        seen = stage.look()
        if stage.victim is None and seen.completed > seen.total / 3:
            _kill_one(app, stage)
        watching = bool(seen.total - seen.completed - seen.ended_otherwise)


def _kill_one(app: Treadle, stage: demo_show.DemoScreen) -> None:
    """kill -9 a worker that has jobs in hand. It is stopped first, so that what it holds can be read exactly."""
    for worker in app.workers():
        if not worker.leases:
            continue
        pid = pid_of(worker)
        os.kill(pid, signal.SIGSTOP)
        held = [job for job in app.jobs(status="processing", limit=200) if job.worker_id == worker.id]
        if held:
            os.kill(pid, signal.SIGKILL)
            stage.killed(worker, held)
            return
        os.kill(pid, signal.SIGCONT)


def pid_of(worker: WorkerRow) -> int:
    """A worker's process; where the system does not tell, from its name `hostname-pid`."""
    return int(worker.host.get("pid") or worker.name.rpartition("-")[2])


@contextlib.contextmanager
def _place(shared: Shared, keep: bool) -> Generator[str]:
    """A database of its own: the demo kills workers, so there must be none but its own."""
    if shared.db is not None:
        url = database_url(shared.db)
        store = open_store(url)
        found = store.schema()
        if found is not None and (found or store.one_machine):
            raise Problem(
                f"{store.where} {'is in use' if found else 'exists'}",
                "The demo kills a worker, so it wants a database of its own.",
                next="name a new one",
            )
        yield url
        return
    folder = tempfile.mkdtemp(prefix="treadle-demo-")
    try:
        yield f"sqlite:///{Path(folder).resolve() / 'demo.db'}"
    finally:
        if not keep:
            shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def _workers(url: str) -> Generator[subprocess.Popen[bytes]]:
    """`treadle worker` as anybody would start it, with its log kept for when something goes wrong."""
    settings = ["--processes", str(PROCESSES), "--concurrency", str(CONCURRENCY)]
    with tempfile.TemporaryFile() as log:
        # A session of its own: Ctrl-C is for the demo, which then stops the workers.
        process = subprocess.Popen(
            [*WORKER, *settings],
            env={**_others(), URL_VARIABLE: url},
            stdin=subprocess.DEVNULL,
            stderr=log,
            start_new_session=True,
        )
        try:
            yield process
        except Problem as problem:
            log.seek(0)
            problem.cause = log.read().decode(errors="replace")[-4000:].rstrip()
            raise
        finally:
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def _others() -> dict[str, str]:
    """What is set for other workers is not meant for these."""
    return {name: value for name, value in os.environ.items() if not name.startswith("TREADLE_")}


def _interrupt(number: int, frame: object) -> None:
    raise KeyboardInterrupt
