"""`treadle worker --health`, in real processes."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import urllib.error
import urllib.request
from contextlib import closing

import pytest

from tests.cli.test_worker import line_with
from tests.eventually import eventually
from treadle import Status

JOBS = """
import os, time
@td.job
def good(): return os.getpid()
@td.job(max_attempts=1)
def bad(): raise ValueError("no")
@td.job(max_attempts=1)
async def block(): time.sleep(600)
"""


def get(url: str, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(url + path, timeout=30) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def test_a_supervisor_answers_for_its_processes_and_a_blocked_one_fails_livez_within_15_seconds(start, write_app, td):
    process = start("worker", write_app(JOBS), "--processes", "2", "--health", "127.0.0.1:0", "--concurrency", "1")
    url = line_with(process.stderr, "probes at").split()[-1]
    assert get(url, "/livez") == (200, "ok\n")  # from the start
    eventually(lambda: get(url, "/readyz") == (200, "ok\n"))
    for name in ("good", "bad", "good"):
        job = td.enqueue(name)
        eventually(lambda job=job: td.get(job.id).status.is_final)
    eventually(lambda: attempts(get(url, "/metrics")[1]) == {("bad", "failed"): 1, ("good", "completed"): 2})
    assert get(url, "/metrics")[1].count("treadle_process_slots{") == 2
    assert get(url, "/livez") == (200, "ok\n")

    blocking = td.enqueue("block")
    eventually(lambda: td.get(blocking.id).status is Status.PROCESSING)
    status, text = eventually(lambda: found if (found := get(url, "/livez"))[0] != 200 else None, within=15)
    assert (status, text.partition(":")[2]) == (503, " its event loop has been blocked for 10 s\n")

    [worker] = [worker for worker in td.workers() if worker.leases]
    os.kill(worker.host["pid"], signal.SIGKILL)
    eventually(lambda: get(url, "/livez") == (200, "ok\n"))
    eventually(lambda: get(url, "/readyz") == (200, "ok\n"))
    process.terminate()
    assert process.wait(60) == 0


def test_with_json_lines_the_address_of_the_probes_is_one_of_them(start, write_app, td):
    process = start("worker", write_app(JOBS), "--health", "127.0.0.1:0", "--burst", "--log-format", "json", "-v")
    _, said = process.communicate(timeout=60)
    lines = [json.loads(line)["message"] for line in said.splitlines()]
    assert any(re.fullmatch(r"probes at http://127.0.0.1:\d+", line) for line in lines)


def attempts(text: str) -> dict[tuple[str, str], int]:
    """By type and outcome, of both processes."""
    found: dict[tuple[str, str], int] = {}
    line = r'treadle_process_attempts_total\{process="\d",type="(\w+)",outcome="(\w+)"\} (\d+)'
    for type, outcome, n in re.findall(line, text):
        found[type, outcome] = found.get((type, outcome), 0) + int(n)
    return found


@pytest.mark.parametrize("address", ["8081", "127.0.0.1:http", "taken"])
def test_an_address_that_cannot_be_used_is_exit_code_2_and_starts_no_worker(start, write_app, td, address):
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        given = f"127.0.0.1:{taken.getsockname()[1]}" if address == "taken" else address
        process = start("worker", write_app(JOBS), "--health", given)
        _, said = process.communicate(timeout=60)
    assert process.returncode == 2
    assert given in said
    assert ("free port" if address == "taken" else "HOST:PORT") in said
    assert "types" not in said
