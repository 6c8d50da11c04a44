"""What is hidden is shown nowhere, and cannot be found by a filter either. On SQLite and PostgreSQL."""

from __future__ import annotations

import html
import re
from typing import Any

import pytest
from starlette.testclient import TestClient

from tests import stores
from tests.web.conftest import client_of
from tests.web.test_bulk import ended
from treadle import Fail, Treadle
from treadle.bulk import Bulk
from treadle.filters import Filter, parse
from treadle.ids import new_id
from treadle.job import Progress
from treadle.redact import HIDDEN
from treadle.stores.rows import Operation
from treadle.web.api import bulk as bulk_runner

SECRET = "hunter2"
ERROR = f"login failed: password={SECRET}, user=ada"
PAYLOAD = {
    "user": {"name": "ada", "password": SECRET},
    "dsn": f"postgres://u:{SECRET}@h",
    "tags": ["a", {"token": SECRET}],
}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    stores.on_every_store(metafunc, "url", stores.KINDS[:2])


@pytest.fixture
def job(td: Treadle) -> str:
    id = td.enqueue("login", PAYLOAD).id
    [lease] = td.claim()
    lease.fail(Fail(ERROR))
    return id


@pytest.fixture
def reader(td: Treadle, job: str) -> TestClient:
    return client_of(td, "read")


# Filters

HIDDEN_TERMS = [
    f"payload.user.password:{SECRET}",
    "payload.user.password:h",
    "payload.tags.1.token:x",
    'payload.user:"{\\"name\\":\\"ada\\",\\"password\\":\\"hunter2\\"}"',
    'payload.user:"{\\"name\\": \\"ada\\", \\"password\\": \\"hunter2\\"}"',
    f"payload.dsn:postgres://u:{SECRET}@h",
    f"error:password={SECRET}",
    "error:password=h",
    'error:"PASSWORD = h"',
    "error:refused,token:x",
    "error:postgres://u:h",
]


@pytest.mark.parametrize("term", HIDDEN_TERMS)
def test_a_term_that_only_a_hidden_value_could_match_is_refused(td: Treadle, reader: TestClient, term: str) -> None:
    manager = client_of(td, "manage")
    bulk = {"action": "delete", "filter": term, "dry_run": True}
    answers = [reader.get("/api/jobs", params={"q": term}), reader.get("/api/stats", params={"q": term})]
    for answer in [*answers, manager.post("/api/jobs/bulk", json=bulk)]:
        assert (answer.status_code, answer.json()["type"]) == (400, "urn:treadle:problem:bad-filter")
        assert "this value is hidden" in answer.json()["detail"]
    pages = [reader.get("/jobs", params={"q": term})]
    pages += [manager.get("/jobs/confirm", params={"action": "delete", "q": term, "all": "1"})]
    for page in pages:
        assert page.status_code == 400
        assert "this value is hidden" in page.text


def found(client: TestClient, q: str) -> bool:
    """Whether a filter finds the job, by every answer that could say so. All of them agree."""
    listed = client.get("/api/jobs", params={"q": q, "limit": 1})
    if listed.status_code == 400:
        return False
    body, counted = listed.json(), client.get("/api/stats", params={"q": q}).json()["items"]
    numbers = {len(body["items"]), body["total"]["value"], sum(row["count"] for row in counted)}
    assert body["next_cursor"] is None
    assert body["total"]["relation"] == "eq"
    [number] = numbers
    return bool(number)


def by_error(text: str) -> str:
    return str(Filter(errors=((text,),)))


@pytest.mark.parametrize("known", ["login failed: password=", "password=", "word=", "=", "", "h", "hunter", "2,"])
def test_a_secret_in_an_error_cannot_be_recovered_letter_by_letter(reader: TestClient, known: str) -> None:
    """By a reader who tries each next letter after what they know."""
    visible = ERROR.replace(SECRET, HIDDEN)
    letters = [letter for letter in sorted({*SECRET, *"abc"}) if found(reader, by_error(known + letter))]
    assert [letter for letter in letters if known + letter not in visible] == []


@pytest.mark.parametrize(
    "q",
    ['error:"LOGIN FAILED"', "error:password", 'error:"login failed: password="', "payload.user.name:ada",
     "payload.tags.0:a", 'payload.tags.0:"a" error:log', "type:login status:failed"],
)  # fmt: skip
def test_what_is_shown_can_be_found(reader: TestClient, q: str) -> None:
    assert found(reader, q)
    assert 'data-testid="row"' in reader.get("/jobs", params={"q": q}).text


def test_the_library_and_the_command_line_find_everything(td: Treadle, job: str) -> None:
    """Who uses them has the database."""
    for q in (f"payload.user.password:{SECRET}", by_error(SECRET), by_error(f"password={SECRET}")):
        assert [found.id for found in td.jobs(q)] == [job]


def test_without_redaction_everything_can_be_found(td: Treadle, reader: TestClient) -> None:
    td.redactor = Treadle(td.store.url, redact=False).redactor
    assert found(reader, f"payload.user.password:{SECRET}")
    assert found(reader, by_error(f"password={SECRET}"))


def test_a_bulk_operation_that_is_resumed_finds_no_more_than_its_caller_sees(
    td: Treadle, job: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    filter = f"status:failed {by_error('hunter')}"
    position = Bulk(td.store, "delete", parse(filter)).position
    operation = Operation(new_id(), "somebody", "delete", filter, 1, position=position)
    td.store.start_operation(operation)
    monkeypatch.setattr(bulk_runner, "ABANDONED", -1)
    assert ended(client_of(td, "manage"), operation.id)["done"] == 0
    assert td.get(job) is not None


def test_the_links_of_failures_find_their_jobs(td: Treadle, reader: TestClient, job: str) -> None:
    for error in ("the token has expired", "password=hunter2", "postgres://u:hunter2@h is gone", "discard=1 failed"):
        td.enqueue("other", {})
        td.claim()[0].fail(Fail(error))
    page = reader.get("/failures").text
    links = {html.unescape(link) for link in re.findall(r'href="(/jobs\?q=[^"]+)"', page)}
    assert len(links) >= 4
    for link in links:
        shown = reader.get(link)
        assert shown.status_code == 200
        assert 'data-testid="row"' in shown.text, link


# Output


def everything_shown(client: TestClient, id: str) -> str:
    paths = ["/api/jobs", "/jobs", "/", "/failures", "/api/failures"]
    paths += [f"/api/jobs/{id}{part}" for part in ("", "/attempts", "/why")] + [f"/jobs/{id}", f"/jobs/{id}/clone"]
    answers = [client.get(path) for path in paths]
    assert {answer.status_code for answer in answers} == {200}
    return "".join(answer.text for answer in answers)


def test_nothing_that_is_shown_contains_a_secret(td: Treadle, job: str) -> None:
    shown = everything_shown(client_of(td, "manage"), job)
    assert SECRET not in shown
    assert HIDDEN in shown


def test_a_key_that_is_held_is_not_shown(td: Treadle) -> None:
    first = td.enqueue("login", {"password": SECRET}, dedupe=True)
    td.claim()[0].fail(Fail("no"))
    td.enqueue("login", {"password": SECRET}, dedupe=True)
    answer = client_of(td, "manage").post(f"/api/jobs/{first.id}/retry")
    assert answer.status_code == 409
    assert SECRET not in answer.text


def test_progress_is_redacted(td: Treadle) -> None:
    job = td.enqueue("slow", {})
    [lease] = td.claim()
    td.store.save_progress([(lease._claimed, Progress(0.5, f"logged in with token={SECRET}"))])
    client = client_of(td, "manage")
    assert SECRET not in everything_shown(client, job.id)
    assert client.get(f"/api/jobs/{job.id}").json()["progress"]["message"] == f"logged in with token={HIDDEN}"
    assert f"logged in with token={HIDDEN}" in client.get(f"/jobs/{job.id}").text


@pytest.mark.parametrize(("redact", "hidden"), [(True, False), (["iban"], True), (False, False)])
def test_an_app_decides_what_is_hidden(url: str, redact: Any, hidden: bool) -> None:
    td = Treadle(url, redact=redact, **stores.quick(url))
    job = td.enqueue("pay", {"iban": "DE00", "password": SECRET})
    td.claim()[0].fail(Fail(f"iban=DE00 password={SECRET}"))
    shown = everything_shown(client_of(td, "manage"), job.id)
    assert ("DE00" in shown) is not hidden
    assert (SECRET in shown) is (redact is False)
    td.close()
