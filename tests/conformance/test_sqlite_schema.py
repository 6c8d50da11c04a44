"""The tables in a SQLite file: an older schema is upgraded when the file is opened."""

from __future__ import annotations

import sqlite3

import pytest

from tests.conformance.helpers import put
from treadle.stores import migrate
from treadle.stores.sqlite import schema

pytestmark = pytest.mark.only("sqlite")

PACKAGE = "treadle.stores.sqlite"


def test_making_a_store_object_creates_no_file(open_store):
    assert not open_store().path.exists()


def test_the_printed_script_makes_the_same_tables(store, folder):
    store.open()
    by_script = sqlite3.connect(folder / "script.db")
    by_script.executescript(schema.schema_sql())
    ours = sqlite3.connect(store.path)

    listed = "SELECT type, name, sql FROM sqlite_master ORDER BY name"

    assert by_script.execute(listed).fetchall() == ours.execute(listed).fetchall()
    by_script.close()
    ours.close()


def test_an_older_database_is_upgraded_when_it_is_opened(store, open_store, monkeypatch):
    job = put(store)
    known = migrate.migrations(PACKAGE)
    added = migrate.Migration(known[-1].number + 1, "new", "ALTER TABLE treadle_jobs ADD COLUMN colour TEXT;\n")
    monkeypatch.setattr(migrate, "migrations", lambda package: [*known, added])

    upgraded = open_store()

    assert job == upgraded.get(job.id)
    assert added.number == upgraded.status()["schema"]
    put(store)


def test_an_upgrade_that_fails_changes_nothing(store, open_store, monkeypatch):
    put(store)
    known = migrate.migrations(PACKAGE)
    broken = migrate.Migration(known[-1].number + 1, "bad", "CREATE TABLE treadle_new (id TEXT);\nCREATE NONSENSE;\n")
    with monkeypatch.context() as patch:
        patch.setattr(migrate, "migrations", lambda package: [*known, broken])
        with pytest.raises(Exception, match="NONSENSE"):
            open_store().open()

    assert known[-1].number == store.status()["schema"]
    new = "SELECT 1 FROM sqlite_master WHERE name = 'treadle_new'"
    assert [] == store.database.read("read", lambda tx: tx.execute(new).fetchall())
