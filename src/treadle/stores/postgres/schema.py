"""Creating, upgrading and emptying the tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

import psycopg

from treadle.errors import SchemaTooOld, StoreUnusable
from treadle.stores import migrate
from treadle.stores.postgres import sql

if TYPE_CHECKING:
    from treadle.stores.postgres.connection import Connection, Database, Transaction

PACKAGE = "treadle.stores.postgres"
OLDEST_SERVER = 150000

# Not the counter of leases: no number is given twice.
EMPTY = """
DELETE FROM treadle.jobs; DELETE FROM treadle.ready; DELETE FROM treadle.leases; DELETE FROM treadle.finished;
DELETE FROM treadle.attempts; DELETE FROM treadle.dedupe; DELETE FROM treadle.types; DELETE FROM treadle.workers;
DELETE FROM treadle.tallies; DELETE FROM treadle.usage; DELETE FROM treadle.audit; DELETE FROM treadle.tokens;
DELETE FROM treadle.operations; DELETE FROM treadle.requests; DELETE FROM treadle.pauses;
DELETE FROM treadle.schedules; DELETE FROM treadle.fired; DELETE FROM treadle.limits; DELETE FROM treadle.lease_keys;
DELETE FROM treadle.openings; DELETE FROM treadle.buckets; DELETE FROM treadle.backlog; DELETE FROM treadle.steps;
DELETE FROM treadle.waits; DELETE FROM treadle.signals; DELETE FROM treadle.arrivals; DELETE FROM treadle.batches;
DELETE FROM treadle.batch_counts; DELETE FROM treadle.logs
"""


def newest_schema() -> int:
    return migrate.migrations(PACKAGE)[-1].number


def schema_sql() -> str:
    """All tables as SQL, for people."""
    return f"CREATE SCHEMA IF NOT EXISTS treadle;\n\n{migrate.script(PACKAGE)}"


def check(database: Database) -> None:
    """Create the tables if there are none. An upgrade is an administrator's decision: it may lock what others use."""
    found, oldest = schema(database)
    missing = migrate.missing(PACKAGE, database.where, found, oldest)
    if found == 0:
        upgrade(database)
    elif missing:
        raise SchemaTooOld(database.where, found, newest_schema())


def schema(database: Database) -> tuple[int, int]:
    """The newest migration that the database has, 0 if none, and the oldest schema whose treadle can work with it."""

    def steps(tx: Transaction) -> tuple[int, int]:
        version = tx.connection.info.server_version
        if version < OLDEST_SERVER:
            problem = f"PostgreSQL {version // 10000} is too old"
            raise StoreUnusable(database.where, problem, "use PostgreSQL 15 or newer")
        return _schema(tx.connection, database.where)

    return database.read("other", steps)


def upgrade(database: Database) -> int:
    """Apply the missing migrations in order; the schema afterwards. Two processes may try at once."""

    def steps(tx: Transaction) -> int:
        tx.execute(sql.LOCK_UPGRADE)
        found, oldest = _schema(tx.connection, database.where)
        missing = migrate.missing(PACKAGE, database.where, found, oldest)
        if found == 0:
            _create_schema(tx, database.where)
        for migration in missing:
            tx.connection.execute(migration.sql)
            tx.execute(sql.SET_SCHEMA, {"number": migration.number})
        return max(found, newest_schema())

    return database.write("other", steps)


def _create_schema(tx: Transaction, where: str) -> None:
    if tx.value(sql.HAS_SCHEMA):
        return
    try:
        tx.execute(sql.CREATE_SCHEMA)
    except psycopg.errors.InsufficientPrivilege as error:
        way_out = "have its owner run: treadle db upgrade (or treadle db sql | psql)"
        raise StoreUnusable(where, "it has no tables of treadle, and this role may not create them", way_out) from error


def _schema(connection: Connection, where: str) -> tuple[int, int]:
    row = connection.execute(sql.HAS_META).fetchone()
    if row is None or not row[0]:
        return 0, 0
    return migrate.numbers(where, "treadle.meta", dict(connection.execute(sql.META).fetchall()))
