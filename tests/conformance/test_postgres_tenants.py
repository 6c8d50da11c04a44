"""Tenants on PostgreSQL, by row level security: who sees and changes what. `windlass db roles` makes the roles."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import quote, urlsplit, urlunsplit

import psycopg
import pytest
from psycopg import errors, sql

from tests.conformance.helpers import (
    FAILED,
    HOUR,
    check_books,
    enlist,
    finish,
    limit,
    new_job,
    put,
    put_and_take,
    settle_one,
)
from tests.servers.binaries import sources
from tests.servers.fixtures import new_server
from windlass import BadOption, StoreUnusable, Windlass
from windlass.ids import new_id
from windlass.outcome import COMPLETED
from windlass.stores.base import Filter, Wanted
from windlass.stores.postgres import roles
from windlass.stores.postgres.roles import Roles
from windlass.stores.postgres.store import PostgresStore

REFUSED = errors.InsufficientPrivilege
NOT_ALLOWED = (REFUSED, errors.ObjectNotInPrerequisiteState, errors.WrongObjectType, errors.FeatureNotSupported)
"""The others are what PostgreSQL says of changing a view, and of COPY into a table with policies."""


class Place:
    """A database whose roles have their rights, and a login for each."""

    def __init__(self, admin: str) -> None:
        self.admin = admin
        self.mark = f"t_{secrets.token_hex(4)}"  # roles are of the whole server
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
        query = "" if tenant is None else f"options={quote(f'-c windlass.tenant={tenant}')}"
        return urlunsplit(parts._replace(netloc=f"{self.mark}_{role}_login@{host}", query=query))

    def drop(self) -> None:
        with psycopg.connect(self.admin, autocommit=True) as connection:
            names = [f"{name}{end}" for name in self.roles for end in ("_login", "")]
            for name in names:
                connection.execute(f"DROP OWNED BY {name} CASCADE")
            for name in names:
                connection.execute(f"DROP ROLE {name}")


@pytest.fixture
def place(postgres_url: str) -> Iterator[Place]:
    made = Place(postgres_url)
    yield made
    made.drop()


@pytest.fixture
def store(place: Place) -> Iterator[PostgresStore]:
    """What a worker opens."""
    opened = PostgresStore(place.url("worker"))
    yield opened
    check_books(opened)
    opened.close()


@pytest.fixture
def producer(place: Place) -> Iterator[PostgresStore]:
    opened = PostgresStore(place.url("producer"))
    yield opened
    opened.close()


@contextmanager
def as_producer(place: Place, tenant: str | None) -> Iterator[psycopg.Connection[Any]]:
    """Plain SQL as that role, in a transaction that says whose it is; nothing of it stays."""
    with psycopg.connect(place.url("producer")) as connection:
        if tenant is not None:
            connection.execute("SELECT set_config('windlass.tenant', %s, true)", [tenant])
        yield connection
        connection.rollback()


def fill(store: Any, tenant: str) -> dict[str, str]:
    """Rows of a tenant in every table there is; the ids of its jobs by where they are."""
    enlist(store, f"w-{tenant}")
    ended = finish(store, FAILED, tenant=tenant, dedupe="ended")
    done = finish(store, COMPLETED, tenant=tenant)
    held = put_and_take(store, worker=f"w-{tenant}", tenant=tenant)
    waiting = put(store, tenant=tenant, dedupe="key", delay=HOUR)
    limit(store, "limited", 3)
    return {"failed": ended.id, "completed": done.id, "processing": held.id, "pending": waiting.id}


def relations(url: str) -> dict[str, list[str]]:
    """Every table and view of ours, with its columns."""
    found: dict[str, list[str]] = {}
    with psycopg.connect(url) as connection:
        for table, column in connection.execute(
            "SELECT c.relname, a.attname FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid"
            " WHERE c.relnamespace = 'windlass'::regnamespace AND c.relkind IN ('r', 'v', 'm', 'p', 'f')"
            " AND a.attnum > 0 AND NOT a.attisdropped ORDER BY 1, a.attnum"
        ):
            found.setdefault(table, []).append(column)
    return found


def tables_of_tenants(url: str) -> list[str]:
    return [name for name, columns in relations(url).items() if "tenant" in columns and name != "job"]


def outcome(connection: psycopg.Connection[Any], statement: Any, parameters: Any = None) -> int | type[Exception]:
    """How many rows a statement saw or changed, or how it was refused. The transaction goes on."""
    try:
        with connection.transaction():
            rows = connection.execute(statement, parameters)
            return len(rows.fetchall()) if rows.description else rows.rowcount
    except psycopg.Error as error:
        return type(error)


# What the roles are


def test_every_table_is_thought_of(place):
    """A new table has to be told whose it is: in OF_TENANTS if its rows have a tenant, else in OF_ALL."""
    assert set(relations(place.admin)) == set(roles.OF_TENANTS) | set(roles.OF_ALL)
    assert set(tables_of_tenants(place.admin)) == set(roles.OF_TENANTS)
    with psycopg.connect(place.admin) as connection:
        forced = connection.execute(
            "SELECT relname FROM pg_class WHERE relnamespace = 'windlass'::regnamespace"
            " AND relrowsecurity AND relforcerowsecurity"
        ).fetchall()
        views = connection.execute(
            "SELECT relname, reloptions FROM pg_class WHERE relnamespace = 'windlass'::regnamespace AND relkind = 'v'"
        ).fetchall()
        bare = connection.execute(
            "SELECT i.indexrelid::regclass FROM pg_index i JOIN pg_class c ON c.oid = i.indrelid"
            " WHERE c.relnamespace = 'windlass'::regnamespace AND i.indisunique AND EXISTS (SELECT FROM pg_attribute a"
            " WHERE a.attrelid = c.oid AND a.attname = 'tenant' AND NOT a.attnum = ANY(i.indkey))"
        ).fetchall()
        strong = connection.execute(
            "SELECT rolname FROM pg_roles WHERE rolname LIKE %s AND (rolsuper OR rolbypassrls OR rolcreaterole)",
            [f"{place.mark}%"],
        ).fetchall()

    assert {name for (name,) in forced} == set(roles.OF_TENANTS)
    assert all("security_invoker=true" in options for _, options in views)
    assert bare == []  # else a collision would tell what another tenant has
    assert strong == []


@pytest.mark.parametrize("times", [1, 2])
def test_rights_can_be_given_again(place, times):
    with psycopg.connect(place.admin) as connection:
        acls = "SELECT relname, relacl::text FROM pg_class WHERE relnamespace = 'windlass'::regnamespace ORDER BY 1"
        policies = "SELECT tablename, policyname, roles, qual, with_check FROM pg_policies ORDER BY 1, 2"
        before = connection.execute(acls).fetchall(), connection.execute(policies).fetchall()
        connection.execute(f"GRANT ALL ON windlass.jobs TO {place.roles.producer}")
        connection.commit()

        for _ in range(times):
            PostgresStore(place.admin).give_rights(place.roles)

        assert before == (connection.execute(acls).fetchall(), connection.execute(policies).fetchall())


@pytest.mark.parametrize("name", ["", "a'b", 'a"b', "a$$b", "a;b", "ä", "x" * 64, "1a"])
def test_a_name_that_could_be_code_is_refused(name):
    with pytest.raises(BadOption, match="name of a role"):
        roles.script(Roles(owner=name))


def test_two_roles_cannot_be_one():
    with pytest.raises(BadOption, match="three roles"):
        roles.script(Roles(worker="me", producer="me"))


@pytest.mark.parametrize("server_of", sources())
def test_an_owner_who_is_no_superuser_may_give_rights_and_goes_on_working(server_of):
    """As on a rented server, where nobody is superuser."""
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
        assert [before.id, put(store).id] == [c.id for c in store.claim("", Wanted(limit=10))]
        assert 1 == store.upgrade()
        store.close()


def test_who_may_not_give_rights_is_told_who_may(place):
    with pytest.raises(StoreUnusable, match=r"permission denied.*; run it as a superuser"):
        PostgresStore(place.url("worker")).give_rights(Roles(producer="another"))


def test_rights_need_tables(postgres_databases):
    url = postgres_databases.fresh()
    with pytest.raises(StoreUnusable, match="windlass db upgrade"):
        PostgresStore(url).give_rights(Roles(*(f"t_{secrets.token_hex(4)}" for _ in range(3))))
    postgres_databases.drop(url)


# Raw SQL as a producer


def test_a_producer_sees_its_own_tenant_everywhere_and_no_other(place, store):
    fill(store, "acme"), fill(store, "other")
    put(store)  # of nobody
    store.fold()
    own = {}
    for table in [*tables_of_tenants(place.admin), "job"]:
        with as_producer(place, "acme") as connection:
            rows = connection.execute(f"SELECT tenant FROM windlass.{table}").fetchall()
        assert {("acme",)} == set(rows), table
        own[table] = len(rows)
    with psycopg.connect(place.admin) as connection:
        for table, count in own.items():
            [[real]] = connection.execute(f"SELECT count(*) FROM windlass.{table} WHERE tenant = 'acme'").fetchall()
            assert count == real, table


@pytest.mark.parametrize("tenant", [None, "", "nobody", "acme"])
def test_rows_of_others_cannot_be_seen_or_changed_in_any_table(place, store, tenant):
    """Whatever names no tenant, or another, does not get at these."""
    fill(store, "other")
    put(store)  # of nobody
    with as_producer(place, tenant) as connection:
        for table, columns in relations(place.admin).items():
            name = sql.Identifier("windlass", table)
            changes = [sql.SQL("UPDATE {} SET {c} = {c}").format(name, c=sql.Identifier(c)) for c in columns]
            changes.append(sql.SQL("DELETE FROM {}").format(name))
            changes += [sql.SQL("SELECT 1 FROM {} " + f"FOR {lock}").format(name) for lock in ("UPDATE", "SHARE")]
            for statement in changes:
                assert outcome(connection, statement) in (0, *NOT_ALLOWED), statement
            assert outcome(connection, sql.SQL("TRUNCATE {}").format(name)) in NOT_ALLOWED, table
            seen = outcome(connection, sql.SQL("SELECT * FROM {}").format(name))
            if "tenant" in columns:
                assert seen == 0, table
                assert copied(connection, table) == "", table
                assert copied_in(connection, table) in NOT_ALLOWED, table
            else:
                assert seen is REFUSED or table in ("meta", "types"), table


def copied(connection: psycopg.Connection[Any], table: str) -> str:
    source = f"windlass.{table}" if table != "job" else "(SELECT * FROM windlass.job)"
    with connection.cursor() as cursor, cursor.copy(f"COPY {source} TO STDOUT") as copy:
        return "".join(bytes(part).decode() for part in copy)


def copied_in(connection: psycopg.Connection[Any], table: str) -> type[Exception] | None:
    try:
        statement = f"COPY windlass.{table} FROM STDIN"
        with connection.transaction(), connection.cursor() as cursor, cursor.copy(statement) as copy:
            copy.write(b"")
    except psycopg.Error as error:
        return type(error)
    return None


def rows_of(place: Place, table: str, tenant: str) -> list[dict[str, Any]]:
    """Rows as an administrator sees them, as JSON."""
    with psycopg.connect(place.admin) as connection:
        found = connection.execute(f"SELECT to_json(t) FROM windlass.{table} t WHERE tenant = %s", [tenant])
        return [row for (row,) in found]


INSERT = "INSERT INTO windlass.{t} SELECT * FROM json_populate_record(NULL::windlass.{t}, %s)"


@pytest.mark.parametrize("end", ["", " ON CONFLICT DO NOTHING", " RETURNING *"])
@pytest.mark.parametrize("tenant", [None, "", "acme"])
def test_a_row_for_another_tenant_is_refused_whether_it_exists_or_not(place, store, tenant, end):
    """The same answer for a row that collides as for one that does not: no error tells what another tenant has."""
    fill(store, "other")
    tables = tables_of_tenants(place.admin)
    with as_producer(place, tenant) as connection:
        for table in tables:
            for row in rows_of(place, table, "other"):
                fresh = {**row, **({"id": new_id()} if "id" in row else {}), **({"key": "new"} if "key" in row else {})}
                for tried in (row, fresh):
                    answer = outcome(connection, INSERT.format(t=table) + end, [psycopg.types.json.Json(tried)])
                    assert answer is REFUSED, (table, answer)


def test_the_unique_keys_of_others_can_be_taken_and_tell_nothing(place, store):
    """The same id and the same dedupe key, as one's own: there is no collision to learn from."""
    fill(store, "other")
    with as_producer(place, "acme") as connection:
        for table in ("jobs", "ready", "finished", "dedupe"):
            rows = rows_of(place, table, "other")
            assert rows
            for row in rows:
                mine = psycopg.types.json.Json({**row, "tenant": "acme"})
                assert outcome(connection, INSERT.format(t=table), [mine]) == 1, table
        # and on conflict with one's own, nothing else is changed
        row = {**rows_of(place, "dedupe", "other")[0], "tenant": "acme"}
        upsert = f"{INSERT.format(t='dedupe')} ON CONFLICT (tenant, key) DO UPDATE SET id = excluded.id"
        assert outcome(connection, upsert, [psycopg.types.json.Json(row)]) == 1


def test_own_rows_cannot_be_given_away(place, store):
    fill(store, "acme")
    with as_producer(place, "acme") as connection:
        for table in tables_of_tenants(place.admin):
            assert outcome(connection, f"UPDATE windlass.{table} SET tenant = 'other'") is REFUSED


def test_a_producer_neither_claims_nor_settles_nor_sees_workers_and_sums(place, store):
    fill(store, "acme")
    with as_producer(place, "acme") as connection:
        for statement in (
            "SELECT nextval('windlass.lease')",
            "SELECT last_value FROM windlass.lease",
            "DELETE FROM windlass.leases",
            "UPDATE windlass.leases SET lease = lease + 1",
            "UPDATE windlass.finished SET status = 'completed'",
            "SELECT * FROM windlass.workers",
            "SELECT * FROM windlass.tallies",
            "UPDATE windlass.types SET concurrency = NULL",
            "UPDATE windlass.meta SET value = 99",
            "CREATE TABLE windlass.mine (n int)",
            "ALTER TABLE windlass.jobs DISABLE ROW LEVEL SECURITY",
            "DROP POLICY windlass_tenant ON windlass.jobs",
            "CREATE FUNCTION windlass.f() RETURNS int LANGUAGE sql RETURN 1",
            "SET LOCAL row_security = off; SELECT * FROM windlass.jobs",
            f"SET LOCAL ROLE {place.roles.worker}",
        ):
            assert outcome(connection, statement) is REFUSED, statement


def test_a_pooled_connection_keeps_nothing_of_the_tenant_before(place, store):
    fill(store, "acme"), fill(store, "other")
    with psycopg.connect(place.url("producer"), autocommit=True) as pooled:
        for tenant in ("acme", "other"):
            with pooled.transaction():
                pooled.execute("SELECT set_config('windlass.tenant', %s, true)", [tenant])
                assert {(tenant,)} == set(pooled.execute("SELECT tenant FROM windlass.job").fetchall())
            assert [] == pooled.execute("SELECT tenant FROM windlass.job").fetchall()
            with pooled.transaction():
                assert [] == pooled.execute("SELECT tenant FROM windlass.job").fetchall()


# The library as a producer


def test_a_producer_enqueues_through_the_library(place, store):
    wl = Windlass(place.url("producer"))
    limit(store, "mail", 7)

    one = wl.enqueue("mail", {"to": "ada"}, tenant="acme")
    many = wl.enqueue_many([wl.request("mail", {"n": n}, tenant=tenant) for n in range(3) for tenant in ("b", "a")])
    first = wl.enqueue("mail", {}, tenant="acme", dedupe="once")
    again = wl.enqueue("mail", {}, tenant="acme", dedupe="once")
    theirs = wl.enqueue("mail", {}, tenant="other", dedupe="once")

    assert first.id == again.id != theirs.id
    assert ["b", "a"] * 3 == [job.tenant for job in many]
    assert {one.id, first.id, theirs.id, *(job.id for job in many)} == {j.id for j in store.jobs(Filter(), 50)}
    assert [one.id, first.id] == [job.id for job in wl.jobs(tenant="acme")][::-1]
    assert 3 == len(wl.jobs(tenant="a").jobs)
    assert [] == wl.jobs().jobs
    assert wl.get(one.id) is None  # whose job it is, nobody has said
    wl.close()


def test_a_job_of_nobody_is_refused(place):
    wl = Windlass(place.url("producer"))
    with pytest.raises(BadOption, match=r"tenant=''.*using\(tenant="):
        wl.enqueue("mail")
    wl.close()


def test_nothing_of_a_tenant_stays_on_a_connection_of_the_store(place, store, producer):
    put(producer, tenant="acme"), put(producer, tenant="other")
    tenants = "SELECT count(*), coalesce(max(current_setting('windlass.tenant', true)), '') FROM windlass.jobs"

    for lane in ("insert", "read", "other"):
        assert [(0, "")] == producer.database.read(lane, lambda tx: tx.execute(tenants).fetchall())
    assert 1 == len(producer.jobs(Filter(tenant="acme"), 10).jobs)
    assert [(0, "")] == producer.database.read("read", lambda tx: tx.execute(tenants).fetchall())


def test_callers_of_several_tenants_share_a_commit(place, store, producer):
    groups = [[new_job(tenant=tenant, dedupe=key)] for tenant in ("b", "a", "b") for key in (None, "k")]
    answers = producer.insert_groups(groups)

    assert [[job.tenant for job in group] for group in groups] == [[job.tenant for job in jobs] for jobs in answers]
    assert answers[1][0].id == answers[5][0].id
    with psycopg.connect(place.admin) as connection:
        unkeyed = "SELECT count(*), count(DISTINCT xmin::text) FROM windlass.jobs WHERE dedupe IS NULL"
        assert [(3, 1)] == connection.execute(unkeyed).fetchall()


def test_a_url_that_names_its_tenant_manages_its_jobs(place, store):
    ids, others = fill(store, "acme"), fill(store, "other")
    wl = Windlass(place.url("producer", "acme"))

    assert ids == {job.status.value: job.id for job in wl.jobs()}
    assert 4 == sum(row["count"] for row in wl.counts())
    assert [{"tenant": "acme", "count": 4}] == wl.counts(("tenant",))
    assert 1 == len(wl.attempts(ids["failed"]))
    assert "cancelled" == wl.cancel(ids["pending"]).status
    assert "processing" == wl.cancel(ids["processing"]).status
    assert "pending" == wl.retry(ids["failed"]).status
    assert ids["completed"] == wl.delete(ids["completed"]).id
    for id in others.values():
        assert wl.get(id) is None
        assert [] == wl.attempts(id)
        for verb in (wl.cancel, wl.retry, wl.delete):
            with pytest.raises(LookupError):
                verb(id)
    wl.close()


def test_a_url_that_names_its_tenant_enqueues_for_no_other(place, store):
    wl = Windlass(place.url("producer", "acme"))
    mine = wl.enqueue("mail", tenant="acme")
    with pytest.raises(StoreUnusable, match="row-level security"):
        wl.enqueue("mail", tenant="other")
    assert [mine.id] == [job.id for job in store.jobs(Filter(), 10)]
    wl.close()


# A transaction of the user's


def test_on_a_connection_of_ones_own_the_tenant_is_set_for_the_enqueue_alone(place, store):
    wl = Windlass(place.url("producer"))
    with psycopg.connect(place.url("producer")) as mine:
        job = wl.enqueue("mail", tenant="acme", connection=mine)
        assert [] == mine.execute("SELECT * FROM windlass.job").fetchall()
        mine.commit()
        assert [] == mine.execute("SELECT * FROM windlass.job").fetchall()
    assert "acme" == store.get(job.id).tenant
    wl.close()


def test_a_tenant_that_was_named_on_it_is_left_alone(place, store):
    wl = Windlass(place.url("producer"))
    with psycopg.connect(place.url("producer")) as mine:
        mine.execute("SELECT set_config('windlass.tenant', 'acme', true)")
        job = wl.enqueue("mail", tenant="acme", connection=mine)
        with pytest.raises(REFUSED, match="row-level security"):
            wl.enqueue("mail", tenant="other", connection=mine)
        assert [(job.id,)] == mine.execute("SELECT id::text FROM windlass.job").fetchall()
    assert [job.id] == [job.id for job in store.jobs(Filter(), 10)]
    wl.close()


def test_on_a_connection_that_sees_all_nothing_is_set(place, store):
    wl = Windlass(place.url("producer"))
    with psycopg.connect(place.admin) as mine:
        wl.enqueue("mail", tenant="acme", connection=mine)
        [[setting]] = mine.execute("SELECT current_setting('windlass.tenant', true)").fetchall()
        assert setting is None
    wl.close()


# Workers and the owner


@pytest.mark.parametrize(
    "statement",
    [
        "ALTER TABLE windlass.jobs ADD n int",
        "ALTER TABLE windlass.jobs DISABLE ROW LEVEL SECURITY",
        "DROP POLICY windlass_all ON windlass.jobs",
        "DROP TABLE windlass.usage",
        "DROP SCHEMA windlass CASCADE",
        "TRUNCATE windlass.jobs",
        "CREATE TABLE windlass.mine (n int)",
        "UPDATE windlass.meta SET value = 99",
        "SELECT setval('windlass.lease', 1)",
    ],
)
def test_a_worker_cannot_change_the_tables(place, store, statement):
    with psycopg.connect(place.url("worker")) as connection:
        assert outcome(connection, statement) is REFUSED


@pytest.mark.parametrize("role", ["worker", "owner"])
def test_workers_and_the_owner_work_for_every_tenant(place, role):
    """All that a worker does, by the real one."""
    wl = Windlass(place.url(role))
    ran: list[str] = []

    @wl.job(concurrency=2, max_attempts=2, backoff=0)
    def step(name: str) -> str:
        ran.append(name)
        if name == "fails":
            raise ValueError(name)
        if name == "follows":
            step.using(tenant="b").enqueue(name="followed")
        return name

    producer = Windlass(place.url("producer"))
    jobs = [
        producer.enqueue("step", {"name": name}, tenant="a", dedupe=name, max_attempts=2)
        for name in ("one", "fails", "follows")
    ]
    wl.enqueue("step", {"name": "of nobody"})
    while wl.tick().ran:
        pass

    assert sorted(ran) == ["fails", "fails", "followed", "follows", "of nobody", "one"]
    assert ["completed", "failed", "completed"] == [wl.get(job.id).status for job in jobs]
    assert 2 == len(wl.attempts(jobs[1].id))
    assert "pending" == wl.retry(jobs[1].id).status
    assert "cancelled" == wl.cancel(jobs[1].id).status
    assert jobs[1].id == wl.delete(jobs[1].id).id
    [lease] = (wl.enqueue("step", {"name": "by hand"}, tenant="a"), wl.claim(types=["step"]))[1]
    lease.extend(60)
    lease.complete("done")
    assert {"a", "b", ""} == {row["tenant"] for row in wl.counts(("tenant",))}
    assert "postgresql" == wl.store.status()["store"]
    wl.store.fold()
    assert 5 == sum(row["count"] for row in wl.counts())
    assert 0 == wl.rescue()
    assert 5 == wl.store.prune(["completed", "failed", "cancelled"], -(10**9), 100)
    wl.close(), producer.close()


def test_a_worker_completes_a_job_in_a_transaction(place, store):
    claimed = put_and_take(store, tenant="acme")
    with store.transaction(claimed, lambda: COMPLETED) as connection:
        assert 1 == len(connection.execute("SELECT * FROM windlass.leases").fetchall())
    assert "completed" == store.get(claimed.id).status
    assert not settle_one(store, claimed, FAILED)


def test_a_role_without_rights_is_told_what_it_lacks(place):
    with psycopg.connect(place.admin, autocommit=True) as connection:
        connection.execute(f"CREATE ROLE {place.mark}_stranger_login LOGIN")
    try:
        with pytest.raises(StoreUnusable, match=r"permission denied.*windlass db roles"):
            Windlass(place.url("stranger")).counts()
    finally:
        with psycopg.connect(place.admin, autocommit=True) as connection:
            connection.execute(f"DROP ROLE {place.mark}_stranger_login")
