"""A real PgBouncer in front of a PostgreSQL server."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import psycopg

from tests.eventually import eventually
from tests.servers.postgres import free_port, identity
from tests.servers.programs import ROOT, find_program
from tests.servers.watch import Watch

SETTINGS = """
[databases]
* = host={host} port={port} user={user}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {own_port}
unix_socket_dir =
auth_type = any
pool_mode = {mode}
max_client_conn = 400
default_pool_size = 150
server_idle_timeout = 5
logfile = {folder}/log
"""
WATCH = 'while read -r pid; do last=$pid; done; kill -KILL "$last"; rm -rf "$0"'


class PgBouncer:
    """`with PgBouncer(url, "transaction") as pooler:` then connect to `pooler.url(…)`."""

    def __init__(self, server: str, mode: str) -> None:
        self._server, self._mode = urlsplit(server), mode
        self._port = free_port()

    def __enter__(self) -> PgBouncer:
        folder = Path(tempfile.mkdtemp(prefix="treadle-pgbouncer-"))
        self._watch = Watch(WATCH, str(folder))
        try:
            self._start(folder)
        except BaseException:
            self._watch.finish()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        self._watch.finish()

    def url(self, direct: str) -> str:
        """The URL of a database through the pooler, from its own URL."""
        return urlunsplit(urlsplit(direct)._replace(netloc=f"{self._server.username}@127.0.0.1:{self._port}"))

    def _start(self, folder: Path) -> None:
        program = Path(find_program("pgbouncer"))
        if ROOT in program.parents:  # root's home, where it may be, is closed to the user that it runs as
            program = Path(shutil.copytree(program.parent, folder / "program", symlinks=True)) / program.name
        server = {"host": self._server.hostname, "port": self._server.port, "user": self._server.username}
        text = SETTINGS.format(own_port=self._port, mode=self._mode, folder=folder, **server)
        (folder / "pgbouncer.ini").write_text(text)
        if user := identity():  # it refuses to run as root
            for path in (folder, *folder.rglob("*")):
                os.chown(path, user["user"], user["group"], follow_symlinks=False)
        self._process = subprocess.Popen(
            [program, folder / "pgbouncer.ini"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            **user,
        )
        self._watch.send(str(self._process.pid))
        eventually(self._answers, every=0.02)

    def _answers(self) -> bool:
        assert self._process.poll() is None, "PgBouncer does not start"
        with contextlib.suppress(psycopg.OperationalError):
            psycopg.connect(self.url(urlunsplit(self._server)), connect_timeout=5).close()
            return True
        return False
