"""A database for every test, cheap enough for a thousand tests.

Overhead of one test in milliseconds: PostgreSQL 15 / 18 in memory, 2 busy cores, eleven tables with
two indexes each.

    76 / 69   a new database, its tables made, dropped
    48 / 45   one database, its schema dropped and its tables made
    42 / 38   a new database from a template that has the tables, dropped
    22 / 13   one database, its rows put back as they were
     5        ... on a connection that stays open

So most tests use the last (`reused`), and those that check the first use or the schema use the first
(`fresh`). Copying a template's files takes 12, and PostgreSQL's default of logging every page takes 19.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from urllib.parse import urlsplit, urlunsplit

import psycopg

from tests.eventually import eventually

Prepare = Callable[[str], object]
"""A function that makes the tables in the database of a URL."""

RESETTING = "treadle_test_reset"
"""The name of the session that restores a reused database."""
OURS = "'pg_catalog', 'information_schema', 'pg_toast'"


def with_database(url: str, name: str) -> str:
    return urlunsplit(urlsplit(url)._replace(path=f"/{name}"))


def create_database(admin: str, name: str, template: str = "template1") -> str:
    """Make a database on the server of a URL. Return its URL."""
    with psycopg.connect(admin, autocommit=True) as connection:
        # Copying the files takes two checkpoints, which cost nothing when nothing waits for the disk.
        connection.execute(f'CREATE DATABASE "{name}" TEMPLATE "{template}" STRATEGY file_copy')
    return with_database(admin, name)


def drop_database(admin: str, name: str) -> None:
    """Drop a database, and end the sessions that are connected to it."""
    with psycopg.connect(admin, autocommit=True) as connection:
        _end_sessions(connection, name)
        connection.execute(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')


def deadlocks(url: str, *, end_others: bool = False) -> int:
    """How many the server has counted in this database. A session reports its own at its end, at the latest. One whose
    client was cut off does not end by itself: `end_others`."""
    others = (
        f"SELECT {'pg_terminate_backend(pid)' if end_others else '1'} FROM pg_stat_activity "
        "WHERE datname = current_database() AND backend_type = 'client backend'"
        f" AND pid <> pg_backend_pid() AND application_name <> '{RESETTING}'"
    )
    with psycopg.connect(url, autocommit=True) as connection:
        eventually(lambda: not connection.execute(others).fetchall())
        [count] = connection.execute(
            "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"
        ).fetchone() or (-1,)
        return int(count)


class Databases:
    """The databases of one run of the tests, on one server."""

    def __init__(self, admin: str) -> None:
        self.admin = admin
        self._reused: dict[Prepare, Reused] = {}

    def fresh(self) -> str:
        """The URL of an empty database. Drop it afterwards: each is 8 MB."""
        # Tests of another project may use the same server.
        return create_database(self.admin, f"treadle_test_{secrets.token_hex(6)}")

    def drop(self, url: str) -> None:
        drop_database(self.admin, urlsplit(url).path[1:])

    def reused(self, prepare: Prepare) -> str:
        """The URL of a database in the state in which `prepare` left it. Earlier tests may have used it.

        It is one database: ask again only when its last use is over. Do not use it for a test of query plans,
        because deleted rows are still there, or for one that changes settings of the whole database.
        """
        reused = self._reused.get(prepare)
        if reused is not None and not reused.reset():
            reused.close()
            self.drop(reused.url)
            reused = None
        if reused is None:
            reused = self._reused[prepare] = Reused(self.fresh(), prepare)
        return reused.url

    def close(self) -> None:
        for reused in self._reused.values():
            reused.close()
            self.drop(reused.url)
        self._reused.clear()


class Reused:
    """One database, and how to restore its first state. Its connection stays open: a new one takes most of a reset."""

    def __init__(self, url: str, prepare: Prepare) -> None:
        self.url = url
        prepare(url)
        self._connect()
        self._script = self._save(self._connection)
        self._schema = _schema(self._connection)

    def _connect(self) -> None:
        self._connection = psycopg.connect(self.url, autocommit=True, application_name=RESETTING)

    def close(self) -> None:
        self._connection.close()

    def reset(self) -> bool:
        """Restore the rows. Return False if the schema has changed, which this cannot undo."""
        try:
            return self._restore(self._connection)
        except psycopg.OperationalError:  # a test has ended all sessions, this one too
            self._connect()
            return self._restore(self._connection)

    def _restore(self, connection: psycopg.Connection) -> bool:
        _end_sessions(connection, connection.info.dbname)
        if _schema(connection) != self._schema:
            return False
        connection.execute(self._script)
        if connection.execute(self._left).fetchone()[0]:  # by a chore of an earlier test, which had added up its rows
            connection.execute(self._script)
        return True

    def _save(self, connection: psycopg.Connection) -> str:
        """Make copies of all rows, and a script that restores them."""
        tables = [row[0] for row in connection.execute(TABLES)]
        filled = [table for table in tables if connection.execute(f"SELECT 1 FROM {table} LIMIT 1").fetchone()]
        empty = [f"EXISTS (SELECT 1 FROM {table})" for table in tables if table not in filled]
        self._left = f"SELECT {' OR '.join(empty) or 'false'}"
        sequences = connection.execute(SEQUENCES).fetchall()
        # Without triggers and foreign keys: with them the order would matter, and listeners would be notified.
        script = ["BEGIN", "SET LOCAL session_replication_role = replica"]
        script += [f"DELETE FROM {table}" for table in tables]
        connection.execute("CREATE SCHEMA treadle_test_saved")
        for number, table in enumerate(filled):
            connection.execute(f"CREATE TABLE treadle_test_saved.t{number} AS TABLE {table}")
            script.append(f"INSERT INTO {table} OVERRIDING SYSTEM VALUE TABLE treadle_test_saved.t{number}")
        # Not ALTER SEQUENCE ... RESTART, which would be a change of the schema.
        for name, last in sequences:
            script.append(f"SELECT setval('{name}', {last or 1}, {last is not None})")
        return "; ".join([*script, "COMMIT"])


END_SESSIONS = """
SELECT pg_terminate_backend(pid) FROM pg_stat_activity
WHERE datname = %s AND pid <> pg_backend_pid() AND backend_type = 'client backend'
"""
TABLES = f"""
SELECT format('%I.%I', schemaname, tablename) FROM pg_tables WHERE schemaname NOT IN ({OURS})
"""
SEQUENCES = """
SELECT format('%I.%I', schemaname, sequencename), last_value FROM pg_sequences
"""
SCHEMA = """
SELECT md5(string_agg(line, ' ' ORDER BY line)) FROM (
    SELECT format('n %s %s', oid, xmin) AS line FROM pg_namespace WHERE oid >= 16384
    UNION ALL SELECT format('c %s %s', oid, xmin) FROM pg_class WHERE oid >= 16384
    UNION ALL SELECT format('a %s %s %s', attrelid, attnum, xmin) FROM pg_attribute WHERE attrelid >= 16384
    UNION ALL SELECT format('d %s %s', oid, xmin) FROM pg_attrdef WHERE oid >= 16384
    UNION ALL SELECT format('k %s %s', oid, xmin) FROM pg_constraint WHERE oid >= 16384
    UNION ALL SELECT format('i %s %s', indexrelid, xmin) FROM pg_index WHERE indexrelid >= 16384
    UNION ALL SELECT format('t %s %s', oid, xmin) FROM pg_trigger WHERE oid >= 16384
    UNION ALL SELECT format('p %s %s', oid, xmin) FROM pg_proc WHERE oid >= 16384
    UNION ALL SELECT format('y %s %s', oid, xmin) FROM pg_type WHERE oid >= 16384
    UNION ALL SELECT format('r %s %s', oid, xmin) FROM pg_rewrite WHERE oid >= 16384
) AS lines
"""
"""Any change of the schema gives a row of these a new xmin. Objects of users have numbers from 16384 on."""


def _schema(connection: psycopg.Connection) -> str:
    return connection.execute(SCHEMA).fetchone()[0]


def _end_sessions(connection: psycopg.Connection, database: str) -> None:
    """End sessions that a test left open: they may hold locks. PostgreSQL's own ways to wait for it take 100 ms."""
    eventually(lambda: not connection.execute(END_SESSIONS, [database]).fetchall(), 10, every=0.002)
