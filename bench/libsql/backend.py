"""A libSQL server, whose only database the benchmark uses."""

from __future__ import annotations

import time

import click

from bench.backend import About, Backend, Loop
from bench.libsql.database import LibSQLBenchDatabase, Plain
from bench.sqlite import raw
from treadle.errors import StoreUnusable
from treadle.stores.libsql.connection import ANSWER_SECONDS, Database
from treadle.stores.libsql.url import read
from treadle.stores.sqlite import sql

IN_USE = "SELECT EXISTS (SELECT 1 FROM treadle_jobs) OR EXISTS (SELECT 1 FROM treadle_workers)"


class LibSQLBackend(Backend):
    """The server of a URL. It must have no jobs: there is no second database to measure in."""

    sections = frozenset({"round-trips"})
    without = frozenset({"backlog", "claims", "dashboard"})
    notifies = False
    driver = "HTTP"
    safe = ("raw_round_trips", "server: SELECT 1, one by one", "round-trips")
    loops = (
        Loop("", "raw SQL", raw.insert_many, raw.move_many),
        Loop("json", "… each batch as one JSON text", raw.insert_json, raw.move_json),
    )

    def __init__(self, url: str) -> None:
        self._url = url
        address = read(url)
        self._where = address.where
        self._database = Database(address, None)
        self._plain = Plain(self._database)
        try:
            self._had_tables = bool(self._database.read("read", lambda tx: tx.value(sql.HAS_META)))
            in_use = self._had_tables and self._database.read("read", lambda tx: tx.value(IN_USE))
        except StoreUnusable as error:
            raise click.ClickException(str(error)) from None
        if in_use:
            raise click.ClickException(
                f"{self._where} has jobs or workers in it, and a libSQL server has no second database to measure in: "
                "name a server of its own"
            )

    def new(self, name: str) -> LibSQLBenchDatabase:
        return LibSQLBenchDatabase(self._url, self._plain)

    def commits(self, seconds: float) -> float:
        """Round trips per second: nothing that treadle does there takes less than one."""
        count, began = 0, time.perf_counter()
        while (passed := time.perf_counter() - began) < seconds:
            self._plain.execute("SELECT 1").fetchone()
            count += 1
        return count / passed

    def about(self) -> About:
        version = self._database.read("read", lambda tx: tx.value(sql.VERSION))
        return About(f"libSQL server with SQLite {version}", {"answer within": f"{ANSWER_SECONDS:g} s"}, self._where)

    def close(self) -> None:
        if not self._had_tables:
            for kind, name in self._plain.execute(sql.OURS).fetchall():
                self._plain.execute(f"DROP {kind} {name}")
        self._database.close()
