"""The PostgreSQL roles that `treadle db roles` makes: what each may do, and what it may not."""

from __future__ import annotations

import secrets
from urllib.parse import urlsplit, urlunsplit

import psycopg
import pytest

from tests.conformance.helpers import (
    FAILED,
    enlist,
    put,
    put_and_take,
    settle_one,
    take,
)
from tests.conformance.tenants.place import (
    REFUSED,
    VIEWS,
    as_producer,
    outcome,
    relations,
    tables_of_tenants,
)
from tests.servers.binaries import sources
from tests.servers.fixtures import new_server
from treadle import Treadle
from treadle.errors import BadOption, StoreBusy, StoreUnusable
from treadle.outcome import COMPLETED
from treadle.stores.base import ClaimRequest
from treadle.stores.postgres import roles, sql
from treadle.stores.postgres.roles import Roles
from treadle.stores.postgres.schema import newest_schema
from treadle.stores.postgres.store import PostgresStore

# Making the roles


def test_every_table_is_listed_as_of_tenants_or_of_all(place):
    """List a new table in OF_TENANTS if its rows have a tenant, and otherwise in OF_ALL."""
    assert set(relations(place.admin)) == set(roles.OF_TENANTS) | set(roles.OF_ALL)
    assert set(tables_of_tenants(place.admin)) == set(roles.OF_TENANTS)
    with psycopg.connect(place.admin) as connection:
        forced = connection.execute(
            "SELECT relname FROM pg_class WHERE relnamespace = 'treadle'::regnamespace"
            " AND relrowsecurity AND relforcerowsecurity"
        ).fetchall()
        views = connection.execute(
            "SELECT relname, reloptions FROM pg_class WHERE relnamespace = 'treadle'::regnamespace AND relkind = 'v'"
        ).fetchall()
        bare = connection.execute(
            "SELECT i.indexrelid::regclass FROM pg_index i JOIN pg_class c ON c.oid = i.indrelid"
            " WHERE c.relnamespace = 'treadle'::regnamespace AND i.indisunique AND EXISTS (SELECT FROM pg_attribute a"
            " WHERE a.attrelid = c.oid AND a.attname = 'tenant' AND NOT a.attnum = ANY(i.indkey))"
        ).fetchall()
        strong = connection.execute(
            "SELECT rolname FROM pg_roles WHERE rolname LIKE %s AND (rolsuper OR rolbypassrls OR rolcreaterole)",
            [f"{place.mark}%"],
        ).fetchall()

    assert {name for (name,) in forced} == set(roles.OF_TENANTS)
    assert all("security_invoker=true" in options for _, options in views)
    assert bare == []  # otherwise a collision would reveal what another tenant has
    assert strong == []


def test_the_printed_script_runs_on_a_fresh_database(postgres_url):
    """As with `treadle db roles | psql`, on a connection without the settings of treadle's own."""
    store = PostgresStore(postgres_url)
    store.open()
    store.close()
    names = Roles(*(f"t_{secrets.token_hex(4)}_{name}" for name in Roles._fields))
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute(roles.script(names))
        owners = connection.execute(
            "SELECT DISTINCT pg_get_userbyid(relowner) FROM pg_class WHERE relnamespace = 'treadle'::regnamespace"
        ).fetchall()
        for name in names:
            connection.execute(f"DROP OWNED BY {name} CASCADE")
            connection.execute(f"DROP ROLE {name}")
    assert owners == [(names.owner,)]


@pytest.mark.parametrize("times", [1, 2])
def test_rights_can_be_granted_twice(place, times):
    with psycopg.connect(place.admin) as connection:
        acls = "SELECT relname, relacl::text FROM pg_class WHERE relnamespace = 'treadle'::regnamespace ORDER BY 1"
        policies = "SELECT tablename, policyname, roles, qual, with_check FROM pg_policies ORDER BY 1, 2"
        before = connection.execute(acls).fetchall(), connection.execute(policies).fetchall()
        connection.execute(f"GRANT ALL ON treadle.jobs TO {place.roles.producer}")
        connection.commit()

        for _ in range(times):
            PostgresStore(place.admin).give_rights(place.roles)

        assert before == (connection.execute(acls).fetchall(), connection.execute(policies).fetchall())


@pytest.mark.parametrize("name", ["", "a'b", 'a"b', "a$$b", "a;b", "ä", "x" * 64, "1a"])
def test_a_role_name_that_could_be_sql_is_refused(name):
    with pytest.raises(BadOption, match="name of a role"):
        roles.script(Roles(owner=name))


def test_two_roles_cannot_have_the_same_name():
    with pytest.raises(BadOption, match="three roles"):
        roles.script(Roles(worker="me", producer="me"))


@pytest.mark.parametrize("server_of", sources())
def test_an_owner_that_is_not_superuser_can_grant_rights_and_still_work(server_of):
    """As on a managed server, where no user is superuser."""
    with new_server(server_of) as server:
        admin = server.create_database("rented")
        with psycopg.connect(admin, autocommit=True) as connection:
            connection.execute("CREATE ROLE app LOGIN CREATEROLE")
            connection.execute("GRANT CREATE ON DATABASE rented TO app")
        url = urlunsplit(urlsplit(admin)._replace(netloc=f"app@127.0.0.1:{server.port}"))
        store = PostgresStore(url)
        before = put(store, tenant="acme")

        store.give_rights(Roles())
        store.give_rights(Roles())

        assert before.id == store.get(before.id).id
        assert [before.id, put(store).id] == [c.id for c in store.claim("", ClaimRequest(limit=10))]
        assert newest_schema() == store.upgrade()
        store.close()


def test_the_error_for_a_role_that_may_not_grant_rights_names_a_role_that_may(place):
    with pytest.raises(StoreUnusable, match=r"permission denied.*; run it as a superuser"):
        PostgresStore(place.url("worker")).give_rights(Roles(producer="another"))


def test_granting_rights_needs_tables(postgres_databases):
    url = postgres_databases.fresh()
    with pytest.raises(StoreUnusable, match="treadle db upgrade"):
        PostgresStore(url).give_rights(Roles(*(f"t_{secrets.token_hex(4)}" for _ in range(3))))
    postgres_databases.drop(url)


# Workers and the owner


@pytest.mark.parametrize(
    "statement",
    [
        "ALTER TABLE treadle.jobs ADD n int",
        "ALTER TABLE treadle.jobs DISABLE ROW LEVEL SECURITY",
        "DROP POLICY treadle_all ON treadle.jobs",
        "DROP TABLE treadle.usage",
        "DROP SCHEMA treadle CASCADE",
        "TRUNCATE treadle.jobs",
        "CREATE TABLE treadle.mine (n int)",
        "UPDATE treadle.meta SET value = 99",
        "SELECT setval('treadle.lease', 1)",
    ],
)
def test_a_worker_cannot_change_the_tables(place, store, statement):
    with psycopg.connect(place.url("worker")) as connection:
        assert outcome(connection, statement) is REFUSED


@pytest.mark.parametrize("role", ["worker", "owner"])
def test_workers_and_the_owner_work_for_every_tenant(place, role):
    """A real worker does all that a worker does."""
    td = Treadle(place.url(role))
    ran: list[str] = []

    @td.job(concurrency=2, max_attempts=2, backoff=0)
    def step(name: str) -> str:
        ran.append(name)
        if name == "fails":
            raise ValueError(name)
        if name == "follows":
            step.using(tenant="b").enqueue(name="followed")
        return name

    producer = Treadle(place.url("producer"))
    jobs = [
        producer.enqueue("step", {"name": name}, tenant="a", dedupe=name, max_attempts=2)
        for name in ("one", "fails", "follows")
    ]
    td.enqueue("step", {"name": "no tenant"})
    while td.tick().ran:
        pass

    assert sorted(ran) == ["fails", "fails", "followed", "follows", "no tenant", "one"]
    assert ["completed", "failed", "completed"] == [td.get(job.id).status for job in jobs]
    assert 2 == len(td.attempts(jobs[1].id))
    assert "pending" == td.retry(jobs[1].id).status
    assert "cancelled" == td.cancel(jobs[1].id).status
    assert jobs[1].id == td.delete(jobs[1].id).id
    [lease] = (td.enqueue("step", {"name": "by hand"}, tenant="a"), td.claim(types=["step"]))[1]
    lease.extend(60)
    lease.complete("done")
    assert {"a", "b", ""} == {row["tenant"] for row in td.counts(("tenant",))}
    assert "postgresql" == td.store.status()["store"]
    td.store.compact()
    assert 5 == sum(row["count"] for row in td.counts())
    assert 0 == td.rescue()
    assert 5 == td.store.prune(["completed", "failed", "cancelled"], -(10**9), 100)
    td.close(), producer.close()


def test_a_worker_completes_a_job_in_a_transaction(place, store):
    claimed = put_and_take(store, tenant="acme")
    with store.transaction(claimed, lambda: COMPLETED) as connection:
        assert 1 == len(connection.execute("SELECT * FROM treadle.leases").fetchall())
    assert "completed" == store.get(claimed.id).status
    assert not settle_one(store, claimed, FAILED)


def test_the_error_for_a_role_without_rights_names_the_missing_right(place):
    with psycopg.connect(place.admin, autocommit=True) as connection:
        connection.execute(f"CREATE ROLE {place.mark}_stranger_login LOGIN")
    try:
        with pytest.raises(StoreUnusable, match=r"permission denied.*treadle db roles"):
            Treadle(place.url("stranger")).counts()
    finally:
        with psycopg.connect(place.admin, autocommit=True) as connection:
            connection.execute(f"DROP ROLE {place.mark}_stranger_login")


# Locks


LOCKABLE = {"jobs", "ready", "finished", "attempts", "dedupe", "schedules", "fired", "steps", "waits", "logs"}
"""Whoever may delete rows of a table may lock it: PostgreSQL has no right to delete without that."""


def test_a_producer_can_lock_only_the_tables_that_it_deletes_from(place):
    with as_producer(place, "acme") as connection:
        tables = [table for table in relations(place.admin) if table not in VIEWS]
        locks = {t: outcome(connection, f"LOCK TABLE treadle.{t} IN ACCESS EXCLUSIVE MODE") for t in tables}

    assert {table for table, how in locks.items() if how != REFUSED} == LOCKABLE


def test_while_a_producer_locks_tables_workers_beat_wait_a_bounded_time_and_go_on(place, store, monkeypatch):
    for name in ("BEGIN", "BEGIN_TO_READ"):
        assert "set_config('lock_timeout', '10s', true)" in getattr(sql, name)
        monkeypatch.setattr(sql, name, getattr(sql, name).replace("'10s'", "'300ms'"))
    worker = enlist(store)
    held = put_and_take(store, worker=worker)
    put(store)
    with as_producer(place, "acme") as connection:
        for table in sorted(LOCKABLE):
            connection.execute(f"LOCK TABLE treadle.{table} IN ACCESS EXCLUSIVE MODE")

        assert store.beat(worker).leases == {held.number: False}
        for blocked in (lambda: take(store, worker=worker), lambda: settle_one(store, held, FAILED), store.queue_stats):
            with pytest.raises(StoreBusy):
                blocked()

    assert settle_one(store, held, FAILED)
    assert 1 == len(take(store, worker=worker))
