"""Faults that a thread injects while a test runs."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import NamedTuple

import psycopg

from tests.servers.postgres import PostgresServer

OURS = "application_name = 'treadle' AND pid <> pg_backend_pid()"
KILL_ONE = f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {OURS} ORDER BY random() LIMIT 1"
KILL_ALL = f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND {OURS}"
KILL_LISTENERS = f"SELECT pid FROM pg_stat_activity WHERE {OURS} AND query LIKE 'LISTEN%' AND pg_terminate_backend(pid)"
LISTENERS = f"SELECT pid FROM pg_stat_activity WHERE {OURS} AND query LIKE 'LISTEN%'"
RELOAD = "SELECT pg_reload_conf()"


@contextmanager
def every(seconds: float, strike: Callable[[], object]) -> Generator[list[int]]:
    """Repeat the fault during the block. Yields the times at which each was over."""
    stop = threading.Event()
    strikes: list[int] = []
    errors: list[BaseException] = []

    def go_on() -> None:
        try:
            while not stop.wait(seconds):
                strike()
                strikes.append(time.monotonic_ns())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=go_on)
    thread.start()
    try:
        yield strikes
    finally:
        stop.set()
        thread.join()
    assert errors == []


def kill_a_backend(url: str) -> Callable[[], None]:
    def strike() -> None:
        with contextlib.closing(psycopg.connect(url, autocommit=True, application_name="faults")) as connection:
            connection.execute(KILL_ONE)

    return strike


@contextmanager
def read_only(url: str, *, for_new_sessions: bool = False) -> Generator[None]:
    """During the block the server refuses all writes; or only those of sessions that begin in the block, which stay
    read-only after it, while all earlier sessions end."""
    mine = {"application_name": "faults", "options": "-c default_transaction_read_only=off"}
    with contextlib.closing(psycopg.connect(url, autocommit=True, **mine)) as connection:
        what = f'DATABASE "{connection.info.dbname}"' if for_new_sessions else "SYSTEM"
        connection.execute(f"ALTER {what} SET default_transaction_read_only = on")
        connection.execute(KILL_ALL if for_new_sessions else RELOAD)
        try:
            yield
        finally:
            connection.execute(f"ALTER {what} RESET default_transaction_read_only")
            connection.execute(RELOAD)


class Restart(NamedTuple):
    """When the server went away, when it was back, and the number of the last lease by then."""

    gone: int
    back: int
    last_lease: int


def crash(server: PostgresServer) -> Restart:
    gone = time.monotonic_ns()
    server.restart("immediate")
    back = time.monotonic_ns()
    with contextlib.closing(psycopg.connect(server.url(), autocommit=True, application_name="faults")) as connection:
        [last] = connection.execute("SELECT last_value FROM treadle.lease").fetchone() or (0,)
    return Restart(gone, back, last)


@contextmanager
def crashing(server: PostgresServer, seconds: float = 5.0) -> Generator[list[Restart]]:
    """Crash it repeatedly during the block, each time this long after it is back."""
    restarts: list[Restart] = []
    with every(seconds, lambda: restarts.append(crash(server))):
        yield restarts
