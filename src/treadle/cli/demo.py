"""`treadle demo`: a real queue for a few seconds, one of whose workers is killed on the way."""

from __future__ import annotations

import itertools
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import webbrowser
from collections.abc import Generator
from contextlib import ExitStack, closing, contextmanager, suppress
from functools import partial
from pathlib import Path
from subprocess import DEVNULL, PIPE, Popen, TimeoutExpired
from typing import IO, Any

import click

from treadle.app import Treadle
from treadle.cli.app_loader import url_to_show
from treadle.cli.base import Shared, command
from treadle.cli.demo_screen import DemoScreen
from treadle.cli.errors import PROBLEMS, CommandError, refuse_windows
from treadle.settings import URL_VARIABLE, database_url
from treadle.stores import open_store
from treadle.stores.base import WorkerRow

PATIENCE = 60.0  # seconds after which the demo gives up; it takes about five
LOOK, PAUSE = 0.05, 0.5  # seconds between two looks, and between the jobs that keep the dashboard alive
HELP = "Run a real queue on a SQLite file for a few seconds: two workers, one of which is killed on the way."
APP = "treadle.cli.demo_app:td"
FIRST = {"publish_post": 12, "charge_card": 60, "resize_image": 80, "send_mail": 200}  # jobs; each post adds 5 mails
LATER = {"send_mail": 1, "resize_image": 1, "charge_card": 3, "import_feed": 10}  # a job in every nth round


@command("demo", help=HELP)
@click.option("--keep", is_flag=True, help="Keep the database, to look around in it.")
@click.option("--dashboard/--no-dashboard", default=None, help="Show it in a browser too. Default: in a terminal.")
def demo(shared: Shared, keep: bool, dashboard: bool | None) -> None:
    refuse_windows("treadle demo", "README.md has a first job to run")
    wanted = dashboard if dashboard is not None else shared.out.is_terminal and not shared.json
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that the workers are stopped, too
    with ExitStack() as stack:
        url = _database(shared, stack, keep=keep)
        app = stack.enter_context(closing(Treadle(url)))
        screen = DemoScreen(shared, app)
        first = [app.request(type, _payload(type, n)) for type, count in FIRST.items() for n in range(count)]
        app.enqueue_many(random.Random(1).sample(first, len(first)))
        screen.say("•", f"{len(first)} jobs stored in {app.store.where}")
        screen.say("•", "two worker processes start: treadle worker … --processes 2")
        up = wanted and stack.enter_context(_dashboard(screen, url, browse=dashboard is None))
        log = stack.enter_context(tempfile.TemporaryFile())
        options = ("--grace", "5", "--processes", "2", "--concurrency", "4")
        supervisor = stack.enter_context(_treadle(url, "worker", APP, *options, stderr=log))
        with screen.bars:
            _watch(app, screen, supervisor, log)
        unfinished = screen.report(url_to_show(app.store) if keep or shared.db else None)
        if up:
            _keep_busy(app, screen)
    if unfinished:
        click.get_current_context().exit(PROBLEMS)


def _payload(type: str, n: int) -> dict[str, Any]:
    payloads: dict[str, dict[str, Any]] = {
        "publish_post": {"post": n, "followers": 5},
        "charge_card": {"order": n},
        "resize_image": {"image": f"{n}.png"},
        "send_mail": {"to": f"user-{n}@example.org"},
        "import_feed": {"feed": f"https://example.org/{n}.xml", "password": "secret"},
    }
    return payloads[type]


def _watch(app: Treadle, screen: DemoScreen, supervisor: Popen[str], log: IO[bytes]) -> None:
    """Look until all is done, and kill a worker when a third is."""
    deadline = time.monotonic() + PATIENCE
    while supervisor.poll() is None:
        if time.monotonic() > deadline:
            screen.say("✗", f"not all jobs were done after {PATIENCE:g} s")
            return
        time.sleep(LOOK)
        seen = screen.look()
        if screen.victim is None and seen["completed"] > seen.total() / 3:
            kill_one(app, screen)
        if not seen["pending"] + seen["processing"]:
            return
    log.seek(0)
    cause = log.read().decode(errors="replace")[-4000:].rstrip()
    raise CommandError(f"the workers ended with exit code {supervisor.returncode}", cause, code=PROBLEMS)


def kill_one(app: Treadle, screen: DemoScreen) -> None:
    """kill -9 a worker that runs jobs. It is stopped first, so that what it holds can be read exactly."""
    workers = app.workers()  # if both are there, one that registers later takes the place of the killed one
    for worker in [worker for worker in workers if worker.leases and len(workers) > 1]:
        pid = pid_of(worker)
        os.kill(pid, signal.SIGSTOP)
        if held := [job for job in app.jobs(status="processing", limit=200) if job.worker_id == worker.id]:
            os.kill(pid, signal.SIGKILL)
            screen.killed(worker, held, workers)
            return
        os.kill(pid, signal.SIGCONT)


def pid_of(worker: WorkerRow) -> int:
    """A worker's process; where the system does not report it, from its name `hostname-pid`."""
    return int(worker.host.get("pid") or worker.name.rpartition("-")[2])


def _database(shared: Shared, stack: ExitStack, *, keep: bool) -> str:
    """The URL of a new database: the demo kills a worker, so no other workers may be there."""
    if shared.db is None:
        folder = Path(tempfile.mkdtemp(prefix="treadle-demo-")).resolve()
        if not keep:
            stack.callback(shutil.rmtree, folder)
        return f"sqlite:///{folder / 'demo.db'}"
    store = open_store(database_url(shared.db))
    found = store.schema()
    if found is not None and (found or store.single_host):
        what = f"{store.where} {'is in use' if found else 'exists'}"
        raise CommandError(what, "The demo kills a worker, so it needs a database of its own.", next="name a new one")
    return store.url


@contextmanager
def _dashboard(screen: DemoScreen, url: str, *, browse: bool) -> Generator[bool]:
    """Yields whether it is up. It needs the extra `web`; the demo works without it."""
    with _treadle(url, "dashboard", APP, "--port", "0", stdout=PIPE, stderr=DEVNULL) as process:
        link = process.stdout.readline().strip() if process.stdout else ""
        without = "there is a dashboard, too: pip install 'treadle[web]'"
        screen.say("•", f"watch them: {link}" if link else without, "bold" if link else "")
        # Only where a browser is a window of its own, and does not take over the terminal.
        desktop = sys.platform == "darwin" or os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
        if link and browse and desktop:
            webbrowser.open(link)
        yield bool(link)


@contextmanager
def _treadle(url: str, *words: str, stderr: int | IO[bytes], stdout: int | None = None) -> Generator[Popen[str]]:
    """A command as a user would start it, but without the settings that are meant for other workers."""
    others = {name: value for name, value in os.environ.items() if not name.startswith("TREADLE_")}
    command, env = [sys.executable, "-m", "treadle", *words], {**others, URL_VARIABLE: url}
    # In a session of its own: Ctrl-C is for the demo, which then stops the process.
    process = Popen(command, env=env, stdin=DEVNULL, stdout=stdout, stderr=stderr, text=True, start_new_session=True)
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(20)
        except TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _keep_busy(app: Treadle, screen: DemoScreen) -> None:
    """A few jobs now and then, some of which fail, until Ctrl-C."""
    with suppress(KeyboardInterrupt):
        screen.say("•", "the dashboard stays up, with a few jobs a second; Ctrl-C ends it", "bold")
        for n in itertools.count(1):
            request = partial(app.request, tenant=random.choice(("acme", "globex", "initech")))
            app.enqueue_many([request(type, _payload(type, n)) for type, every in LATER.items() if n % every == 0])
            time.sleep(PAUSE)
