"""Connections belong to the process that made them: a forked child leaves its parent's alone, and makes its own."""

from __future__ import annotations

import os
import threading
from abc import ABC, abstractmethod
from typing import Generic, Protocol, TypeVar


class Connections(Protocol):
    """The connections of one process to a database."""

    pid: int

    def close(self) -> None: ...


D = TypeVar("D", bound=Connections)


class PerProcess(ABC, Generic[D]):
    """A store as each process has it: connected when it is first used, closed, and connected again."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._opening = threading.Lock()
        self._database: D | None = None

    @abstractmethod
    def _connections(self) -> D:
        """New ones, to a database that may have no tables yet, or old ones."""

    @abstractmethod
    def _prepare(self, database: D) -> None:
        """See to it that the tables are there, and that we can work with them."""

    def _inherit(self, parents: D) -> None:
        """A child comes upon the connections of its parent."""

    @property
    def database(self) -> D:
        """This process's connections."""
        database = self._database
        return database if database is not None and database.pid == os.getpid() else self._connect()

    def _connect(self) -> D:
        if self._pid != os.getpid():  # a thread of the parent may have held the lock
            self._opening, self._pid = threading.Lock(), os.getpid()
        with self._opening:
            if self._database is not None and self._database.pid != os.getpid():
                self._inherit(self._database)
                self._database = None
            if self._database is None:
                database = self._connections()
                try:
                    self._prepare(database)
                except BaseException:
                    database.close()
                    raise
                self._database = database
            return self._database

    def open(self) -> None:
        _ = self.database

    def close(self) -> None:
        database = self._database
        if database is not None and database.pid == os.getpid():
            self._database = None
            database.close()
