"""What is hidden is shown nowhere. On SQLite and PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from tests import stores
from tests.web.conftest import client_of
from treadle import Fail, Treadle
from treadle.job import Progress
from treadle.redact import HIDDEN

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
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    found: str = (
        f"sqlite:///{tmp_path}/jobs.db" if request.param == "sqlite" else request.getfixturevalue("postgres_url")
    )
    return found


@pytest.fixture
def td(url: str) -> Iterator[Treadle]:
    app = Treadle(url, **stores.quick(url))
    yield app
    app.close()


@pytest.fixture
def job(td: Treadle) -> str:
    id = td.enqueue("login", PAYLOAD).id
    [lease] = td.claim()
    lease.fail(Fail(ERROR))
    return id


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
