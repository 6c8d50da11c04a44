"""Schedules over HTTP and on pages: what is shown, what can be done, who may, and the audit."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.eventually import eventually
from tests.web.conftest import Connect
from treadle import Treadle
from treadle.schedule import NewSchedule, Rule
from treadle.stores.base import WorkerRow

DIGEST = {"name": "digest", "tenant": "acme"}


@pytest.fixture(autouse=True)
def some(td: Treadle) -> None:
    td.schedules.put(
        "nightly/report", "report", cron="0 3 * * *", zone="Europe/Berlin", payload={"password": "hunter2"}
    )
    td.schedules.put("digest", "mail", every=900, tenant="acme")
    td.schedules.put("digest", "mail", every=60, tenant="other")


def audited(td: Treadle) -> list[tuple[str, str, str]]:
    return [(row.who.split()[0], row.action, row.what) for row in reversed(td.store.audits(20))]


def test_a_list_and_one_schedule(td: Treadle, connect: Connect) -> None:
    api = connect("read")

    listed = api.get("/api/schedules").json()
    assert [(one["tenant"], one["name"]) for one in listed["items"]] == [
        ("", "nightly/report"),
        ("acme", "digest"),
        ("other", "digest"),
    ]
    first = api.get("/api/schedules", params={"limit": 1}).json()
    assert len(api.get("/api/schedules", params={"cursor": first["next_cursor"]}).json()["items"]) == 2
    assert [one["tenant"] for one in api.get("/api/schedules?tenant=acme").json()["items"]] == ["acme"]

    job = td.schedules.run_now("nightly/report")
    one = api.get("/api/schedule", params={"name": "nightly/report"}).json()
    assert (one["schedule"]["cron"], one["schedule"]["zone"]) == ("0 3 * * *", "Europe/Berlin")
    assert len(one["schedule"]["upcoming"]) == 10
    assert one["schedule"]["payload"] == {"password": "•••"}
    assert [found["id"] for found in one["jobs"]] == [job.id]
    assert one["why"]["reasons"][-1]["code"] == "waits"


def test_what_can_be_done_is_done_and_audited(td: Treadle, connect: Connect) -> None:
    api = connect("manage")

    paused = api.post("/api/schedule/pause", params=DIGEST, json={"reason": "invoice"}).json()
    assert (paused["pause"]["by"], paused["pause"]["reason"]) == ("manage", "invoice")
    assert api.post("/api/schedule/resume", params=DIGEST).json()["pause"] is None
    ran = api.post("/api/schedule/run", params=DIGEST)
    assert (ran.status_code, ran.json()["schedule"]) == (201, "digest")
    assert api.delete("/api/schedule", params=DIGEST).json()["name"] == "digest"
    gone = api.get("/api/schedule", params=DIGEST)
    assert (gone.status_code, gone.json()["type"]) == (404, "urn:treadle:problem:schedule-not-found")

    assert audited(td) == [
        ("manage", action, "digest")
        for action in ("pause_schedule", "resume_schedule", "run_schedule", "delete_schedule")
    ]


def test_a_page_pauses_a_schedule_for_some_time(td: Treadle, connect: Connect) -> None:
    page = connect("manage")
    asked = page.get("/schedule/confirm", params={"action": "pause", **DIGEST}).text
    assert '<option value="4h">4 hours</option>' in asked
    wanted = {"action": "pause", "reason": "invoice", **DIGEST}

    refused = page.post("/schedule/act", data={**wanted, "for": "soon"})
    assert (refused.status_code, "a duration such as 15m" in refused.text) == (400, True)
    page.post("/schedule/act", data={**wanted, "for": "4h"})

    paused = td.schedules.get("digest", tenant="acme")
    assert paused is not None
    assert paused.pause is not None
    assert round(((paused.pause.until or paused.pause.at) - paused.pause.at).total_seconds()) == 4 * 3600
    past = {"until": "2020-01-01T00:00:00Z"}
    assert page.post("/api/schedule/pause", params=DIGEST, json=past).status_code == 400


def test_a_backfill_is_an_operation_with_progress(td: Treadle, connect: Connect) -> None:
    api = connect("manage")
    day = {"start": "2026-01-01T00:00:00Z", "end": "2026-01-04T00:00:00Z"}

    for stored, skipped in ((288, 0), (0, 288)):
        started = api.post("/api/schedule/backfill", params=DIGEST, json=day)
        assert started.status_code == 202
        assert started.json()["total"] == {"value": 288, "relation": "eq"}
        where = started.headers["location"]
        ended: dict[str, Any] = eventually(
            lambda where=where: found if (found := api.get(where).json())["ended_at"] else None
        )
        assert (ended["action"], ended["done"], ended["skipped"]) == ("backfill", stored, skipped)

    assert td.count("schedule:digest tenant:acme").value == 288
    page = api.get(where.replace("/api", "")).text
    assert "they were stored before" in page


def test_a_backfill_whose_process_is_gone_is_resumed(td: Treadle, connect: Connect) -> None:
    from treadle.backfill import Backfill
    from treadle.ids import new_id
    from treadle.stores.rows import Operation

    day = datetime(2026, 1, 1, tzinfo=UTC)
    work = Backfill.between(td.store, "acme", "digest", day, day + timedelta(days=3))
    operation = Operation(new_id(), "ann", work.action, str(work.wanted), work.total, position=work.position)
    td.store.start_operation(operation)
    work.operation = operation.id
    work.step()
    stopped = td.store.operation(operation.id)
    assert stopped is not None
    assert (stopped.done, stopped.ended_at) == (100, None)

    rest = Backfill.resumed(td.store, stopped)
    rest.operation = operation.id
    list(rest)

    ended = td.store.operation(operation.id)
    assert ended is not None
    assert ended.ended_at is not None
    assert (ended.done, ended.skipped) == (288, 0)


@pytest.mark.parametrize(
    ("route", "options", "status"),
    [
        ("/api/schedule/backfill", {"json": {"start": "2026-01-02T00:00:00Z", "end": "2026-01-01T00:00:00Z"}}, 400),
        ("/api/schedule/backfill", {"json": {"start": "2026-01-01T00:00:00Z", "end": "2100-01-01T00:00:00Z"}}, 400),
        ("/api/schedule/backfill", {"json": {"start": "x", "end": "y"}}, 400),
        ("/api/schedule/pause", {"json": {"reason": "x" * 201}}, 400),
        ("/api/schedule/pause", {"json": {"colour": "red"}}, 400),
    ],
)
def test_a_bad_request_changes_nothing(
    td: Treadle, connect: Connect, route: str, options: dict[str, Any], status: int
) -> None:
    before = td.schedules.get("digest", tenant="acme")

    assert connect("manage").post(route, params=DIGEST, **options).status_code == status

    assert td.schedules.get("digest", tenant="acme") == before
    assert td.count().value == 0
    assert audited(td) == []


def test_what_live_workers_declare_is_not_deleted(td: Treadle, connect: Connect) -> None:
    declared = NewSchedule(name="code", type="report", rule=Rule(cron="0 3 * * *"))
    td.store.declare_schedules([declared])
    td.store.register(WorkerRow(id="w", name="w", concurrency=1, schedules={"code": declared.spec}))

    refused = connect("manage").delete("/api/schedule?name=code")

    assert refused.status_code == 409
    assert "/api/schedule/pause" in refused.json()["next"]


def test_a_caller_bound_to_a_tenant_has_that_tenants_schedules(td: Treadle, connect: Connect) -> None:
    api = connect("manage @acme")

    assert [one["tenant"] for one in api.get("/api/schedules").json()["items"]] == ["acme"]
    assert api.get("/api/schedule?name=digest").json()["schedule"]["every"] == 900
    assert api.get("/api/schedule?name=nightly/report").status_code == 404
    assert api.get("/api/schedules?tenant=other").status_code == 403
    assert api.post("/api/schedule/pause?name=digest&tenant=other").status_code == 403
    assert api.post("/api/schedule/run?name=digest").json()["tenant"] == "acme"
    assert "other" not in api.get("/schedules").text
    assert api.get("/schedule?name=digest&tenant=other").status_code == 403
    assert api.post("/schedule/act", data={"action": "delete", "name": "nightly/report"}).status_code == 404


def test_pages_show_schedules_and_one_of_them(td: Treadle, connect: Connect) -> None:
    td.schedules.pause("digest", tenant="acme", by="ann", reason="invoice <b>")
    job = td.schedules.run_now("nightly/report")
    site = connect("manage")

    listed = site.get("/schedules").text
    assert listed.count('data-testid="schedule"') == 3
    assert "Paused by ann: invoice &lt;b&gt;" in listed

    page = site.get("/schedule", params={"name": "nightly/report"}).text
    assert page.count("03:00:00 CE") == 10
    assert job.id in page
    assert "hunter2" not in page
    assert [f"act-{key}" in page for key in ("run", "pause", "resume", "backfill", "delete")] == [
        True, True, False, True, True,
    ]  # fmt: skip
    assert "Does not fire: paused by ann" in site.get("/schedule", params=DIGEST).text
    assert 'data-testid="schedule"' in site.get(f"/jobs/{job.id}").text
    assert "act-run" not in connect("read").get("/schedule", params={"name": "nightly/report"}).text


@pytest.mark.parametrize("action", ["run", "pause", "resume", "backfill", "delete"])
def test_pages_ask_first_and_then_do_it(td: Treadle, connect: Connect, action: str) -> None:
    site = connect("manage")
    if action == "resume":
        td.schedules.pause("digest", tenant="acme")
    assert 'data-testid="confirm"' in site.get("/schedule/confirm", params={**DIGEST, "action": action}).text
    assert td.store.audits(1) == []
    times = {"start": "2026-01-01T00:00", "end": "2026-01-01T01:00"}

    done = site.post(
        "/schedule/act", data={**DIGEST, "action": action, "reason": "why", **times}, follow_redirects=False
    )

    assert done.status_code == 303
    [(_, audited_as, _)] = audited(td)
    assert audited_as == ("backfill" if action == "backfill" else f"{action}_schedule")
    found = td.schedules.get("digest", tenant="acme")
    assert (found is None) == (action == "delete")
    if action == "pause":
        assert found is not None
        assert found.pause is not None
        assert (found.pause.by, found.pause.reason) == ("manage", "why")
    if action == "backfill":
        eventually(lambda: td.count("schedule:digest").value == 4)


def test_a_bad_form_asks_again(connect: Connect) -> None:
    site = connect("manage")

    for times in ({"start": "x", "end": "y"}, {"start": "2026-01-02", "end": "2026-01-01"}):
        again = site.post("/schedule/act", data={**DIGEST, "action": "backfill", **times})
        assert again.status_code == 400
        assert "confirm-error" in again.text
    assert site.post("/schedule/act", data={**DIGEST, "action": "dance"}).status_code == 400


def test_the_overview_names_schedules_that_nobody_fires(td: Treadle, connect: Connect) -> None:
    td.store.declare_schedules([NewSchedule(name="gone", type="report", rule=Rule(cron="0 3 * * *"))])
    td.store.register(WorkerRow(id="w", name="w", concurrency=1))

    assert "1 schedule is orphaned" in connect("read").get("/").text
