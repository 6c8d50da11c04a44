"""Tables appear on first use, upgrades run once, and a newer schema is left alone."""

from __future__ import annotations

import sqlite3

import pytest

from tests.conformance.helpers import everything, put
from tests.conformance.view_cases import CASES, make
from windlass.errors import SchemaTooNew
from windlass.job import Job, Progress, Status
from windlass.stores import migrate
from windlass.stores.sqlite import upgrade

PACKAGE = "windlass.stores.sqlite"


def test_tables_appear_on_first_use(store):
    assert not store.path.exists()

    job = put(store)

    assert [job] == everything(store)


def test_making_a_handle_touches_nothing(open_store):
    assert not open_store().path.exists()


def test_an_open_database_is_at_the_newest_schema(store):
    store.open()

    assert migrate.migrations(PACKAGE)[-1].number == store.status()["schema"]


def test_migrations_are_numbered_without_gaps():
    numbers = [migration.number for migration in migrate.migrations(PACKAGE)]

    assert list(range(1, len(numbers) + 1)) == numbers


def test_the_printed_script_makes_the_same_tables(store, folder):
    store.open()
    by_script = sqlite3.connect(folder / "script.db")
    by_script.executescript(upgrade.schema_sql())
    ours = sqlite3.connect(store.path)

    schema = "SELECT type, name, sql FROM sqlite_master ORDER BY name"

    assert by_script.execute(schema).fetchall() == ours.execute(schema).fetchall()
    by_script.close()
    ours.close()


def test_two_neighbouring_versions_work_on_one_database(store, by_hand):
    """A newer windlass has added something: the older one goes on."""
    job = put(store)
    by_hand("UPDATE windlass_meta SET value = value + 1 WHERE key = 'schema'")
    store.close()

    assert job.id == store.get(job.id).id


def test_a_database_that_a_newer_windlass_has_changed_for_good_is_left_alone(store, by_hand):
    job = put(store)
    by_hand("UPDATE windlass_meta SET value = 99 WHERE key IN ('schema', 'oldest')")
    store.close()

    with pytest.raises(SchemaTooNew, match=r"has schema 99 and this windlass knows \d+; upgrade windlass") as error:
        store.get(job.id)

    assert (99, store.where in str(error.value)) == (error.value.found, True)
    by_hand("UPDATE windlass_meta SET value = ? WHERE key IN ('schema', 'oldest')", upgrade.newest_schema())


def test_an_older_database_is_upgraded_when_it_is_opened(store, open_store, monkeypatch):
    job = put(store)
    known = migrate.migrations(PACKAGE)
    added = migrate.Migration(known[-1].number + 1, "new", "ALTER TABLE windlass_jobs ADD COLUMN colour TEXT;\n")
    monkeypatch.setattr(migrate, "migrations", lambda package: [*known, added])

    upgraded = open_store()

    assert job == upgraded.get(job.id)
    assert added.number == upgraded.status()["schema"]
    put(store)


def test_an_upgrade_that_fails_changes_nothing(store, open_store, monkeypatch):
    put(store)
    known = migrate.migrations(PACKAGE)
    broken = migrate.Migration(known[-1].number + 1, "bad", "CREATE TABLE windlass_new (id TEXT);\nCREATE NONSENSE;\n")
    with monkeypatch.context() as patch:
        patch.setattr(migrate, "migrations", lambda package: [*known, broken])
        with pytest.raises(Exception, match="NONSENSE"):
            open_store().open()

    assert known[-1].number == store.status()["schema"]
    with store.database.read() as connection:
        assert [] == connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'windlass_new'").fetchall()


def test_our_tables_live_beside_the_users(folder, open_store):
    """Names are prefixed, so that they can be in the user's own file."""
    with sqlite3.connect(folder / "jobs.db") as users:
        users.execute("CREATE TABLE jobs (id INTEGER)")
        users.execute("INSERT INTO jobs VALUES (7)")

    put(open_store())

    assert [(7,)] == users.execute("SELECT id FROM jobs").fetchall()
    names = [row[0] for row in users.execute("SELECT name FROM sqlite_master WHERE name NOT LIKE 'sqlite_%'")]
    assert ["jobs"] == [name for name in names if not name.startswith("windlass_")]
    users.close()


# The view that puts the parts together again


def view(by_hand, store, id):
    """A row of the view, read as a Job."""
    columns = [row[1] for row in by_hand("PRAGMA table_info(windlass_job)")]
    (row,) = by_hand("SELECT * FROM windlass_job WHERE id = ?", id)
    return dict(zip(columns, row, strict=True))


def test_the_view_has_the_columns_of_a_job(store, by_hand):
    columns = [row[1] for row in by_hand("PRAGMA table_info(windlass_job)")]

    assert set(Job.__struct_fields__) == set(columns)


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
    "worker_id",
    "error",
]


@pytest.mark.parametrize("case", CASES)
def test_the_view_shows_what_a_job_shows(store, by_hand, clock, case):
    id = make(store, clock, case)
    job, row = store.get(id), view(by_hand, store, id)

    assert {name: getattr(job, name) for name in PLAIN} == {name: row[name] for name in PLAIN}
    for name in ("run_at", "created_at", "updated_at", "started_at", "completed_at"):
        moment = getattr(job, name)
        assert (moment and moment.strftime("%Y-%m-%dT%H:%M:%S.") + f"{moment.microsecond // 1000:03}Z") == row[name]
    assert ('{"a":1}', '{"n":1}' if job.status is Status.COMPLETED else None) == (row["payload"], row["result"])
    assert (job.progress and job.progress.fraction) == row["progress"]
    assert case != "processing" or Progress(0.5, "half") == job.progress
