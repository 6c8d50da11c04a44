"""Checks on every request: hosts, cross-site requests, read-only; and headers of every response."""

from __future__ import annotations

import pytest
from starlette.requests import Request
from starlette.testclient import TestClient

from tests.web.conftest import Connect
from treadle import Treadle
from treadle.errors import BadOption
from treadle.web.app import ROUTES
from treadle.web.security import LOOPBACK


def everyone(request: Request) -> str:
    return "manage"


@pytest.mark.parametrize(
    ("headers", "passes"),
    [
        ({"Sec-Fetch-Site": "same-origin"}, True),
        ({"Sec-Fetch-Site": "none"}, True),
        ({"Sec-Fetch-Site": "cross-site"}, False),
        ({"Sec-Fetch-Site": "same-site"}, False),
        ({"Sec-Fetch-Site": "cross-site", "Origin": "http://localhost"}, False),
        ({"Origin": "http://localhost"}, True),
        ({"Origin": "https://localhost"}, True),
        ({"Origin": "http://localhost:8000"}, False),
        ({"Origin": "http://evil.example"}, False),
        ({"Origin": "null"}, False),
        ({}, False),
        ({"Authorization": "Bearer of-mine"}, True),
        ({"Authorization": "Basic bWU6bWU=", "Sec-Fetch-Site": "cross-site"}, False),
    ],
    ids=str,
)
def test_a_change_must_come_from_the_dashboard_or_with_a_token(
    td: Treadle, headers: dict[str, str], passes: bool
) -> None:
    client = TestClient(td.asgi(auth=everyone), base_url="http://localhost")
    answer = client.post("/api/jobs", json={"type": "a"}, headers=headers)
    assert answer.status_code == (201 if passes else 403)
    assert len(td.jobs()) == passes
    if not passes:
        assert answer.json()["type"] == "urn:treadle:problem:cross-site"


@pytest.mark.parametrize("route", [r for r in ROUTES if r.writes], ids=lambda r: f"{r.method} {r.path}")
def test_no_route_that_changes_something_accepts_cross_site_requests(client: TestClient, route: object) -> None:
    method, path = route.method, route.path.replace("{id}", "x")  # type: ignore[attr-defined]
    assert client.request(method, path, json={}, headers={"Sec-Fetch-Site": "cross-site"}).status_code == 403


@pytest.mark.parametrize("host", ["localhost", "localhost:8420", "127.0.0.1:1", "[::1]:8420", "LOCALHOST"])
def test_the_names_of_this_machine_are_accepted_as_hosts(td: Treadle, host: str) -> None:
    client = TestClient(td.asgi(auth=everyone, hosts=LOOPBACK))
    assert client.get("/healthz", headers={"Host": host}).status_code == 200


@pytest.mark.parametrize("host", ["evil.example", "localhost.evil.example", "127.0.0.1.evil.example", "", "[", "a@b"])
def test_another_host_name_is_refused(td: Treadle, host: str) -> None:
    client = TestClient(td.asgi(auth=everyone, hosts=LOOPBACK))
    answer = client.get("/api/stats", headers={"Host": host})
    assert (answer.status_code, answer.headers["content-type"]) == (421, "application/problem+json")


def test_hosts_can_be_listed_and_need_not_be(td: Treadle) -> None:
    named = TestClient(td.asgi(auth=everyone, hosts=["jobs.example"]))
    assert named.get("/api/stats", headers={"Host": "jobs.example"}).status_code == 200
    assert named.get("/api/stats", headers={"Host": "localhost"}).status_code == 421
    asked = TestClient(td.asgi(auth=everyone))
    assert asked.get("/api/stats", headers={"Host": "jobs.example"}).status_code == 200


@pytest.mark.parametrize("path", ["/", "/api/stats", "/nowhere", "/static/treadle.css", "/api/jobs/none", "/healthz"])
def test_every_response_forbids_what_the_dashboard_does_not_need(client: TestClient, path: str) -> None:
    headers = client.get(path).headers
    assert headers["content-security-policy"].startswith("default-src 'none'; script-src 'self'; style-src 'self';")
    assert "unsafe" not in headers["content-security-policy"]
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "no-referrer"
    assert "app;dur=" in headers["server-timing"]
    assert "access-control-allow-origin" not in headers
    if not path.startswith("/static"):
        assert headers["cache-control"] == "no-store"


def test_frames_can_be_allowed(td: Treadle) -> None:
    client = TestClient(td.asgi(auth=everyone, frame_ancestors="'self'"), base_url="http://localhost")
    assert client.get("/").headers["content-security-policy"].endswith("frame-ancestors 'self'")


def test_read_only_has_no_route_that_changes_something(connect: Connect, td: Treadle) -> None:
    client, job = connect(read_only=True), td.enqueue("a")
    for route in ROUTES:
        if route.writes:
            answer = client.request(route.method, route.path.replace("{id}", job.id), json={})
            assert answer.status_code in (404, 405), route.path
    assert td.get(job.id) == job
    paths = client.get("/api/openapi.json").json()["paths"]
    assert {method for methods in paths.values() for method in methods} == {"get"}


def test_static_files_are_cached_forever_with_their_hash_and_revalidated_without(client: TestClient) -> None:
    plain = client.get("/static/treadle.css")
    assert plain.headers["cache-control"] == "no-cache"
    hashed = client.get(f"/static/treadle.css?v={plain.headers['etag'].strip(chr(34))}")
    assert hashed.headers["cache-control"] == "public, max-age=31536000, immutable"
    again = client.get("/static/treadle.css", headers={"If-None-Match": plain.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")


@pytest.mark.parametrize("name", ["..%2Fapp.py", "../app.py", "nothing.css", "%2e%2e%2fapp.py", "treadle.css%00"])
def test_only_the_dashboards_own_files_are_served(client: TestClient, name: str) -> None:
    assert client.get(f"/static/{name}").status_code == 404


def test_auth_has_to_be_a_function(td: Treadle) -> None:
    with pytest.raises(BadOption, match="leave it out: then a link to sign in with is printed"):
        td.asgi(auth="manage")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("answer", "read", "change"),
    [(None, 401, 401), ("read", 200, 403), ("manage", 200, 201), ({"read", "enqueue"}, 200, 201), (set(), 403, 403)],
    ids=str,
)
@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
def test_an_auth_function_can_return_several_kinds_of_results(
    td: Treadle, answer: object, read: int, change: int, is_async: bool
) -> None:
    async def later(request: Request) -> object:
        return answer

    client = TestClient(td.asgi(auth=later if is_async else lambda request: answer))  # type: ignore[arg-type]
    assert client.get("/api/stats").status_code == read
    headers = {"Sec-Fetch-Site": "same-origin"}
    assert client.post("/api/jobs", json={"type": "a"}, headers=headers).status_code == change


@pytest.mark.parametrize("answer", [True, "admin", 1, {"write"}], ids=str)
def test_an_auth_function_that_returns_an_invalid_value_refuses_everyone(td: Treadle, answer: object) -> None:
    client = TestClient(td.asgi(auth=lambda request: answer), raise_server_exceptions=False)  # type: ignore[arg-type]
    assert client.get("/api/stats").status_code == 500
