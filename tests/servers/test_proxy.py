"""The proxy in front of PostgreSQL injects the faults that it describes."""

from __future__ import annotations

import threading

import psycopg
import pytest

from tests.eventually import eventually
from tests.servers.proxy import Proxy
from tests.servers.test_servers import execute, rows
from tests.servers.wire import is_commit


@pytest.fixture
def table(postgres_url: str) -> str:
    execute(postgres_url, "CREATE TABLE t (n int)")
    return postgres_url


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
