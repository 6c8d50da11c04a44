"""`windlass.testing` for an app that is on PostgreSQL."""

from __future__ import annotations

import psycopg
import pytest

from windlass import BadOption, Context, Windlass
from windlass.testing import assert_enqueued, drain, refute_enqueued, temporary

pytest_plugins = ["pytester"]

wl = Windlass("postgresql://nobody@nowhere.invalid/production")


@wl.job(max_attempts=2, backoff=60)
def send(ctx: Context, to: str) -> None:
    with ctx.transaction() as connection:
        connection.execute("INSERT INTO sent VALUES (%s)", [to])


@pytest.fixture
def url(postgres_url):
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute("CREATE TABLE sent (address text NOT NULL)")
    return postgres_url


def test_an_app_is_tested_on_its_own_kind_of_database(url):
    with temporary(wl, url=url) as clock, psycopg.connect(url) as connection:
        with connection.transaction():
            send.using(connection=connection, delay=3600).enqueue(to="ada")
        assert_enqueued(wl, send, to="ada")
        assert drain(wl).ran == 0
        clock.advance(3600)
        assert drain(wl).completed == 1
        assert [("ada",)] == connection.execute("SELECT * FROM sent").fetchall()
    assert "nowhere.invalid" in wl.store.where


def test_each_test_begins_without_jobs(url):
    for _ in range(2):
        with temporary(wl, url=url):
            refute_enqueued(wl, send)
            assert [] == wl.counts()
            send.using(dedupe="once").enqueue(to="ada")
            assert [{"status": "pending", "count": 1}] == wl.counts()


def test_a_database_that_may_be_a_real_one_is_left_alone(postgres_server):
    url = postgres_server.create_database("shop")
    try:
        with pytest.raises(BadOption, match="with `test` in its name"), temporary(wl, url=url):
            pass
        with psycopg.connect(url) as connection:
            assert [] == connection.execute("SELECT 1 FROM pg_namespace WHERE nspname = 'windlass'").fetchall()
    finally:
        postgres_server.drop("shop")


def test_the_fixtures_take_another_url(pytester, url):
    pytester.makepyfile(
        f"""
        import pytest
        from windlass import Windlass
        from windlass.testing import assert_enqueued, drain

        wl = Windlass("postgresql://nobody@nowhere.invalid/production")

        @wl.job
        def add(a: int) -> int:
            return a + 1

        @pytest.fixture
        def windlass_url():
            return {url!r}

        @pytest.fixture(autouse=True)
        def jobs(windlass_temporary):
            windlass_temporary(wl)

        @pytest.mark.parametrize("n", [1, 2])
        def test_it(n, windlass_clock):
            assert [] == wl.counts()
            job = add.enqueue(a=n)
            assert drain(wl).completed == 1
            assert wl.result(job.id) == n + 1
            assert job.created_at == windlass_clock.now()
        """
    )
    pytester.runpytest_subprocess("-q").assert_outcomes(passed=2)
