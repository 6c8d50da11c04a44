"""Bulk operations: previewed first, done in the background, visible in every process."""

from __future__ import annotations

from typing import Any

import pytest
from starlette.testclient import TestClient

from tests.eventually import eventually
from tests.web.conftest import Connect, client_of
from tests.web.test_jobs import problem
from treadle import Treadle, codec
from treadle.bulk import Bulk
from treadle.ids import after, new_id
from treadle.stores.rows import Operation
from treadle.web.api import bulk as bulk_runner


def ended(client: TestClient, id: str) -> dict[str, Any]:
    """The operation, once it has ended."""

    def look() -> dict[str, Any] | None:
        found: dict[str, Any] = client.get(f"/api/operations/{id}").json()
        return None if found["ended_at"] is None else found

    found = eventually(look, 20)
    assert found is not None
    return found


def cancelled(td: Treadle, n: int, type: str = "a") -> list[str]:
    jobs = td.enqueue_many([td.request(type, {"n": i}) for i in range(n)])
    return [td.cancel(job.id).id for job in jobs]


def test_all_matching_jobs_are_retried(client: TestClient, td: Treadle) -> None:
    cancelled(td, 137)
    cancelled(td, 1, "b")
    asked = {"action": "retry", "filter": "status:cancelled type:a"}
    counted = client.post("/api/jobs/bulk", json={**asked, "dry_run": True})
    assert (counted.status_code, counted.json()) == (200, {"total": {"value": 137, "relation": "eq"}})
    assert client.get("/api/stats").json()["items"] == [{"status": "cancelled", "count": 138}]

    started = client.post("/api/jobs/bulk", json={**asked, "expected_count": 137})
    assert started.status_code == 202
    assert started.headers["location"] == f"/api/operations/{started.json()['operation_id']}"
    found = ended(client, started.json()["operation_id"])
    assert (found["total"], found["done"], found["skipped"], found["error"]) == (137, 137, 0, None)
    assert found["filter"] == "status:cancelled type:a"
    left = {row["status"]: row["count"] for row in td.counts()}
    assert left == {"pending": 137, "cancelled": 1}
    [noted] = client.get("/api/audit").json()["items"]
    assert (noted["action"], noted["what"], noted["count"]) == ("retry", "status:cancelled type:a", 137)


def test_if_the_count_has_changed_nothing_is_done(client: TestClient, td: Treadle) -> None:
    cancelled(td, 3)
    said = problem(
        client.post("/api/jobs/bulk", json={"action": "delete", "filter": "status:cancelled", "expected_count": 2}),
        412,
        "count-moved",
    )
    assert "3" in said["detail"]
    assert len(td.jobs()) == 3
    assert client.get("/api/audit").json()["items"] == []


def test_jobs_can_be_selected_by_id(client: TestClient, td: Treadle) -> None:
    ids = cancelled(td, 55)
    started = client.post("/api/jobs/bulk", json={"action": "delete", "ids": ids[:50], "expected_count": 50}).json()
    assert ended(client, started["operation_id"])["done"] == 50
    assert {job.id for job in td.jobs()} == set(ids[50:])
    problem(client.post("/api/jobs/bulk", json={"action": "delete", "ids": ids}), 400, "bad-request")


def test_jobs_that_do_not_allow_the_action_are_skipped(client: TestClient, td: Treadle) -> None:
    ids = [*cancelled(td, 2), td.enqueue("a").id]
    started = client.post("/api/jobs/bulk", json={"action": "cancel", "ids": ids}).json()
    found = ended(client, started["operation_id"])
    assert (found["done"], found["skipped"]) == (1, 2)


def test_jobs_are_rescheduled_in_bulk(client: TestClient, td: Treadle) -> None:
    jobs = [td.enqueue("a") for _ in range(60)]
    asked = {"action": "reschedule", "filter": "type:a", "changes": {"run_at": "2030-01-02T03:04:05Z", "priority": 2}}
    found = ended(client, client.post("/api/jobs/bulk", json=asked).json()["operation_id"])
    assert (found["done"], found["changes"]) == (60, "run_at=2030-01-02T03:04:05Z priority=2")
    assert {("2030-01-02T03:04:05+00:00", 2)} == {
        (job.run_at.isoformat(), job.priority) for job in map(td.get, [job.id for job in jobs]) if job
    }
    noted = client.get("/api/audit").json()["items"][0]
    assert noted["what"] == "type:a run_at=2030-01-02T03:04:05Z priority=2"
    for changes, action in (({}, "reschedule"), (None, "reschedule"), ({"priority": 1}, "retry")):
        body = {"action": action, "filter": "type:a", **({} if changes is None else {"changes": changes})}
        problem(client.post("/api/jobs/bulk", json=body), 400, "bad-option")


def test_a_reschedule_whose_process_died_goes_on_with_its_changes(
    client: TestClient, td: Treadle, monkeypatch: pytest.MonkeyPatch
) -> None:
    td.enqueue_many([td.request("a") for _ in range(60)])
    work = td.bulk("reschedule", "type:a", priority=4)
    changes = codec.as_json(work.changes)
    row = Operation(new_id(), "somebody", "reschedule", "type:a", 60, position=work.position, changes=changes)
    td.store.start_operation(row)
    monkeypatch.setattr(bulk_runner, "ABANDONED", -1)
    assert ended(client, row.id)["done"] == 60
    assert {job.priority for job in td.jobs("type:a", limit=60)} == {4}


@pytest.mark.parametrize(
    "asked",
    [
        {"action": "retry"},
        {"action": "retry", "filter": ""},
        {"action": "retry", "filter": "colour:red"},
        {"action": "retry", "filter": "status:failed", "ids": [new_id()]},
        {"action": "explode", "filter": "status:failed"},
        {"action": "retry", "ids": ["x"]},
        {"action": "retry", "ids": []},
        {"action": "retry", "filter": "status:failed", "expected_count": -1},
    ],
    ids=str,
)
def test_a_request_that_selects_no_jobs_is_refused(client: TestClient, td: Treadle, asked: dict[str, Any]) -> None:
    td.enqueue("a")
    answer = client.post("/api/jobs/bulk", json=asked)
    assert (answer.status_code, answer.headers["content-type"]) == (400, "application/problem+json")


def test_an_operation_is_visible_in_another_process_but_not_to_another_tenant(
    connect: Connect, client: TestClient, td: Treadle
) -> None:
    td.enqueue("a", tenant="acme")
    mine = connect("manage @acme")
    id = mine.post("/api/jobs/bulk", json={"action": "cancel", "filter": "status:pending"}).json()["operation_id"]
    assert ended(mine, id)["filter"] == "status:pending tenant:acme"
    other = Treadle(td.store.url)
    assert client_of(other, "read").get(f"/api/operations/{id}").json()["done"] == 1
    other.close()
    problem(connect("manage @umbrella").get(f"/api/operations/{id}"), 404, "not-found")
    problem(client.get("/api/operations/none"), 404, "not-found")


def test_an_operation_whose_process_died_is_resumed(
    client: TestClient, td: Treadle, monkeypatch: pytest.MonkeyPatch
) -> None:
    cancelled(td, 120)
    work = Bulk(td.store, "retry", bulk_runner.filters.parse("status:cancelled"))
    operation = Operation(new_id(), "somebody", "retry", "status:cancelled", 120, position=work.position)
    td.store.start_operation(operation)
    work.operation = operation.id
    work.step()  # and then it died
    before = client.get(f"/api/operations/{operation.id}").json()
    assert 0 < before["done"] < 120
    assert before["ended_at"] is None
    monkeypatch.setattr(bulk_runner, "ABANDONED", -1)
    assert ended(client, operation.id)["done"] == 120


def test_a_relative_time_in_a_filter_counts_from_the_start_of_the_operation(td: Treadle) -> None:
    fixed = bulk_runner.fix_times(bulk_runner.filters.parse("since:1h status:failed"), 3_600_000_000)
    assert str(fixed) == "status:failed since:1970-01-01T00:00:00Z"


def test_an_operation_on_as_many_ids_as_possible_under_a_long_tenant_name_can_be_viewed(
    connect: Connect, td: Treadle, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its filter is longer than one that a caller may write."""
    tenant = "x" * 200
    ids = [job.id for job in td.enqueue_many([td.request("a", tenant=tenant) for _ in range(50)])]
    me = connect(f"manage @{tenant}")
    id = me.post("/api/jobs/bulk", json={"action": "cancel", "ids": ids}).json()["operation_id"]
    assert ended(me, id)["done"] == 50
    page = me.get(f"/operations/{id}")
    assert (page.status_code, "Jobs that match now" in page.text) == (200, False)
    found = td.store.operation(id)
    assert found is not None
    work = Operation(new_id(), "somebody", "retry", found.filter, 50, position=after(ids[-1]))
    td.store.start_operation(work)
    monkeypatch.setattr(bulk_runner, "ABANDONED", -1)
    assert ended(me, work.id)["done"] == 50, "another process can continue it, too"
