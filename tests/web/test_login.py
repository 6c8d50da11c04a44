"""A mount without an `auth` of its own: a link is printed, and works once, in whichever process."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx2
import pytest
from starlette.applications import Starlette
from starlette.routing import Mount
from starlette.testclient import TestClient

from tests import stores
from tests.web.conftest import HERE, OURS
from tests.web.served import SECONDS, Site
from treadle import Treadle, api_tokens, clock
from treadle.stores.base import Store
from treadle.stores.rows import Token
from treadle.web import login
from treadle.web.app import ROUTES, WebApp

LINK = re.compile(r"(\S*)\?login=(\S+)")
PAGE = {"Accept": "text/html"}
OPEN = 200


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    stores.on_every_store(metafunc, "url", ("sqlite", "postgresql"))


Processes = Callable[[], TestClient]


@pytest.fixture
def process(url: str) -> Iterator[Processes]:
    """Each call is another process of one web server: it has nothing in common with the others but the database."""
    made: list[Treadle] = []

    def make() -> TestClient:
        made.append(Treadle(url, **stores.quick(url)))
        return TestClient(Starlette(routes=[Mount("/jobs", made[-1].asgi())]), base_url=HERE, headers=OURS)

    yield make
    for td in made:
        td.close()


def printed(log: pytest.LogCaptureFixture) -> list[str]:
    """The codes of the links in the log."""
    return [code for _, code in LINK.findall(log.text)]


def test_without_a_login_nothing_answers_and_a_link_is_printed(
    process: Processes, caplog: pytest.LogCaptureFixture
) -> None:
    client = process()
    for route in ROUTES:
        path = route.path.replace("{id}", "x").replace("{name}", "treadle.css")
        status = client.request(route.method, f"/jobs{path}", headers=PAGE).status_code
        assert status == (OPEN if route.scope is None else 401) or path == "/readyz", path
    [(address, code)] = LINK.findall(caplog.text)
    assert address == "http://localhost:80/jobs/"
    assert "Signed in" in client.get(f"/jobs/?login={code}").text
    assert client.get("/jobs/").status_code == 200
    assert client.post("/jobs/api/jobs", json={"type": "a"}).status_code == 201


def test_a_link_works_once_whichever_process_answers(process: Processes, caplog: pytest.LogCaptureFixture) -> None:
    printer, other = process(), process()
    printer.get("/jobs/", headers=PAGE)
    [code] = printed(caplog)
    assert other.get(f"/jobs/?login={code}").status_code == 200
    assert other.get("/jobs/api/stats").status_code == 200
    printer.cookies.update(other.cookies)
    assert printer.get("/jobs/api/stats").status_code == 200
    for stranger in (process(), process()):
        assert stranger.get(f"/jobs/?login={code}").status_code == 403


def test_of_many_requests_with_a_link_one_signs_in(process: Processes, caplog: pytest.LogCaptureFixture) -> None:
    clients = [process() for _ in range(4)]
    clients[0].get("/jobs/", headers=PAGE)
    [code] = printed(caplog)
    with ThreadPoolExecutor(len(clients)) as pool:
        answers = list(pool.map(lambda client: client.get(f"/jobs/?login={code}").status_code, clients))
    assert sorted(answers) == [200, 403, 403, 403]


def test_requests_that_find_a_link_at_the_same_moment_do_not_share_it(
    process: Processes, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    clients = [process() for _ in range(2)]
    clients[0].get("/jobs/", headers=PAGE)
    [code] = printed(caplog)
    find, both = login._find, threading.Barrier(len(clients))

    def find_together(store: Store, hash: str) -> Token | None:
        found = find(store, hash)
        both.wait(SECONDS)
        return found

    monkeypatch.setattr(login, "_find", find_together)
    monkeypatch.setattr(login.Login, "offer", lambda *_: None)  # it looks for a link, too
    with ThreadPoolExecutor(len(clients)) as pool:
        answers = list(pool.map(lambda client: client.get(f"/jobs/?login={code}").status_code, clients))
    assert sorted(answers) == [200, 403]


def test_a_new_link_is_printed_when_the_last_one_was_used_and_not_before(
    process: Processes, caplog: pytest.LogCaptureFixture
) -> None:
    client, stranger = process(), process()
    for _ in range(3):
        client.get("/jobs/", headers=PAGE)
        client.get("/jobs/?login=guessed")
    [code] = printed(caplog)
    assert stranger.get(f"/jobs/?login={code}").status_code == 200
    client.get("/jobs/", headers=PAGE)
    assert len(set(printed(caplog))) == 2


def test_a_link_expires(td: Treadle, process: Processes, caplog: pytest.LogCaptureFixture) -> None:
    client = process()
    client.get("/jobs/", headers=PAGE)
    [link] = td.store.tokens()
    assert link.name.startswith("login link ")
    assert link.scopes == ()
    assert link.expires_at is not None
    assert 0 < link.expires_at - td.store.now() <= clock.seconds(login.LINK_SECONDS)
    code = "an old one"
    expired = Token(hash=api_tokens.hash_of(code), name="login link old", scopes=(), expires_at=td.store.now())
    td.store.add_token(expired)
    assert client.get(f"/jobs/?login={code}").status_code == 403


def test_a_link_is_no_token(process: Processes, caplog: pytest.LogCaptureFixture) -> None:
    client = process()
    client.get("/jobs/", headers=PAGE)
    [code] = printed(caplog)
    assert client.get("/jobs/api/stats", headers={"Authorization": f"Bearer {code}"}).status_code == 401
    client.cookies.set("treadle_80", code)
    assert client.get("/jobs/api/stats").status_code == 401


def test_a_token_is_no_link(td: Treadle, process: Processes) -> None:
    """It would be used up, and a token that may only read would become a login that may do everything."""
    secret, client = api_tokens.new_secret(), process()
    td.store.add_token(Token(hash=api_tokens.hash_of(secret), name="reader", scopes=("read",)))
    assert client.get(f"/jobs/?login={secret}").status_code == 403
    assert client.get("/jobs/api/stats", headers={"Authorization": f"Bearer {secret}"}).status_code == 200


def test_a_new_link_removes_links_and_sessions_that_have_expired(td: Treadle, process: Processes) -> None:
    old = td.store.now()
    for name, until in (("login link old", old), ("login old", old), ("login new", None), ("a program's", old)):
        td.store.add_token(Token(hash=name, name=name, scopes=(), expires_at=until))
    process().get("/jobs/", headers=PAGE)
    assert {"login link old", "login old", "login new", "a program's"} & {
        token.name for token in td.store.tokens()
    } == {
        "login new",
        "a program's",
    }


def test_where_a_password_is_expected_no_link_is_printed(td: Treadle, caplog: pytest.LogCaptureFixture) -> None:
    with TestClient(WebApp(td, auth=login.Login(user="ada", password="right")), base_url=HERE) as client:
        assert client.get("/", headers=PAGE).status_code == 401
    assert (printed(caplog), td.store.tokens()) == ([], [])


def test_a_stranger_cannot_choose_where_the_link_leads(process: Processes, caplog: pytest.LogCaptureFixture) -> None:
    process().get("/jobs/", headers={**PAGE, "Host": "evil.example", "X-Forwarded-Host": "evil.example"})
    [(address, _)] = LINK.findall(caplog.text)
    assert address == "http://localhost:80/jobs/"


def test_a_server_prints_a_link_at_its_start(td: Treadle, caplog: pytest.LogCaptureFixture) -> None:
    with TestClient(td.asgi(), base_url=HERE) as client:
        [code] = printed(caplog)
        client.get("/", headers=PAGE)
        assert printed(caplog) == [code]
        assert client.get(f"/?login={code}").status_code == 200


def test_a_mount_with_its_own_auth_prints_no_link(td: Treadle, caplog: pytest.LogCaptureFixture) -> None:
    with TestClient(td.asgi(auth=lambda request: None), base_url=HERE) as client:
        assert client.get("/", headers=PAGE).status_code == 401
        assert client.get("/?login=x").status_code == 401
    assert printed(caplog) == []


def test_a_web_server_of_two_processes_prints_links_that_work(tmp_path: Path, url: str) -> None:
    with Site(tmp_path, url, processes=2) as site:
        for login in site.logins:
            with httpx2.Client(timeout=SECONDS) as me:
                assert me.get(f"{site.url}/{login}").status_code == 200
                cookies = dict(me.cookies)
            for _ in range(10):  # each on a connection of its own, which either process may get
                assert httpx2.get(f"{site.url}/api/stats", cookies=cookies, timeout=SECONDS).status_code == 200
