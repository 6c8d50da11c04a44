"""Who works, as the API and the command line tell it."""

from __future__ import annotations

from pathlib import Path

import pytest
from starlette.testclient import TestClient

from windlass import Windlass, clock
from windlass.health import is_live
from windlass.stores.base import WorkerRow


@pytest.mark.parametrize(("silent", "live"), [(10, True), (30, False)])
def test_the_api_calls_those_alive_whom_the_command_line_does(tmp_path: Path, silent: int, live: bool) -> None:
    """A worker beats every 5 seconds."""
    moments = [clock.now()]
    wl = Windlass(f"sqlite:///{tmp_path}/jobs.db", clock=lambda: moments[0])
    wl.store.register(WorkerRow(id="w", name="host-1", concurrency=1))
    moments[0] += silent * clock.SECOND

    web = TestClient(wl.asgi(auth=lambda request: "read"), base_url="http://localhost")
    [worker] = web.get("/api/workers").json()["items"]

    assert (worker["live"], worker["silent_for"]) == (live, silent)
    assert is_live(wl.workers()[0], wl.store.now()) is live
