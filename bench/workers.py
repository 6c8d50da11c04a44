"""Processes of the benchmark: started, awaited and stopped."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator
from typing import IO

import click

from bench.database import BenchDatabase

STALLED = 60.0
"""Seconds without any progress after which a run fails."""


WORK = "bench.work"


class Child:
    """A process that runs a module: imported and connected, but not working before `go`."""

    def __init__(self, database: BenchDatabase, module: str, *words: str) -> None:
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed by `stop`
        command = [sys.executable, "-m", module, *words]
        self._process = subprocess.Popen(
            command,
            env={**os.environ, "TREADLE_URL": database.url},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
        )
        self.pid = self._process.pid

    def ready(self) -> None:
        """Wait until it can start."""
        if self.line() != b"ready\n":
            raise click.ClickException(f"a process of the benchmark did not start:\n{self.errors()}")

    def go(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(b"go\n")
        self._process.stdin.flush()

    def line(self) -> bytes:
        """The next line that it prints."""
        assert self._process.stdout is not None
        return self._process.stdout.readline()

    def lives(self) -> bool:
        return self._process.poll() is None

    def errors(self) -> str:
        self._errors.seek(0)
        return self._errors.read()[-4000:].decode(errors="replace")

    def stop(self, patience: float = 5.0) -> None:
        self._process.terminate()
        try:
            self._process.wait(patience)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout, self._errors):
            if pipe is not None:
                pipe.close()


@contextlib.contextmanager
def working(
    database: BenchDatabase, processes: int, concurrency: int, profile: str | None = None, module: str = WORK
) -> Generator[list[Child]]:
    """Worker processes that start together, and are gone at the end of the block."""
    with contextlib.ExitStack() as stack:
        workers = []
        for _ in range(processes):
            workers.append(Child(database, module, str(concurrency), *([profile] if profile else ())))
            stack.callback(workers[-1].stop)
        for worker in workers:
            worker.ready()
        for worker in workers:
            worker.go()
        yield workers


def wait_for(workers: list[Child], count: Callable[[], int], enough: int, every: float = 0.02) -> None:
    """Until `count` reaches `enough`. Raises if it stops increasing, or if a worker dies."""
    seen, moved_at = -1, time.monotonic()
    while (now := count()) < enough:
        if now != seen:
            seen, moved_at = now, time.monotonic()
        for worker in workers:
            if not worker.lives() or time.monotonic() - moved_at > STALLED:
                what = "makes no progress" if worker.lives() else "died"
                raise click.ClickException(f"a worker process {what} at {now} of {enough} jobs:\n{worker.errors()}")
        time.sleep(every)
