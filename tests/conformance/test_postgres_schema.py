"""The tables on a PostgreSQL server: which roles may create them, and that only a person upgrades them."""

from __future__ import annotations

import secrets
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlsplit, urlunsplit

import psycopg
import pytest

from tests.conformance.helpers import everything, put
from tests.eventually import eventually
from tests.stores import make_tables
from treadle.errors import SchemaTooNew, SchemaTooOld, StoreUnusable
from treadle.stores import migrate
from treadle.stores.postgres import schema, sql
from treadle.stores.postgres.store import PostgresStore

PACKAGE = "treadle.stores.postgres"


@pytest.fixture
def store(postgres_url):
    store = PostgresStore(postgres_url)
    yield store
    store.close()


@pytest.fixture
def run(postgres_url):
    """SQL as an administrator would run it, each statement committed."""
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        yield lambda sql, *parameters: connection.execute(sql, parameters or None)


@pytest.fixture
def role(run):
    """The name of a role without rights; `run` may give it some."""
    name = f"treadle_test_{secrets.token_hex(4)}"
    run(f"CREATE ROLE {name} LOGIN PASSWORD 'secret'")
    yield name
    run(f"DROP OWNED BY {name}")
    run(f"DROP ROLE {name}")


def as_role(url, role):
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=f"{role}:secret@{parts.netloc.rpartition('@')[2]}"))


COLUMNS = """
SELECT format('%s.%s %s %s %s', c.relname, a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull,
              a.attcollation::regcollation)
  FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid
 WHERE c.relnamespace = to_regnamespace('treadle') AND a.attnum > 0
 UNION ALL SELECT format('%s %s %s', relname, relkind, reloptions) FROM pg_class
 WHERE relnamespace = to_regnamespace('treadle')
 UNION ALL SELECT indexdef FROM pg_indexes WHERE schemaname = 'treadle'
 UNION ALL SELECT pg_get_constraintdef(oid) FROM pg_constraint WHERE connamespace = to_regnamespace('treadle')
 UNION ALL SELECT definition FROM pg_views WHERE schemaname = 'treadle'
 UNION ALL SELECT format('%s %s', key, value) FROM treadle.meta
 ORDER BY 1
"""
"""The definition of treadle's tables, one line per fact."""


WAITS_FOR_THE_MAKER = """
SELECT 1 FROM pg_locks l JOIN pg_database d ON d.oid = l.database
 WHERE d.datname = current_database() AND l.locktype = 'advisory' AND NOT l.granted
"""


def test_the_printed_script_makes_the_same_tables(store, run, postgres_databases):
    store.open()
    other = postgres_databases.fresh()
    try:
        with psycopg.connect(other) as by_script:
            by_script.execute(schema.schema_sql())
            made = by_script.execute(COLUMNS).fetchall()
    finally:
        postgres_databases.drop(other)

    assert len(made) > 100
    assert run(COLUMNS).fetchall() == made


def test_a_database_made_by_the_printed_script_is_used_as_it_is(store, run):
    run(schema.schema_sql())

    job = put(store)

    assert [job] == everything(store)


def test_a_process_that_starts_while_another_creates_the_tables_waits_and_uses_them(store, run, postgres_url):
    """It has seen that there are none, and its session has cached that."""
    with psycopg.connect(postgres_url) as maker, ThreadPoolExecutor(1) as thread:
        maker.execute(sql.LOCK_UPGRADE)
        opened = thread.submit(put, store)
        eventually(lambda: opened.done() or run(WAITS_FOR_THE_MAKER).fetchone())
        assert not opened.done()
        maker.execute(schema.schema_sql())
        maker.commit()

        job = opened.result(30)

    assert [job] == everything(store)


# Which roles may create the tables


def test_the_error_for_a_role_that_may_not_create_a_schema_names_a_role_that_may(role, postgres_url):
    store = PostgresStore(as_role(postgres_url, role))

    with pytest.raises(StoreUnusable, match="this role may not create them; have its owner run: treadle db upgrade"):
        put(store)

    assert "secret" not in store.where
    store.close()


def test_a_role_that_may_create_the_schema_creates_the_tables(role, run, postgres_url):
    run(f'GRANT CREATE ON DATABASE "{urlsplit(postgres_url).path[1:]}" TO {role}')
    store = PostgresStore(as_role(postgres_url, role))

    assert [put(store)] == everything(store)
    store.close()


def test_a_role_that_may_create_tables_in_an_existing_schema_creates_them(role, run, postgres_url):
    """An administrator may create the schema and not grant the right to create others."""
    run(f"CREATE SCHEMA treadle AUTHORIZATION {role}")
    store = PostgresStore(as_role(postgres_url, role))

    assert [put(store)] == everything(store)
    store.close()


def test_the_error_for_a_role_that_may_not_create_tables_names_a_role_that_may(role, run, postgres_url):
    """The schema exists, is empty, and belongs to another role."""
    run("CREATE SCHEMA treadle")
    store = PostgresStore(as_role(postgres_url, role))

    with pytest.raises(StoreUnusable, match="treadle db"):
        put(store)
    store.close()


def test_the_error_for_a_role_without_rights_on_the_tables_names_the_missing_right(role, postgres_url):
    make_tables(postgres_url)
    store = PostgresStore(as_role(postgres_url, role))

    with pytest.raises(StoreUnusable, match=r"permission denied .* treadle db roles"):
        put(store)
    store.close()


def test_a_role_with_rights_on_the_tables_needs_no_right_to_create(role, run, postgres_url):
    make_tables(postgres_url)
    run(f"GRANT USAGE ON SCHEMA treadle TO {role}")
    run(f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA treadle TO {role}")
    run(f"GRANT USAGE ON ALL SEQUENCES IN SCHEMA treadle TO {role}")
    store = PostgresStore(as_role(postgres_url, role))

    assert [put(store)] == everything(store)
    store.close()


# A schema of another version


@pytest.fixture
def newer(monkeypatch):
    """Pretend that treadle needs one more migration."""
    known = migrate.migrations(PACKAGE)

    def add(sql):
        added = migrate.Migration(known[-1].number + 1, "new", sql)
        monkeypatch.setattr(migrate, "migrations", lambda package: [*known, added])
        return added.number

    return add


def test_an_older_database_stays_as_it_is_until_a_person_upgrades_it(store, newer, postgres_url):
    """An upgrade may lock tables that others use, so the first new process must not start it."""
    job = put(store)
    number = newer("ALTER TABLE treadle.jobs ADD COLUMN colour text")
    ours = PostgresStore(postgres_url)

    with pytest.raises(SchemaTooOld, match=rf"has schema {number - 1} .* needs {number}; run: treadle db upgrade"):
        ours.get(job.id)

    assert number == ours.upgrade() == ours.upgrade()
    assert number == ours.status()["schema"]
    assert job.id == ours.get(job.id).id
    assert job.id == store.get(job.id).id
    ours.close()


def test_an_upgrade_that_fails_changes_nothing(store, newer, run, postgres_url):
    put(store)
    number = newer("CREATE TABLE treadle.new (id text); CREATE NONSENSE;")

    with pytest.raises(Exception, match="NONSENSE"):
        PostgresStore(postgres_url).upgrade()

    assert number - 1 == store.status()["schema"]
    assert (None,) == run("SELECT to_regclass('treadle.new')").fetchone()


def test_an_upgrade_leaves_a_newer_database_alone(store, run):
    put(store)
    run("UPDATE treadle.meta SET value = 99 WHERE key IN ('schema', 'oldest')")

    with pytest.raises(SchemaTooNew, match="has schema 99"):
        store.upgrade()


def test_large_values_are_compressed_by_lz4_where_the_server_has_it(store, run):
    store.open()
    has_it = run("SELECT 'lz4' = ANY(enumvals) FROM pg_settings WHERE name = 'default_toast_compression'").fetchone()[0]

    put(store, payload='{"text":"' + "all work and no play " * 5_000 + '"}')

    [(method,)] = run("SELECT pg_column_compression(payload) FROM treadle.jobs").fetchall()
    assert ("lz4" if has_it else "pglz") == method
