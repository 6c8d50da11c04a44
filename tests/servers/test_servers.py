"""The servers, databases and networks that other tests use work as described."""

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
from tests.servers.postgres import PostgresServer
server = PostgresServer()
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
