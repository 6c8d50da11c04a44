"""Real processes on a real database, which leave nothing behind."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from tests import stores
from tests.eventually import eventually
from tests.process import journal
from tests.process.handlers import td
from tests.process.run import OPTIONS
from tests.servers.databases import deadlocks
from tests.servers.namespaces import Host
from treadle.stores import open_store

ROOT = Path(__file__).parents[2]

SLOW = 3
"""Seconds without progress that a slow machine may explain."""

STUCK = 60
"""Seconds without progress after which something is broken, not slow."""

LAST = 60
"""How many lines of the processes' output a failed test shows."""

IN_MIDDLE = "xact_start IS NOT NULL AND pid <> pg_backend_pid()"
"""The condition that a session of PostgreSQL is in a transaction."""


def size(name: str, usual: int) -> int:
    """The size of a test: `TREADLE_TEST_STORM=100000` makes the same test longer."""
    return int(os.environ.get(f"TREADLE_TEST_{name}", usual))


class Kill(NamedTuple):
    pid: int
    at: int


class Place:
    """A folder with a database, the handlers' journals, and the processes that use them."""

    def __init__(self, folder: Path, url: str) -> None:
        self.folder = folder
        self.url = url
        self.journals = folder / "journal"
        self.journals.mkdir()
        self.environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]),
            "TREADLE_URL": self.url,
            journal.FOLDER: str(self.journals),
        }
        self.started: list[subprocess.Popen[bytes]] = []
        self.store = open_store(self.url)

    def __enter__(self) -> Place:
        self._before = td.store
        td._use(self.store)
        self._deadlocks = deadlocks(self.url) if self.is_postgres else 0
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.clean_up()
        td._use(self._before)
        if self.log.exists():  # pytest shows it if the test has failed
            print("what the processes said last:", *self.log.read_text().splitlines()[-LAST:], sep="\n")
        if kind is None and self.is_postgres:
            # A crash of the server sets the count to 0: its log has the rest, see the fixture `server`.
            assert deadlocks(self.url, end_others=True) <= self._deadlocks

    @property
    def is_postgres(self) -> bool:
        return stores.is_postgres(self.url)

    def worker(
        self,
        *,
        processes: int = 0,
        concurrency: int = 10,
        env: Mapping[str, str] | None = None,
        host: Host | None = None,
        **options: Any,
    ) -> subprocess.Popen[bytes]:
        """Start a worker, or a supervisor of `processes` of them."""
        options = {"processes": processes, "concurrency": concurrency, **options}
        return self.python("-m", "tests.process.run", env={OPTIONS: json.dumps(options), **(env or {})}, host=host)

    def python(
        self, *arguments: str, env: Mapping[str, str] | None = None, host: Host | None = None, **options: Any
    ) -> subprocess.Popen[bytes]:
        """Start Python here, or on a host of a test's network. Its output goes to the log."""
        command = [sys.executable, *arguments]
        with self.log.open("ab") as log:
            process = subprocess.Popen(
                host.command(*command) if host else command,
                cwd=ROOT,
                env={**self.environment, **(env or {})},
                **{"stdout": log, "stderr": log, **options},
            )
        self.started.append(process)
        return process

    @property
    def log(self) -> Path:
        return self.folder / "log"

    def said(self, text: str) -> int:
        """How many lines of the log have that text."""
        return sum(text in line for line in self.log.read_text().splitlines())

    # What there is

    def runs(self) -> list[journal.Run]:
        return journal.runs(self.journals)

    def noted(self, what: str) -> list[list[str]]:
        """The notes of that name, each with its pid in front."""
        return [words for words in journal.lines(self.journals) if words[1] == what]

    def count(self, status: str) -> int:
        return sum(row["count"] for row in td.counts() if row["status"] == status)

    def sql(self, query: str) -> list[tuple[Any, ...]]:
        return stores.rows(self.url, query)

    def is_sound(self) -> bool:
        """Whether SQLite's own check of the file passes. A server always counts as sound."""
        return self.is_postgres or self.store.check() == "ok"

    def open_gate(self, name: str) -> None:
        (self.folder / name).touch()

    # Processes

    def processes(self) -> list[psutil.Process]:
        """Every live process of this place, whatever its parent is now."""
        return [process for process in psutil.process_iter() if process.pid != os.getpid() and self._is_ours(process)]

    def _is_ours(self, process: psutil.Process) -> bool:
        try:
            if process.status() == psutil.STATUS_ZOMBIE:
                return False
            return process.environ().get(journal.FOLDER) == str(self.journals)
        except psutil.Error:
            return False

    def worker_pids(self) -> list[int]:
        """The processes of the workers in the database."""
        return [row.host["pid"] for row in td.workers()]

    def wait_for_workers(self, n: int) -> None:
        """Wait until this many workers have registered. A worker that cannot reach its database at its start exits with
        an error, as it should. So no fault may begin before."""
        eventually(lambda: len(td.workers()) == n)

    def stop_unless_writing(self, pids: list[int]) -> None:
        """SIGSTOP, but not while one of them holds the database's only write lock: then all others would stop too."""
        while True:
            for pid in pids:
                os.kill(pid, signal.SIGSTOP)
            if not self._lock_is_held():
                return
            for pid in pids:
                os.kill(pid, signal.SIGCONT)

    def _lock_is_held(self) -> bool:
        if self.is_postgres:  # no single lock there, but a session that holds one may block others
            return bool(self.sql("SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND " + IN_MIDDLE))
        with contextlib.closing(sqlite3.connect(self.store.where, timeout=0.2, isolation_level=None)) as connection:
            try:
                connection.execute("BEGIN IMMEDIATE")
            except sqlite3.OperationalError:
                return True
            return False

    def clean_up(self) -> None:
        self.store.close()
        while left := self.processes():
            for process in left:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
            for started in self.started:
                started.poll()
        for started in self.started:
            started.wait()


def kill_every(seconds: float, living: Callable[[], Collection[int]], left: Callable[[], int]) -> list[Kill]:
    """kill -9 one of the live workers, repeatedly, until no work is left.

    It spares the last one when there was no progress for a while: where a start takes longer than a worker lives,
    there would never be any.
    """
    kills: list[Kill] = []
    least, since = left(), time.monotonic()
    while now := left():
        if now < least:
            least, since = now, time.monotonic()
        assert time.monotonic() < since + STUCK, f"{now} left for {STUCK} s, after {len(kills)} kills: {td.counts()}"
        time.sleep(seconds)
        pids = set(living()) - {kill.pid for kill in kills}
        if pids and (len(pids) > 1 or time.monotonic() < since + SLOW):
            pid = random.choice(sorted(pids))
            kills.append(Kill(pid, time.monotonic_ns()))
            os.kill(pid, signal.SIGKILL)
    return kills


def end(process: subprocess.Popen[bytes], number: int = signal.SIGTERM) -> int:
    """Send SIGTERM, wait until it has ended, and return its exit code."""
    process.send_signal(number)
    return process.wait(60)
