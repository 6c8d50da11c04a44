"""A caller bound to a tenant learns nothing of other tenants: on SQLite and PostgreSQL.

Two databases have the same history of `acme`. In one of them others do much more. Every answer must be the same.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from datetime import datetime, tzinfo
from functools import cache
from pathlib import Path
from typing import Any, Self

import pytest
from starlette.requests import Request as RawRequest
from starlette.testclient import TestClient

from tests import stores
from tests.servers.databases import Databases
from tests.web.conftest import OURS, client_of
from tests.web.test_bulk import ended
from tests.web.test_jobs import problem
from treadle import Fail, Treadle, clock
from treadle.filters import Filter
from treadle.ids import new_id
from treadle.reasons import ReasonCode
from treadle.stores.base import ClaimRequest, TypePolicy, WorkerRow
from treadle.web import Principal, formatting
from treadle.web.app import ROUTES, WebApp
from treadle.web.auth import nobody
from treadle.web.route import Request

ME, THEM = "acme", "umbrella"
NOW = clock.now()
UUID = re.compile("[0-9a-f]{8}-[0-9a-f-]{27}|[0-9a-f]{4}…[0-9a-f]{6}")
"""An id, whole or shortened."""
Answers = dict[str, tuple[int, str]]


class World:
    """A database with jobs of both tenants."""

    def __init__(self, url: str, busy: int) -> None:
        self.td = Treadle(url, clock=lambda: NOW, **stores.quick(url))
        self.busy = busy
        self.me = client_of(self.td, f"manage @{ME}")
        self.ids: dict[str, str] = {}
        """Jobs and operations, by what they are."""
        self.fill()

    def fill(self) -> None:
        """Whatever acme does, others do something in between: `busy` times."""
        self.start_workers()
        self.others()
        self.ids |= {name: self.mine(name, queue=name) for name in ("unserved", "default")}
        self.ids |= {"own": self.mine("own"), "full": self.mine("limited"), "later": self.mine("own", delay=3600)}
        for name, settle in SETTLED.items():
            self.others()
            self.ids[name] = self.mine(name, subject="shared", priority=2)
            for _ in range(2 if name == "retried" else 1):
                [lease] = self.td.claim(1, types=[name])
                settle(lease)
                self.others()
                self.td.run_now(self.ids[name]) if name == "retried" else None
        self.operations()
        self.ids["unknown"] = new_id()

    def mine(self, type: str, **options: Any) -> str:
        return self.td.enqueue(type, {"n": 1}, tenant=ME, **options).id

    def others(self) -> None:
        """Jobs of the same types, queues and subjects, and some that ran. The limited type is full."""
        for n in range(self.busy):
            for type in ("own", "limited", *SETTLED):
                job = self.td.enqueue(type, {"n": n}, tenant=THEM, subject="shared", priority=1)
                self.ids["theirs"] = job.id
            self.td.enqueue(f"{THEM} {n}", tenant=THEM, queue=f"{THEM} {n}", dedupe="theirs")
            self.td.enqueue(f"{THEM} runs", tenant="", subject="shared")
            self.td.claim(1, types=[f"{THEM} runs"])[0].fail(Fail(f"{THEM} failed"))
        self.td.store.claim("w0", ClaimRequest(limit=2, types={"limited": None}))

    def start_workers(self) -> None:
        td, types = self.td, ("own", "limited", *(f"{THEM} {n}" for n in range(self.busy)))
        td.store.publish([TypePolicy(type="limited", concurrency=2)])
        for n in range(self.busy):
            td.store.register(
                WorkerRow(id=f"w{n}", name=f"{THEM} {n}", concurrency=1, queues=("default",), types=types)
            )

    def operations(self) -> None:
        """Two of an administrator, and one of acme. An administrator used the same key, too."""
        admin = client_of(self.td, "manage")
        for name, client, filter in (
            ("several", admin, f"tenant:{ME},{THEM} status:failed"),
            ("all", admin, "status:failed"),
            ("about me", admin, f"tenant:{ME} status:failed"),
            ("my own", self.me, "status:failed"),
        ):
            started = client.post("/api/jobs/bulk", json={"action": "run_now", "filter": filter}).json()
            self.ids[name] = started["operation_id"]
            ended(admin, started["operation_id"])
        for _ in range(self.busy):
            admin.post("/api/jobs", json={"type": "theirs"}, headers={"Idempotency-Key": "k"})

    def close(self) -> None:
        self.td.close()


SETTLED: dict[str, Callable[[Any], Any]] = {
    "completed": lambda lease: lease.complete({"ok": True}),
    "failed": lambda lease: lease.fail(Fail("boom")),
    "retried": lambda lease: lease.fail("boom", retry_in=3600),
}


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def worlds(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[World, World]]:
    folder: Path = tmp_path_factory.mktemp("tenants")
    urls = [f"sqlite:///{folder}/{name}.db" for name in ("calm", "busy")]
    databases: Databases | None = None
    if request.param == "postgresql":
        databases = request.getfixturevalue("postgres_databases")
        urls = [databases.fresh() for _ in urls]
    calm, busy = (World(url, n) for url, n in zip(urls, (1, 4), strict=True))
    yield calm, busy
    for world, url in zip((calm, busy), urls, strict=True):
        world.close()
        if databases is not None:
            databases.drop(url)


class Frozen(datetime):
    @classmethod
    def now(cls, tz: tzinfo | None = None) -> Self:
        return cls.fromtimestamp(NOW / clock.SECOND, tz)


@pytest.fixture(autouse=True)
def frozen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages say how long ago something was."""
    monkeypatch.setattr(formatting, "datetime", Frozen)


QUERIES = (
    "",
    "type:own",
    "subject:shared",
    "error:boom",
    "worker:w0",
    "tenant:*",
    "payload.n:1",
    "status:failed,retrying",
)
PARAMETERS = {
    "/jobs": [{"q": query} for query in QUERIES],
    "/api/jobs": [{"q": query} for query in QUERIES],
    "/api/stats": [{"q": query, "group_by": "status,type,queue,tenant,subject"} for query in QUERIES],
    "/api/metrics": [{"group_by": "type,queue,tenant"}],
    "/insights": [{"by": by, "tenant": THEM} for by in ("type", "queue", "tenant")],
    "/insights.csv": [{"tenant": THEM}],
}


@cache
def seen(world: World) -> Answers:
    """All that acme gets on any route, for each of its jobs and for each query."""
    found: Answers = {}
    for route in ROUTES:
        if route.stream or route.scope is None or not route.for_tenants or route.writes:
            continue
        for name, id in world.ids.items() if "{id}" in route.path else (("", ""),):
            for parameters in PARAMETERS.get(route.path, [{}]):
                answer = world.me.get(route.path.replace("{id}", id), params=parameters, follow_redirects=False)
                found[f"{route.path} {name} {parameters}"] = normal(answer)
    for name, id in world.ids.items():
        for path, parameters in (
            ("/jobs", {"q": id}),
            ("/jobs", {"cursor": id}),
            ("/api/jobs", {"q": id}),
            ("/jobs/confirm", {"action": "retry", "id": id}),
        ):
            found[f"{path} {name} {parameters.keys()}"] = normal(
                world.me.get(path, params=parameters, follow_redirects=False)
            )
    return found


def normal(answer: Any) -> tuple[int, str]:
    return answer.status_code, UUID.sub("ID", answer.text + answer.headers.get("location", ""))


def test_what_others_do_changes_no_answer(worlds: tuple[World, World]) -> None:
    calm, busy = map(seen, worlds)
    for place, answer in busy.items():
        assert answer == calm[place], place
        assert answer[0] < 500, place
    assert len(calm) > 150


def test_nothing_of_others_is_in_an_answer(worlds: tuple[World, World]) -> None:
    """But the address of a page repeats what the caller wrote."""
    shown = {place: text for place, (_, text) in seen(worlds[1]).items() if THEM not in place}
    assert [place for place, text in shown.items() if THEM in text] == []


def test_a_job_of_another_tenant_is_like_one_that_was_never_stored(worlds: tuple[World, World]) -> None:
    found = seen(worlds[1])
    theirs = {place: answer for place, answer in found.items() if " theirs " in place}
    assert len(theirs) > 10
    assert {
        place: answer for place, answer in theirs.items() if answer != found[place.replace("theirs", "unknown")]
    } == {}


@pytest.mark.parametrize("name", ["several", "all", "unknown"])
def test_an_operation_on_several_tenants_is_not_for_one_of_them(worlds: tuple[World, World], name: str) -> None:
    me, ids = worlds[1].me, worlds[1].ids
    problem(me.get(f"/api/operations/{ids[name]}"), 404, "not-found")
    assert me.get(f"/operations/{ids[name]}").status_code == 404
    assert me.get(f"/api/operations/{ids['my own']}").status_code == 200


def test_changes_are_refused_as_if_the_job_were_not_there(worlds: tuple[World, World]) -> None:
    world = worlds[1]
    before = world.td.get(world.ids["theirs"])
    for route in ROUTES:
        if route.writes and "/jobs/{id}" in route.path:
            for name in ("theirs", "unknown"):
                path = route.path.replace("{id}", world.ids[name])
                assert world.me.request(route.method, path).status_code == 404, (name, path)
    asked = {"action": "delete", "ids": [world.ids["theirs"], world.ids["unknown"]], "dry_run": True}
    assert world.me.post("/api/jobs/bulk", json=asked).json()["total"]["value"] == 0
    assert world.td.get(world.ids["theirs"]) == before


def test_keys_of_others_are_free(worlds: tuple[World, World]) -> None:
    for world in worlds:
        body, key = {"type": "theirs", "dedupe": "theirs"}, {"Idempotency-Key": "k"}
        answer = world.me.post("/api/jobs", json=body, headers=key)
        assert (answer.status_code, answer.json()["tenant"]) == (201, ME)
        differs = problem(world.me.post("/api/jobs", json={"type": "x"}, headers=key), 422, "request-differs")
        assert "the key 'k'" in differs["detail"], "as it was sent"


def test_no_two_callers_share_an_idempotency_key(worlds: tuple[World, World]) -> None:
    """The name of the first ends as the key of the second begins, and '' is a tenant like any other."""

    def store(name: str, tenant: str | None, key: str) -> int:
        who = Principal(name=name, scopes=frozenset({"enqueue"}), tenant=tenant)
        client = TestClient(worlds[0].td.asgi(auth=lambda request: who), headers=OURS)
        return client.post("/api/jobs", json={"type": "x"}, headers={"Idempotency-Key": key}).status_code

    assert [store("a", None, "b: c"), store("a: b", None, "c"), store("a", "", "b: c")] == [201, 201, 201]
    assert store("a: b", None, "c") == 200


def reasons(client: TestClient, id: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = client.get(f"/api/jobs/{id}/why").json()["reasons"]
    return found


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("unserved", ReasonCode.NO_WORKER_FOR_QUEUE),
        ("default", ReasonCode.NO_WORKER_FOR_TYPE),
        ("full", ReasonCode.LIMIT_FULL),
        ("own", ReasonCode.JOBS_AHEAD),
    ],
)
def test_why_names_no_queue_type_worker_or_number_of_others(worlds: tuple[World, World], name: str, code: str) -> None:
    world = worlds[1]
    mine, theirs = (reasons(client, world.ids[name]) for client in (world.me, client_of(world.td, "read")))
    assert [reason["code"] for reason in mine] == [reason["code"] for reason in theirs]
    [bound] = [reason for reason in mine if reason["code"] == code]
    [whole] = [reason for reason in theirs if reason["code"] == code]
    assert (bound["data"], bool(whole["data"])) == ({}, True)
    assert not re.search(rf"{THEM}|\d", bound["text"] + bound["way_out"])


def request_of(web: WebApp, tenant: str | None) -> Request:
    """A request of a caller bound to this tenant."""
    caller = Principal(name="me", scopes=frozenset({"read"}), tenant=tenant)
    return Request(web=web, raw=RawRequest({"type": "http"}), route=ROUTES[0], caller=caller)


def test_a_route_that_forgets_the_tenant_fails_instead_of_showing_all(td: Treadle) -> None:
    request = request_of(td.asgi(auth=nobody), ME)
    with pytest.raises(PermissionError):
        _ = request.app


def test_every_way_to_find_jobs_is_limited_to_the_callers_tenant(td: Treadle) -> None:
    """Whether or not the endpoint has limited its filter before."""
    for tenant in (ME, THEM, THEM):
        td.enqueue("own", tenant=tenant)
    jobs, wanted = request_of(td.asgi(auth=nobody), ME).jobs, Filter(types=("own",))
    assert [job.tenant for job in jobs.page(wanted, 10, None)] == [ME]
    assert (jobs.count(wanted).value, jobs.counts_by_state(wanted)["all"].value) == (1, 1)
    assert jobs.counts(("tenant",), wanted, 10).rows == [{"tenant": ME, "count": 1}]
    assert jobs.bulk("cancel", wanted, None, {}).total == 1


def test_what_is_cached_for_a_tenant_is_not_shown_to_another(td: Treadle) -> None:
    web = td.asgi(auth=nobody)
    callers = ME, THEM, "", None
    for _ in range(2):  # the second time from the cache
        shown = [request_of(web, tenant).cached("key", 60, lambda tenant=tenant: tenant) for tenant in callers]
        assert tuple(shown) == callers
