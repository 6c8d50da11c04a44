"""What each scope gets to see of stored jobs, and can store again: on every route, on SQLite and PostgreSQL."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from tests import stores
from tests.web.conftest import client_of
from tests.web.test_jobs import problem
from treadle import Fail, Treadle
from treadle.redact import HIDDEN
from treadle.web.app import ROUTES

SECRET, STORED = "hunter2", "as it is stored"
"""What nobody may see, and what only readers may see."""
DEDUPE = "the key of every job"


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    stores.on_every_store(metafunc, "url", stores.KINDS[:2])


def test_the_scopes_of_the_routes_are_those_in_the_docs() -> None:
    section = (Path(__file__).parents[2] / "docs" / "http-api.md").read_text("utf-8").partition("## All routes")[2]
    found = re.findall(r"^\| `(\w+) (\S+)` \| `?(\w+)`? \| (yes|no) \|$", section, re.MULTILINE)
    assert len(found) == len(set(found))
    table = {
        (route.method, route.path, route.scope or "none", "yes" if route.for_tenants else "no") for route in ROUTES
    }
    assert set(found) == table


@pytest.fixture
def td(url: str) -> Iterator[Treadle]:
    """Its worker knows `typed`. The other types belong to another process."""
    app = Treadle(url, **stores.quick(url))

    @app.job
    def typed(card: int, note: str = "") -> None: ...

    yield app
    app.close()


@pytest.fixture
def stored(td: Treadle) -> list[str]:
    """The ids of a completed, a failed, a retrying and a waiting job, each with secrets wherever text can be."""
    payload = {"password": SECRET, "note": STORED}
    ids = [td.enqueue("elsewhere", payload, dedupe=f"{DEDUPE} {n}").id for n in range(3)]
    done, failed, retrying = td.claim(3, types=["elsewhere"])
    done.complete({"token": SECRET, "note": STORED})
    failed.fail(Fail(f"{STORED}: password={SECRET}"))
    retrying.fail(f"{STORED}: password={SECRET}", retry_in=3600)
    return [*ids, td.enqueue("elsewhere", payload, dedupe=f"{DEDUPE} 3", delay=3600).id]


def everything_sent_by(client: TestClient, ids: list[str]) -> Iterator[str]:
    """Every answer to a caller who tries every route with every job, and sends back what a page shows of a payload."""
    masked = {"password": HIDDEN, "note": "mine"}
    for route in ROUTES:
        if route.stream:
            continue
        for id in ids:
            path = route.path.replace("{id}", id).replace("{name}", "treadle.css")
            sent: dict[str, Any] = (
                {"json": {"payload": masked}} if route.body is not None else {"data": {"payload": json.dumps(masked)}}
            )
            for body in (sent, {}) if route.writes else (sent,):  # without a body, a clone is as the job was
                answer = client.request(route.method, path, params=query(path, id), **body, follow_redirects=False)
                yield f"{route.method} {path}: {answer.text} {dict(answer.headers)}"
    for n, _ in enumerate(ids):
        again = {"type": "elsewhere", "payload": masked, "dedupe": f"{DEDUPE} {n}"}
        for _ in range(2):
            answer = client.post("/api/jobs", json=again, headers={"Idempotency-Key": f"k-{n}"})
            assert answer.status_code in (200, 201, 403), "a job that has ended holds no key"
            yield f"POST /api/jobs: {answer.text}"


def query(path: str, id: str) -> dict[str, str]:
    if path == "/jobs/confirm":
        return {"action": "delete", "id": id}
    return {"q": id} if path in ("/jobs", "/api/jobs", "/api/stats") else {}


@pytest.mark.parametrize("scope", ["enqueue tick", "read enqueue tick"])
def test_only_readers_see_what_is_stored_and_none_but_managers_store_it_again(
    td: Treadle, stored: list[str], scope: str
) -> None:
    before = {job.id for job in td.jobs(limit=200)}
    answers = list(everything_sent_by(client_of(td, scope), stored))
    assert [answer for answer in answers if SECRET in answer] == []
    assert any(STORED in answer for answer in answers) == ("read" in scope)
    again = [job for job in td.jobs(limit=200) if job.id not in before and SECRET in str(job)]
    assert again == []


def test_a_job_that_holds_a_key_is_a_receipt_for_those_who_may_not_read(td: Treadle, stored: list[str]) -> None:
    answer = client_of(td, "enqueue").post("/api/jobs", json={"type": "elsewhere", "dedupe": f"{DEDUPE} 2"}).json()
    assert (answer["id"], answer["status"]) == (stored[2], "pending")
    assert (answer["payload"], answer["result"], answer["error"], answer["progress"]) == ({}, None, None, None)


def test_a_repeated_request_does_not_show_what_its_job_returned(td: Treadle) -> None:
    client, asked = client_of(td, "enqueue"), {"type": "elsewhere", "payload": {"n": 1}}
    first = client.post("/api/jobs", json=asked, headers={"Idempotency-Key": "k"}).json()
    td.claim(1)[0].complete({"note": STORED})
    again = client.post("/api/jobs", json=asked, headers={"Idempotency-Key": "k"}).json()
    assert (again["id"], again["status"], again["result"]) == (first["id"], "completed", None)


# A clone


def clone(client: TestClient, id: str, payload: str) -> str:
    """The id of the clone that the page makes, or the error that it shows."""
    answer = client.post(f"/jobs/{id}/clone", data={"payload": payload}, follow_redirects=False)
    assert answer.status_code in (303, 400)
    assert SECRET not in answer.text
    return answer.headers["location"].rpartition("/")[2] if answer.status_code == 303 else unescape(answer.text)


def test_a_clone_needs_the_scope_manage(td: Treadle, stored: list[str]) -> None:
    client = client_of(td, "read enqueue tick")
    assert client.get(f"/jobs/{stored[0]}/clone").status_code == 403
    assert client.post(f"/jobs/{stored[0]}/clone", data={"payload": "{}"}).status_code == 403
    assert "act-clone" not in client.get(f"/jobs/{stored[0]}").text


def test_an_error_shows_what_was_sent_and_nothing_stored(td: Treadle, stored: list[str]) -> None:
    client, deep = client_of(td, "manage"), '{"deep": ' * 70 + "1" + "}" * 70
    for value in ('"\\u0000"', "1e999", deep, f'"{"x" * (1 << 20)}"', "NaN"):
        shown = clone(client, stored[0], f'{{"password": "{HIDDEN}", "note": {value}}}')
        assert 'role="alert"' in shown, value[:20]
    for text in ("null", "[1]", "1", '"x"', "", "{"):
        assert 'role="alert"' in clone(client, stored[0], text), "only an object is a payload"
    assert td.count().value == len(stored)


def test_hidden_values_are_filled_in_whatever_type_they_have(td: Treadle) -> None:
    client, job = client_of(td, "manage"), td.enqueue("typed", {"card": 4111, "note": "a"})
    new = td.get(clone(client, job.id, f'{{"card": "{HIDDEN}", "note": "b"}}'))
    assert new is not None
    assert new.payload == {"card": 4111, "note": "b"}
    assert "note=1 does not fit str" in clone(client, job.id, f'{{"card": "{HIDDEN}", "note": 1}}')
    assert "unknown argument 'mote'" in clone(client, job.id, f'{{"card": "{HIDDEN}", "mote": "b"}}')


def test_a_stored_payload_that_no_longer_fits_is_not_shown_by_an_error(url: str, td: Treadle) -> None:
    """An older deploy took text where the handler takes a number now."""
    old = Treadle(url)
    job = old.enqueue("typed", {"card": SECRET})
    old.close()
    client = client_of(td, "manage")
    refused = problem(client.post(f"/api/jobs/{job.id}/clone"), 400, "bad-payload")
    assert SECRET not in str(refused)
    assert f"of job {job.id} does not fit 'typed'" in refused["detail"]
    assert "does not fit int" in clone(client, job.id, f'{{"card": "{HIDDEN}"}}')
