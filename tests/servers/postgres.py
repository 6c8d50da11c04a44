"""A real PostgreSQL server in a folder of its own. Nothing of it remains after the tests."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import socket
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import psycopg

from tests.eventually import eventually
from tests.servers.binaries import Binaries, find_binaries
from tests.servers.databases import create_database, drop_database, with_database
from tests.servers.watch import Watch

MODES = {"immediate": signal.SIGQUIT, "fast": signal.SIGINT}
"""`immediate` is a crash: open transactions are lost, and the next start recovers from the log."""

PLENTY = 2 << 30
"""Free bytes that it needs. A container's /dev/shm of 64 MB would be full after some tests."""

WATCH = """
while read -r line; do pid=$line; done
if [ -n "$pid" ]; then
    kill -QUIT "$pid"
    for _ in 1 2 3 4 5 6 7 8 9 10; do kill -0 "$pid" || break; sleep 0.2; done
    kill -KILL "$pid"
fi
rm -rf "$0"
"""
"""The last line that it reads is the pid of the process to end."""


class ServerFailed(Exception):
    pass


class Elsewhere:
    """An existing server: tests may create databases on it, but not stop it."""

    def __init__(self, admin: str) -> None:
        self._admin = admin

    def url(self, database: str | None = None) -> str:
        return with_database(self._admin, database) if database else self._admin

    def create_database(self, name: str) -> str:
        """Make a database, and return its URL."""
        return create_database(self.url(), name)

    def drop(self, name: str) -> None:
        drop_database(self.url(), name)


class PostgresServer(Elsewhere):
    """`with PostgresServer() as server:` starts a server, and removes it afterwards.

    Without `durable` it does not wait for the disk, and its files are in memory if possible. Commits survive
    a crash of the server, but not of the machine, which is not tested here. `everywhere` makes it listen on
    all addresses and trust the private ones, for clients in other network namespaces.
    """

    def __init__(
        self,
        which: str = "any",
        *,
        durable: bool = False,
        everywhere: bool = False,
        options: dict[str, Any] | None = None,
    ) -> None:
        self.binaries = find_binaries(which)
        self.durable = durable
        self.everywhere = everywhere
        self.port = 0
        self.options = {
            "listen_addresses": "*" if everywhere else "127.0.0.1",
            "unix_socket_directories": "",
            "max_connections": 200,
            "fsync": "on" if durable else "off",
            "full_page_writes": "on" if durable else "off",
            "max_wal_size": "256MB",
            "jit": "off",
            "dynamic_shared_memory_type": "mmap",  # in its folder, and so removed with it even after a kill -9
            **(options or {}),
        }
        self._process: subprocess.Popen[bytes] | None = None
        self._watch: Watch | None = None
        self.folder: Path | None = None
        self._killed = False

    def __enter__(self) -> PostgresServer:
        try:
            self.start()
        except BaseException:
            self.remove()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()

    # Life

    def start(self) -> None:
        """Start it on the same port as before. Return when it accepts connections."""
        if self.folder is None:
            self._make()
        eventually(self._started, every=0.05)

    def stop(self, mode: str = "fast") -> None:
        self._end(MODES[mode])

    def restart(self, mode: str = "immediate") -> None:
        self.stop(mode)
        self.start()

    def kill(self) -> None:
        """kill -9 the postmaster. Its children end when they notice."""
        self._end(signal.SIGKILL)
        self._killed = True

    def remove(self) -> None:
        """Stop it and remove its folder."""
        if self._killed:
            self.start()  # this frees the shared memory that the killed server could not
        self.stop("immediate")
        if self._watch is not None:
            self._watch.finish()
            self._watch = self.folder = None

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    @property
    def log(self) -> str:
        return "" if self.folder is None else (self.folder / "log").read_text(errors="replace")

    def url(self, database: str = "postgres", host: str = "127.0.0.1") -> str:
        return f"postgresql://postgres@{host}:{self.port}/{database}"

    # How

    def _make(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="treadle-pg-", dir=None if self.durable else _memory()))
        self._watch = Watch(WATCH, str(self.folder))
        (self.folder / "log").touch()
        self._give_away()
        self.binaries = self._within_reach(self.binaries)
        self._initdb()
        self.port = free_port()

    def _give_away(self) -> None:
        """Change the owner of the folder: PostgreSQL refuses to run as root."""
        if user := identity():
            for path in (self.folder, *self.folder.rglob("*")):
                os.chown(path, user["user"], user["group"], follow_symlinks=False)

    def _within_reach(self, binaries: Binaries) -> Binaries:
        """Copy the binaries if needed: a plain user cannot read root's home, where a virtual environment may be."""
        try:
            self._run(binaries.folder / "postgres", "--version")
        except PermissionError:
            copy = binaries._replace(folder=_copy(binaries.folder, self.folder / "programs"))
            self._give_away()
            return copy
        return binaries

    def _initdb(self) -> None:
        flags = ["--no-sync", "--username=postgres", "--auth=trust", "--encoding=UTF8", f"--locale={_locale()}"]
        self._run(self.binaries.folder / "initdb", *flags, "-D", self._data)
        if self.everywhere:
            with (self._data / "pg_hba.conf").open("a") as rules:
                for network in ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16"):
                    rules.write(f"host all all {network} trust\n")

    @property
    def _data(self) -> Path:
        assert self.folder is not None
        return self.folder / "data"

    def _run(self, *command: str | Path) -> None:
        done = subprocess.run(
            command,
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=60,
            **identity(),
        )
        if done.returncode:
            raise ServerFailed(f"{Path(command[0]).name} failed:\n{done.stdout}{done.stderr}")

    def _started(self) -> bool:
        """Start it once. After a kill -9, its children may take a moment to notice, and no new server starts before."""
        command = [self.binaries.folder / "postgres", "-D", self._data, "-p", str(self.port)]
        for name, value in self.options.items():
            command += ["-c", f"{name}={value}"]
        with (self.folder / "log").open("ab") as log:
            self._mark = log.tell()
            self._process = subprocess.Popen(
                command,
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C is for the tests, which then end the server
                **identity(),
            )
        self._watch.send(str(self._process.pid))
        if eventually(lambda: "answers" if self._answers() else self._process.poll() is not None) == "answers":
            self._killed = False
            return True
        self._end(signal.SIGKILL)
        if "shared memory" not in (reason := self.log[self._mark :]):
            raise ServerFailed(f"PostgreSQL does not start:\n{reason}")
        return False

    def _answers(self) -> bool:
        with contextlib.suppress(psycopg.OperationalError):
            psycopg.connect(self.url(), connect_timeout=5).close()
            return True
        return False

    def _end(self, number: int) -> None:
        if self._process is None:
            return
        self._process.send_signal(number)
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process = None
        self._watch.send("")


def _copy(programs: Path, to: Path) -> Path:
    """Copy a wheel with the libraries next to its package, where the programs look for them."""
    package = programs.parents[1]
    libraries = package.with_name(f"{package.name}.libs")
    if libraries.exists():
        shutil.copytree(libraries, to / libraries.name, symlinks=True)
    copy = to / package.name / programs.parent.name
    shutil.copytree(programs.parent, copy, symlinks=True)
    return copy / programs.name


def free_port() -> int:
    """A port below the system's range for clients: a client could take one of those while the server restarts."""
    while True:
        port = random.SystemRandom().randrange(15_000, 32_000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("", port))
            return port


def identity() -> dict[str, Any]:
    """Options of subprocess to run as a plain user, if this process is root."""
    if os.geteuid() != 0:
        return {}
    import pwd

    nobody = pwd.getpwnam("nobody")
    return {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}


def _memory() -> str | None:
    if not os.access("/dev/shm", os.W_OK) or shutil.disk_usage("/dev/shm").free < PLENTY:
        return None
    return "/dev/shm"


def _locale() -> str:
    """C.UTF-8 if the system has it. macOS before 15 does not."""
    import locale

    before = locale.setlocale(locale.LC_CTYPE)
    try:
        locale.setlocale(locale.LC_CTYPE, "C.UTF-8")
    except locale.Error:
        return "C"
    finally:
        locale.setlocale(locale.LC_CTYPE, before)
    return "C.UTF-8"
