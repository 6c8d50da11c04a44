"""Steps, waits and signals: over the API, and on the page of a job."""

from __future__ import annotations

import msgspec
import pytest
from starlette.testclient import TestClient

from tests import stores
from tests.durable import approval, child_of, complete, refreshed, suspend, take
from tests.web.conftest import Connect
from treadle import Treadle
from treadle.job import Status
from treadle.outcome import Outcome, OutcomeKind
from treadle.steps import NewStep
from treadle.waits import NewSignal, NewWait


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    stores.on_every_store(metafunc, "url", ("sqlite", "postgresql"))


def audited(td: Treadle) -> list[tuple[str, str, str]]:
    return [(row.who, row.action, row.what) for row in td.store.audits(10)]


def test_a_signal_is_sent_once_in_the_name_of_the_caller(connect: Connect, td: Treadle) -> None:
    job = suspend(td, approval())
    first = connect("manage").post("/api/signals", json={"name": "approve:c-7", "value": {"ok": True}})
    again = connect("read manage").post("/api/signals", json={"name": "approve:c-7", "value": False})

    assert (first.status_code, again.status_code) == (201, 200)
    assert again.json() == first.json() == connect("read").get("/api/signal", params={"name": "approve:c-7"}).json()
    assert (first.json()["value"], first.json()["by"], first.json()["tenant"]) == ({"ok": True}, "manage", "")
    assert audited(td) == [("manage", "signal", "approve:c-7")]
    assert take(td, job.id).id == job.id
    assert [step.kind for step in td.store.steps(job.id)] == ["step", "step", "signal"]


def test_nobody_has_sent_it(client: TestClient) -> None:
    answer = client.get("/api/signal", params={"name": "a/b"})
    assert (answer.status_code, answer.json()["detail"]) == (404, "nobody has sent the signal 'a/b'")


@pytest.mark.parametrize(
    "body",
    [{}, {"name": ""}, {"name": "x" * 201}, {"name": "a\0b"}, {"name": "a", "value": "\0"}, {"name": "a", "by": "eve"}],
    ids=str,
)
def test_a_bad_signal_is_refused(client: TestClient, td: Treadle, body: dict[str, str]) -> None:
    assert client.post("/api/signals", json=body).status_code == 400
    assert audited(td) == []


def test_a_caller_bound_to_a_tenant_signals_for_that_one(connect: Connect, td: Treadle) -> None:
    mine, theirs = suspend(td, approval(), tenant="acme"), suspend(td, approval(), tenant="umbrella")
    acme = connect("read manage @acme")

    assert acme.post("/api/signals", json={"name": "go", "tenant": "umbrella"}).status_code == 403
    assert acme.post("/api/signals", json={"name": "approve:c-7"}).json()["tenant"] == "acme"
    assert acme.get("/api/signal", params={"name": "approve:c-7"}).status_code == 200
    assert td.store.get_signal("approve:c-7", "umbrella") is None
    assert acme.get("/api/signal", params={"name": "approve:c-7", "tenant": "umbrella"}).status_code == 403
    for what in ("steps", "waits"):
        assert acme.get(f"/api/jobs/{mine.id}/{what}").json()["items"]
        assert acme.get(f"/api/jobs/{theirs.id}/{what}").status_code == 404
    form = {"name": "approve:c-7", "value": "true"}
    assert acme.post(f"/jobs/{theirs.id}/signal", data=form).status_code == 404
    assert td.store.get_signal("approve:c-7", "umbrella") is None


def test_only_who_may_manage_sends_signals(connect: Connect, td: Treadle) -> None:
    job = suspend(td, approval())
    for who in ("read", "enqueue", "tick"):
        assert connect(who).post("/api/signals", json={"name": "approve:c-7"}).status_code == 403
        assert connect(who).post(f"/jobs/{job.id}/signal", data={"name": "approve:c-7"}).status_code == 403
    assert "approve" not in [*_testids(connect("read").get(f"/jobs/{job.id}").text)]
    assert td.store.get_signal("approve:c-7") is None


def test_a_form_of_another_site_sends_nothing(client: TestClient, td: Treadle) -> None:
    job = suspend(td, approval())
    elsewhere = {"Sec-Fetch-Site": "cross-site"}
    assert client.post(f"/jobs/{job.id}/signal", data={"name": "approve:c-7"}, headers=elsewhere).status_code == 403
    assert td.store.get_signal("approve:c-7") is None


def test_steps_and_waits_over_the_api(client: TestClient, td: Treadle) -> None:
    job = suspend(td, approval())

    plan, token = client.get(f"/api/jobs/{job.id}/steps").json()["items"]
    (wait,) = client.get(f"/api/jobs/{job.id}/waits").json()["items"]

    assert (plan["name"], plan["kind"], plan["attempt"]) == ("plan", "step", 1)
    assert plan["value"] == {"pages": [1, 2], "password": "•••"}
    assert "arguments" not in plan
    assert token["value"] == "•••"
    assert (wait["kind"], wait["what"], wait["step"], wait["met"]) == ("signal", "approve:c-7", "ok", False)
    assert wait["until"] > wait["since"]


def test_the_value_of_a_signal_is_redacted(client: TestClient, td: Treadle) -> None:
    job = suspend(td, approval("pay"))
    sent = client.post("/api/signals", json={"name": "pay", "value": {"password": "hunter2"}}).json()
    td.store.match()
    assert sent["value"] == {"password": "•••"}
    assert client.get("/api/signal", params={"name": "pay"}).json() == sent
    assert "hunter2" not in client.get(f"/jobs/{job.id}").text
    assert "hunter2" not in client.get(f"/api/jobs/{job.id}/steps").text


def test_a_retry_from_a_step(client: TestClient, td: Treadle) -> None:
    job = suspend(td, approval())
    td.cancel(job.id)
    assert client.post(f"/api/jobs/{job.id}/retry", json={"from_step": "nope"}).status_code == 400
    assert client.post(f"/api/jobs/{job.id}/retry", json={"from_step": "api_token"}).json()["status"] == "pending"
    assert [step.name for step in td.store.steps(job.id)] == ["plan"]
    assert audited(td)[0][1:] == ("retry", f"{job.id} from_step=api_token")


# Pages


def _testids(page: str) -> list[str]:
    return [part.split('"', 1)[0] for part in page.split('data-testid="')[1:]]


def test_an_approval_on_the_page(connect: Connect, td: Treadle) -> None:
    ann = connect("read manage")
    job = suspend(td, approval())
    page = ann.get(f"/jobs/{job.id}").text
    assert "Not sent yet" in page
    assert f'href="/jobs/{job.id}/signal?name=approve%3Ac-7"' in page
    assert 'data-code="waits_for_signal"' in page
    assert "To send it, use the Approve button below." in page

    form = ann.get(f"/jobs/{job.id}/signal", params={"name": "approve:c-7"}).text
    assert ">true</textarea>" in form
    wrong = ann.post(f"/jobs/{job.id}/signal", data={"name": "approve:c-7", "value": "{"})
    assert (wrong.status_code, "signal-error" in _testids(wrong.text)) == (400, True)
    sent = ann.post(f"/jobs/{job.id}/signal", data={"name": "approve:c-7", "value": "[1]"}, follow_redirects=False)

    assert (sent.status_code, sent.headers["location"]) == (303, f"/jobs/{job.id}")
    page = ann.get(f"/jobs/{job.id}").text
    assert "Sent by read manage" in page
    assert "approve" not in _testids(page)
    assert audited(td) == [("read manage", "signal", "approve:c-7")]
    assert "signal-before" in _testids(ann.get(f"/jobs/{job.id}/signal", params={"name": "approve:c-7"}).text)


def test_parents_and_subjobs_on_the_page(client: TestClient, td: Treadle) -> None:
    parents = [td.enqueue("load"), td.enqueue("later", delay=60)]
    child = child_of(td, *parents)
    td.store.settle([(take(td, parents[0].id), Outcome(OutcomeKind.FAILED, error="no"))])
    waiter = suspend(td, *(NewWait("subjob", parent.id, step="pages") for parent in parents))

    page = client.get(f"/jobs/{child.id}").text
    assert _testids(page).count("wait") == 2
    assert f'href="/jobs/{parents[0].id}"' in page
    assert 'data-code="parent_failed"' in page
    assert "Open the parent, fix the cause and retry it" in page
    assert 'data-code="waits_for_subjobs"' in client.get(f"/jobs/{waiter.id}").text


def test_many_waits_and_steps_are_cut(client: TestClient, td: Treadle) -> None:
    parents = td.enqueue_many([td.request("load") for _ in range(30)])
    child = child_of(td, *parents)
    page = client.get(f"/jobs/{child.id}").text
    assert _testids(page).count("wait") == 20
    assert "10 more" in page
    job = suspend(td, approval(), steps=tuple(NewStep(f"s{n}", value=f'"{"x" * n}"') for n in range(250)))
    page = client.get(f"/jobs/{job.id}").text
    assert _testids(page).count("step") == 200
    assert "50 before these" in page


def test_retry_from_a_step_on_the_page(client: TestClient, td: Treadle) -> None:
    job = suspend(td, approval())
    assert "retry-from" not in _testids(client.get(f"/jobs/{job.id}").text)
    td.cancel(job.id)
    page = client.get(f"/jobs/{job.id}").text
    assert _testids(page).count("retry-from") == 2
    asked = {"action": "retry", "id": job.id, "from_step": "api_token"}
    question = client.get("/jobs/confirm", params=asked).text
    assert "It forgets step &#39;api_token&#39; and all later ones" in question
    client.post("/jobs/act", data={**asked, "expected": "1"})
    assert [step.name for step in td.store.steps(job.id)] == ["plan"]


def test_where_a_job_comes_from_is_on_its_page(client: TestClient, td: Treadle) -> None:
    origin = td.enqueue("load")
    (job,) = td.store.insert([msgspec.structs.replace(td.request("page"), origin=origin.id, batch="import-7")])
    page = client.get(f"/jobs/{job.id}").text
    assert {"origin", "batch"} <= set(_testids(page))
    assert "import-7" in page


def test_a_blocked_job_in_lists_counts_and_metrics(client: TestClient, td: Treadle) -> None:
    job = suspend(td, approval())
    td.store.sample_backlog()
    assert [one["id"] for one in client.get("/api/jobs", params={"q": "status:blocked"}).json()["items"]] == [job.id]
    assert client.get("/api/stats", params={"group_by": "status"}).json()["items"] == [
        {"status": "blocked", "count": 1}
    ]
    assert 'treadle_jobs{queue="default",type="handle_call",status="blocked"} 1' in client.get("/metrics").text
    assert "Blocked" in client.get("/jobs").text
    (sample,) = td.backlog()
    assert (sample.queued, sample.later, sample.processing) == (0, 0, 0)
    td.store.signal(NewSignal("approve:c-7"))
    complete(td, job.id)
    assert refreshed(td, job).status is Status.COMPLETED
