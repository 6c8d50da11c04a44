"""A database whose roles have their rights, tenants with rows in all of its tables, and how producers query them."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import quote, urlsplit, urlunsplit

import psycopg
from psycopg import errors

from tests.conformance.helpers import (
    FAILED,
    HOUR,
    enlist,
    finish,
    limit,
    put,
    put_and_take,
)
from treadle.batch import NewBatch
from treadle.codec import as_json
from treadle.outcome import COMPLETED
from treadle.pauses import NewPause, Target
from treadle.schedule import NewSchedule, Rule
from treadle.steps import NewStep
from treadle.stores.postgres.roles import Roles
from treadle.stores.postgres.store import PostgresStore
from treadle.stores.rows import AuditRow
from treadle.waits import NewSignal

REFUSED = errors.InsufficientPrivilege
NOT_ALLOWED = (REFUSED, errors.ObjectNotInPrerequisiteState, errors.WrongObjectType, errors.FeatureNotSupported)
"""The others are what PostgreSQL says of changing a view, and of COPY into a table with policies."""


class Place:
    """A database whose roles have their rights, and a login for each."""

    def __init__(self, admin: str) -> None:
        self.admin = admin
        self.mark = f"t_{secrets.token_hex(4)}"  # roles belong to the whole server
        self.roles = Roles(*(f"{self.mark}_{name}" for name in Roles._fields))
        store = PostgresStore(admin)
        store.open()
        store.give_rights(self.roles)
        store.close()
        with psycopg.connect(admin, autocommit=True) as connection:
            for name in Roles._fields:
                connection.execute(f"CREATE ROLE {self.mark}_{name}_login LOGIN IN ROLE {self.mark}_{name}")

    def url(self, role: str, tenant: str | None = None) -> str:
        parts = urlsplit(self.admin)
        host = parts.netloc.rpartition("@")[2]
        query = "" if tenant is None else f"options={quote(f'-c treadle.tenant={tenant}')}"
        return urlunsplit(parts._replace(netloc=f"{self.mark}_{role}_login@{host}", query=query))

    def drop(self) -> None:
        with psycopg.connect(self.admin, autocommit=True) as connection:
            names = [f"{name}{end}" for name in self.roles for end in ("_login", "")]
            for name in names:
                connection.execute(f"DROP OWNED BY {name} CASCADE")
            for name in names:
                connection.execute(f"DROP ROLE {name}")


@contextmanager
def as_producer(place: Place, tenant: str | None) -> Iterator[psycopg.Connection[Any]]:
    """Run plain SQL as a producer, in a transaction that names its tenant and is rolled back."""
    with psycopg.connect(place.url("producer")) as connection:
        if tenant is not None:
            connection.execute("SELECT set_config('treadle.tenant', %s, true)", [tenant])
        yield connection
        connection.rollback()


FILL = (
    "INSERT INTO treadle.logs VALUES (CAST(:id AS uuid), :tenant, 1, 1, 1, 0, 'INFO', 'fetched')",
    "INSERT INTO treadle.arrivals (at, kind, tenant, what) VALUES (1152921504606846976, 'signal', :tenant, 'approved')",
)
"""Rows that other verbs write late, or delete soon."""


def fill(store: Any, tenant: str) -> dict[str, str]:
    """Insert rows of a tenant in every table. Return the ids of its jobs by table."""
    enlist(store, f"w-{tenant}")
    ended = finish(store, FAILED, tenant=tenant, dedupe="ended")
    done = finish(store, COMPLETED, tenant=tenant)
    held = put_and_take(store, worker=f"w-{tenant}", tenant=tenant)
    waiting = put(store, tenant=tenant, dedupe="key", delay=HOUR)
    limit(store, "limited", 3)
    store.audit(AuditRow(who="somebody", action="retry", what=ended.id, tenant=tenant))
    store.insert_once(tenant, "key", "hash", [])
    store.pause(NewPause(target=Target(tenant=tenant), by="somebody"))
    store.put_schedule(NewSchedule(name="digest", type="noop", rule=Rule(every=HOUR), tenant=tenant))
    store.insert_batch(NewBatch(name="import", tenant=tenant))
    counted = {"rows": as_json([(tenant, "import", 1, 0, 0, 0)])}
    store.database.write("other", lambda tx: tx.execute(tx.sql.ADD_BATCH_COUNTS, counted))
    key = {"rows": as_json([("api", tenant, held.id, held.number, tenant)])}
    store.database.write("other", lambda tx: tx.execute(tx.sql.ADD_LEASE_KEYS, key))
    fired = {"rows": as_json([(tenant, "digest", waiting.id)])}
    store.database.write("other", lambda tx: tx.execute(tx.sql.ADD_FIRED, fired))
    store.save_steps([(held, NewStep("fetch"))])
    blocked = put(store, tenant=tenant, after=(waiting.id,))
    store.signal(NewSignal("approved", tenant=tenant))
    for statement in FILL:
        store.database.write("other", lambda tx, sql=statement: tx.execute(sql, {"tenant": tenant, "id": held.id}))
    unended = {"processing": held.id, "pending": waiting.id, "blocked": blocked.id}
    return {"failed": ended.id, "completed": done.id, **unended}


VIEWS = ("job", "limited_leases")


def relations(url: str) -> dict[str, list[str]]:
    """Every table and view of treadle, with its columns."""
    found: dict[str, list[str]] = {}
    with psycopg.connect(url) as connection:
        for table, column in connection.execute(
            "SELECT c.relname, a.attname FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid"
            " WHERE c.relnamespace = 'treadle'::regnamespace AND c.relkind IN ('r', 'v', 'm', 'p', 'f')"
            " AND a.attnum > 0 AND NOT a.attisdropped ORDER BY 1, a.attnum"
        ):
            found.setdefault(table, []).append(column)
    return found


def tables_of_tenants(url: str) -> list[str]:
    return [name for name, columns in relations(url).items() if "tenant" in columns and name not in VIEWS]


def outcome(connection: psycopg.Connection[Any], statement: Any, parameters: Any = None) -> int | type[Exception]:
    """How many rows a statement saw or changed, or the error. The transaction stays usable."""
    try:
        with connection.transaction():
            rows = connection.execute(statement, parameters)
            return len(rows.fetchall()) if rows.description else rows.rowcount
    except psycopg.Error as error:
        return type(error)
