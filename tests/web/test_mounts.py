"""Inside other apps: FastAPI, Django, Flask; under a prefix; several at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from a2wsgi import ASGIMiddleware
from django.conf import settings
from django.core.asgi import get_asgi_application
from django.http import HttpResponse
from django.test.utils import override_settings
from django.urls import path
from fastapi import FastAPI, HTTPException
from flask import Flask
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.routing import Mount
from starlette.testclient import TestClient
from werkzeug.middleware.dispatcher import DispatcherMiddleware

from tests.web.conftest import HERE, OURS, by_header
from treadle import Treadle

if not settings.configured:
    settings.configure(DATABASES={}, USE_TZ=True)

WHO = {**OURS, "X-Who": "manage"}
Client = TestClient | httpx2.Client


def in_fastapi(td: Treadle) -> Client:
    app = FastAPI()
    app.mount("/admin/jobs", td.asgi(auth=by_header))

    @app.get("/")
    def home() -> str:
        return "home"

    return TestClient(app, base_url=HERE, headers=WHO)


def in_django(td: Treadle) -> Client:
    django = get_asgi_application()
    app = Starlette(routes=[Mount("/admin/jobs", td.asgi(auth=by_header)), Mount("/", django)])
    return TestClient(app, base_url=HERE, headers=WHO)


@pytest.fixture(autouse=True)
def _django_home() -> Iterator[None]:
    """Another page of the Django site. Django has one set of settings for all tests, so they are restored."""
    urls = (path("", lambda request: HttpResponse("home")),)
    with override_settings(ROOT_URLCONF=urls, ALLOWED_HOSTS=["*"]):
        yield


def in_flask(td: Treadle) -> Client:
    app = Flask(__name__)
    app.add_url_rule("/", view_func=lambda: "home")
    web: Any = ASGIMiddleware(td.asgi(auth=by_header))  # type: ignore[arg-type]
    app.wsgi_app = DispatcherMiddleware(app.wsgi_app, {"/admin/jobs": web})  # type: ignore[method-assign]
    return httpx2.Client(transport=httpx2.WSGITransport(app=app), base_url=HERE, headers=WHO)


@pytest.mark.parametrize("mount", [in_fastapi, in_django, in_flask], ids=lambda m: m.__name__)
def test_the_dashboard_works_inside_another_app(td: Treadle, mount: Callable[[Treadle], Client]) -> None:
    with mount(td) as client:
        assert "home" in client.get("/").text
        page = client.get("/admin/jobs/")
        assert (page.status_code, '"/admin/jobs/static/treadle.css?v=' in page.text) == (200, True)
        assert client.get("/admin/jobs/static/treadle.css").status_code == 200
        id = client.post("/admin/jobs/api/jobs", json={"type": "a", "payload": {"n": 1}}).json()["id"]
        assert client.get(f"/admin/jobs/api/jobs/{id}").json()["payload"] == {"n": 1}
        assert client.post(f"/admin/jobs/api/jobs/{id}/cancel").json()["status"] == "cancelled"
        assert client.get("/admin/jobs/api/jobs", params={"q": "status:cancelled"}).json()["items"][0]["id"] == id
        assert client.get("/admin/jobs/api/openapi.json").json()["servers"] == [{"url": "/admin/jobs"}]
        assert client.get("/admin/jobs/nowhere").status_code == 404
        assert client.get("/admin/jobs/api/stats", headers={"X-Who": "enqueue"}).status_code == 403
        cross = client.post("/admin/jobs/api/jobs", json={"type": "a"}, headers={"Sec-Fetch-Site": "cross-site"})
        assert cross.status_code == 403


@pytest.fixture
def other(tmp_path: Path) -> Iterator[Treadle]:
    app = Treadle(f"sqlite:///{tmp_path}/other.db")
    yield app
    app.close()


def test_two_mounts_with_two_databases_do_not_mix(td: Treadle, other: Treadle) -> None:
    app = Starlette(
        routes=[Mount("/one", td.asgi(auth=by_header)), Mount("/two", other.asgi(auth=by_header, read_only=True))]
    )
    client = TestClient(app, base_url=HERE, headers=WHO)
    td.enqueue("a")
    other.enqueue_many([other.request("b"), other.request("b")])
    for _ in range(2):  # the second time from the cache
        assert client.get("/one/api/stats").json()["items"] == [{"status": "pending", "count": 1}]
        assert client.get("/two/api/stats").json()["items"] == [{"status": "pending", "count": 2}]
    assert client.post("/one/api/jobs", json={"type": "a"}).status_code == 201
    assert client.post("/two/api/jobs", json={"type": "a"}).status_code == 405
    assert {job.type for job in other.jobs()} == {"b"}


def test_a_servers_root_path_is_the_prefix(td: Treadle) -> None:
    client = TestClient(td.asgi(auth=by_header), base_url=HERE, headers=WHO, root_path="/behind/a/proxy")
    assert '"/behind/a/proxy/static/' in client.get("/").text
    assert client.get("/api/stats").status_code == 200
    assert client.get("/behind/a/proxy/api/stats").status_code == 200


def test_an_auth_function_can_refuse_with_an_error_of_its_framework(td: Treadle) -> None:
    def auth(request: Request) -> None:
        raise HTTPException(401, "not you", {"WWW-Authenticate": "Cookie"})

    app = FastAPI()
    app.mount("/jobs", td.asgi(auth=auth))
    refused = TestClient(app).get("/jobs/api/stats")
    assert (refused.status_code, refused.headers["www-authenticate"]) == (401, "Cookie")
    assert refused.json()["detail"] == "not you"


def test_an_auth_function_that_raises_refuses_everyone_without_details(td: Treadle) -> None:
    def auth(request: Request) -> str:
        raise RuntimeError("hunter2")

    refused = TestClient(td.asgi(auth=auth)).get("/api/stats")
    assert refused.status_code == 500
    assert "hunter2" not in refused.text
    assert refused.headers["content-security-policy"]
