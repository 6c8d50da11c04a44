"""Wrong token, wrong host, server gone: each error is typed, never shows the token, and names the fix."""

from __future__ import annotations

import re

import pytest

from tests.conformance.helpers import everything, put, put_many, settle_one, take
from tests.servers.front import Front
from tests.servers.libsql import WHAT_IS_THERE, ByHand
from tests.servers.postgres import free_port
from treadle import Treadle
from treadle.errors import BadConnection, BadOption, BadURL, CommitUnknown, StoreBusy, StoreUnusable
from treadle.job import Status
from treadle.outcome import COMPLETED
from treadle.stores.libsql.hrana import Failed
from treadle.stores.libsql.store import LibSQLStore
from treadle.stores.libsql.url import TOKEN_VARIABLES
from treadle.stores.libsql.url import read as read_url
from treadle.testing import temporary

SECRET = "eyJhbGciOi.secret.signature"


@pytest.mark.parametrize(
    ("url", "host", "port", "tls"),
    [
        ("libsql://jobs.turso.io", "jobs.turso.io", 443, True),
        ("libsql+https://jobs.example:8443", "jobs.example", 8443, True),
        ("libsql+http://127.0.0.1:8080", "127.0.0.1", 8080, False),
        ("libsql+http://localhost", "localhost", 80, False),
        ("libsql+http://[::1]:8080/", "::1", 8080, False),
    ],
)
def test_a_url_names_the_host_port_and_scheme(url, host, port, tls):
    assert (host, port, tls) == read_url(url)[:3]


@pytest.mark.parametrize(
    "url",
    [
        "libsql://",
        "libsql+http://127.0.0.1:port",
        "libsql+ftp://host",
        "libsql://host/database",
        "libsql://user:pass@host",
        f"libsql://host?authtoken={SECRET}",
    ],
)
def test_a_wrong_url_is_refused_without_showing_a_token(url):
    with pytest.raises(BadURL) as refused:
        read_url(url)

    assert SECRET not in str(refused.value)
    assert "pass" not in str(refused.value).split(": ", 1)[0]


@pytest.mark.parametrize("variable", TOKEN_VARIABLES)
def test_a_token_in_the_url_wins_over_the_environment(monkeypatch, variable):
    monkeypatch.setenv(variable, "environment")

    assert "environment" == read_url("libsql://host").token
    assert "url" == read_url("libsql://host?authToken=url").token


def test_a_token_is_never_shown(monkeypatch):
    store = LibSQLStore(f"libsql+http://127.0.0.1:{free_port()}?authToken={SECRET}")

    assert SECRET not in store.where
    assert SECRET not in repr(Treadle(store.url))
    with pytest.raises(StoreUnusable) as error:
        store.open()
    assert SECRET not in str(error.value)


def test_a_token_from_a_file_has_a_line_break_at_its_end(monkeypatch):
    monkeypatch.setenv("TREADLE_LIBSQL_TOKEN", f"{SECRET}\n")

    assert SECRET == read_url("libsql://host").token


@pytest.mark.parametrize("token", [f"{SECRET}\nHost: other", f"{SECRET} ", f"{SECRET}é", f"Bearer {SECRET}"])
def test_an_invalid_token_is_refused_without_showing_it(monkeypatch, token):
    monkeypatch.setenv("TREADLE_LIBSQL_TOKEN", f"{token}.")

    with pytest.raises(BadURL, match="copy it again") as refused:
        read_url("libsql://host")

    assert SECRET not in str(refused.value)


def test_the_right_token_opens_and_a_wrong_one_or_none_does_not(make_server, keys, monkeypatch):
    server = make_server("--auth-jwt-key-file", str(keys.file))
    monkeypatch.setenv("TREADLE_LIBSQL_TOKEN", keys.token())
    assert Status.PENDING == put(LibSQLStore(server.url)).status

    for token in ("", SECRET):
        monkeypatch.setenv("TREADLE_LIBSQL_TOKEN", token)
        with pytest.raises(StoreUnusable, match=r"token.*\$TREADLE_LIBSQL_TOKEN"):
            LibSQLStore(server.url).open()


def test_the_error_for_an_unreachable_server_names_it_and_the_fix():
    store = LibSQLStore(f"libsql+http://127.0.0.1:{free_port()}")

    with pytest.raises(StoreUnusable, match=r"libsql\+http://127.0.0.1:\d+: no answer .* is the server up"):
        store.open()


def test_a_server_that_is_not_a_libsql_server_is_recognized(postgres_server):
    from urllib.parse import urlsplit

    port = urlsplit(postgres_server.url()).port

    with pytest.raises(StoreUnusable):
        LibSQLStore(f"libsql+http://127.0.0.1:{port}").open()


@pytest.mark.parametrize("page", [b"<p>\nhello</p>", b'{"hello": 1}'])
def test_a_web_server_is_recognized(libsql_server, page):
    with (
        Front(libsql_server.port, change=lambda *_: page) as front,
        pytest.raises(StoreUnusable, match=r"it answered 200 \(.*hello.*\); is it a libSQL server\?$"),
    ):
        LibSQLStore(f"libsql+http://127.0.0.1:{front.port}").open()


def test_an_unreadable_reply_to_a_commit_means_that_the_result_is_unknown(libsql_server, libsql_url):
    with Front(libsql_server.port) as front:
        store = LibSQLStore(f"libsql+http://127.0.0.1:{front.port}")
        store.open()
        front.change = lambda body, answer: b"<p>hello</p>"
        with pytest.raises(CommitUnknown, match="check whether it happened"):
            put(store)

    assert 1 == len(everything(LibSQLStore(libsql_url)))


def test_the_error_for_a_server_that_is_too_old_names_the_needed_version(libsql_server, libsql_url):
    def older(body: bytes, answer: bytes) -> bytes:
        return re.sub(rb"3\.\d+\.\d+", b"3.37.2", answer) if b"sqlite_version" in body else answer

    with (
        Front(libsql_server.port, change=older) as front,
        pytest.raises(StoreUnusable, match=r"its SQLite 3.37.2 is too old; upgrade the server to 3.38 or newer"),
    ):
        LibSQLStore(f"libsql+http://127.0.0.1:{front.port}").open()
    assert [] == ByHand(libsql_url).execute(WHAT_IS_THERE).fetchall()


def test_a_server_that_stops_and_returns_is_used_again(own_server):
    store = LibSQLStore(own_server.url)
    put_many(store, 3)
    (claimed, *_) = take(store)
    own_server.kill()
    store.database._measured = float("-inf")  # after a minute, the clock is compared again

    for call in (lambda: put(store), lambda: take(store), lambda: settle_one(store, claimed, COMPLETED), store.now):
        with pytest.raises(StoreUnusable):
            call()
    with pytest.raises(StoreUnusable):
        store.get(claimed.id)

    own_server.start()
    assert settle_one(store, claimed, COMPLETED)
    assert Status.COMPLETED == store.get(claimed.id).status


@pytest.mark.parametrize("code", ["SQLITE_BUSY", "TRANSACTION_BUSY"])
def test_the_error_of_a_busy_server_suggests_nothing_that_the_server_refuses(libsql_url, code):
    busy = LibSQLStore(libsql_url).database.translated(Failed("database is locked", code))

    assert isinstance(busy, StoreBusy)
    assert "ctx.transaction()" in str(busy)
    assert "connection=" not in str(busy)


def test_durability_is_the_servers_choice(own_server):
    with pytest.raises(BadOption, match="server"):
        Treadle(own_server.url, synchronous="NORMAL")


def test_a_foreign_connection_is_refused(libsql_url):
    import sqlite3

    td = Treadle(libsql_url)
    td.enqueue("noop")

    with pytest.raises(BadConnection, match=r"ctx\.transaction"):
        td.enqueue("noop", connection=sqlite3.connect(":memory:"))
    assert [{"count": 1}] == td.counts(())


def test_temporary_does_not_empty_a_server_that_has_jobs(libsql_url):
    td = Treadle(libsql_url)
    td.enqueue("noop")

    with pytest.raises(BadOption, match="its jobs would be deleted"), temporary(td, url=libsql_url):
        pass
    assert [{"count": 1}] == td.counts(())
