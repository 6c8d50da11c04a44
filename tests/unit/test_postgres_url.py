"""URLs of PostgreSQL: what they connect to, and that secrets are not shown."""

from __future__ import annotations

import pytest

from treadle.errors import BadURL
from treadle.stores.postgres import url as postgres_url


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://me:secret@db/shop", "postgresql://me@db/shop"),
        ("postgresql://me:secret@db1:1,db2:2/shop", "postgresql://me@db1:1,db2:2/shop"),
        ("postgresql:///shop", "postgresql:///shop"),
        ("postgresql://", "postgresql://"),
        ("postgresql:///shop?password=secret&user=me", "postgresql:///shop?user=me"),
        ("postgresql://db/shop?sslpassword=secret", "postgresql://db/shop"),
        ("postgres://me:sec%40ret@[::1]:5432/shop?sslmode=require", "postgres://me@[::1]:5432/shop?sslmode=require"),
    ],
)
def test_the_password_is_not_shown(url, shown):
    conninfo, where = postgres_url.read(url)
    assert shown == where
    assert "application_name=treadle" in conninfo


@pytest.mark.parametrize("name", ["oauth_client_secret", "scram_client_key", "scram_server_key"])
def test_secrets_that_only_a_newer_libpq_knows_are_not_shown(name):
    assert "postgresql://db/shop?user=me" == postgres_url.shown(f"postgresql://db/shop?{name}=secret&user=me")


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://me:sec%zzret@db/shop",
        "postgresql://me:sec ret@db/shop",
        "postgresql://db/shop?password=sec%zzret",
        "postgresql://me:sec@ret@db/shop",
    ],
)
def test_an_error_does_not_show_the_password(url):
    with pytest.raises(BadURL) as raised:
        postgres_url.read(url)
    assert "sec" not in str(raised.value)


def test_options_of_the_url_win_over_treadles_defaults():
    assert "connect_timeout=60" in postgres_url.read("postgresql://db/shop?connect_timeout=60")[0]


def test_a_parameter_that_libpq_does_not_know_is_refused_with_the_fix():
    with pytest.raises(BadURL, match='query parameter: "direct_tls"; if it is of a driver, remove it'):
        postgres_url.read("postgresql:///shop?direct_tls=1")
