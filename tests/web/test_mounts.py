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
from flask import Flask, session
from flask.testing import FlaskClient
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import RedirectResponse
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


def test_auth_may_send_a_visitor_to_the_login_of_the_site(td: Treadle) -> None:
    """A page follows the redirect. A program cannot sign in there, and gets the usual problem."""

    async def auth(request: Request) -> RedirectResponse:
        return RedirectResponse(f"/login?next={request.url.path}", 303)

    app = Starlette(routes=[Mount("/admin/jobs", td.asgi(auth=auth))])
    with TestClient(app, base_url=HERE, follow_redirects=False) as client:
        page = client.get("/admin/jobs/jobs")
        assert (303, "/login?next=/admin/jobs/jobs") == (page.status_code, page.headers["location"])
        answer = client.get("/admin/jobs/api/jobs")
        assert (401, "you are not signed in") == (answer.status_code, answer.json()["detail"])
        assert client.get("/admin/jobs/static/treadle.css").status_code == 200


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


def behind_login_of_flask(td: Treadle, auth: Callable[[Flask, Request], str | None]) -> FlaskClient:
    """A client of a Flask app whose dashboard is for those who have signed in at `/login`."""
    app = Flask(__name__)
    app.secret_key = "of the tests"

    @app.post("/login")
    def log_in() -> str:
        session["user"] = "ann"
        return "welcome"

    web: Any = ASGIMiddleware(td.asgi(auth=lambda request: auth(app, request)))  # type: ignore[arg-type]
    app.wsgi_app = DispatcherMiddleware(app.wsgi_app, {"/admin/jobs": web})  # type: ignore[method-assign]
    return app.test_client()


def test_auth_may_read_the_signed_session_of_flask(td: Treadle) -> None:
    def auth(app: Flask, request: Request) -> str | None:
        with app.request_context(request.scope["wsgi_environ"]):
            return "manage" if session.get("user") == "ann" else None

    client = behind_login_of_flask(td, auth)
    assert client.get("/admin/jobs/api/stats").status_code == 401
    client.post("/login")
    assert client.get("/admin/jobs/api/stats").status_code == 200


def test_auth_outside_of_flasks_context_logs_the_way_out(td: Treadle, caplog: pytest.LogCaptureFixture) -> None:
    client = behind_login_of_flask(td, lambda app, request: session.get("user"))
    assert client.get("/admin/jobs/api/stats").status_code == 500
    assert "Working outside of request context" in caplog.text
    assert 'with app.request_context(request.scope["wsgi_environ"])' in caplog.text


def test_a_wsgi_server_keeps_no_thread_for_an_open_page(td: Treadle) -> None:
    """The page polls then. A stream would take the only thread of a gunicorn worker, which is killed for that."""
    with in_flask(td) as client:
        refused = client.get("/admin/jobs/api/events")
        assert (404, "ask again every few seconds") == (refused.status_code, refused.json()["next"])


@pytest.mark.parametrize("mount", [in_fastapi, in_flask], ids=lambda m: m.__name__)
def test_a_mount_without_its_slash_redirects(td: Treadle, mount: Callable[[Treadle], Client]) -> None:
    with mount(td) as client:
        for method in ("GET", "HEAD"):
            answer = client.request(method, "/admin/jobs?q=a%20b&x=1", follow_redirects=False)
            assert (307, True) == (answer.status_code, answer.headers["location"].endswith("/admin/jobs/?q=a%20b&x=1"))
        page = client.get("/admin/jobs", follow_redirects=True)
        assert (200, "/admin/jobs/") == (page.status_code, page.url.path)
        assert client.get("/admin/jobs/api/jobs", follow_redirects=False).status_code == 200


def test_only_pages_of_a_mount_without_its_slash_redirect(td: Treadle) -> None:
    with in_flask(td) as client:
        assert client.post("/admin/jobs", follow_redirects=False).status_code == 404
        assert client.get("/admin/jobs/api", follow_redirects=False).status_code == 404


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
