"""Limits that people see and change: over the API and on the pages."""

from __future__ import annotations

from typing import Any

import pytest
from starlette.testclient import TestClient

from tests.web.conftest import OURS, Connect
from treadle import Limit, Rate, Treadle
from treadle.codec import as_json
from treadle.stores.base import TypePolicy

OPENAI = Limit("openai", concurrency=2, rate=Rate(500, per=60), per="tenant")
GPU = Limit("gpu/one", concurrency=4)


@pytest.fixture(autouse=True)
def declared(td: Treadle) -> None:
    td.store.publish([TypePolicy(type="ask", limits=as_json([OPENAI, GPU]), concurrency=3), TypePolicy(type="mail")])


def actions(td: Treadle) -> list[tuple[str, str, str]]:
    return [(row.action, row.what, row.who) for row in td.store.audits(10)]


def changed(td: Treadle) -> list[tuple[str, str]]:
    return [(state.name, state.key) for state in td.limits.list() if state.changed_by is not None]


def test_set_and_unset_over_the_api(client: TestClient, td: Treadle) -> None:
    rate = {"count": 100, "per": 60, "burst": 7}
    answer = client.post("/api/limits", json={"name": "openai", "key": "acme", "concurrency": 50, "rate": rate})

    assert (200, 50, rate) == (answer.status_code, answer.json()["concurrency"], answer.json()["rate"])
    items = client.get("/api/limits").json()["items"]
    assert [("gpu/one", ""), ("openai", ""), ("openai", "acme"), ("type:ask", "")] == [
        (item["name"], item["key"]) for item in items
    ]
    assert items[2] == answer.json()
    assert (items[2]["per"], items[2]["types"], items[2]["running"]) == ("tenant", ["ask"], 0)
    assert items[2]["changed_by"]
    assert client.post("/api/limits/unset", json={"name": "openai", "key": "acme"}).json() == {"unset": True}
    assert client.post("/api/limits/unset", json={"name": "openai", "key": "acme"}).json() == {"unset": False}
    who = answer.json()["changed_by"]
    assert actions(td) == [
        ("unset_limit", "'openai' for tenant='acme'", who),
        ("set_limit", "'openai' for tenant='acme': 50 at once, 100 in 60 s, burst 7", who),
    ]


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({}, 400),
        ({"name": "openai"}, 400),
        ({"name": "", "concurrency": 1}, 400),
        ({"name": "x" * 201, "concurrency": 1}, 400),
        ({"name": "openai", "concurrency": 0}, 400),
        ({"name": "openai", "concurrency": 1.5}, 400),
        ({"name": "openai", "concurrency": True}, 400),
        ({"name": "openai", "concurrency": 10**30}, 400),
        ({"name": "openai", "concurrency": 1, "key": "a\0b"}, 400),
        ({"name": "openai", "concurrency": 1, "key": "x" * 201}, 400),
        ({"name": "openai", "concurrency": 1, "by": "ann"}, 400),
        ({"name": "openai", "rate": {"count": 0}}, 400),
        ({"name": "openai", "rate": {"count": 1, "per": 0}}, 400),
        ({"name": "openai", "rate": "500/60s"}, 400),
        ({"name": "gpu/one", "key": "acme", "concurrency": 1}, 400),
        ({"name": "opneai", "concurrency": 1}, 404),
        ({"name": "type:unknown", "concurrency": 1}, 404),
    ],
    ids=str,
)
def test_a_bad_body_is_refused(client: TestClient, td: Treadle, body: dict[str, Any], status: int) -> None:
    answer = client.post("/api/limits", json=body)
    assert status == answer.status_code, answer.text
    assert answer.json()["next"]
    assert ([], []) == (changed(td), actions(td))


def test_an_unknown_limit_names_the_one_that_was_meant(client: TestClient) -> None:
    problem = client.post("/api/limits", json={"name": "opneai", "concurrency": 1}).json()
    assert ("urn:treadle:problem:unknown-limit", "did you mean 'openai'?") == (problem["type"], problem["next"])


def test_a_tenant_sees_its_own_key_and_changes_none(connect: Connect, td: Treadle) -> None:
    td.store.publish([TypePolicy(type="other", limits=as_json([Limit("by", concurrency=1, per="subject")]))])
    for name, key in (("openai", ""), ("openai", "acme"), ("openai", "umbrella"), ("by", "acme"), ("gpu/one", "")):
        td.limits.set(name, key=key, concurrency=9, by="ann")
    bound = connect("read manage @acme")

    [found] = bound.get("/api/limits").json()["items"]
    assert ("openai", "acme", [], "ann") == tuple(found[name] for name in ("name", "key", "types", "changed_by"))
    assert [] == connect("read @").get("/api/limits").json()["items"]  # bound to the jobs without a tenant
    for path in ("/api/limits", "/api/limits/unset"):
        assert bound.post(path, json={"name": "openai", "key": "acme", "concurrency": 1}).status_code in (400, 403)
    assert bound.post("/api/limits/unset", json={"name": "openai", "key": "acme"}).status_code == 403
    assert 5 == len(changed(td))


def test_why_tells_a_tenant_only_of_its_own_key(connect: Connect, td: Treadle) -> None:
    for tenant in ("acme", "acme", "umbrella", "acme"):
        td.enqueue("ask", tenant=tenant)
    assert 3 == len(td.claim(3))
    waiting = td.enqueue("ask", tenant="acme").id
    mine, all = (connect(who).get(f"/api/jobs/{waiting}/why").json()["reasons"] for who in ("read @acme", "read"))
    names = [reason["data"].get("name") for reason in all if reason["code"] == "limit_full"]
    assert ["openai", "type:ask"] == sorted(names)
    own, other = sorted(
        (reason for reason in mine if reason["code"] == "limit_full"), key=lambda one: -len(one["data"])
    )
    assert "its limit 'openai' is full for tenant='acme', 2 of 2" in own["text"]
    assert ({}, "its type 'ask' is at its limit") == (other["data"], other["text"])


def test_the_page_shows_limits_with_how_much_is_used_and_who_changed_them(client: TestClient, td: Treadle) -> None:
    for tenant in ("a", "b", "c"):
        td.enqueue("ask", tenant=tenant)
    td.claim(3)
    td.limits.set("gpu/one", concurrency=1, by="ann <b>")
    td.limits.set("openai", key="acme", rate=Rate(3))

    text = client.get("/workers").text

    assert 4 == text.count('data-testid="limit-row"')
    assert "over by 2" in text
    assert "by ann &lt;b&gt;" in text
    assert "each tenant" in text
    assert "tenant acme" in text
    assert "500 in 60 s, burst 50" in text
    assert 2 == text.count('data-testid="unset"')


def test_the_form_changes_and_the_button_unsets(client: TestClient, td: Treadle) -> None:
    form = client.get("/limits/edit", params={"name": "openai", "key": "acme"})
    assert 'value="acme"' in form.text
    shown = client.get("/limits/edit", params={"name": "openai"}).text
    assert "2 at once, 500 in 60 s, burst 50" in shown
    assert "Only for this tenant" in shown
    assert 'name="key"' not in client.get("/limits/edit", params={"name": "gpu/one"}).text
    data = {"name": "openai", "key": "acme", "concurrency": "50", "rate": "100/1m", "burst": "7"}
    answer = client.post("/limits", data=data, headers=OURS, follow_redirects=False)
    assert (303, "/workers") == (answer.status_code, answer.headers["location"])
    state = td.limits.get("openai", key="acme")
    assert state is not None
    assert (50, Rate(100, per=60, burst=7)) == (state.concurrency, state.rate)
    client.post("/limits/unset", data={"name": "openai", "key": "acme"}, headers=OURS)
    assert [] == changed(td)
    assert ["unset_limit", "set_limit"] == [action for action, _, _ in actions(td)]


@pytest.mark.parametrize(
    "form",
    [
        {},
        {"name": "openai"},
        {"name": "zzz", "concurrency": "1"},
        {"name": "openai", "concurrency": "many"},
        {"name": "openai", "concurrency": "-1"},
        {"name": "openai", "concurrency": "9" * 5000},
        {"name": "openai", "rate": "often"},
        {"name": "openai", "burst": "5"},
        {"name": "gpu/one", "key": "acme", "concurrency": "1"},
        {"name": "openai", "key": "x" * 201, "concurrency": "1"},
    ],
    ids=str,
)
def test_a_bad_form_is_shown_again(client: TestClient, td: Treadle, form: dict[str, str]) -> None:
    answer = client.post("/limits", data=form, headers=OURS)
    assert (400, True) == (answer.status_code, 'data-testid="limit-error"' in answer.text)
    assert [] == changed(td)


def test_readers_see_no_buttons(connect: Connect, td: Treadle) -> None:
    td.limits.set("gpu/one", concurrency=1, by="ann")
    text = connect("read").get("/workers").text
    assert "ann" in text
    assert 'data-testid="unset"' not in text
    assert "/limits/edit" not in text
    assert connect("read").get("/limits/edit").status_code == 403


def test_a_limit_is_a_metric(client: TestClient, td: Treadle) -> None:
    td.enqueue("ask", tenant="acme")
    td.claim(1)
    td.limits.set("openai", key="acme", concurrency=9)
    lines = client.get("/metrics").text.splitlines()
    assert {
        'treadle_limit_running{limit="openai"} 1',
        'treadle_limit_running{limit="openai",key="acme"} 1',
        'treadle_limit_concurrency{limit="openai"} 2',
        'treadle_limit_concurrency{limit="openai",key="acme"} 9',
        'treadle_limit_concurrency{limit="type:ask"} 3',
    } <= set(lines)


def test_a_key_that_is_a_secret_is_not_shown(client: TestClient, td: Treadle) -> None:
    td.store.publish([TypePolicy(type="ask", limits=as_json([Limit("keys", concurrency=1, per="payload.api_key")]))])
    answer = client.post("/api/limits", json={"name": "keys", "key": "s3cr3t", "concurrency": 2})
    shown = [answer.text, *(client.get(path).text for path in ("/api/limits", "/workers", "/metrics", "/audit"))]
    assert [] == [text for text in shown if "s3cr3t" in text]
    assert "•••" in shown[2]
    assert 'data-testid="unset"' not in shown[2]
