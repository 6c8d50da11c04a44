"""Authorization: every route, called by every kind of caller."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from tests.web.conftest import HERE, OURS, Connect
from treadle import Treadle, api_tokens
from treadle.ids import new_id
from treadle.stores.rows import Token
from treadle.web import SCOPES
from treadle.web.app import ROUTES
from treadle.web.auth import nobody
from treadle.web.route import Route

NEEDING = [route for route in ROUTES if route.scope is not None]
OPEN = [route for route in ROUTES if route.scope is None]
FINITE = [route for route in NEEDING if not route.stream]
"""A stream never ends by itself. test_events.py tests which callers get one."""
REFUSED = (401, 403)


def name(route: Route) -> str:
    return f"{route.method} {route.path}"


def path(route: Route, id: str) -> str:
    return route.path.replace("{id}", id).replace("{name}", "treadle.css")


def call(client: TestClient, route: Route, id: str) -> int:
    body = {} if route.body is not None else None
    return client.request(route.method, path(route, id), json=body, follow_redirects=False).status_code


@pytest.fixture(scope="module")
def td(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Treadle]:
    """One app for all tests: the result depends on the caller, not on the data."""
    app = Treadle(f"sqlite:///{tmp_path_factory.mktemp('matrix')}/jobs.db")
    yield app
    app.close()


@pytest.fixture
def id(td: Treadle) -> str:
    return td.enqueue("nothing", tenant="acme").id


def test_there_are_routes_of_every_scope() -> None:
    assert {route.scope for route in ROUTES} >= {*SCOPES, None}
    assert len(ROUTES) == len({(route.method, route.path) for route in ROUTES})


@pytest.mark.parametrize("route", NEEDING, ids=name)
def test_a_caller_without_credentials_is_refused(route: Route, connect: Connect, id: str) -> None:
    assert call(connect(None), route, id) == 401


@pytest.mark.parametrize("route", [r for r in OPEN if r.path != "/"], ids=name)
def test_open_routes_are_open(route: Route, connect: Connect, id: str) -> None:
    assert call(connect(None), route, id) == 200


@pytest.mark.parametrize("scope", SCOPES)
@pytest.mark.parametrize("route", FINITE, ids=name)
def test_a_scope_opens_its_own_routes_and_manage_opens_all(route: Route, scope: str, connect: Connect, id: str) -> None:
    status = call(connect(scope), route, id)
    assert (status not in REFUSED) == (scope in (route.scope, "manage")), status
    assert status != 401


@pytest.mark.parametrize("route", FINITE, ids=name)
def test_a_caller_bound_to_another_tenant_sees_nothing_of_this_one(route: Route, connect: Connect, id: str) -> None:
    status = call(connect("manage @umbrella"), route, id)
    if not route.for_tenants:
        assert status == 403
    elif "/jobs/{id}" in route.path:
        assert status == 404
    else:
        assert status not in REFUSED


@pytest.mark.parametrize("scope", ["enqueue", "tick"])
@pytest.mark.parametrize("route", [route for route in NEEDING if route.stream], ids=name)
def test_a_stream_needs_its_scope_too(route: Route, scope: str, connect: Connect, id: str) -> None:
    assert call(connect(scope), route, id) == 403


@pytest.fixture
def by_token(td: Treadle) -> Iterator[TestClient]:
    """A mount that accepts only tokens."""
    with TestClient(td.asgi(auth=nobody), base_url=HERE, headers=OURS) as client:
        yield client


def give_out(td: Treadle, name: str, *scopes: str, tenant: str = "", expires_in: float | None = None) -> str:
    secret = api_tokens.new_secret()
    expires_at = None if expires_in is None else td.store.now() + int(expires_in * 1_000_000)
    assert td.store.add_token(
        Token(hash=api_tokens.hash_of(secret), name=name, scopes=scopes, tenant=tenant, expires_at=expires_at)
    )
    return secret


@pytest.mark.parametrize("route", NEEDING, ids=name)
def test_a_token_that_is_wrong_expired_revoked_or_without_scopes_is_refused(
    route: Route, by_token: TestClient, td: Treadle, id: str
) -> None:
    expired, revoked = give_out(td, new_id(), "manage", expires_in=-1), give_out(td, "taken away", "manage")
    assert td.store.drop_token("taken away")
    for secret in (expired, revoked, give_out(td, new_id()), api_tokens.new_secret(), "td_", "x"):
        by_token.headers["Authorization"] = f"Bearer {secret}"
        assert call(by_token, route, id) == 401


def test_a_token_has_its_scopes_and_its_tenant(by_token: TestClient, td: Treadle, id: str) -> None:
    by_token.headers["Authorization"] = f"Bearer {give_out(td, 'reader', 'read', tenant='acme')}"
    assert by_token.get(f"/api/jobs/{id}").json()["tenant"] == "acme"
    assert by_token.post(f"/api/jobs/{id}/cancel").status_code == 403
    other = td.enqueue("nothing", tenant="umbrella")
    assert by_token.get(f"/api/jobs/{other.id}").status_code == 404


def test_a_revoked_token_is_refused_within_a_second(by_token: TestClient, td: Treadle, id: str) -> None:
    by_token.headers["Authorization"] = f"Bearer {give_out(td, 'soon gone', 'read')}"
    assert by_token.get(f"/api/jobs/{id}").status_code == 200
    td.store.drop_token("soon gone")
    time.sleep(1)
    assert by_token.get(f"/api/jobs/{id}").status_code == 401


def test_a_secret_is_not_stored(td: Treadle) -> None:
    secret = give_out(td, "another reader", "read")
    td.close()
    place = Path(td.store.where)
    for file in (place, place.with_name(place.name + "-wal")):
        assert not file.exists() or secret.encode() not in file.read_bytes()
