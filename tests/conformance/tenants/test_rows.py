"""Row level security: which rows a producer sees and changes with its own SQL."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest
from psycopg import sql

from tests.conformance.helpers import (
    put,
)
from tests.conformance.tenants.place import (
    NOT_ALLOWED,
    REFUSED,
    VIEWS,
    Place,
    as_producer,
    fill,
    outcome,
    relations,
    tables_of_tenants,
)
from treadle.ids import new_id


def test_a_producer_sees_only_its_own_tenant_in_every_table(place, store):
    fill(store, "acme"), fill(store, "other")
    put(store)  # without a tenant
    store.compact()
    own = {}
    for table in [*tables_of_tenants(place.admin), *VIEWS]:
        with as_producer(place, "acme") as connection:
            rows = connection.execute(f"SELECT tenant FROM treadle.{table}").fetchall()
        assert {("acme",)} == set(rows), table
        own[table] = len(rows)
    with psycopg.connect(place.admin) as connection:
        for table, count in own.items():
            [[real]] = connection.execute(f"SELECT count(*) FROM treadle.{table} WHERE tenant = 'acme'").fetchall()
            assert count == real, table


@pytest.mark.parametrize("tenant", [None, "", "nobody", "acme"])
def test_rows_of_others_cannot_be_seen_or_changed_in_any_table(place, store, tenant):
    """A session without a tenant, or with another one, cannot reach these rows."""
    fill(store, "other")
    put(store)  # without a tenant
    with as_producer(place, tenant) as connection:
        for table, columns in relations(place.admin).items():
            name = sql.Identifier("treadle", table)
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
    source = f"(SELECT * FROM treadle.{table})" if table in VIEWS else f"treadle.{table}"
    with connection.cursor() as cursor, cursor.copy(f"COPY {source} TO STDOUT") as copy:
        return "".join(bytes(part).decode() for part in copy)


def copied_in(connection: psycopg.Connection[Any], table: str) -> type[Exception] | None:
    try:
        statement = f"COPY treadle.{table} FROM STDIN"
        with connection.transaction(), connection.cursor() as cursor, cursor.copy(statement) as copy:
            copy.write(b"")
    except psycopg.Error as error:
        return type(error)
    return None


def rows_of(place: Place, table: str, tenant: str) -> list[dict[str, Any]]:
    """Rows as an administrator sees them, as JSON."""
    with psycopg.connect(place.admin) as connection:
        found = connection.execute(f"SELECT to_json(t) FROM treadle.{table} t WHERE tenant = %s", [tenant])
        return [row for (row,) in found]


INSERT = "INSERT INTO treadle.{t} SELECT * FROM json_populate_record(NULL::treadle.{t}, %s)"


@pytest.mark.parametrize("end", ["", " ON CONFLICT DO NOTHING", " RETURNING *"])
@pytest.mark.parametrize("tenant", [None, "", "acme"])
def test_a_row_for_another_tenant_is_refused_whether_it_exists_or_not(place, store, tenant, end):
    """A row that collides and one that does not get the same error, so no error reveals what another tenant has."""
    fill(store, "other")
    tables = tables_of_tenants(place.admin)
    with as_producer(place, tenant) as connection:
        for table in tables:
            for row in rows_of(place, table, "other"):
                fresh = {**row, **({"id": new_id()} if "id" in row else {}), **({"key": "new"} if "key" in row else {})}
                for tried in (row, fresh):
                    answer = outcome(connection, INSERT.format(t=table) + end, [psycopg.types.json.Json(tried)])
                    assert answer is REFUSED, (table, answer)


def test_unique_keys_of_other_tenants_can_be_used_and_reveal_nothing(place, store):
    """A tenant uses the id and dedupe key of another one, and there is no collision that reveals them."""
    fill(store, "other")
    with as_producer(place, "acme") as connection:
        for table in ("jobs", "ready", "finished", "dedupe"):
            rows = rows_of(place, table, "other")
            assert rows
            for row in rows:
                mine = psycopg.types.json.Json({**row, "tenant": "acme"})
                assert outcome(connection, INSERT.format(t=table), [mine]) == 1, table
        # and a conflict with its own row changes nothing else
        row = {**rows_of(place, "dedupe", "other")[0], "tenant": "acme"}
        upsert = f"{INSERT.format(t='dedupe')} ON CONFLICT (tenant, key) DO UPDATE SET id = excluded.id"
        assert outcome(connection, upsert, [psycopg.types.json.Json(row)]) == 1


def test_a_producer_cannot_move_its_rows_to_another_tenant(place, store):
    fill(store, "acme")
    with as_producer(place, "acme") as connection:
        for table in tables_of_tenants(place.admin):
            assert outcome(connection, f"UPDATE treadle.{table} SET tenant = 'other'") is REFUSED


def test_a_producer_cannot_claim_settle_or_see_workers_and_sums(place, store):
    fill(store, "acme")
    with as_producer(place, "acme") as connection:
        for statement in (
            "SELECT nextval('treadle.lease')",
            "SELECT last_value FROM treadle.lease",
            "DELETE FROM treadle.leases",
            "UPDATE treadle.leases SET lease = lease + 1",
            "UPDATE treadle.finished SET status = 'completed'",
            "SELECT * FROM treadle.workers",
            "SELECT * FROM treadle.tallies",
            "UPDATE treadle.types SET concurrency = NULL",
            "UPDATE treadle.meta SET value = 99",
            "CREATE TABLE treadle.mine (n int)",
            "ALTER TABLE treadle.jobs DISABLE ROW LEVEL SECURITY",
            "DROP POLICY treadle_tenant ON treadle.jobs",
            "CREATE FUNCTION treadle.f() RETURNS int LANGUAGE sql RETURN 1",
            "SET LOCAL row_security = off; SELECT * FROM treadle.jobs",
            f"SET LOCAL ROLE {place.roles.worker}",
        ):
            assert outcome(connection, statement) is REFUSED, statement


def test_a_pooled_connection_does_not_keep_the_previous_tenant(place, store):
    fill(store, "acme"), fill(store, "other")
    with psycopg.connect(place.url("producer"), autocommit=True) as pooled:
        for tenant in ("acme", "other"):
            with pooled.transaction():
                pooled.execute("SELECT set_config('treadle.tenant', %s, true)", [tenant])
                assert {(tenant,)} == set(pooled.execute("SELECT tenant FROM treadle.job").fetchall())
            assert [] == pooled.execute("SELECT tenant FROM treadle.job").fetchall()
            with pooled.transaction():
                assert [] == pooled.execute("SELECT tenant FROM treadle.job").fetchall()
