"""Jobs over HTTP: enqueue, list, read, change."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest
from starlette.testclient import TestClient

from tests.web.conftest import Connect
from treadle import Status, Treadle
from treadle.redact import HIDDEN

PROBLEM = "application/problem+json"


def problem(answer: Any, status: int, code: str) -> dict[str, Any]:
    """The problem that a response describes: always in the same format, always with the next step."""
    assert (answer.status_code, answer.headers["content-type"]) == (status, PROBLEM)
    said: dict[str, Any] = answer.json()
    assert said["type"] == f"urn:treadle:problem:{code}"
    assert said["status"] == status
    assert said["title"]
    assert said["detail"]
    assert said["next"]
    return said


# Enqueue


def test_a_job_is_stored_and_read_back_as_it_was_sent(client: TestClient, td: Treadle) -> None:
    sent = {
        "type": "import",
        "payload": {"n": 9007199254740993, "text": "ü"},
        "queue": "slow",
        "priority": 3,
        "tenant": "acme",
        "subject": "call-7",
        "max_attempts": 2,
        "run_at": "2030-01-01T00:00:00Z",
    }
    answer = client.post("/api/jobs", json=sent)
    assert answer.status_code == 201
    got = answer.json()
    assert {name: got[name] for name in sent} == sent
    assert client.get(f"/api/jobs/{got['id']}").json() == got
    job = td.get(got["id"])
    assert job is not None
    assert job.payload == sent["payload"]


def test_many_jobs_are_stored_together_or_not_at_all(client: TestClient, td: Treadle) -> None:
    answer = client.post("/api/jobs", json=[{"type": "a", "payload": {"n": n}} for n in range(3)])
    assert answer.status_code == 201
    assert [item["payload"]["n"] for item in answer.json()["items"]] == [0, 1, 2]
    said = problem(client.post("/api/jobs", json=[{"type": "a"}, {"type": ""}]), 400, "bad-request")
    assert "$[1].type" in said["detail"]
    assert len(td.jobs()) == 3
    problem(client.post("/api/jobs", json=[{"type": "a"}] * 1_001), 400, "bad-request")
    problem(client.post("/api/jobs", json=[]), 400, "bad-request")


def test_a_dedupe_key_in_use_returns_the_job_that_holds_it(client: TestClient) -> None:
    first = client.post("/api/jobs", json={"type": "a", "dedupe": "k"})
    second = client.post("/api/jobs", json={"type": "a", "dedupe": "k"})
    assert (first.status_code, second.status_code) == (201, 200)
    assert first.json() == second.json()


def test_a_dedupe_mode_replaces_or_rejects(client: TestClient, td: Treadle) -> None:
    def enqueue(**dedupe: Any) -> Any:
        return client.post("/api/jobs", json={"type": "a", "dedupe": {"key": "k", **dedupe}})

    first, second = enqueue(mode="replace"), enqueue(mode="replace")
    assert (first.status_code, second.status_code) == (201, 201)
    assert (second.json()["dedupe_mode"], second.json()["id"] != first.json()["id"]) == ("replace", True)
    replaced = client.get(f"/api/jobs/{first.json()['id']}").json()
    assert (replaced["status"], replaced["error"]) == ("cancelled", f"replaced by {second.json()['id']}")
    assert enqueue().json()["id"] == second.json()["id"]
    said = problem(enqueue(mode="reject"), 409, "key-held")
    assert said["detail"].startswith("the job was not stored: its dedupe key (sha256 ")
    assert said["next"].endswith(f"POST /api/jobs/{second.json()['id']}/cancel")
    assert len(td.jobs()) == 2


@pytest.mark.parametrize(
    "dedupe",
    [
        {},
        {"key": ""},
        {"key": False},
        {"key": "k", "mode": "keep"},
        {"key": "k", "mode": "throttle"},
        {"key": "k", "mode": "throttle", "period": 0},
        {"key": "k", "mode": "debounce", "wait": 5},
        {"key": "k", "wait": 5},
        {"key": "k", "until": "paid"},
        {"key": "k", "colour": "red"},
    ],
    ids=str,
)
def test_a_dedupe_that_makes_no_sense_is_refused(client: TestClient, td: Treadle, dedupe: dict[str, Any]) -> None:
    answer = client.post("/api/jobs", json={"type": "a", "dedupe": dedupe})
    assert answer.status_code == 400
    assert not td.jobs()


def test_a_request_repeated_with_its_idempotency_key_is_carried_out_once(client: TestClient, td: Treadle) -> None:
    body = [{"type": "a", "payload": {"n": 1}}, {"type": "b"}]
    first = client.post("/api/jobs", json=body, headers={"Idempotency-Key": "k-1"})
    again = client.post("/api/jobs", json=body, headers={"Idempotency-Key": "k-1"})
    assert (first.status_code, again.status_code) == (201, 200)
    assert [job["id"] for job in first.json()["items"]] == [job["id"] for job in again.json()["items"]]
    assert len(td.jobs()) == 2
    other = client.post("/api/jobs", json=[{"type": "a"}], headers={"Idempotency-Key": "k-1"})
    problem(other, 422, "request-differs")
    assert client.post("/api/jobs", json=body, headers={"Idempotency-Key": "k-2"}).status_code == 201
    assert len(td.jobs()) == 4


def test_two_callers_can_use_the_same_idempotency_key(connect: Connect) -> None:
    key = {"Idempotency-Key": "k"}
    one = connect("enqueue @acme").post("/api/jobs", json={"type": "a"}, headers=key)
    two = connect("enqueue @umbrella").post("/api/jobs", json={"type": "a"}, headers=key)
    assert (one.status_code, two.status_code) == (201, 201)
    assert one.json()["id"] != two.json()["id"]


def test_a_handlers_signature_is_checked(client: TestClient, td: Treadle) -> None:
    @td.job
    def greet(name: str) -> None: ...

    said = problem(client.post("/api/jobs", json={"type": "greet", "payload": {"nam": "ada"}}), 400, "bad-arguments")
    assert "greet" in said["detail"]
    assert client.post("/api/jobs", json={"type": "greet", "payload": {"name": "ada"}}).status_code == 201


@pytest.mark.parametrize(
    ("content", "kind", "status"),
    [
        (b"", "application/json", 400),
        (b"{", "application/json", 400),
        (b'{"type": "a", "colour": 1}', "application/json", 400),
        (b'{"type": "a", "payload": {"x": "\\u0000"}}', "application/json", 400),
        (b'{"type": "a", "run_at": "2030-01-01T00:00:00"}', "application/json", 400),
        (b'{"type": "a", "delay": 1, "run_at": "2030-01-01T00:00:00Z"}', "application/json", 400),
        (b'{"type": "a"}', "text/plain", 415),
        (b"type=a", "application/x-www-form-urlencoded", 415),
        (b'{"type": "a", "payload": {"x": "' + b"y" * (1 << 20) + b'"}}', "application/json", 413),
        (b" " * (3 << 20), "application/json", 413),
        (b"[" * 100_000, "application/json", 400),
        (b"\xff\xfe", "application/json", 400),
    ],
    ids=lambda value: repr(value)[:40],
)
def test_a_job_that_cannot_be_stored_is_a_problem(
    client: TestClient, td: Treadle, content: bytes, kind: str, status: int
) -> None:
    answer = client.post("/api/jobs", content=content, headers={"Content-Type": kind})
    assert (answer.status_code, answer.headers["content-type"]) == (status, PROBLEM)
    assert answer.json()["next"]
    assert len(td.jobs()) == 0


def test_a_caller_bound_to_a_tenant_enqueues_for_it(connect: Connect) -> None:
    bound = connect("enqueue @acme")
    assert bound.post("/api/jobs", json={"type": "a"}).json()["tenant"] == "acme"
    assert bound.post("/api/jobs", json={"type": "a", "tenant": "acme"}).status_code == 201
    problem(bound.post("/api/jobs", json={"type": "a", "tenant": "umbrella"}), 403, "not-allowed")


# Read


def test_a_list_is_read_page_by_page_newest_first(client: TestClient, td: Treadle) -> None:
    ids = [td.enqueue("a", {"n": n}).id for n in range(5)]
    first = client.get("/api/jobs", params={"limit": 2}).json()
    assert [job["id"] for job in first["items"]] == ids[:2:-1]
    assert first["total"] == {"value": 5, "relation": "eq"}
    second = client.get("/api/jobs", params={"limit": 3, "cursor": first["next_cursor"]}).json()
    assert [job["id"] for job in second["items"]] == ids[2::-1]
    assert second["next_cursor"] is None


def test_a_list_is_filtered_by_the_grammar_and_by_parameters(client: TestClient, td: Treadle) -> None:
    wanted = td.enqueue("send_mail", {"user_id": 42}, tenant="acme")
    td.enqueue("send_mail", {"user_id": 43}, tenant="acme")
    td.enqueue("import", {"user_id": 42}, tenant="acme")
    td.enqueue("send_mail", {"user_id": 42})
    found = client.get("/api/jobs", params={"q": "type:send_* tenant:acme payload.user_id:42"}).json()
    assert [job["id"] for job in found["items"]] == [wanted.id]
    assert found["filter"] == "type:send_* tenant:acme payload.user_id:42"
    params = {"type": "send_*", "tenant": "acme", "q": "payload.user_id:42"}
    assert client.get("/api/jobs", params=params).json()["items"] == found["items"]


@pytest.mark.parametrize(
    ("params", "code"),
    [
        ({"q": "colour:red"}, "bad-filter"),
        ({"q": 'error:"open'}, "bad-filter"),
        ({"status": "done"}, "bad-filter"),
        ({"limit": "0"}, "bad-request"),
        ({"limit": "201"}, "bad-request"),
        ({"limit": "x"}, "bad-request"),
        ({"cursor": "x"}, "bad-cursor"),
        ({"staus": "failed"}, "bad-request"),
    ],
    ids=str,
)
def test_a_wrong_list_request_is_a_problem(client: TestClient, params: dict[str, str], code: str) -> None:
    problem(client.get("/api/jobs", params=params), 400, code)


def test_a_caller_bound_to_a_tenant_sees_only_that_one(connect: Connect, td: Treadle) -> None:
    mine, other = td.enqueue("a", tenant="acme"), td.enqueue("a", tenant="umbrella")
    bound = connect("manage @acme")
    assert [job["id"] for job in bound.get("/api/jobs").json()["items"]] == [mine.id]
    problem(bound.get("/api/jobs", params={"tenant": "umbrella"}), 403, "not-allowed")
    assert bound.get("/api/stats").json()["items"] == [{"status": "pending", "count": 1}]
    for verb in ("retry", "cancel", "run-now", "clone"):
        problem(bound.post(f"/api/jobs/{other.id}/{verb}"), 404, "job-not-found")
    problem(bound.post(f"/api/jobs/{other.id}/reschedule", json={"delay": 1}), 404, "job-not-found")
    problem(bound.delete(f"/api/jobs/{other.id}"), 404, "job-not-found")
    answer = bound.post("/api/jobs/bulk", json={"action": "cancel", "ids": [mine.id, other.id], "dry_run": True})
    assert answer.json() == {"total": {"value": 1, "relation": "eq"}}


def test_why_and_attempts_return_the_same_as_the_library(client: TestClient, td: Treadle) -> None:
    @td.job(max_attempts=1)
    def bad() -> None:
        raise RuntimeError("password=hunter2")

    job = td.enqueue("bad", {})
    td.tick()
    attempts = client.get(f"/api/jobs/{job.id}/attempts").json()["items"]
    assert [(one["attempt"], one["outcome"]) for one in attempts] == [(1, "failed")]
    assert "RuntimeError" in attempts[0]["traceback"]
    why = client.get(f"/api/jobs/{job.id}/why").json()
    assert why["reasons"][0]["code"] == "out_of_attempts"
    for answer in ("", "/attempts", "/why"):
        assert "hunter2" not in client.get(f"/api/jobs/{job.id}{answer}").text
    assert "hunter2" not in client.get("/api/failures").text


def test_secrets_are_hidden(client: TestClient, td: Treadle) -> None:
    job = td.enqueue("a", {"user": {"name": "ada", "password": "hunter2", "API_Key": ["hunter2"]}})
    shown = client.get(f"/api/jobs/{job.id}").json()["payload"]
    assert shown == {"user": {"name": "ada", "password": HIDDEN, "API_Key": HIDDEN}}
    listed = client.get("/api/jobs")
    assert "hunter2" not in listed.text
    cloned = client.post(f"/api/jobs/{job.id}/clone").json()
    copy = td.get(cloned["id"])
    assert copy is not None
    assert copy.payload == job.payload, "a clone has what the job has, and not what is shown of it"


# Change


def test_the_actions_on_one_job(client: TestClient, td: Treadle) -> None:
    job = td.enqueue("a", {"n": 1}, delay=3600)
    assert client.post(f"/api/jobs/{job.id}/run-now").json()["status"] == "pending"
    assert [reason["code"] for reason in client.get(f"/api/jobs/{job.id}/why").json()["reasons"]] == ["no_worker"]
    assert client.post(f"/api/jobs/{job.id}/cancel").json()["status"] == "cancelled"
    assert client.post(f"/api/jobs/{job.id}/retry").json()["status"] == "pending"
    cloned = client.post(f"/api/jobs/{job.id}/clone", json={"payload": {"n": 2}})
    assert (cloned.status_code, cloned.json()["payload"]) == (201, {"n": 2})
    assert client.delete(f"/api/jobs/{job.id}").status_code == 200
    problem(client.get(f"/api/jobs/{job.id}"), 404, "job-not-found")


def test_a_job_is_rescheduled(client: TestClient, td: Treadle) -> None:
    job = td.enqueue("a")
    moved = client.post(
        f"/api/jobs/{job.id}/reschedule", json={"run_at": "2030-01-02T03:04:05Z", "priority": 5, "queue": "slow"}
    ).json()
    assert (moved["run_at"], moved["priority"], moved["queue"]) == ("2030-01-02T03:04:05Z", 5, "slow")
    noted = client.get("/api/audit").json()["items"][0]
    assert noted["action"] == "reschedule"
    assert noted["what"] == f"{job.id} run_at=2030-01-02T03:04:05Z priority=5 queue=slow"
    before = td.get(job.id)
    for wrong in ({"priority": 40_000}, {"queue": ""}, {"delay": -1}, {"when": 1}, {"run_at": "2030-01-02T03:04:05"}):
        problem(client.post(f"/api/jobs/{job.id}/reschedule", json=wrong), 400, "bad-request")
    for wrong in ({}, {"delay": 1, "run_at": "2030-01-02T03:04:05Z"}):
        problem(client.post(f"/api/jobs/{job.id}/reschedule", json=wrong), 400, "bad-option")
    assert td.get(job.id) == before
    td.cancel(job.id)
    problem(client.post(f"/api/jobs/{job.id}/reschedule", json={"delay": 1}), 409, "wrong-status")


def test_an_action_that_the_status_forbids_is_a_conflict(client: TestClient, td: Treadle) -> None:
    job = td.enqueue("a", dedupe="k")
    said = problem(client.post(f"/api/jobs/{job.id}/retry"), 409, "wrong-status")
    assert "pending" in said["detail"]
    td.cancel(job.id)
    problem(client.post(f"/api/jobs/{job.id}/cancel"), 409, "wrong-status")
    problem(client.post(f"/api/jobs/{job.id}/run-now"), 409, "wrong-status")
    td.enqueue("a", dedupe="k")
    problem(client.post(f"/api/jobs/{job.id}/retry"), 409, "key-held")
    [lease] = td.claim(types=["a"])
    problem(client.delete(f"/api/jobs/{lease.job.id}"), 409, "wrong-status")
    still = td.get(job.id)
    assert still is not None
    assert still.status is Status.CANCELLED


@pytest.mark.parametrize("id", ["none", "0", "01970000-0000-7000-8000-000000000000", "%00", "a%2Fb", "é"])
def test_a_job_that_is_not_there_is_not_found(client: TestClient, id: str) -> None:
    assert client.get(f"/api/jobs/{id}").status_code == 404
    assert client.post(f"/api/jobs/{id}/retry").status_code == 404


def test_every_change_is_recorded_with_its_caller(connect: Connect, td: Treadle) -> None:
    client = connect("read enqueue manage")
    id = client.post("/api/jobs", json={"type": "a"}).json()["id"]
    client.post(f"/api/jobs/{id}/cancel")
    client.post(f"/api/jobs/{id}/cancel")  # refused, and not recorded
    connect("manage @acme").post("/api/jobs", json=[{"type": "b"}, {"type": "c"}])
    rows = client.get("/api/audit").json()["items"]
    assert [(row["who"], row["action"], row["what"], row["count"], row["tenant"]) for row in rows] == [
        ("manage @acme", "enqueue", "b, c", 2, "acme"),
        ("read enqueue manage", "cancel", id, 1, ""),
        ("read enqueue manage", "enqueue", id, 1, ""),
    ]
    first = client.get("/api/audit", params={"limit": 1}).json()
    rest = client.get("/api/audit", params={"cursor": first["next_cursor"]}).json()
    assert first["items"] + rest["items"] == rows


def test_a_job_over_http_may_expire(client: TestClient, td: Treadle) -> None:
    sent = {"type": "a", "run_at": "2026-01-01T00:00:00Z", "start_within": 60}
    job = client.post("/api/jobs", json=sent).json()
    assert job["start_by"] == "2026-01-01T00:01:00Z"
    assert client.get(f"/api/jobs/{job['id']}/why").json()["reasons"][0]["code"] == "expired"
    td.tick(max_seconds=1)
    found = client.get(f"/api/jobs/{job['id']}").json()
    assert (found["status"], found["start_by"]) == ("cancelled", None)
    assert found["error"] == "expired: it was not started within 60s of its run_at"
    for wrong in (0, -1, "1m"):
        problem(client.post("/api/jobs", json={"type": "a", "start_within": wrong}), 400, "bad-request")


def test_a_job_over_http_waits_for_its_parents(client: TestClient) -> None:
    parent = client.post("/api/jobs", json={"type": "a"}).json()["id"]
    sent = {"type": "b", "after": [parent], "if_failed": "cancel"}
    assert client.post("/api/jobs", json=sent).json()["status"] == "blocked"
    problem(client.post("/api/jobs", json={**sent, "if_failed": "never"}), 400, "bad-request")
    for wrong in ("nonsense", "01890000-0000-7000-8000-000000000000"):
        problem(client.post("/api/jobs", json={**sent, "after": [wrong]}), 400, "bad-option")


def test_json_becomes_what_the_handler_takes(client: TestClient, td: Treadle) -> None:
    @td.job
    def remind(at: datetime) -> None: ...

    stored = client.post("/api/jobs", json={"type": "remind", "payload": {"at": "2030-01-02T03:04:05Z"}})
    assert (stored.status_code, stored.json()["payload"]) == (201, {"at": "2030-01-02T03:04:05Z"})
    assert client.post("/api/jobs", json={"type": "remind", "payload": {"at": "soon"}}).status_code == 400
    assert len(td.jobs()) == 1
