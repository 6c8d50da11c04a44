"""Behind nginx with its default settings, which connects from this machine and adds no header that says for whom."""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx2
import pytest

from tests.eventually import eventually
from tests.servers.programs import find_program
from tests.stores import make_tables
from tests.web.conftest import OURS
from tests.web.served import SECONDS, Dashboard, Site, free_port, start
from treadle import Treadle
from treadle.web.app import ROUTES

SETTINGS = """
daemon off; {user} pid {folder}/nginx.pid; error_log {folder}/error.log;
events {{}}
http {{
    access_log off;
    client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy; fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi; scgi_temp_path {folder}/scgi;
    server {{
        listen 127.0.0.1:{port};
        location / {{ {more} proxy_pass http://127.0.0.1:{upstream}; }}
    }}
}}
"""
"""Where it keeps its files, and one line for the proxy."""
OPEN = {"/healthz", "/livez", "/readyz", "/robots.txt", "/static/{name}"}
"""Paths that need no login. None has anything of a job in it."""


@pytest.fixture(scope="session")
def nginx() -> str:
    return find_program("nginx")


Proxied = Callable[..., str]


@pytest.fixture
def proxied(nginx: str, tmp_path: Path) -> Iterator[Proxied]:
    """Start nginx in front of a port. Return its address."""
    started: list[subprocess.Popen[bytes]] = []

    def start(upstream: int, more: str = "") -> str:
        folder, port = tmp_path / "nginx", free_port()
        folder.mkdir()
        user = "user root;" if os.geteuid() == 0 else ""  # others cannot enter the folder
        settings = folder / "nginx.conf"
        settings.write_text(SETTINGS.format(folder=folder, port=port, upstream=upstream, user=user, more=more))
        started.append(subprocess.Popen([nginx, "-c", str(settings), "-e", str(folder / "error.log")]))
        eventually(lambda: _listens(port) or started[0].poll() is not None)
        assert started[0].poll() is None, (folder / "error.log").read_text()
        return f"http://127.0.0.1:{port}"

    yield start
    for process in started:
        process.terminate()
        process.wait(SECONDS)


def _listens(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


def dashboard(folder: Path) -> Dashboard:
    return Dashboard(folder)


def site(folder: Path) -> Site:
    make_tables(f"sqlite:///{folder}/jobs.db")
    return Site(folder, f"sqlite:///{folder}/jobs.db")


@pytest.mark.parametrize("make", [dashboard, site], ids=lambda make: make.__name__)
def test_nothing_but_the_login_answers_without_a_login(
    make: Callable[[Path], Dashboard | Site], proxied: Proxied, tmp_path: Path
) -> None:
    td = Treadle(f"sqlite:///{tmp_path}/jobs.db")
    job = td.enqueue("secret-type", {"secret": "value"})
    with make(tmp_path) as server:
        here = server.url.replace(f"http://127.0.0.1:{server.port}", proxied(server.port))
        with httpx2.Client(base_url=here, headers=OURS, timeout=SECONDS) as stranger:
            for route in ROUTES:
                path = route.path.replace("{id}", job.id).replace("{name}", "treadle.css")
                answer = stranger.request(route.method, path, headers={"Accept": "text/html"})
                assert answer.status_code == (200 if route.path in OPEN else 401), path
                assert "secret-type" not in answer.text
            assert stranger.get("/?login=guessed").status_code == 403
            assert stranger.get("/", headers={"X-Forwarded-For": "127.0.0.1", "Host": "localhost"}).status_code == 401
        with httpx2.Client(base_url=here, headers=OURS, timeout=SECONDS) as me:
            login = server.login.partition("?")[2]
            assert me.get(f"/?{login}").status_code == 200
            assert "secret-type" in me.get("/jobs").text
            assert me.post(f"/api/jobs/{job.id}/cancel").status_code == 200
            assert httpx2.get(f"{here}/?{login}", timeout=SECONDS).status_code == 403
    td.close()


# The login of the proxy

HEADER = "X-Forwarded-User"
LOGIN = """
    auth_basic jobs; auth_basic_user_file {folder}/users;
    proxy_set_header X-Forwarded-User $remote_user; proxy_set_header X-Forwarded-For $remote_addr;
    proxy_bind 127.0.0.2;
"""
"""nginx asks for a password, names the user, and connects from an address of its own."""


def test_users_whom_nginx_has_signed_in_are_let_in_under_their_names(proxied: Proxied, tmp_path: Path) -> None:
    td = Treadle(f"sqlite:///{tmp_path}/jobs.db")
    job = td.enqueue("mail")
    (tmp_path / "users").write_text("ada:{PLAIN}right\n")
    with Dashboard(tmp_path, "--login-header", HEADER, "--proxy", "127.0.0.2") as server:
        here = proxied(server.port, LOGIN.format(folder=tmp_path))
        with httpx2.Client(base_url=here, headers=OURS, timeout=SECONDS) as client:
            assert client.get("/jobs", auth=("ada", "wrong")).status_code == 401
            assert client.get("/jobs", headers={HEADER: "ada"}).status_code == 401
            assert "mail" in client.get("/jobs", auth=("ada", "right")).text
            cancelled = client.post(f"/api/jobs/{job.id}/cancel", auth=("ada", "right"), headers={HEADER: "root"})
            assert cancelled.status_code == 200
    assert [row.who for row in td.store.audits(10)] == ["ada"]
    td.close()


@pytest.mark.parametrize("more", [{}, {"X-Forwarded-For": "127.0.0.2"}, {"Forwarded": "for=127.0.0.2"}], ids=str)
def test_from_other_peers_the_header_means_nothing(tmp_path: Path, more: dict[str, str]) -> None:
    with Dashboard(tmp_path, "--login-header", HEADER, "--proxy", "127.0.0.2") as server:
        for path in ("/jobs", "/api/jobs"):
            assert httpx2.get(f"{server.url}{path}", headers={HEADER: "ada", **more}).status_code == 401
        own = httpx2.HTTPTransport(local_address="127.0.0.2")
        with httpx2.Client(transport=own, base_url=server.url, headers={HEADER: "ada"}) as proxy:
            assert proxy.get("/jobs").status_code == 200


def test_a_header_that_names_nobody_or_two_lets_nobody_in(tmp_path: Path) -> None:
    with Dashboard(tmp_path, "--login-header", HEADER, "--proxy", "127.0.0.0/8") as server:
        for values in ([], [b""], [b" "], [b"a\x01"], [b"\xff"], [b"x" * 201], [b"ada", b"bob"]):
            headers = [(HEADER.encode(), value) for value in values]
            with socket.create_connection(("127.0.0.1", server.port), SECONDS) as client:
                lines = [b"GET /jobs HTTP/1.1", b"Host: localhost", b"Connection: close"]
                client.sendall(b"\r\n".join([*lines, *(b"%s: %s" % pair for pair in headers), b"", b""]))
                answer = client.makefile("rb").readline()
            assert answer.split()[1] in (b"401", b"400"), values
        assert httpx2.get(f"{server.url}/jobs", headers={HEADER: "Ada Lovelace"}).status_code == 200


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--login-header", HEADER], "--proxy 127.0.0.1"),
        (["--login-header", "X Forwarded", "--proxy", "127.0.0.1"], "X-Forwarded-User"),
        (["--login-header", "", "--proxy", "127.0.0.1"], "X-Forwarded-User"),
    ],
)
def test_a_login_header_needs_a_name_and_proxies(tmp_path: Path, words: list[str], says: str) -> None:
    make_tables(f"sqlite:///{tmp_path}/jobs.db")
    process = start(tmp_path, "--port", "0", *words)
    _, said = process.communicate(timeout=SECONDS)
    assert process.returncode == 2
    assert says in said


def test_with_the_login_of_a_proxy_others_may_reach_it(tmp_path: Path) -> None:
    with Dashboard(tmp_path, "--host", "0.0.0.0", "--login-header", HEADER, "--proxy", "127.0.0.2") as server:
        assert httpx2.get(f"{server.url}/jobs", headers={HEADER: "ada"}).status_code == 401
