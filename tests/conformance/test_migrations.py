"""Tables appear on first use, and a newer schema is left alone."""

from __future__ import annotations

import json
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import psycopg
import pytest

from tests.conformance.helpers import everything, on_postgres, put
from tests.conformance.read_cases import CASES, make
from tests.servers.libsql import ByHand
from treadle import stores
from treadle.errors import SchemaTooNew, StoreUnusable
from treadle.job import Job, Progress, Status
from treadle.stores import migrate

PACKAGES = ("treadle.stores.sqlite", "treadle.stores.postgres")


@pytest.fixture
def new_store(new_url, clock):
    store = stores.open_store(new_url, clock=clock)
    yield store
    store.close()


def connect(url):
    if url.startswith("libsql"):
        return ByHand(url)
    return psycopg.connect(url) if url.startswith("postgresql") else sqlite3.connect(url.removeprefix("sqlite:///"))


def tables(url):
    """The names of all tables and views of the database, except the system's own."""
    if url.startswith("postgresql"):
        with psycopg.connect(url) as connection:
            names = "SELECT schemaname || '.' || tablename FROM pg_tables UNION SELECT schemaname || '.' || viewname"
            rows = connection.execute(f"{names} FROM pg_views").fetchall()
        return {name for (name,) in rows if not name.startswith(("pg_catalog.", "information_schema."))}
    with closing(connect(url)) as connection:
        names = "SELECT name FROM sqlite_master WHERE type <> 'index' AND name NOT LIKE 'sqlite_%'"
        return {name for (name,) in connection.execute(names)}


def test_tables_appear_on_first_use(new_store, new_url):
    assert set() == tables(new_url)

    job = put(new_store)

    assert [job] == everything(new_store)
    assert len(tables(new_url)) > 10


def test_making_a_store_object_does_not_touch_the_database(new_url):
    stores.open_store(new_url)

    assert set() == tables(new_url)


def test_an_open_database_is_at_the_newest_schema(store):
    store.open()

    newest = migrate.migrations(PACKAGES[on_postgres(store)])[-1].number
    assert (newest, newest) == (store.status()["schema"], store.status()["newest_schema"])


@pytest.mark.parametrize("package", PACKAGES)
def test_migrations_are_numbered_without_gaps(package):
    numbers = [migration.number for migration in migrate.migrations(package)]

    assert list(range(1, len(numbers) + 1)) == numbers


def test_treadles_tables_can_be_in_the_users_own_database(new_store, new_url):
    """They have a prefix on SQLite and a schema on PostgreSQL, so their names do not collide with the user's."""
    with closing(connect(new_url)) as users:
        users.execute("CREATE TABLE jobs (id INTEGER)")
        users.execute("INSERT INTO jobs VALUES (7)")
        users.commit()
        theirs = tables(new_url)

        put(new_store)

        assert [(7,)] == users.execute("SELECT id FROM jobs").fetchall()
    assert theirs == {name for name in tables(new_url) if not name.startswith("treadle")}


def test_two_neighboring_versions_work_on_one_database(store, by_hand):
    """A newer treadle has added something, and the older one keeps working."""
    job = put(store)
    by_hand("UPDATE treadle_meta SET value = value + 1 WHERE key = 'schema'")
    store.close()

    assert job.id == store.get(job.id).id


def test_a_database_that_a_newer_treadle_has_changed_incompatibly_is_left_alone(store, by_hand):
    job = put(store)
    by_hand("UPDATE treadle_meta SET value = 99 WHERE key IN ('schema', 'oldest')")
    store.close()

    with pytest.raises(
        SchemaTooNew, match=r"has schema 99 but this treadle supports up to \d+; upgrade treadle"
    ) as error:
        store.get(job.id)

    assert (99, store.where in str(error.value)) == (error.value.found, True)
    newest = migrate.migrations(PACKAGES[on_postgres(store)])[-1].number
    by_hand("UPDATE treadle_meta SET value = ? WHERE key IN ('schema', 'oldest')", newest)


@pytest.mark.parametrize(
    "damage",
    ["DELETE FROM treadle_meta WHERE key = 'schema'", "UPDATE treadle_meta SET value = 0 WHERE key = 'schema'"],
)
def test_the_error_for_tables_without_a_schema_number_names_the_table_and_the_fix(new_url, damage):
    """They are neither created again nor taken for those of some version."""
    with closing(stores.open_store(new_url)) as store:
        put(store)
    by_hand = damage.replace("treadle_", "treadle.") if on_postgres(store) else damage
    with closing(connect(new_url)) as connection:
        connection.execute(by_hand)
        connection.commit()
    before = tables(new_url)

    for verb in (lambda: put(store), lambda: everything(store), store.upgrade, store.schema):
        with pytest.raises(StoreUnusable, match=r"treadle[._]meta schema is 0 and oldest is 1; restore the rows"):
            verb()

    assert before == tables(new_url)
    store.close()


def test_several_that_upgrade_at_the_same_time_apply_a_migration_once(new_url, monkeypatch):
    """The second process finds the migration applied. The column cannot be added twice."""
    first = stores.open_store(new_url)
    job = put(first)
    known = migrate.migrations(PACKAGES[on_postgres(first)])
    table = "treadle.jobs" if on_postgres(first) else "treadle_jobs"
    added = migrate.Migration(2, "0002_color", f"ALTER TABLE {table} ADD COLUMN color TEXT;\n")
    monkeypatch.setattr(migrate, "migrations", lambda package: [*known, added])
    handles = [stores.open_store(new_url) for _ in range(4)]

    with ThreadPoolExecutor(len(handles)) as pool:
        numbers = list(pool.map(lambda handle: handle.upgrade(), handles))

    assert [2] * len(handles) == numbers
    assert (2, job.id) == (handles[0].status()["schema"], handles[0].get(job.id).id)
    for handle in (first, *handles):
        handle.close()


# The view that joins the tables of a job


def columns(by_hand, store):
    if on_postgres(store):
        named = "SELECT attname FROM pg_attribute WHERE attrelid = 'treadle.job'::regclass ORDER BY attnum"
        return [name for (name,) in by_hand(named)]
    return [row[1] for row in by_hand("PRAGMA table_info(treadle_job)")]


def view(by_hand, store, id):
    """A row of the view."""
    (row,) = by_hand("SELECT * FROM treadle_job WHERE id = ?", id)
    return dict(zip(columns(by_hand, store), row, strict=True))


def moment(store, at):
    """A time as the view shows it: a type of its own on PostgreSQL, text on SQLite."""
    if at is None or on_postgres(store):
        return at
    return at.strftime("%Y-%m-%dT%H:%M:%S.") + f"{at.microsecond // 1000:03}Z"


def value(shown):
    """The value of a JSON column, which some drivers have already decoded."""
    return json.loads(shown) if isinstance(shown, str) else shown


def test_the_view_has_the_columns_of_a_job(store, by_hand):
    assert set(Job.__struct_fields__) == set(columns(by_hand, store))


PLAIN = [
    "id",
    "type",
    "queue",
    "tenant",
    "subject",
    "priority",
    "status",
    "attempts",
    "max_attempts",
    "snoozes",
    "worker_id",
    "error",
]


@pytest.mark.parametrize("case", CASES)
def test_the_view_shows_the_same_values_as_a_job(store, by_hand, clock, case):
    id = make(store, clock, case)
    job, row = store.get(id), view(by_hand, store, id)

    assert {name: getattr(job, name) for name in PLAIN} == {**{name: row[name] for name in PLAIN}, "id": str(row["id"])}
    for name in ("run_at", "created_at", "updated_at", "started_at", "completed_at"):
        assert moment(store, getattr(job, name)) == row[name]
    assert ({"a": 1}, {"n": 1} if job.status is Status.COMPLETED else None) == (
        value(row["payload"]),
        value(row["result"]),
    )
    assert (job.progress and job.progress.fraction) == row["progress"]
    assert case != "processing" or Progress(0.5, "half") == job.progress


@pytest.mark.only("postgresql")
def test_the_view_shows_every_microsecond(store, by_hand, clock):
    for _ in range(50):
        clock.now += 1_234_567
        job = put(store)

        assert moment(store, job.created_at) == view(by_hand, store, job.id)["created_at"]
