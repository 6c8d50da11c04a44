"""A PostgreSQL primary with a standby that can take its place, on one machine."""

from __future__ import annotations

import contextlib
from typing import Any

import psycopg

from tests.eventually import eventually
from tests.servers.postgres import PostgresServer


class Standby(PostgresServer):
    """A copy of a running server that follows it, on a port of its own or on that of a server that is gone."""

    def __init__(self, primary: PostgresServer, which: str = "any", *, port: int = 0) -> None:
        super().__init__(which)
        self._primary = primary
        self._port = port

    def _make(self) -> None:
        super()._make()
        self.port = self._port or self.port

    def _initdb(self) -> None:
        source = f"host=127.0.0.1 port={self._primary.port} user=postgres"
        flags = ["--write-recovery-conf", "--checkpoint=fast", "--no-sync", "-d", source]
        self._run(self.binaries.folder / "pg_basebackup", *flags, "-D", self._data)


class Cluster:
    """`with Cluster() as cluster:` starts a primary and a standby. No commit is answered before both have it, so that a
    promotion loses none."""

    def __init__(self, which: str = "any") -> None:
        self._which = which
        self.primary: PostgresServer = PostgresServer(which)
        self.standby = Standby(self.primary, which)

    def __enter__(self) -> Cluster:
        try:
            self.primary.start()
            self._follow()
        except BaseException:
            self.__exit__()
            raise
        ports = self.primary.port, self.standby.port
        hosts = ",".join(f"127.0.0.1:{port}" for port in ports)
        self.url = f"postgresql://postgres@{hosts}/postgres?target_session_attrs=read-write"
        return self

    def __exit__(self, *_: object) -> None:
        self.standby.remove()
        self.primary.remove()

    def fail_over(self) -> None:
        """The primary crashes, the standby takes its place, and a new standby the place of that."""
        self.primary.stop("immediate")
        _execute(self.standby, "SELECT pg_promote(true, 60)")
        gone, self.primary = self.primary, self.standby
        self.standby = Standby(self.primary, self._which, port=gone.port)
        gone.remove()
        self._follow()

    def _follow(self) -> None:
        self.standby.start()
        # Not earlier: the copy would have the setting too, and wait for a standby as soon as it is promoted.
        _execute(self.primary, "ALTER SYSTEM SET synchronous_standby_names = '*'")
        _execute(self.primary, "SELECT pg_reload_conf()")
        in_sync = "SELECT 1 FROM pg_stat_replication WHERE sync_state = 'sync'"
        eventually(lambda: _execute(self.primary, in_sync), every=0.05)


def _execute(server: PostgresServer, sql: str) -> list[tuple[Any, ...]]:
    with contextlib.closing(psycopg.connect(server.url(), autocommit=True, application_name="cluster")) as connection:
        found = connection.execute(sql)
        return found.fetchall() if found.description else []
