"""Kills an example with kill -9 at random moments, many times."""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import httpx2
import pytest
from starlette.testclient import TestClient

from tests.eventually import eventually
from treadle import Job, Treadle

ROOT = Path(__file__).parents[2]
KILLS = int(os.environ.get("TREADLE_TEST_EXAMPLE_KILLS", "20"))


class Example:
    """An example's worker in its own process, which can be killed and started again."""

    def __init__(self, module: str, *, port: int | None = None, **environment: str) -> None:
        self.port = port
        self._zygote = subprocess.Popen(
            [sys.executable, "-m", "tests.examples.zygote", module, *([] if port is None else [str(port)])],
            cwd=ROOT,
            env={**os.environ, **environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        self.pid = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.killpg(self._zygote.pid, signal.SIGKILL)  # with all its children
        self._zygote.communicate()

    def start(self, *, until_it_answers: bool = True) -> None:
        assert self._zygote.stdin is not None
        assert self._zygote.stdout is not None
        self._zygote.stdin.write(b"start\n")
        self._zygote.stdin.flush()
        self.pid = int(self._zygote.stdout.readline())
        if self.port is not None and until_it_answers:
            eventually(self._answers)

    def kill(self, number: int = signal.SIGKILL) -> None:
        os.kill(self.pid, number)
        eventually(lambda: not Path(f"/proc/{self.pid}").exists())

    def _answers(self) -> bool:
        assert Path(f"/proc/{self.pid}").exists(), "the server ended by itself"
        try:
            return httpx2.get(f"http://127.0.0.1:{self.port}/openapi.json", timeout=30).is_success
        except httpx2.TransportError:
            return False


def signed_in(app: Any, log: pytest.LogCaptureFixture) -> TestClient:
    """A client that has used the link that the example's dashboard prints."""
    client = TestClient(app, base_url="http://127.0.0.1")
    assert client.get("/dashboard/").status_code == 401
    login = re.findall(r"\?login=\S+", log.text)[-1]
    assert client.get(f"/dashboard/{login}").status_code == 200
    return client


def completed(td: Treadle) -> int:
    return counts(td).get("completed", 0)


def counts(td: Treadle) -> dict[str, int]:
    return {row["status"]: row["count"] for row in td.counts() if row["count"]}


def kill_again_and_again(example: Example, td: Treadle, more: Callable[[int], None], kills: int = KILLS) -> None:
    """Start it, give it more work, and kill it at a random moment: counted in jobs, and between two of them in time.

    A job that runs at every kill runs out of attempts, as it should. So no job is killed a third time.
    """
    hits: Counter[str] = Counter()
    for kill in range(kills):
        if kill == 0:
            _kill_while_it_starts(example)  # and makes the tables
        elif kill % 5 == 0 and not any(hits[job.id] >= 2 for job in _unfinished(td)):
            _kill_while_it_starts(example)
            hits.update(_held(td))
        example.start()
        wanted = completed(td) + random.randrange(8)
        more(kill)
        eventually(lambda wanted=wanted: completed(td) >= wanted or not _unfinished(td))  # some may have failed
        time.sleep(random.uniform(0, 0.03))
        eventually(lambda: _kill_unless_hit_twice(example, td, hits))
    example.start()
    eventually(lambda: counts(td).keys() <= {"completed", "failed"} and completed(td))
    assert hits or kills < KILLS, "no kill has hit a job"


def _kill_while_it_starts(example: Example) -> None:
    """Kill it without reading the database: it may hold a lock that a read needs."""
    example.start(until_it_answers=False)
    time.sleep(random.uniform(0, 0.2))
    example.kill()


def _kill_unless_hit_twice(example: Example, td: Treadle, hits: Counter[str]) -> bool:
    """The worker is stopped while we read which jobs it runs."""
    os.kill(example.pid, signal.SIGSTOP)
    held = _held(td)
    if any(hits[id] >= 2 for id in held):
        os.kill(example.pid, signal.SIGCONT)
        return False
    hits.update(held)
    example.kill()
    return True


def _held(td: Treadle) -> list[str]:
    return [job.id for job in _unfinished(td) if job.status == "processing"]


def _unfinished(td: Treadle) -> list[Job]:
    return td.jobs(status=["pending", "processing"], limit=200).jobs
