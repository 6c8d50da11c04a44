"""Listening for the commits of others. A notification is a hint; a worker without one looks by itself.

A commit sends one notification per queue, and the next ones send none for a moment (`QUIET`): each takes a lock that
all commits of the server share. So a listener looks again a few times after each, for what came in that moment.
"""

from __future__ import annotations

import logging
import os
import random
import select
import time
import uuid
from typing import TYPE_CHECKING

import psycopg

from treadle.errors import TreadleError
from treadle.stores.postgres import sql
from treadle.stores.postgres.connection import CHANNEL, QUIET

if TYPE_CHECKING:
    from treadle.stores.postgres.connection import Connection, Database

log = logging.getLogger("treadle")

LOOK_AGAIN = (0.005, 0.015, 0.03, QUIET + 0.005)
"""Seconds after a notification at which there may be a commit without another one."""
TEST_SECONDS = 2.0
"""How long a notification to ourselves may take."""
TEST_EVERY = 30.0
LONGEST_PAUSE = 10.0


class Watch:
    """Waits for notifications on a connection of its own. One thread waits at a time; `close` wakes it."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._closed, self._close = os.pipe()
        self._connection: Connection | None = None
        self._looks: list[float] = []
        self._next_test = 0.0
        self._next_try = 0.0
        self._pause = 0.1
        self._token: str | None = None
        self._notified = False
        self._warned = False
        self._listen()

    def wait(self, seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        while True:
            if self._connection is None and time.monotonic() >= self._next_try:
                self._listen()
                if self._connection is not None:
                    return True  # something may have been missed
            moments = [deadline, *self._looks[:1], *([self._next_try] if self._connection is None else [])]
            if not self._wait_for_socket(min(moments) - time.monotonic()):
                return False
            if self._notified:
                self._notified = False
                self._look_again()
                self._database.cursors.stale = True
                return True
            if self._looks and time.monotonic() >= self._looks[0]:
                self._looks.pop(0)
                return True
            if time.monotonic() >= deadline:
                self._test_regularly()
                return False

    def _look_again(self) -> None:
        now = time.monotonic()
        self._looks = [now + after for after in LOOK_AGAIN]

    def _wait_for_socket(self, seconds: float) -> bool:
        """Wait, and set `_notified` if there was a notification. False if we are closed."""
        ready = select.poll()
        ready.register(self._closed, select.POLLIN)
        if self._connection is not None:
            ready.register(self._connection.fileno(), select.POLLIN)
        for fd, _ in ready.poll(max(0.0, seconds) * 1000):
            if fd == self._closed:
                return False
            self._receive()
        return True

    def _receive(self) -> None:
        assert self._connection is not None
        try:
            self._connection.pgconn.consume_input()
            while notify := self._connection.pgconn.notifies():
                if notify.extra.decode() == self._token:
                    self._token = None
                else:
                    self._notified = True
        except psycopg.Error as error:
            self._lost(str(error))

    def _listen(self) -> None:
        try:
            connection = self._database.connect()
            connection.execute(sql.LISTEN)
            self._connection = connection
            self._pause = 0.1
            self._look_again()  # a commit just before may have sent one, and the next commits none
            if not self._test():
                self._do_without()
        except (TreadleError, psycopg.Error) as error:
            self._lost(str(error))

    def _test(self) -> bool:
        """Whether a notification to ourselves arrives: behind a pooler in transaction mode it never does."""
        self._token = f"test-{uuid.uuid4()}"
        parameters = {"channel": CHANNEL, "queue": self._token}
        self._database.write("other", lambda tx: tx.execute(sql.NOTIFY, parameters))
        deadline = time.monotonic() + TEST_SECONDS
        while self._token is not None and self._connection is not None:
            left = deadline - time.monotonic()
            if not self._wait_for_socket(left) or left <= 0:
                break
        self._next_test = time.monotonic() + TEST_EVERY * random.uniform(0.8, 1.2)
        return self._token is None

    def _test_regularly(self) -> None:
        """A listener may fall silent without an error: a half-open connection, a pooler that was put in between."""
        if self._connection is not None and time.monotonic() >= self._next_test:
            try:
                if not self._test():
                    self._lost("its own notification did not arrive")
            except (TreadleError, psycopg.Error) as error:
                self._lost(str(error))

    def _do_without(self) -> None:
        if not self._warned:
            log.warning(
                "notifications do not arrive from %s, so that workers look for jobs once a second: is there a pooler "
                "in transaction mode in between? give workers a direct connection",
                self._database.where,
            )
        self._warned = True
        self._forget(60.0)

    def _lost(self, problem: str) -> None:
        log.warning("no longer listening, so looking for jobs once a second: %s", " ".join(problem.split()))
        self._forget(self._pause * random.uniform(0.5, 1.5))
        self._pause = min(LONGEST_PAUSE, self._pause * 2)

    def _forget(self, seconds: float) -> None:
        """Do without a connection for this long."""
        if self._connection is not None:
            self._connection.close()
        self._connection = None
        self._token = None
        self._next_try = time.monotonic() + seconds

    def close(self) -> None:
        """End a `wait` that is under way. What it used is freed with this object."""
        os.write(self._close, b"!")

    def __del__(self) -> None:
        if self._connection is not None and self._database.pid == os.getpid():
            self._connection.close()
        os.close(self._closed)
        os.close(self._close)
