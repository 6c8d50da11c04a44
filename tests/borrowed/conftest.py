"""A PostgreSQL server for this directory, and a fresh database for each test."""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from glob import glob
from pathlib import Path

import psycopg
import pytest

numbers = itertools.count(1)


@pytest.fixture(scope="session")
def server():
    """Where it listens, without a database. It keeps nothing: no fsync, and in memory where that is possible."""
    initdb = shutil.which("initdb") or max(glob("/usr/lib/postgresql/*/bin/initdb"), default=None)
    if initdb is None:
        pytest.skip("no PostgreSQL here")
    user = "nobody" if os.getuid() == 0 else None  # it refuses to run as root
    folder = Path(tempfile.mkdtemp(prefix="windlass-pg-", dir="/dev/shm" if os.path.isdir("/dev/shm") else None))
    if user:
        shutil.chown(folder, user)
    data = folder / "data"
    how = {"user": user, "cwd": folder, "stdout": subprocess.DEVNULL}
    subprocess.run([initdb, "-D", data, "-A", "trust", "-U", "postgres", "-N"], check=True, timeout=100, **how)
    port = free_port()
    options = [f"port={port}", "listen_addresses=127.0.0.1", f"unix_socket_directories={folder}", "fsync=off"]
    command = [Path(initdb).parent / "postgres", "-D", data, *itertools.chain(*(("-c", o) for o in options))]
    with open(folder / "log", "wb") as log:
        process = subprocess.Popen(command, stderr=log, **how)
    try:
        yield ready(f"postgresql://postgres@127.0.0.1:{port}", process)
    finally:
        process.send_signal(signal.SIGQUIT)  # at once, but its shared memory goes too
        process.wait()
        shutil.rmtree(folder, ignore_errors=True)


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def ready(url: str, process: subprocess.Popen[bytes]) -> str:
    while process.poll() is None:
        try:
            psycopg.connect(f"{url}/postgres").close()
            return url
        except psycopg.OperationalError:  # a server that starts has no event to wait for
            time.sleep(0.05)
    raise RuntimeError("the server did not start")


def fresh(server: str) -> str:
    name = f"test_{next(numbers)}"
    with psycopg.connect(f"{server}/postgres", autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
    with psycopg.connect(f"{server}/{name}") as connection:
        connection.execute("CREATE TABLE orders (id bigint PRIMARY KEY, note text)")
    return f"{server}/{name}"


@pytest.fixture
def postgres_url(server) -> str:
    return fresh(server)


@pytest.fixture
def other_url(server) -> str:
    """Another database of the same server."""
    return fresh(server)
