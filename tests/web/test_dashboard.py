"""`treadle dashboard`: how users sign in, and how it starts and stops."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import httpx2
import pytest

from tests.stores import make_tables
from tests.web.conftest import OURS
from tests.web.served import SECONDS, Dashboard, start
from treadle import Treadle
from treadle.web import login
from treadle.web.problem import HTTPProblem


def test_the_link_signs_in_once_and_the_cookie_from_then_on(tmp_path: Path) -> None:
    with Dashboard(tmp_path) as served:
        with httpx2.Client(base_url=served.url, timeout=SECONDS) as stranger:
            assert stranger.get("/api/stats").status_code == 401
            page = stranger.get("/", headers={"Accept": "text/html"})
            assert (page.status_code, "link that the server printed" in page.text) == (401, True)
            assert stranger.get("/?login=guessed").status_code == 403
        with httpx2.Client(base_url=served.url, timeout=SECONDS) as me:
            entered = me.get(served.login)
            assert entered.status_code == 200
            cookie = entered.headers["set-cookie"]
            assert "HttpOnly" in cookie
            assert "SameSite=Strict" in cookie
            assert served.login.partition("=")[2] not in entered.text
            assert me.get("/api/stats").status_code == 200
            assert me.post("/api/jobs", json={"type": "a"}, headers=OURS).status_code == 201
            assert me.post("/api/jobs", json={"type": "a"}).status_code == 403
            assert me.get(served.login).status_code == 200, "a reload of the link is no reason to be thrown out"
        assert httpx2.get(served.login, timeout=SECONDS).status_code == 403


def test_a_session_survives_a_restart_and_can_be_revoked(tmp_path: Path) -> None:
    with httpx2.Client(timeout=SECONDS) as me:
        with Dashboard(tmp_path) as served:
            me.get(served.login)
            port = served.port
            assert served.stop() == 0
        with Dashboard(tmp_path, port=port) as served:
            assert me.get(f"{served.url}/api/stats").status_code == 200
            td = Treadle(f"sqlite:///{tmp_path}/jobs.db")
            [session] = [token for token in td.store.tokens() if token.scopes]  # a link has none
            assert session.name.startswith("login ")
            td.store.drop_token(session.name)
            td.close()
        with Dashboard(tmp_path, port=port) as served:
            assert me.get(f"{served.url}/api/stats").status_code == 401


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
def test_a_public_address_needs_a_way_to_authenticate(tmp_path: Path, host: str) -> None:
    process = start(tmp_path, "--host", host, "--port", "0")
    out, err = process.communicate(timeout=SECONDS)
    assert (process.returncode, out) == (2, "")
    assert "TREADLE_WEB_USER" in err
    assert "treadle tokens create" in err
    assert "td.asgi(auth=" in err


def test_a_password_signs_in_from_another_machine(tmp_path: Path) -> None:
    known = {"TREADLE_WEB_USER": "ada", "TREADLE_WEB_PASSWORD": "lövelace"}
    with Dashboard(tmp_path, "--host", "0.0.0.0", **known) as served:
        url = f"{served.url}/api/stats"
        assert httpx2.get(url, auth=("ada", "lövelace"), timeout=SECONDS).status_code == 200
        refused = httpx2.get(url, timeout=SECONDS)
        assert (refused.status_code, refused.headers["www-authenticate"].split()[0]) == (401, "Basic")
        guesses = [httpx2.get(url, auth=("ada", f"guess {n}"), timeout=SECONDS).status_code for n in range(11)]
        assert guesses == [401] * 10 + [429]
        assert httpx2.get(url, auth=("ada", "lövelace"), timeout=SECONDS).status_code == 429


PASSWORD = {"TREADLE_WEB_USER": "ada", "TREADLE_WEB_PASSWORD": "right"}


class Forwarding(Dashboard):
    """A dashboard with a password. Every request says that it was forwarded for some address."""

    def __init__(self, folder: Path, *words: str, **environment: str) -> None:
        super().__init__(folder, *words, **PASSWORD, **environment)
        self._client = httpx2.Client(timeout=SECONDS, headers={"X-Forwarded-Proto": "https"})

    def attempt(self, password: str, address: str) -> int:
        headers = {"X-Forwarded-For": address}
        return self._client.get(f"{self.url}/api/stats", auth=("ada", password), headers=headers).status_code


def test_guesses_are_counted_by_the_real_address(tmp_path: Path) -> None:
    with Forwarding(tmp_path, FORWARDED_ALLOW_IPS="*") as served:
        assert Counter(served.attempt("wrong", f"10.0.0.{n}") for n in range(100)) == {401: 10, 429: 90}


def test_only_a_named_proxy_is_believed(tmp_path: Path) -> None:
    with Forwarding(tmp_path, "--proxy", "192.0.2.0/24") as served:
        assert Counter(served.attempt("wrong", f"10.0.0.{n}") for n in range(12)) == {401: 10, 429: 2}


def test_behind_a_named_proxy_one_clients_guesses_lock_nobody_else_out(tmp_path: Path) -> None:
    with Forwarding(tmp_path, "--proxy", "127.0.0.0/8") as served:
        assert Counter(served.attempt("wrong", "10.0.0.1") for _ in range(12)) == {401: 10, 429: 2}
        assert served.attempt("right", "10.0.0.2") == 200
        assert [served.attempt("wrong", f"2001:db8::{n:x}") for n in range(11)][-1] == 429, "they are one customer's"
        login = httpx2.get(served.login, headers={"X-Forwarded-Proto": "https"}, timeout=SECONDS)
        assert "; Secure" in login.headers["set-cookie"]


def test_guesses_from_many_addresses_are_bounded_and_users_keep_their_access(tmp_path: Path) -> None:
    with Forwarding(tmp_path, "--proxy", "127.0.0.1") as served:
        assert served.attempt("right", "192.0.2.1") == 200
        assert Counter(served.attempt("wrong", f"10.0.0.{n}") for n in range(110)) == {401: 100, 429: 10}
        assert served.attempt("right", "10.0.1.1") == 429, "or they could go on guessing"
        assert served.attempt("right", "192.0.2.1") == 200, "this address has had the right password before"


@pytest.fixture
def moment(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time that the throttle sees."""
    now = [0.0]
    monkeypatch.setattr(login, "time", SimpleNamespace(monotonic=lambda: now[0]))
    return now


def throttled(guesses: login.Guesses, address: str, right: bool = False) -> bool:
    """Whether it no longer matters what the password is."""
    try:
        return guesses.accept(address, right) != right
    except HTTPProblem as problem:
        return problem.details.status == 429


def test_wrong_passwords_count_for_a_minute(moment: list[float]) -> None:
    guesses = login.Guesses()
    assert [throttled(guesses, "10.0.0.1") for _ in range(login.MAX_GUESSES)] == [False] * login.MAX_GUESSES
    moment[0] = login.GUESS_SECONDS
    assert throttled(guesses, "10.0.0.1", right=True)
    moment[0] += 0.1
    assert not throttled(guesses, "10.0.0.1", right=True)


def test_an_ipv4_address_is_the_same_on_a_socket_for_ipv6_and_others_there_are_not() -> None:
    guesses = login.Guesses()
    for _ in range(login.MAX_GUESSES):
        guesses.accept("::ffff:10.0.0.1", False)
    assert throttled(guesses, "10.0.0.1")
    assert not throttled(guesses, "::ffff:10.0.0.2")


def test_addresses_that_had_the_right_password_are_kept_up_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(login, "MAX_KNOWN", 2)
    guesses = login.Guesses()
    for n in range(3):
        assert guesses.accept(f"192.0.2.{n}", True)
    for n in range(login.MAX_GUESSES_OF_ALL):
        guesses.accept(f"10.0.0.{n}", False)
    assert [throttled(guesses, f"192.0.2.{n}", right=True) for n in range(3)] == [False, False, True]


def test_a_proxy_is_an_address(tmp_path: Path) -> None:
    process = start(tmp_path, "--proxy", "*")
    _, err = process.communicate(timeout=SECONDS)
    assert process.returncode == 2
    assert "10.0.0.0/8" in err


def test_a_program_can_use_a_token(tmp_path: Path) -> None:
    with Dashboard(tmp_path) as served:
        made = start_tokens(tmp_path, "create", "ci", "--scope", "enqueue", "--scope", "read")
        headers = {"Authorization": f"Bearer {made}"}
        job = httpx2.post(f"{served.url}/api/jobs", json={"type": "a"}, headers=headers, timeout=SECONDS)
        assert job.status_code == 201
        assert (
            httpx2.get(f"{served.url}/api/jobs/{job.json()['id']}", headers=headers, timeout=SECONDS).status_code == 200
        )
        cancel = httpx2.post(f"{served.url}/api/jobs/{job.json()['id']}/cancel", headers=headers, timeout=SECONDS)
        assert cancel.status_code == 403


def test_the_dashboard_of_an_app_accepts_ticks(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text("from treadle import Treadle\ntd = Treadle()\n@td.job\ndef hi(): return 'hi'\n")
    with (
        Dashboard(tmp_path, "app:td") as served,
        httpx2.Client(base_url=served.url, headers=OURS, timeout=SECONDS) as me,
    ):
        me.get(served.login)
        id = me.post("/api/jobs", json={"type": "hi"}).json()["id"]
        assert me.post("/api/jobs/tick").json()["completed"] == 1
        assert me.get(f"/api/jobs/{id}").json()["result"] == "hi"


def test_a_prefix_and_read_only(tmp_path: Path) -> None:
    with Dashboard(tmp_path, "--prefix", "jobs/", "--read-only") as served:
        assert served.url.endswith("/jobs")
        with httpx2.Client(base_url=served.url, headers=OURS, timeout=SECONDS) as me:
            me.get(served.login)
            assert me.get("/api/stats").status_code == 200
            assert '"/jobs/static/' in me.get("/").text
            bare = me.get(f"http://127.0.0.1:{served.port}/healthz")
            assert bare.status_code == 200, "a proxy may have taken the prefix off"
            assert me.post("/api/jobs", json={"type": "a"}).status_code == 405
            assert me.get("/api/openapi.json").json()["servers"] == [{"url": "/jobs"}]


def test_other_host_names_are_refused(tmp_path: Path) -> None:
    with Dashboard(tmp_path, "--allow-host", "jobs.example") as served:
        for host, status in (("evil.example", 421), ("jobs.example", 200), ("localhost", 200)):
            assert httpx2.get(f"{served.url}/healthz", headers={"Host": host}, timeout=SECONDS).status_code == status


def test_a_missing_database_is_not_created(tmp_path: Path) -> None:
    process = start(tmp_path, "--port", "0")
    out, err = process.communicate(timeout=SECONDS)
    assert (process.returncode, out) == (3, "")
    assert f"there is no database at {tmp_path}/jobs.db" in err
    assert not (tmp_path / "jobs.db").exists()


def test_a_port_that_is_taken_is_exit_code_2(tmp_path: Path) -> None:
    make_tables(f"sqlite:///{tmp_path}/jobs.db")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        process = start(tmp_path, "--port", str(taken.getsockname()[1]))
        _, err = process.communicate(timeout=SECONDS)
    assert process.returncode == 2
    assert "--port 0" in err


def test_a_response_on_an_open_connection_does_not_wait_for_an_acknowledgement(tmp_path: Path) -> None:
    """Linux delays it by 40 ms. The best of some, because the machine is shared."""
    times = []
    with Dashboard(tmp_path) as served, httpx2.Client(base_url=served.url, timeout=SECONDS) as me:
        for _ in range(10):
            began = time.perf_counter()
            me.get("/healthz")
            times.append(time.perf_counter() - began)
    assert min(times[1:]) < 0.035


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT], ids=lambda how: how.name)
def test_it_stops_on_sigterm_even_if_pages_are_connected(tmp_path: Path, how: signal.Signals) -> None:
    with Dashboard(tmp_path) as served, httpx2.Client(base_url=served.url, timeout=SECONDS) as me:
        me.get(served.login)
        with me.stream("GET", "/api/events") as stream:
            assert next(stream.iter_lines()) == "event: changed"
            assert served.stop(how) == 0


def start_tokens(folder: Path, *words: str) -> str:
    """Run `treadle tokens …` and return what it prints."""
    command = [sys.executable, "-m", "treadle", "tokens", *words, "--db", f"sqlite:///{folder}/jobs.db"]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=SECONDS).stdout.strip()
