"""Batches over HTTP and on pages: what is shown, and to whom."""

from __future__ import annotations

import pytest

from tests.web.conftest import Connect
from treadle import Treadle
from treadle.outcome import COMPLETED, Outcome, OutcomeKind
from treadle.stores.base import ClaimRequest

FAILED = Outcome(OutcomeKind.FAILED, error="negative")


@pytest.fixture(autouse=True)
def some(td: Treadle) -> None:
    """One has a failed, a completed and a waiting member, the others are empty."""
    with td.batch("import/7", td.request("report", {"password": "hunter2"})) as batch:
        for n in range(3):
            batch.add(td.request("load", {"n": n}))
    first, second = td.store.claim("", ClaimRequest(limit=2, lease_for=1_000_000))
    td.store.settle([(first, FAILED), (second, COMPLETED)])
    for tenant in ("acme", "other"):
        with td.batch("digest", tenant=tenant):
            pass
    td.store.match()


def test_a_list_and_one_batch(td: Treadle, connect: Connect) -> None:
    api = connect("read")
    listed = api.get("/api/batches").json()
    assert {(one["tenant"], one["name"]) for one in listed["items"]} == {
        ("", "import/7"),
        ("acme", "digest"),
        ("other", "digest"),
    }
    first = api.get("/api/batches", params={"limit": 1}).json()
    assert len(api.get("/api/batches", params={"cursor": first["next_cursor"]}).json()["items"]) == 2
    assert [one["tenant"] for one in api.get("/api/batches?tenant=acme").json()["items"]] == ["acme"]

    answer = api.get("/api/batch", params={"name": "import/7"})
    one = answer.json()
    assert [one["batch"][name] for name in ("added", "completed", "failed", "then", "closed_at")] == [
        *(3, 1, 1, "report", None)
    ]
    assert (round(one["progress"], 2), one["states"]["queued"]) == (0.67, {"value": 1, "relation": "eq"})
    assert "hunter2" not in answer.text
    gone = api.get("/api/batch", params={"name": "digest"})
    assert (gone.status_code, gone.json()["type"]) == (404, "urn:treadle:problem:batch-not-found")
    assert [job["batch"] for job in api.get("/api/jobs", params={"q": "batch:import/7"}).json()["items"]] == [
        "import/7"
    ] * 3


def test_a_caller_bound_to_a_tenant_sees_its_batches_only(connect: Connect) -> None:
    bound = connect("read @acme")
    assert [one["tenant"] for one in bound.get("/api/batches").json()["items"]] == ["acme"]
    assert bound.get("/api/batch", params={"name": "digest"}).json()["batch"]["tenant"] == "acme"
    assert bound.get("/api/batch", params={"name": "import/7"}).status_code == 404
    assert bound.get("/api/batch", params={"name": "digest", "tenant": "other"}).status_code == 403
    assert "import/7" not in bound.get("/batches").text
    assert bound.get("/batch", params={"name": "digest"}).status_code == 200


def test_pages(td: Treadle, connect: Connect) -> None:
    me = connect("read")
    page = me.get("/batches").text
    assert 'data-testid="nav-batches"' in page
    assert page.count('data-testid="batch"') == 3
    one = me.get("/batch", params={"name": "import/7"}).text
    assert "2 of 3; 1 failed" in one
    assert "It closes when 1 more have ended" in one
    assert one.index("state-failed") < one.index("state-queued") < one.index("state-completed")
    assert "data-live" in one
    assert me.get("/batch", params={"name": "gone"}).status_code == 404
    job = td.jobs(batch="import/7")[0]
    assert "/batch?name=import%2F7" in me.get(f"/jobs/{job.id}").text


def test_a_closed_batch_links_to_what_it_enqueued(td: Treadle, connect: Connect) -> None:
    with td.batch("done", td.request("report", {})):
        pass
    td.store.match()
    page = connect("read").get("/batch", params={"name": "done"}).text
    found = td.batches.get("done")
    assert found is not None
    assert f"/jobs/{found.last_job}" in page
    assert "Closed" in page


def test_no_batches(td: Treadle, connect: Connect) -> None:
    assert "There are no batches." in connect("read").get("/batches?tenant=nobody").text
