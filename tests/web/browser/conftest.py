"""A real Chromium and a real server."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self, TypeVar

import pytest
from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, Request, expect, sync_playwright

from tests.eventually import eventually
from tests.servers.fixtures import cannot
from tests.web.browser import sample
from treadle import Treadle

T = TypeVar("T")

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = (
    "--no-sandbox",  # in containers, which have no user namespaces
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
PATIENCE = 30_000
"""Milliseconds. Anything that takes longer is broken, not slow."""
expect.set_options(timeout=PATIENCE)

WIDE, PHONE = {"width": 1440, "height": 900}, {"width": 375, "height": 667}


def chromium(own: str) -> str:
    """`$TREADLE_TEST_CHROMIUM`, what the system has, or Playwright's own if that is installed."""
    named = os.environ.get("TREADLE_TEST_CHROMIUM")
    found = named or next((path for name in NAMES if (path := shutil.which(name))), None)
    if not found and not Path(own).exists():
        cannot("no Chromium was found: run script/browser, or name one in TREADLE_TEST_CHROMIUM")
    return found or own


# Not for the whole session: while Playwright runs, this thread has a running event loop; other tests want their own.
@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(
            executable_path=chromium(playwright.chromium.executable_path), args=list(FLAGS)
        )
        yield started
        started.close()


@pytest.fixture(scope="package")
def mounts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mounts]:
    with Mounts(tmp_path_factory.mktemp("mounts")) as started:
        yield started


class Mounts:
    """A server for all tests, with a mount for each."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.web.browser.mounts", str(folder)], stdout=subprocess.PIPE, text=True
        )
        assert self._process.stdout is not None
        self._port = int(self._process.stdout.readline())
        self._count = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._process.terminate()
        self._process.communicate(timeout=20)

    def add(self, database: str, option: str = "") -> str:
        """The URL of this database's dashboard, without a slash at the end."""
        self._count += 1
        (self._folder / f"m{self._count}").write_text(f"{database}\n{option}")
        return f"http://127.0.0.1:{self._port}/m{self._count}"


class Backend:
    """A database with a dashboard, and workers if a test starts some."""

    def __init__(self, database: str, mounts: Mounts, stack: ExitStack) -> None:
        self.database, self._mounts, self._stack = database, mounts, stack
        self._thread = stack.enter_context(ThreadPoolExecutor(1))
        self._td = Treadle(database)
        stack.callback(self._td.close)
        self.url = mounts.add(database)
        self.cookies: Any = []

    def do(self, act: Callable[[Treadle], T]) -> T:
        """Use the library, in a thread without Playwright's event loop."""
        return self._thread.submit(act, self._td).result(60)

    def read_only(self) -> None:
        """Make the dashboard read-only."""
        self.url = self._mounts.add(self.database, "read-only")

    def work(self, *words: str) -> subprocess.Popen[bytes]:
        """Start a worker with the handlers of app.py, and wait until it is registered."""
        before = self.do(lambda td: len(td.workers()))
        command = [sys.executable, "-m", "treadle", "worker", "tests.web.browser.app:td", "--grace", "1", *words]
        worker = subprocess.Popen(
            command,
            env={**os.environ, "TREADLE_URL": self.database},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

        def stop() -> None:
            worker.terminate()
            worker.wait(20)

        self._stack.callback(stop)
        eventually(lambda: worker.poll() is not None or self.do(lambda td: len(td.workers())) > before)
        assert worker.poll() is None, "the worker died"
        return worker


@pytest.fixture
def backend(tmp_path: Path, mounts: Mounts) -> Iterator[Backend]:
    """An empty database; start what you need."""
    with ExitStack() as stack:
        yield Backend(f"sqlite:///{tmp_path}/jobs.db", mounts, stack)


@pytest.fixture(scope="package")
def day(tmp_path_factory: pytest.TempPathFactory, mounts: Mounts) -> Iterator[Backend]:
    """A database with a day's jobs. For tests that only look."""
    with ExitStack() as stack:
        made = Backend(f"sqlite:///{tmp_path_factory.mktemp('day')}/jobs.db", mounts, stack)
        made.do(lambda td: sample.fill(made.database))
        yield made


class Visit:
    """A signed-in browser profile, and the errors in it."""

    def __init__(self, context: BrowserContext, backend: Backend) -> None:
        self.context, self.backend = context, backend
        self.errors: list[str] = []
        self.requests: list[Request] = []
        context.on("request", lambda request: self.requests.append(request))
        context.on("console", self._console)
        context.on("weberror", lambda error: self.errors.append(str(error.error)))
        self.page = context.new_page()
        self.page.set_default_timeout(PATIENCE)

    def _console(self, message: ConsoleMessage) -> None:
        expected = "status of 4" in message.text  # a page that says what is wrong has such a status
        if message.type in ("error", "warning") and not expected:
            self.errors.append(f"{message.text} ({self.page.url})")

    def go(self, path: str = "/") -> Page:
        self.page.goto(self.backend.url + path)
        return self.page


Visitor = Callable[..., Visit]


@pytest.fixture
def visit(browser: Browser) -> Iterator[Visitor]:
    """`visit(backend, color_scheme="dark")`: a signed-in browser. Errors in its console fail the test."""
    made: list[Visit] = []

    def visit(backend: Backend, **options: Any) -> Visit:
        context = browser.new_context(**{"viewport": WIDE, "timezone_id": "UTC", **options})
        context.add_cookies(backend.cookies)
        made.append(Visit(context, backend))
        return made[-1]

    yield visit
    for one in made:
        one.context.close()
    assert not [error for one in made for error in one.errors]
