"""The four stages of examples/call_pipeline on BullMQ, unchanged: uploaded in a transaction, and relayed."""

from __future__ import annotations

import json
import threading
from http.server import ThreadingHTTPServer
from pathlib import Path

import pytest

from examples.call_pipeline import database, service, sound, storage
from examples.call_pipeline.calls import upload
from examples.call_pipeline.database import td
from examples.call_pipeline.jobs import extract_audio
from examples.call_pipeline.tables import make_tables
from tests.contrib.bullmq.conftest import Bench
from tests.eventually import eventually
from treadle.contrib.bullmq import Bull, Relay
from treadle.stores import open_store

APP = "examples.call_pipeline.jobs:td"
SAID = ["hello", "problem", "great", "thanks"]


class DoneWhenAskedAgain(service.Speech):
    """An operation is done once somebody has asked for it in vain, however slow the machine is."""

    def do_GET(self) -> None:
        super().do_GET()
        id = self.path.removeprefix("/operations/")
        if id in service.operations:
            service.operations[id] = (0.0, service.operations[id][1])


def test_the_four_stages_run_unchanged(bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "URL", bench.url)
    monkeypatch.setattr(storage, "ROOT", tmp_path / "storage")
    monkeypatch.setattr(service, "SECONDS", 3600)
    monkeypatch.setattr(service, "operations", {})  # other tests have used it, in the same process
    make_tables(bench.url)
    server = ThreadingHTTPServer(("127.0.0.1", 0), DoneWhenAskedAgain)
    threading.Thread(target=server.serve_forever, args=[0.01], daemon=True).start()
    bench.environment |= {
        "SPEECH_URL": f"http://127.0.0.1:{server.server_port}",
        "SPEECH_POLL_INTERVAL_MS": "100",
        "STORAGE": str(tmp_path / "storage"),
    }
    before = td.store
    td._use(open_store(bench.url))
    bull = Bull(bench.redis, td)
    try:
        upload("acme", "c1", "a call", sound.record(SAID))
        assert Relay(td, bench.redis, types=[extract_audio], bull=bull).tick().completed == 1
    finally:
        bull.close()
        td.close()
        td._use(before)

    refused = bench.worker(module=APP)
    assert "type 'transcribe_start' declares limits" in refused.communicate(timeout=60)[1]
    worker = bench.worker("--without", "limits", "--without", "transactions", module=APP)
    eventually(lambda: len(bench.ids("completed")) == 4, every=0.05)
    bench.stop(worker)
    server.shutdown()
    server.server_close()

    names = {bench.hash(id)["name"]: id for id in bench.ids("completed")}
    assert set(names) == {"extract_audio", "transcribe_start", "transcribe_poll", "analyze"}
    assert bench.snoozes(names["transcribe_poll"]) >= 1
    assert bench.returned(names["analyze"])["mood"] == 1
    assert json.loads(bench.hash(names["analyze"])["opts"])["treadle"]["tenant"] == "acme"
    with database.connected() as connection:
        rows = connection.execute("SELECT kind FROM artifacts WHERE call_id = 'c1' ORDER BY kind").fetchall()
    assert [kind for (kind,) in rows] == ["analysis", "audio", "transcript"]
