"""Pauses and quiet workers: over the API and on the pages."""

from __future__ import annotations

import pytest
from starlette.testclient import TestClient

from tests.web.conftest import OURS, Connect
from treadle import Treadle
from treadle.stores.base import WorkerRow


def paused(td: Treadle) -> list[str]:
    return [f"{pause.target} {pause.by} {pause.reason}".strip() for pause in td.pauses()]


def actions(td: Treadle) -> list[tuple[str, str]]:
    return [(row.action, row.what) for row in td.store.audits(10)]


@pytest.fixture
def worker(td: Treadle) -> str:
    td.store.register(WorkerRow(id="w1", name="host-1", concurrency=3, types=("mail",)))
    return "w1"


@pytest.mark.parametrize("kind", ["queue", "type", "tenant"])
def test_pause_and_resume_over_the_api(client: TestClient, td: Treadle, kind: str) -> None:
    answer = client.post("/api/pauses", json={kind: "mail", "reason": "down", "until": "2999-01-01T00:00:00Z"})

    assert (200, "mail", "down") == (answer.status_code, answer.json()[kind], answer.json()["reason"])
    [found] = client.get("/api/pauses").json()["items"]
    assert found == answer.json()
    assert found["until"].startswith("2999-01-01")
    assert found["by"]
    resumed = client.post("/api/pauses/resume", json={kind: "mail"}).json()
    assert resumed == {"resumed": found}
    assert client.post("/api/pauses/resume", json={kind: "mail"}).json() == {"resumed": None}
    assert client.get("/api/pauses").json() == {"items": []}
    assert actions(td) == [("resume", f"{kind} 'mail'"), ("pause", f"{kind} 'mail': down")]


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"queue": "mail", "type": "send"},
        {"queue": ""},
        {"queue": "x" * 201},
        {"queue": "mail", "until": "2020-01-01T00:00:00Z"},
        {"queue": "mail", "until": "2999-01-01T00:00:00"},
        {"queue": "mail", "reason": "x" * 1001},
        {"queue": "a\0b"},
        {"queue": "mail", "why": "down"},
    ],
    ids=str,
)
def test_a_bad_body_is_refused(client: TestClient, td: Treadle, body: dict[str, str]) -> None:
    assert client.post("/api/pauses", json=body).status_code == 400
    assert [] == paused(td)


def test_a_drain_says_how_much_still_runs(client: TestClient, td: Treadle) -> None:
    td.enqueue("send", queue="mail")
    [lease] = td.claim()
    first = client.post("/api/pauses/drain", json={"queue": "mail"}).json()
    assert (1, False) == (first["running"], first["done"])
    lease.complete()
    assert client.post("/api/pauses/drain", json={"queue": "mail"}).json()["done"]


def test_a_worker_becomes_quiet(client: TestClient, td: Treadle, worker: str) -> None:
    assert client.post(f"/api/workers/{worker}/quiet").json()["quiet_for"] is not None
    assert client.post(f"/api/workers/{worker}/resume").json()["quiet_for"] is None
    assert client.post("/api/workers/nobody/quiet").status_code == 404
    assert actions(td) == [("unquiet", "host-1"), ("quiet", "host-1")]


def test_a_worker_that_stops_as_it_becomes_quiet_is_not_found(
    client: TestClient, td: Treadle, worker: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Treadle, "workers", lambda _: [])
    assert client.post(f"/api/workers/{worker}/quiet").status_code == 404


def test_a_tenant_sees_its_own_pause_and_changes_none(connect: Connect, td: Treadle) -> None:
    td.pause(tenant="acme", by="ann"), td.pause(tenant="umbrella", by="ann"), td.pause(queue="mail", by="ann")
    bound = connect("read manage @acme")

    assert ["acme"] == [found["tenant"] for found in bound.get("/api/pauses").json()["items"]]
    assert [] == connect("read @").get("/api/pauses").json()["items"]  # bound to the jobs without a tenant
    for path in ("/api/pauses", "/api/pauses/resume", "/api/pauses/drain"):
        assert bound.post(path, json={"tenant": "acme"}).status_code == 403
    assert 3 == len(td.pauses())


def test_the_pages_show_pauses_with_who_and_why(client: TestClient, td: Treadle) -> None:
    td.enqueue("send", queue="mail")
    td.pause(queue="mail", by="ann", reason="provider <down>")

    for path in ("/", "/workers"):
        text = client.get(path).text
        assert "provider &lt;down&gt;" in text
        assert "ann" in text
    assert 'data-testid="paused"' in client.get("/workers").text


def test_the_buttons_pause_and_resume(client: TestClient, td: Treadle) -> None:
    assert 'value="mail"' in client.get("/pauses/new", params={"kind": "queue", "name": "mail"}).text
    form = {"kind": "queue", "name": "mail", "reason": "down", "for": "1h"}
    answer = client.post("/pauses", data=form, headers=OURS, follow_redirects=False)
    assert (303, "/workers") == (answer.status_code, answer.headers["location"])
    [pause] = td.pauses()
    assert 3590 < (pause.until - pause.since).total_seconds() < 3610 if pause.until else False
    client.post("/pauses/resume", data={"kind": "queue", "name": "mail"}, headers=OURS)
    assert [] == paused(td)
    assert [("resume", "queue 'mail'"), ("pause", "queue 'mail': down")] == actions(td)


def test_a_form_with_a_bad_name_is_shown_again(client: TestClient, td: Treadle) -> None:
    answer = client.post("/pauses", data={"kind": "tenant", "name": "x" * 201}, headers=OURS)
    assert (400, True) == (answer.status_code, 'data-testid="pause-error"' in answer.text)
    assert client.post("/pauses", data={"kind": "colour", "name": "red"}, headers=OURS).status_code == 400
    assert [] == paused(td)


def test_the_button_of_a_worker(client: TestClient, td: Treadle, worker: str) -> None:
    client.post("/workers/quiet", data={"id": worker, "quiet": "1"}, headers=OURS)
    assert ">Quiet<" in client.get("/workers").text.replace("</svg>Quiet", ">Quiet")
    assert td.workers()[0].quiet_at is not None
    client.post("/workers/quiet", data={"id": worker, "quiet": "0"}, headers=OURS)
    assert td.workers()[0].quiet_at is None


def test_readers_see_no_buttons(connect: Connect, td: Treadle) -> None:
    td.pause(queue="mail", by="ann")
    text = connect("read").get("/workers").text
    assert "ann" in text
    assert 'data-testid="resume"' not in text


def test_a_pause_is_a_metric(client: TestClient, td: Treadle) -> None:
    td.pause(queue="mail")
    assert 'treadle_pause_seconds{queue="mail"} 0' in client.get("/metrics").text


@pytest.mark.parametrize("length", ["99999999999d", "3000000d", "soon", "0"])
def test_a_page_refuses_a_length_that_no_pause_can_have(client: TestClient, td: Treadle, length: str) -> None:
    form = {"kind": "queue", "name": "mail", "for": length}
    assert client.post("/pauses", data=form, headers=OURS).status_code == 400
    assert td.pauses() == []
