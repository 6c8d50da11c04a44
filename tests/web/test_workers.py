"""Who works, as the API and the command line tell it."""

from __future__ import annotations

from pathlib import Path

import pytest
from starlette.testclient import TestClient

from treadle import Treadle, clock
from treadle.health import is_live
from treadle.stores.base import WorkerRow


@pytest.mark.parametrize(("silent", "live"), [(10, True), (30, False)])
def test_the_api_calls_those_alive_whom_the_command_line_does(tmp_path: Path, silent: int, live: bool) -> None:
    """A worker beats every 5 seconds."""
    moments = [clock.now()]
    td = Treadle(f"sqlite:///{tmp_path}/jobs.db", clock=lambda: moments[0])
    td.store.register(WorkerRow(id="w", name="host-1", concurrency=1))
    moments[0] += silent * clock.SECOND

    web = TestClient(td.asgi(auth=lambda request: "read"), base_url="http://localhost")
    [worker] = web.get("/api/workers").json()["items"]

    assert (worker["live"], worker["silent_for"]) == (live, silent)
    assert is_live(td.workers()[0], td.store.now()) is live
