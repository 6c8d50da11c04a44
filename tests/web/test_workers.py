"""Workers and whether they are alive, in the API and on the command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from starlette.testclient import TestClient

from treadle import Treadle, clock
from treadle.cli import cli
from treadle.diagnosis import is_alive
from treadle.stores.base import WorkerRow


@pytest.mark.parametrize(("silent", "live"), [(10, True), (30, False)])
def test_the_api_and_the_command_line_agree_on_which_workers_are_alive(tmp_path: Path, silent: int, live: bool) -> None:
    """A worker beats every 5 seconds."""
    moments = [clock.now()]
    td = Treadle(f"sqlite:///{tmp_path}/jobs.db", clock=lambda: moments[0])
    td.store.register(WorkerRow(id="w", name="host-1", concurrency=1))
    moments[0] += silent * clock.SECOND

    web = TestClient(td.asgi(auth=lambda request: "read"), base_url="http://localhost")
    [worker] = web.get("/api/workers").json()["items"]

    assert (worker["live"], worker["silent_for"]) == (live, silent)
    assert is_alive(td.workers()[0], td.store.now()) is live


@pytest.mark.parametrize(("silent", "live"), [(10, True), (40, False)])
def test_all_agree_on_whether_a_worker_is_alive(tmp_path: Path, silent: int, live: bool) -> None:
    """`why`, `problems`, the command line and the API, at the same moment."""
    url = f"sqlite:///{tmp_path}/jobs.db"
    before = Treadle(url, clock=lambda: clock.now() - silent * clock.SECOND)
    job = before.enqueue("mail")
    before.store.register(WorkerRow(id="w", name="host-1", concurrency=1, types=("mail",)))
    td = Treadle(url)
    web = TestClient(td.asgi(auth=lambda request: "read"), base_url="http://localhost")

    def command(*words: str) -> Any:
        return json.loads(CliRunner().invoke(cli, [*words, "--db", url, "--json"]).stdout)

    assert ("no_worker" in [problem.code for problem in td.problems()]) is not live
    assert (td.why(job.id).reasons[0].code == "no_worker") is not live
    assert (command("jobs", "why", job.id)["reasons"][0]["code"] == "no_worker") is not live
    assert command("workers")["items"][0]["live"] is live
    assert command("top")["workers"][0]["live"] is live
    assert command("stats")["workers"] == {"live": int(live), "lost": int(not live)}
    assert web.get("/api/workers").json()["items"][0]["live"] is live
    assert ("1 alive" in web.get("/workers").text) is live
    assert f"treadle_workers {int(live)}" in web.get("/metrics").text.splitlines()
