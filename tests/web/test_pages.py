"""Pages as plain HTTP: every link works, texts are right, and no tenant sees another's data."""

from __future__ import annotations

import re
from collections.abc import Iterator
from html import unescape

import pytest
from starlette.applications import Starlette
from starlette.routing import Mount
from starlette.testclient import TestClient

from tests.eventually import eventually
from tests.web.conftest import HERE, OURS, Connect, by_header
from treadle import Dedupe, Fail, Treadle

PREFIX = "/admin/jobs"
FORMS = ("pauses", "pauses/resume", "workers/quiet", "limits", "limits/unset")
LINK = re.compile(r'(?:href|src|action)="([^"]*)"')
MOST = 400


@pytest.fixture
def busy(td: Treadle) -> Treadle:
    """Jobs in every state, of two tenants, one of them with an odd name."""
    for tenant in ("globex", "um brella/=?&"):
        for n in range(3):
            td.enqueue("send mail/a", {"n": n}, tenant=tenant, queue="a/b.c", subject="s&t")
        for lease in td.claim(3, types=("send mail/a",)):
            if lease.job.payload["n"] == 0:
                lease.complete({"ok": True})
            elif lease.job.payload["n"] == 1:
                lease.fail(Fail("ValueError: it broke, & badly"))
        td.enqueue("later", tenant=tenant, delay=3600)
        td.enqueue("now", tenant=tenant)
    return td


def links(page: str) -> Iterator[str]:
    for found in LINK.findall(page):
        yield unescape(found).partition("#")[0]


def test_every_link_leads_to_a_page_of_the_mount(busy: Treadle) -> None:
    app = Starlette(routes=[Mount(PREFIX, busy.asgi(auth=by_header))])
    client = TestClient(app, base_url=HERE, headers={**OURS, "X-Who": "manage"})
    todo, seen = (
        [f"{PREFIX}/"],
        {f"{PREFIX}/{path}" for path in ("jobs/act", "jobs/confirm", *FORMS)},
    )  # without a form's fields, they return an error page
    while todo:
        url = todo.pop()
        answer = client.get(url)
        assert answer.status_code == 200, url
        seen.add(url)
        if answer.headers["content-type"].startswith("text/html"):
            for link in links(answer.text):
                assert not link or link.startswith(f"{PREFIX}/"), f"{link} on {url}"
                if link and link not in seen and link not in todo and len(seen) + len(todo) < MOST:
                    todo.append(link)
    assert len(seen) > 60


def test_a_caller_bound_to_a_tenant_finds_nothing_of_another(connect: Connect, busy: Treadle) -> None:
    [theirs] = list(busy.jobs("tenant:globex status:failed"))
    me = connect("manage @other")
    assert me.get("/").url.path == "/jobs", "their first page is the list of their jobs"
    assert "globex" not in me.get("/jobs").text
    assert "There are no jobs" not in me.get("/jobs?q=status:failed").text
    assert me.get("/jobs?q=tenant:globex").status_code == 403
    assert me.get(f"/jobs/{theirs.id}").status_code == 404
    assert me.get(f"/jobs/{theirs.id}/clone").status_code == 404
    assert me.get(f"/jobs/confirm?action=delete&id={theirs.id}").status_code == 404
    assert me.post("/jobs/act", data={"action": "delete", "id": theirs.id}).status_code == 404
    asked = {"action": "delete", "q": "status:failed", "expected": "2", "typed": "2"}
    assert me.post("/jobs/act", data=asked).status_code == 412, "none of theirs match"
    assert busy.get(theirs.id) is not None
    navigation = me.get("/jobs").text.partition("</nav>")[0]
    assert [name for name in ("Overview", "Failures", "Workers", "Audit") if name in navigation] == []


def test_an_action_that_is_not_possible_is_refused_with_the_reason(connect: Connect, busy: Treadle) -> None:
    done = busy.jobs("status:completed")[0]
    refused = connect().post("/jobs/act", data={"action": "cancel", "id": done.id})
    assert refused.status_code == 409
    assert "completed" in refused.text
    assert connect().post("/jobs/act", data={"action": "explode", "id": done.id}).status_code == 400
    assert connect().post("/jobs/act", data={"action": "delete"}).status_code == 400, "not everything there is"
    assert connect().get("/jobs/confirm?action=retry").status_code == 400


@pytest.mark.parametrize(
    ("action", "go", "keep"),
    [
        ("cancel", "Cancel job", "Keep job"),
        ("delete", "Delete job", "Keep job"),
        ("retry", "Retry job", "Go back"),
        ("run_now", "Run job now", "Go back"),
        ("reschedule", "Reschedule job", "Go back"),
    ],
)
def test_the_buttons_of_a_confirm_dialog_say_what_they_do(
    connect: Connect, busy: Treadle, action: str, go: str, keep: str
) -> None:
    def buttons(query: str) -> list[str]:
        page = connect().get(f"/jobs/confirm?action={action}&{query}").text
        return re.findall(r'data-testid="confirm-(?:go|keep)"[^>]*>([^<]*)<', page)

    assert buttons(f"id={busy.jobs('status:failed')[0].id}") == [go, keep]
    assert buttons("all=1&q=type:now") == [go.replace("job", "2 jobs"), keep.replace("job", "jobs")]


@pytest.mark.parametrize(
    ("state", "button"),
    [("failed", "Retry"), ("cancelled", "Retry"), ("processing", "Cancel"), ("scheduled", "Run now")],
)
def test_a_page_names_a_button_where_the_cli_names_a_command(
    connect: Connect, busy: Treadle, state: str, button: str
) -> None:
    busy.cancel(busy.enqueue("to be cancelled").id)
    path = f"/jobs/{busy.jobs(f'status:{state}')[0].id}"
    reasons = connect().get(path).text.partition('data-testid="why"')[2].partition("</section>")[0]
    assert f"use the {button} button" in reasons
    assert "treadle jobs" not in reasons
    assert f"use the {button} button" not in connect("read").get(path).text, "there is no such button for a reader"


def test_a_problem_on_a_page_does_not_mention_http_requests(connect: Connect, busy: Treadle) -> None:
    first = busy.enqueue("single", dedupe="one")
    busy.cancel(first.id)
    holder = busy.enqueue("single", dedupe="one")
    refused = connect().post("/jobs/act", data={"action": "retry", "id": first.id})
    assert refused.status_code == 409
    assert holder.id in refused.text
    for answer in (refused, connect().get("/jobs/nonsense")):
        assert "/api/" not in answer.text


def test_the_page_of_a_job_shows_its_dedupe_mode_and_the_job_that_replaced_it(connect: Connect, busy: Treadle) -> None:
    latest = Dedupe("doc", mode="replace")
    first, second = (busy.enqueue("single", dedupe=latest) for _ in range(2))
    page = connect().get(f"/jobs/{first.id}").text
    assert re.search(r'data-testid="dedupe"><dt>Dedupe</dt><dd>replace<', page)
    assert re.search(rf'data-testid="related"><dt>Replaced by</dt><dd><a href="[^"]*/jobs/{second.id}"', page)
    assert 'data-testid="related"' not in connect().get(f"/jobs/{second.id}").text


def test_the_page_of_a_successor_shows_the_job_for_which_it_waits(connect: Connect, busy: Treadle) -> None:
    latest = Dedupe("doc", mode="replace")
    first = busy.enqueue("single", dedupe=latest, priority=100)
    assert [lease.job.id for lease in busy.claim(1)] == [first.id]
    second = busy.enqueue("single", dedupe=latest)
    page = connect().get(f"/jobs/{second.id}").text
    assert re.search(rf'data-testid="related"><dt>Waits for</dt><dd><a href="[^"]*/jobs/{first.id}"', page)
    assert f"It waits until job {first.id} has ended" in page
    assert "Due when its dedupe key is free" in page
    assert "waits for its dedupe key" in connect().get("/jobs?q=type:single").text


def test_each_change_is_recorded_in_the_audit(connect: Connect, busy: Treadle) -> None:
    me = connect()
    [failed, *_] = busy.jobs("status:failed")
    [later, *_] = busy.jobs("status:scheduled")
    me.post("/jobs/act", data={"action": "retry", "id": failed.id})
    me.post("/jobs/act", data={"action": "run_now", "id": later.id})
    me.post(f"/jobs/{failed.id}/clone", data={"payload": '{"n": 9007199254740993}'})
    noted = [(row.action, row.what.split()[0]) for row in busy.store.audits(10)]
    assert noted == [("clone", failed.id), ("run_now", later.id), ("retry", failed.id)]
    clone = busy.jobs("payload.n:9007199254740993")[0]
    assert (clone.payload, clone.queue, clone.tenant) == ({"n": 9007199254740993}, failed.queue, failed.tenant)


def test_jobs_are_rescheduled_from_their_pages(connect: Connect, busy: Treadle) -> None:
    me, [later, *_] = connect(), busy.jobs("status:scheduled")
    assert "act-reschedule" in me.get(f"/jobs/{later.id}").text
    form = {"action": "reschedule", "id": later.id, "when": "2h", "priority": "8", "queue": ""}
    assert me.post("/jobs/act", data=form).status_code == 200
    moved = busy.get(later.id)
    assert moved is not None
    assert (moved.priority, moved.queue) == (8, later.queue)
    assert moved.run_at != later.run_at
    me.cookies.set("treadle_zone", "Europe/Berlin")
    me.post("/jobs/act", data={**form, "when": "2030-07-01 08:00"})
    assert [job.run_at.isoformat() for job in busy.jobs(f"id:{later.id}")] == ["2030-07-01T06:00:00+00:00"]
    assert [row.what.split()[0] for row in busy.store.audits(2)] == [later.id, later.id]
    assert later.id in me.get("/audit").text


@pytest.mark.parametrize(
    ("field", "text"),
    [("when", "tomorrow"), ("priority", "high"), ("priority", "99999"), ("queue", "q" * 201), ("", "")],
)
def test_a_wrong_field_of_a_reschedule_is_shown_again(connect: Connect, busy: Treadle, field: str, text: str) -> None:
    [later, *_] = busy.jobs("status:scheduled")
    answer = connect().post("/jobs/act", data={"action": "reschedule", "id": later.id, field: text})
    assert answer.status_code == 400
    assert text in answer.text
    assert 'data-testid="confirm-error"' in answer.text
    assert busy.get(later.id) == later


def test_all_that_match_are_rescheduled_from_the_list(connect: Connect, busy: Treadle) -> None:
    me = connect()
    page = me.get("/jobs/confirm?action=reschedule&all=1&q=type:now").text
    assert 'name="when"' in page
    data = {"action": "reschedule", "q": "type:now", "expected": "2", "typed": "2", "priority": "3"}
    shown = me.post("/jobs/act", data=data)
    assert 'data-testid="operation"' in shown.text
    assert "priority=3" in shown.text
    eventually(lambda: busy.store.operations(1)[0].ended_at is not None)
    assert {job.priority for job in busy.jobs("type:now status:pending")} == {3}


def test_a_payload_that_is_not_json_is_shown_again_with_the_reason(connect: Connect, busy: Treadle) -> None:
    job = busy.jobs()[0]
    for text in ("{", "[1]", '{"a": NaN}'):
        answer = connect().post(f"/jobs/{job.id}/clone", data={"payload": text})
        assert answer.status_code == 400
        assert unescape(answer.text).count(text) >= 1
    assert busy.count("type:now").value == 2


def test_an_invalid_cursor_is_an_error_that_says_so(connect: Connect, busy: Treadle) -> None:
    assert connect().get("/jobs?cursor=nonsense").status_code == 400
    assert connect().get("/audit?cursor=nonsense").status_code == 400
    assert connect().get("/jobs?trail=nonsense.%22%3E&cursor=" + busy.jobs()[0].id).status_code == 200


def test_a_page_says_until_when_a_job_may_start(connect: Connect, busy: Treadle) -> None:
    me, job = connect(), busy.enqueue("soon", start_within=3600)
    page = me.get(f"/jobs/{job.id}").text
    assert 'data-testid="start-by"' in page
    assert "use the Reschedule button" in page
    assert 'data-testid="start-by"' not in me.get(f"/jobs/{busy.enqueue('whenever').id}").text
