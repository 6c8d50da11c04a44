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
from tests.web.served import SECONDS, Dashboard, Site, free_port
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
        location / {{ proxy_pass http://127.0.0.1:{upstream}; }}
    }}
}}
"""
"""Where it keeps its files, and one line for the proxy."""
OPEN = {"/healthz", "/livez", "/readyz", "/robots.txt", "/static/{name}"}
"""Paths that need no login. None has anything of a job in it."""


@pytest.fixture(scope="session")
def nginx() -> str:
    return find_program("nginx")


Proxied = Callable[[int], str]


@pytest.fixture
def proxied(nginx: str, tmp_path: Path) -> Iterator[Proxied]:
    """Start nginx in front of a port. Return its address."""
    started: list[subprocess.Popen[bytes]] = []

    def start(upstream: int) -> str:
        folder, port = tmp_path / "nginx", free_port()
        folder.mkdir()
        user = "user root;" if os.geteuid() == 0 else ""  # others cannot enter the folder
        settings = folder / "nginx.conf"
        settings.write_text(SETTINGS.format(folder=folder, port=port, upstream=upstream, user=user))
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
