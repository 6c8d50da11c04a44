"""Listening for the commits of others. A notification is a hint; a worker without one looks by itself."""

from __future__ import annotations

import logging
import os
import random
import socket
import time
import uuid
from collections.abc import Sequence
from typing import TYPE_CHECKING

import psycopg

from treadle.errors import TreadleError
from treadle.stores.postgres import sql
from treadle.stores.postgres.notify import CHANNEL, LOOK_AGAIN, looks_after
from treadle.stores.postgres.sockets import readable

if TYPE_CHECKING:
    from treadle.stores.postgres.connection import Connection, Database

log = logging.getLogger("treadle")

TEST_SECONDS = 2.0
"""How long a notification to ourselves may take."""
TEST_EVERY = 30.0
LONGEST_PAUSE = 10.0


class Watch:
    """Listens on a connection of its own. `close` ends a `wait`.

    Once it is lost, the connection is closed by the thread that waits: an event loop may still have its socket.
    """

    can_rest = False  # the server keeps what is not read, for all sessions

    def __init__(self, database: Database) -> None:
        self._database = database
        self._closed, self._close = socket.socketpair()  # Windows cannot wait for a pipe
        self._connection: Connection | None = None
        self._listening = False
        self._looks: list[float] = []
        self._next_test = 0.0
        self._next_try = 0.0
        self._pause = 0.1
        self._token: str | None = None
        """The text of a notification to ourselves that has not arrived yet."""
        self._warned = False
        self._listen()

    def wait(self, seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        while True:
            if not self._listening and time.monotonic() >= self._next_try:
                self._listen()
                if self._listening:
                    return True  # something may have been missed
            moments = [deadline, *self._looks[:1], *([] if self._listening else [self._next_try])]
            if not self._wait_for_socket(min(moments) - time.monotonic()):
                return False
            now = time.monotonic()
            if self._looks and now >= self._looks[0]:
                self._looks = [at for at in self._looks if at > now]
                return True
            if now >= deadline:
                self.check()
                return False

    def fileno(self) -> int | None:
        return self._connection.fileno() if self._connection is not None and self._listening else None

    def heard(self) -> Sequence[float]:
        self._receive()
        now, looks, self._looks = time.monotonic(), self._looks, []
        return [max(0.0, at - now) for at in looks]

    def _receive(self) -> None:
        """Read what has arrived, and note when to look for jobs."""
        assert self._connection is not None
        try:
            self._connection.pgconn.consume_input()
            while notify := self._connection.pgconn.notifies():
                if (text := notify.extra.decode()) == self._token:
                    self._token = None
                    self._next_test = time.monotonic() + TEST_EVERY * random.uniform(0.8, 1.2)
                else:
                    self._look_after(looks_after(text))
                    self._database.cursors.stale = True
        except psycopg.Error as error:
            self._lost(str(error))

    def _look_after(self, seconds: Sequence[float]) -> None:
        now = time.monotonic()
        self._looks = sorted({*self._looks, *(now + after for after in seconds)})

    def check(self) -> None:
        """A listener may fall silent without an error: a half-open connection, a pooler that was put in between."""
        if self._listening and time.monotonic() >= self._next_test:
            try:
                if self._token is None:
                    self._send_test()
                else:
                    self._lost("its own notification did not arrive")
            except (TreadleError, psycopg.Error) as error:
                self._lost(str(error))

    def _wait_for_socket(self, seconds: float) -> bool:
        """Wait for what can be received. False if we are closed."""
        closed, listening = self._closed.fileno(), self.fileno()
        ready = readable((closed,) if listening is None else (closed, listening), max(0.0, seconds))
        if closed in ready:
            return False
        if ready:
            self._receive()
        return True

    def _listen(self) -> None:
        try:
            if self._connection is not None:
                self._connection.close()
            self._connection = self._database.connect()
            self._connection.execute(sql.LISTEN)
            self._listening, self._pause = True, 0.1
            self._look_after(LOOK_AGAIN)  # a commit just before may have sent the last one for a while
            self._send_test()
            self._await_test()
        except (TreadleError, psycopg.Error) as error:
            self._lost(str(error))

    def _send_test(self) -> None:
        self._token = f"test-{uuid.uuid4()}"
        parameters = {"channel": CHANNEL, "text": self._token}
        self._database.write("other", lambda tx: tx.execute(sql.NOTIFY, parameters))
        self._next_test = time.monotonic() + TEST_SECONDS

    def _await_test(self) -> None:
        """Behind a pooler in transaction mode, no notification arrives."""
        while self._token is not None and self._listening:
            left = self._next_test - time.monotonic()
            if not self._wait_for_socket(left) or left <= 0:
                self._do_without()

    def _do_without(self) -> None:
        if not self._warned:
            log.warning(
                "notifications do not arrive from %s, so that workers look for jobs once a second: is there a pooler "
                "in transaction mode in between? give workers a direct connection",
                self._database.where,
            )
        self._warned = True
        self._try_again_after(60.0)

    def _lost(self, problem: str) -> None:
        log.warning("no longer listening, so looking for jobs once a second: %s", " ".join(problem.split()))
        self._try_again_after(self._pause * random.uniform(0.5, 1.5))
        self._pause = min(LONGEST_PAUSE, self._pause * 2)

    def _try_again_after(self, seconds: float) -> None:
        self._listening, self._token = False, None
        self._next_try = time.monotonic() + seconds

    def close(self) -> None:
        """End a `wait` that is under way. What it used is freed with this object."""
        self._close.send(b"!")

    def __del__(self) -> None:
        if self._connection is not None and self._database.pid == os.getpid():
            self._connection.close()
        self._closed.close()
        self._close.close()
