"""Programs of queues: started, asked and stopped."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Generator
from typing import IO, Any

import msgspec

from bench.peers.peer import ROOT, Peer, PeerFailed
from bench.peers.place import STAMP, Place

PATIENCE = 60.0
"""Seconds for an answer, or without any progress, after which a measurement fails."""


class About(msgspec.Struct, frozen=True):
    """What a program says of its queue."""

    version: str
    settings: str


class Program:
    """A process of a queue, in one role."""

    def __init__(self, peer: Peer, role: str, place: Place, kind: str) -> None:
        self._name = f"{peer.name} ({role})"
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed by `stop`
        self._process = subprocess.Popen(
            [*peer.command(), role, place.url, str(place.stamps), kind],
            cwd=ROOT,
            env={**os.environ, "NODE_ENV": "production"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            start_new_session=True,  # Ctrl-C is for the benchmark, which then ends all of them
        )
        self.pid = self._process.pid

    def ask(self, name: str, amount: float) -> Any:
        """Its answer to a command."""
        self.send([name, amount])
        return self.answer()

    def send(self, message: object) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # `answer` says why it ended
            self._process.stdin.write(json.dumps(message).encode() + b"\n")
            self._process.stdin.flush()

    def answer(self) -> Any:
        assert self._process.stdout is not None
        late = threading.Timer(PATIENCE, self._process.kill)
        late.start()
        line = self._process.stdout.readline()
        late.cancel()
        if not line:
            raise PeerFailed(f"{self._name} ended, or did not answer in {PATIENCE:g} s: {self._last_words()}")
        return json.loads(line)

    def check(self) -> None:
        """Raises if it has ended."""
        if self._process.poll() is not None:
            raise PeerFailed(f"{self._name} ended: {self._last_words()}")

    def _last_words(self) -> str:
        """The line that names an error, or its last one."""
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").split("\n")
        said = [line.strip() for line in lines if line.strip()]
        errors = [line for line in said if "Error: " in line]
        return (errors or said or ["it said nothing"])[-1][:300]

    def stop(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        with contextlib.suppress(ProcessLookupError):  # some have children
            os.killpg(self.pid, signal.SIGKILL)
        for pipe in (self._process.stdin, self._process.stdout, self._errors):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()


@contextlib.contextmanager
def producing(peer: Peer, place: Place, kind: str) -> Generator[tuple[Program, About]]:
    """A program that has prepared the queue, and enqueues when asked."""
    program = Program(peer, "produce", place, kind)
    try:
        yield program, msgspec.convert(program.answer(), About)
    finally:
        program.stop()


@contextlib.contextmanager
def working(peer: Peer, place: Place, kind: str, processes: int = 1) -> Generator[list[Program]]:
    """Workers that start together, and are gone at the end of the block."""
    with contextlib.ExitStack() as stack:
        workers = [Program(peer, "work", place, kind) for _ in range(processes)]
        for worker in workers:
            stack.callback(worker.stop)
        for worker in workers:
            worker.answer()
        for worker in workers:
            worker.send("go")
        yield workers


def wait_for(workers: list[Program], place: Place, jobs: int) -> None:
    """Until the handlers have run so often. Raises if they stop, or if a worker ends."""
    seen, moved_at = -1, time.monotonic()
    while (now := place.stamps.stat().st_size // STAMP) < jobs:
        for worker in workers:
            worker.check()
        if now != seen:
            seen, moved_at = now, time.monotonic()
        elif time.monotonic() - moved_at > PATIENCE:
            raise PeerFailed(f"no progress for {PATIENCE:g} s, at {now:,} of {jobs:,} jobs")
        time.sleep(0.01)
