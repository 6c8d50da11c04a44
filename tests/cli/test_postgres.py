"""Every command on a PostgreSQL server, while the other tests of this folder use a SQLite file."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import msgspec
import psycopg
import pytest

from tests.cli.helpers import completed, failed, needs_database, now, processing, unseen
from tests.servers.pgbouncer import PgBouncer
from treadle import Treadle, clock
from treadle.cli.doctor import postgres as checks_postgres
from treadle.stores import migrate
from treadle.stores.base import WorkerRow
from treadle.stores.postgres import diagnostics
from treadle.stores.postgres.store import PostgresStore

PASSWORD = "hunter2-is-secret"


@pytest.fixture
def url(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """A database named by $TREADLE_URL, with a password that no command may print."""
    parts = urlsplit(postgres_url)
    user, _, host = parts.netloc.rpartition("@")
    url = urlunsplit(parts._replace(netloc=f"{user.partition(':')[0] or 'postgres'}:{PASSWORD}@{host}"))
    monkeypatch.setenv("TREADLE_URL", url)
    return url


@pytest.fixture
def shown(url: str) -> str:
    return url.replace(f":{PASSWORD}", "")


@pytest.fixture
def td(url: str) -> Iterator[Treadle]:
    app = Treadle(url)
    app.store.open()
    yield app
    app.close()


@pytest.fixture(autouse=True)
def no_password(monkeypatch: pytest.MonkeyPatch) -> None:
    unseen(PASSWORD, monkeypatch)


def execute(url: str, sql: str) -> list[Any]:
    with psycopg.connect(url, autocommit=True) as connection:
        rows = connection.execute(sql)
        return rows.fetchall() if rows.description else []


# Which database


@needs_database
def test_reading_a_database_without_tables_does_not_create_them(treadle, url, shown, words):
    result = treadle(*words)
    assert result.exit_code == 3
    assert f"{shown} has no treadle tables" in result.stderr
    assert f"→ treadle db upgrade --db {shown}" in result.stderr
    assert execute(url, "SELECT 1 FROM pg_namespace WHERE nspname = 'treadle'") == []


@needs_database
def test_an_unreachable_server_is_exit_code_3(treadle, words, monkeypatch):
    monkeypatch.setenv("TREADLE_URL", f"postgresql://me:{PASSWORD}@127.0.0.1:1/jobs")
    result = treadle(*words)
    assert result.exit_code == 3
    assert "cannot be reached" in result.stderr
    assert "is the server up" in result.stderr


@pytest.mark.parametrize("schema", [0, 99])
def test_a_schema_of_another_version_is_exit_code_3(treadle, td, url, schema):
    execute(url, f"UPDATE treadle.meta SET value = {schema} WHERE key IN ('schema', 'oldest')")
    td.close()
    result = treadle("stats")
    assert result.exit_code == 3
    assert ("schema is 0" if schema == 0 else "supports up to 1") in result.stderr


@pytest.mark.parametrize("url", [f"postgresql://me:{PASSWORD}%zz@h/x", f"postgresq://me:{PASSWORD}@h/x"])
def test_an_invalid_url_is_exit_code_2_and_its_password_is_not_shown(treadle, url):
    assert treadle("stats", "--db", url).exit_code == 2


def test_a_password_with_an_at_sign_is_distinguished_from_a_host(treadle):
    result = treadle("stats", "--db", f"postgresql://me:at@{PASSWORD}@h/x")
    assert result.exit_code == 2
    assert "%40" in result.stderr


def test_db_cannot_change_the_database_of_an_app_that_names_it(treadle, write_app, url, shown):
    result = treadle("tick", write_app("td = Treadle('sqlite:///own.db')"), "--db", url)
    assert result.exit_code == 2
    assert f"not in {shown}" in result.stderr


# Jobs


def test_enqueue_creates_the_tables_and_says_where(treadle, url, shown):
    result = treadle("enqueue", "mail", "to=ada", "--tenant", "acme")
    assert result.exit_code == 0
    assert f"in {shown}" in result.stderr
    assert "no worker is running" in result.stderr
    td = Treadle(url)
    assert [{"to": "ada"}] == [job.payload for job in td.jobs(tenant="acme")]
    td.close()


def test_jobs_are_listed_shown_and_managed(treadle, as_json, td):
    jobs = {"completed": completed(td, result=[1]), "failed": failed(td), "processing": processing(td)}
    jobs["pending"] = td.enqueue("mail")
    assert {job["id"] for job in as_json("jobs", "ls")["items"]} == {job.id for job in jobs.values()}
    assert [jobs["failed"].id] == [job["id"] for job in as_json("jobs", "ls", "--status", "failed")["items"]]
    assert "boom" in treadle("jobs", "show", jobs["failed"].id).stdout
    assert treadle("jobs", "retry", jobs["failed"].id).exit_code == 0
    assert treadle("jobs", "cancel", jobs["pending"].id).exit_code == 0
    assert treadle("jobs", "delete", jobs["completed"].id, "--yes").exit_code == 0
    assert treadle("jobs", "delete", jobs["processing"].id, "--yes").exit_code == 5
    assert treadle("jobs", "show", jobs["completed"].id).exit_code == 4
    assert ["pending", "cancelled"] == [now(td, jobs[name]).status for name in ("failed", "pending")]


def test_stats_and_workers_use_the_clock_of_the_server(treadle, as_json, td, monkeypatch):
    """A host whose clock is wrong must not show live workers as dead."""
    td.enqueue("mail")
    td.store.register(WorkerRow(id="x", name="host-1", concurrency=10, types=("mail",)))
    monkeypatch.setattr(clock, "now", lambda: 0)
    assert {"live": 1, "lost": 0} == as_json("stats")["workers"]
    assert [True] == [worker["live"] for worker in as_json("workers")["items"]]
    assert "● host-1" in treadle("workers").stdout
    assert "postgresql postgresql://" in treadle("stats").stdout


def test_tick_runs_due_jobs(treadle, write_app, td):
    job = td.enqueue("greet", {"name": "ada"})
    result = treadle("tick", write_app("@td.job\ndef greet(name): return name"))
    assert "ran 1 job: 1 completed" in result.stdout
    assert "ada" == td.result(job.id)


def test_a_worker_runs_jobs_and_stops(start, write_app, td, url):
    app = write_app("@td.job\ndef greet(name): return name")
    process = start("worker", app, "--concurrency", "2", TREADLE_URL=url)
    job = td.enqueue("greet", {"name": "ada"})
    assert "ada" == td.result(job.id, timeout=60)
    process.terminate()
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    assert PASSWORD not in out + err
    assert [] == td.workers()


def test_the_demo_wants_a_database_without_tables(start, treadle, url):
    process = start("demo", "--json", "--db", url)
    shown, said = process.communicate(timeout=150)
    assert process.returncode == 0, said
    assert PASSWORD not in shown + said
    report = json.loads(shown)
    assert report["unfinished"] == 0
    assert report["held_when_killed"] > 0
    assert treadle("demo", "--db", url).exit_code == 2


# The database


def test_upgrade_creates_the_tables_and_may_be_repeated(treadle, as_json, url, shown):
    assert {"where": shown, "schema": 1, "before": 0} == as_json("db", "upgrade")
    assert "already current" in treadle("db", "upgrade").stdout


def test_only_the_command_upgrades(treadle, td, url, monkeypatch):
    """A worker that starts must not lock tables that others use."""
    real = migrate.migrations
    newer = migrate.Migration(2, "0002_more", "CREATE TABLE treadle.more (n int)")
    monkeypatch.setattr(migrate, "migrations", lambda package: [*real(package), newer])
    td.close()
    for words in (["stats"], ["enqueue", "mail"]):
        result = treadle(*words)
        assert result.exit_code == 3
        assert "has schema 1" in result.stderr
        assert "treadle db upgrade" in result.stderr
    assert "upgraded from 1" in treadle("db", "upgrade").stdout
    assert treadle("stats").exit_code == 0


def test_sql_prints_the_tables_of_postgresql_without_connecting(treadle, as_json, postgres_url):
    url = f"postgresql://me:{PASSWORD}@nowhere.invalid/x"
    script = treadle("db", "sql", "--db", url).stdout
    assert {"sql": script} == as_json("db", "sql", "--db", url)
    execute(postgres_url, script)
    assert 1 == PostgresStore(postgres_url).schema()


def test_status_and_prune(treadle, as_json, td, shown):
    completed(td)
    status = treadle("db", "status").stdout
    assert f"postgresql {shown}" in status
    assert "1 (current)" in status
    assert 1 == as_json("db", "status")["leases_given"]
    assert {"deleted": 0} == as_json("db", "prune")
    assert treadle("db", "prune").stdout.startswith("0 jobs deleted")


def test_roles_are_printed_and_applied(treadle, as_json, td, url):
    mark = f"t_{secrets.token_hex(4)}"
    names = [word for role in ("owner", "worker", "producer") for word in (f"--{role}", f"{mark}_{role}")]
    printed = treadle("db", "roles", *names).stdout
    assert execute(url, f"SELECT rolname FROM pg_roles WHERE rolname LIKE '{mark}%'") == []
    try:
        assert as_json("db", "roles", *names, "--apply")["applied"]
        assert treadle("db", "roles", *names, "--apply").exit_code == 0
        done = [(row.action, row.what) for row in td.store.audits(10)]
        assert [("grant rights", ", ".join(names[1::2]))] * 2 == done
        execute(url, printed)  # as `treadle db roles | psql` would
        assert [(3,)] == execute(url, f"SELECT count(*) FROM pg_roles WHERE rolname LIKE '{mark}%'")
        assert td.enqueue("mail").status == "pending"
        execute(url, f"ALTER ROLE {mark}_producer LOGIN")
        host = urlsplit(url).netloc.rpartition("@")[2]
        as_producer = urlunsplit(urlsplit(url)._replace(netloc=f"{mark}_producer@{host}"))
        assert treadle("enqueue", "mail", "--tenant", "acme", "--db", as_producer).exit_code == 0
        assert treadle("enqueue", "mail", "--db", as_producer).exit_code == 2
        assert treadle("stats", "--db", as_producer).exit_code == 3
    finally:
        roles = ", ".join(names[1::2])
        execute(url, f"REASSIGN OWNED BY {roles} TO CURRENT_USER; DROP OWNED BY {roles}; DROP ROLE {roles}")


def test_roles_do_not_exist_on_sqlite(treadle):
    result = treadle("db", "roles", "--db", "sqlite:///jobs.db")
    assert result.exit_code == 2
    assert "roles exist only on PostgreSQL" in result.stderr


# The doctor


@pytest.fixture
def found(as_json: Callable[..., Any]) -> Callable[..., tuple[str, str]]:
    """The finding of a check, as (level, text)."""

    def run(check: str, code: int = 0) -> tuple[str, str]:
        findings = as_json("doctor", code=code)["findings"]
        [finding] = [finding for finding in findings if finding["check"] == check]
        return finding["level"], finding["text"]

    return run


def test_the_doctor_finds_no_problem_on_a_healthy_server(treadle, td):
    result = treadle("doctor")
    assert result.exit_code == 0
    for line in (
        "✓ schema 1 (current)",
        "✓ PostgreSQL ",
        "may do what a worker does",
        "✓ autovacuum on",
        "✓ oldest transaction",
        "✓ 0 dead rows",
        "✓ notifications arrive",
        "✓ the server's clock agrees with this host's",
        "✓ no worker is running, and no job is due",
    ):
        assert line in result.stdout
    assert result.stdout.splitlines()[-1] in ("all is well", "1 warning")  # the tests' server runs with fsync off


def test_a_long_transaction_is_a_warning_that_says_how_to_end_it(treadle, found, td, url, monkeypatch):
    monkeypatch.setattr(checks_postgres, "LONG_TRANSACTION", 0.01)
    with psycopg.connect(url) as forgotten:
        forgotten.execute("SELECT 1")
        level, text = found("transactions")
        assert level == "warning"
        assert f"pid {forgotten.info.backend_pid}" in text
        assert f"pg_terminate_backend({forgotten.info.backend_pid})" in treadle("doctor").stdout


def test_dead_rows_that_stay_are_a_warning(found, td, monkeypatch):
    monkeypatch.setattr(checks_postgres, "MANY_DEAD", -1)
    assert "warning" == found("dead rows")[0]


def test_autovacuum_that_is_off_for_a_table_is_a_problem(found, td, url):
    execute(url, "ALTER TABLE treadle.ready SET (autovacuum_enabled = off)")
    assert found("autovacuum", code=1) == ("problem", "autovacuum is off for treadle.ready")


@pytest.mark.parametrize(
    ("settings", "check", "level", "code"),
    [
        ({"autovacuum": "off"}, "autovacuum", "problem", 1),
        ({"fsync": "off"}, "durable", "warning", 0),
        ({"synchronous_commit": "off"}, "durable", "warning", 0),
        ({"max_connections": "100", "sessions": "81"}, "connections", "warning", 0),
        ({"max_connections": "100", "sessions": "96"}, "connections", "problem", 1),
        ({"skew": "30"}, "clock", "warning", 0),
        ({"skew": "-30"}, "clock", "warning", 0),
        ({"hears": ""}, "listen", "warning", 0),
    ],
)
def test_what_the_server_reports_is_shown(found, td, monkeypatch, settings, check, level, code):
    real = diagnostics.checkup

    def said(database: Any) -> Any:
        answer = real(database)
        kinds = {"sessions": int, "skew": float, "hears": bool}
        changes = {name: kinds[name](value) for name, value in settings.items() if name in kinds}
        more = {name: value for name, value in settings.items() if name not in kinds}
        return msgspec.structs.replace(answer, **changes, settings={**answer.settings, **more})

    monkeypatch.setattr(diagnostics, "checkup", said)
    assert level == found(check, code=code)[0]


def test_a_right_that_the_role_lacks_is_named(found, td, url, monkeypatch):
    role = f"t_{secrets.token_hex(4)}"
    execute(url, f"CREATE ROLE {role} LOGIN; GRANT USAGE ON SCHEMA treadle TO {role}")
    execute(url, f"GRANT SELECT ON ALL TABLES IN SCHEMA treadle TO {role}")
    execute(url, f"GRANT SELECT ON ALL SEQUENCES IN SCHEMA treadle TO {role}")
    try:
        parts = urlsplit(url)
        host = parts.netloc.rpartition("@")[2]
        monkeypatch.setenv("TREADLE_URL", urlunsplit(parts._replace(netloc=f"{role}@{host}")))
        level, text = found("role")
        assert level == "warning"
        assert f"role {role} lacks what a worker needs: INSERT on jobs" in text
        assert "hidden" in found("transactions")[1]
    finally:
        execute(url, f"DROP OWNED BY {role}; DROP ROLE {role}")


def test_notifications_are_tried_for_real(td, monkeypatch):
    assert td.store.checkup().hears
    monkeypatch.setattr(diagnostics, "HEARD_WITHIN", 0.1)
    monkeypatch.setattr(type(td.store.database), "connect", _without_notifications(type(td.store.database).connect))
    assert not td.store.checkup().hears


@pytest.mark.parametrize(
    ("mode", "level", "text"),
    [
        ("session", "ok", "notifications arrive, through a pooler in session mode"),
        (
            "transaction",
            "warning",
            "notifications do not arrive, through a pooler in transaction mode, "
            "so idle workers poll for jobs once a second",
        ),
    ],
)
def test_the_doctor_names_the_mode_of_a_pooler(found, td, url, monkeypatch, mode, level, text):
    with PgBouncer(url, mode) as pooler:
        monkeypatch.setenv("TREADLE_URL", pooler.url(url))
        assert found("listen") == (level, text)


def _without_notifications(connect: Callable[..., Any]) -> Callable[..., Any]:
    """A connection through a pooler in transaction mode: it forgets LISTEN."""

    def connect_and_forget(self: Any) -> Any:
        connection = connect(self)
        execute = connection.execute

        def forgetful(sql: Any, *more: Any, **options: Any) -> Any:
            rows = execute(sql, *more, **options)
            if str(sql).startswith("LISTEN"):
                execute("UNLISTEN *")
            return rows

        connection.execute = forgetful
        return connection

    return connect_and_forget


def test_a_lost_worker_of_another_machine_is_not_reported_as_gone(found, td, url):
    td.store.register(WorkerRow(id="x", name="host-1", concurrency=1, host={"boot": "another", "pid": 1}))
    execute(url, "UPDATE treadle.workers SET seen_at = seen_at - 60000000")
    level, text = found("lost", code=1)
    assert level == "problem"
    assert "out of reach" in text
