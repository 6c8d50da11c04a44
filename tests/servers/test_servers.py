"""The servers, faults and networks that other tests use work as described."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import psycopg
import pytest

from tests.eventually import eventually
from tests.process.harness import ROOT
from tests.servers.binaries import NoBinaries, find_binaries
from tests.servers.databases import Databases
from tests.servers.fixtures import cannot
from tests.servers.postgres import ServerFailed
from tests.servers.proxy import Proxy
from tests.servers.wire import is_commit

ASK = """
import psycopg, sys
connection = psycopg.connect(sys.argv[1], autocommit=True)
print("connected", flush=True)
try:
    connection.execute("SELECT pg_sleep(60)")
except psycopg.OperationalError:
    print("noticed", flush=True)
"""

HOLD = """
import time
from tests.servers.postgres import Server
server = Server()
server.start()
print(server.pid, server.folder, flush=True)
time.sleep(600)
"""


def execute(url: str, sql: str) -> list[tuple]:
    with psycopg.connect(url, autocommit=True) as connection:
        cursor = connection.execute(sql)
        return cursor.fetchall() if cursor.description else []


def rows(url: str) -> int:
    return execute(url, "SELECT count(*) FROM t")[0][0]


@pytest.fixture
def table(postgres_url: str) -> str:
    execute(postgres_url, "CREATE TABLE t (n int)")
    return postgres_url


# Servers


def test_both_servers_accept_connections(each_postgres_server):
    url = each_postgres_server.create_database("hello")

    assert [(each_postgres_server.binaries.major,)] == execute(
        url, "SELECT current_setting('server_version_num')::int / 10000"
    )
    assert [("UTF8", "off", "200")] == execute(
        url, "SELECT current_setting('server_encoding'), current_setting('fsync'), current_setting('max_connections')"
    )
    each_postgres_server.drop("hello")
    with pytest.raises(psycopg.OperationalError, match="does not exist"):
        execute(url, "SELECT 1")


def test_a_version_is_found_by_its_number():
    try:
        packaged = find_binaries("packaged")
    except NoBinaries as why:
        cannot(str(why))

    assert packaged.major == find_binaries(str(packaged.major)).major
    with pytest.raises(NoBinaries, match="Install one"):
        find_binaries("14")
    with pytest.raises(ValueError, match="'newest'"):
        find_binaries("newest")


def test_commits_survive_a_crash_of_the_server(make_postgres):
    server = make_postgres(durable=True)
    execute(server.url(), "CREATE TABLE t (n int)")

    for count, (how, crashed) in enumerate([("fast", 0), ("immediate", 1), ("kill", 2)], 1):
        client = psycopg.connect(server.url(), autocommit=True)
        client.execute("INSERT INTO t VALUES (1)")
        before = server.pid
        if how == "kill":
            server.kill()
            server.start()
        else:
            server.restart(how)

        assert count == rows(server.url())
        assert crashed == server.log.count("was not properly shut down")
        assert before != server.pid
        with pytest.raises(psycopg.OperationalError):
            client.execute("SELECT 1")


def test_a_killed_server_waits_for_its_last_child(make_postgres):
    """Otherwise, that child would write at the same time as the new ones."""
    server = make_postgres()
    execute(server.url(), "CREATE TABLE t (n int); INSERT INTO t VALUES (1)")
    client = psycopg.connect(server.url())
    child = psutil.Process(client.info.backend_pid)
    child.suspend()

    server.kill()
    starting = threading.Thread(target=server.start)
    starting.start()
    eventually(lambda: "still in use" in server.log)
    child.resume()
    starting.join()

    assert 1 == rows(server.url())


def test_a_server_that_does_not_start_says_why(make_postgres):
    with pytest.raises(ServerFailed, match="unrecognized configuration parameter"):
        make_postgres(options={"no_such_option": 1})


def test_no_server_remains_after_tests_are_killed():
    tests = subprocess.Popen(
        [sys.executable, "-c", HOLD], cwd=ROOT, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    pid, folder = tests.stdout.readline().split()
    family = [psutil.Process(int(pid)), *psutil.Process(int(pid)).children()]

    os.killpg(tests.pid, signal.SIGKILL)
    tests.wait()

    eventually(lambda: not Path(folder).exists())
    assert len(family) > 3
    psutil.wait_procs(family, timeout=10)
    assert [] == [process for process in family if process.is_running() and process.status() != psutil.STATUS_ZOMBIE]


# Databases


def make_tables(url: str) -> None:
    execute(
        url,
        "CREATE TABLE meta (key text PRIMARY KEY, value int); INSERT INTO meta VALUES ('schema', 1);"
        "CREATE TABLE jobs (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY);"
        "CREATE TABLE attempts (job bigint NOT NULL REFERENCES jobs)",
    )


@pytest.fixture
def databases(postgres_server):
    databases = Databases(postgres_server.url())
    yield databases
    databases.close()


def test_a_reused_database_is_in_its_first_state(databases):
    url = databases.reused(make_tables)
    left_open = psycopg.connect(url)
    left_open.execute("INSERT INTO jobs DEFAULT VALUES; INSERT INTO attempts SELECT id FROM jobs; COMMIT")
    left_open.execute("UPDATE meta SET value = 2; DELETE FROM meta; COMMIT")
    left_open.execute("LOCK TABLE jobs")

    assert url == databases.reused(make_tables)
    assert [("schema", 1)] == execute(url, "SELECT * FROM meta")
    assert [(0, 0)] == execute(url, "SELECT (SELECT count(*) FROM jobs), (SELECT count(*) FROM attempts)")
    assert [(1,)] == execute(url, "INSERT INTO jobs DEFAULT VALUES RETURNING id")


@pytest.mark.parametrize(
    "change",
    [
        "CREATE TABLE another (n int)",
        "CREATE INDEX ON attempts (job)",
        "DROP TABLE attempts",
        "ALTER TABLE jobs ADD n int",
        "ALTER TABLE meta ALTER value SET DEFAULT 7",
        "CREATE FUNCTION f() RETURNS int LANGUAGE sql RETURN 1",
        "CREATE SCHEMA treadle",
    ],
)
def test_a_database_with_another_schema_is_not_reused(databases, change):
    url = databases.reused(make_tables)
    execute(url, change)

    assert url != databases.reused(make_tables)


def test_every_test_has_an_empty_database(postgres_url):
    assert [] == execute(postgres_url, "SELECT tablename FROM pg_tables WHERE schemaname = 'public'")


# Faults


@pytest.mark.parametrize("sql", ["COMMIT", "commit;", "END", "COMMIT WORK", "INSERT INTO t VALUES (1); COMMIT"])
def test_a_commit_is_recognized(sql):
    assert is_commit(sql)


@pytest.mark.parametrize("sql", ["BEGIN", "ROLLBACK", "INSERT INTO t VALUES ('COMMIT')", "COMMIT PREPARED 'x'", ""])
def test_other_statements_are_not_taken_for_a_commit(sql):
    assert not is_commit(sql)


def commit(url: str) -> None:
    with psycopg.connect(url) as connection:
        connection.execute("INSERT INTO t VALUES (1)")


def commit_in_a_pipeline(url: str) -> None:
    with psycopg.connect(url) as connection, connection.pipeline(), connection.transaction():
        connection.execute("INSERT INTO t VALUES (1)")


def commit_prepared(url: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("BEGIN", prepare=True)
        connection.execute("INSERT INTO t VALUES (1)", prepare=True)
        connection.execute("COMMIT", prepare=True)


WAYS = [commit, commit_in_a_pipeline, commit_prepared]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("before", [False, True])
def test_a_commit_without_a_reply(table, postgres_proxy, way, before):
    """The client sees the same, whether the server has committed or not."""
    cut = postgres_proxy.cut_next_commit(before=before)

    with pytest.raises(psycopg.OperationalError, match="closed the connection"):
        way(postgres_proxy.url())

    cut.wait()
    assert "COMMIT" == cut.sql
    assert (0 if before else 1) == rows(table)
    way(postgres_proxy.url())
    assert (1 if before else 2) == rows(table)


@pytest.mark.parametrize("before", [False, True])
def test_an_autocommit_statement_without_a_reply(table, postgres_proxy, before):
    cut = postgres_proxy.cut_next_commit(before=before, match=lambda sql: sql.startswith("INSERT"))

    with (
        psycopg.connect(postgres_proxy.url(), autocommit=True) as connection,
        pytest.raises(psycopg.OperationalError),
    ):
        connection.execute("INSERT INTO t VALUES (%s) RETURNING n", [1])

    cut.wait()
    assert (0 if before else 1) == rows(table)


def test_the_nth_commit_is_cut(table, postgres_proxy):
    cut = postgres_proxy.cut_next_commit(nth=3)

    with psycopg.connect(postgres_proxy.url()) as connection:
        for _ in range(2):
            connection.execute("INSERT INTO t VALUES (1)")
            connection.commit()
        assert not cut.happened
        connection.execute("INSERT INTO t VALUES (1)")
        with pytest.raises(psycopg.OperationalError):
            connection.commit()

    cut.wait()
    assert 3 == rows(table)


def test_asyncpg_is_cut_too(table, postgres_proxy):
    import asyncio

    import asyncpg

    async def commit():
        connection = await asyncpg.connect(postgres_proxy.url())
        async with connection.transaction():
            await connection.execute("INSERT INTO t VALUES ($1)", 1)

    cut = postgres_proxy.cut_next_commit()
    with pytest.raises((asyncpg.PostgresConnectionError, ConnectionError)):
        asyncio.run(commit())

    cut.wait()
    assert 1 == rows(table)


def test_dropped_connections(table, postgres_proxy):
    clients = [psycopg.connect(postgres_proxy.url()) for _ in range(3)]

    postgres_proxy.drop_all()

    for client in clients:
        with pytest.raises(psycopg.OperationalError):
            client.execute("SELECT 1")
    assert 0 == rows(postgres_proxy.url())


def test_a_frozen_connection_is_silent_and_continues_when_thawed(table, postgres_proxy):
    """Even a client with TCP timeouts sees no fault, because the proxy acknowledges its data."""
    client = psycopg.connect(
        postgres_proxy.url(), autocommit=True, tcp_user_timeout=300, keepalives_idle=1, keepalives_interval=1
    )
    answered = threading.Event()

    def ask() -> None:
        client.execute("INSERT INTO t VALUES (1)")
        answered.set()

    postgres_proxy.freeze()
    thread = threading.Thread(target=ask)
    thread.start()

    with pytest.raises(psycopg.errors.ConnectionTimeout):
        psycopg.connect(postgres_proxy.url(), connect_timeout=2)
    assert not answered.is_set()
    assert 0 == rows(table)

    postgres_proxy.thaw()
    assert answered.wait(10)
    thread.join()
    client.close()


def test_refused_connections(table, postgres_proxy):
    client = psycopg.connect(postgres_proxy.url())

    postgres_proxy.refuse()

    with pytest.raises(psycopg.OperationalError, match="refused"):
        psycopg.connect(postgres_proxy.url())
    client.execute("SELECT 1")
    client.close()
    postgres_proxy.accept()
    assert 0 == rows(postgres_proxy.url())


def test_a_proxy_survives_a_restart_of_its_server(make_postgres):
    server = make_postgres()
    with Proxy(server.url()) as proxy:
        client = psycopg.connect(proxy.url(), autocommit=True)

        server.stop()
        for url in (proxy.url(), proxy.url(server.url("postgres"))):
            with pytest.raises(psycopg.OperationalError):
                psycopg.connect(url)
        server.start()

        with pytest.raises(psycopg.OperationalError):
            client.execute("SELECT 1")
        assert [(1,)] == execute(proxy.url(), "SELECT 1")


def test_a_query_is_cancelled_through_a_proxy(postgres_url, postgres_proxy):
    client = psycopg.connect(postgres_proxy.url(), autocommit=True)
    running = f"SELECT 1 FROM pg_stat_activity WHERE pid = {client.info.backend_pid} AND wait_event = 'PgSleep'"

    def cancel() -> None:
        eventually(lambda: execute(postgres_url, running))
        client.cancel_safe()

    canceller = threading.Thread(target=cancel)
    canceller.start()
    with pytest.raises(psycopg.errors.QueryCanceled):
        client.execute("SELECT pg_sleep(60)")
    canceller.join()
    client.close()


# Networks


def test_a_disconnected_host_receives_nothing_and_notices_by_timeouts(make_postgres, network):
    server = make_postgres(everywhere=True)
    url = server.url(host=network.address)
    options = "?tcp_user_timeout=1000&keepalives_idle=1&keepalives_interval=1&keepalives_count=2"
    lonely, other = [
        host.popen(sys.executable, "-c", ASK, url + options, stdout=subprocess.PIPE, text=True)
        for host in network.hosts
    ]
    for process in (lonely, other):
        assert "connected\n" == process.stdout.readline()
    addresses = execute(
        server.url(), "SELECT host(client_addr) FROM pg_stat_activity WHERE client_addr << '10.0.0.0/8'"
    )
    assert {host.address for host in network.hosts} == {address for (address,) in addresses}

    began = time.monotonic()
    network.hosts[0].cut_off()

    assert "noticed\n" == lonely.stdout.readline()
    assert 0.5 < time.monotonic() - began < 10
    assert other.poll() is None
    network.hosts[0].plug_in()
    again = network.hosts[0].popen(sys.executable, "-c", ASK, url, stdout=subprocess.PIPE, text=True)
    assert "connected\n" == again.stdout.readline()
    for process in (lonely, other, again):
        process.kill()
        process.wait()


def test_a_network_is_removed_completely(network):
    names = subprocess.run(["ip", "netns"], capture_output=True, text=True, check=True).stdout
    assert network.hosts[0].name in names

    network.remove()

    left = subprocess.run("ip netns; ip link", shell=True, capture_output=True, text=True, check=True).stdout
    assert not [name for host in network.hosts for name in (host.name, host.cable, network.bridge) if name in left]
