"""A server may redirect a stream to another address: behind a load balancer, only one server has its transaction."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests.conformance.helpers import everything, put_many, settle_one, take
from tests.servers.front import Front
from treadle.errors import StoreUnusable
from treadle.outcome import COMPLETED
from treadle.stores.libsql.hrana import Stream
from treadle.stores.libsql.server import Server, Untrusted
from treadle.stores.libsql.store import LibSQLStore
from treadle.stores.libsql.url import read


def leading_to(base):
    """Change responses so that the stream continues at this address."""

    def change(body: bytes, answer: bytes) -> bytes:
        return json.dumps({**json.loads(answer), "base_url": base}).encode()

    return change


@pytest.fixture
def second(libsql_server, libsql_url) -> Iterator[Front]:
    """The server that has the streams."""
    with Front(libsql_server.port) as second:
        yield second


@pytest.fixture
def first(libsql_server, second) -> Iterator[Front]:
    """The server of the URL, which gets only the first request of a stream."""
    with Front(libsql_server.port, change=leading_to(f"http://127.0.0.1:{second.port}/node/7/")) as first:
        yield first


def goes_on(asked) -> bool:
    return json.loads(asked.body)["baton"] is not None


def test_a_stream_continues_at_the_address_that_the_server_returns(first, second):
    store = LibSQLStore(f"libsql+http://127.0.0.1:{first.port}?authToken=t")
    put_many(store, 5)
    for claimed in take(store, 5):
        assert settle_one(store, claimed, COMPLETED)

    assert ["completed"] * 5 == [job.status for job in everything(store)]
    assert not any(map(goes_on, first.asked))
    assert second.asked
    assert all(map(goes_on, second.asked))
    assert {("/node/7/v2/pipeline", "Bearer t")} == {(a.path, a.headers["Authorization"]) for a in second.asked}


def test_the_base_url_of_a_real_server_is_followed(make_server):
    with Front(0) as node:
        server = make_server("--http-self-url", f"http://127.0.0.1:{node.port}")
        node.target = server.port
        store = LibSQLStore(server.url)
        put_many(store, 3)

        assert 3 == len(take(store, 3))
        assert node.asked
        assert all(map(goes_on, node.asked))


def test_a_stream_stays_at_its_address_and_the_next_stream_starts_at_the_url(first, second):
    server = Server(read(f"libsql+http://127.0.0.1:{first.port}"), seconds=15)
    for _ in range(2):
        stream = Stream(server)
        for _ in range(3):
            stream.execute([("SELECT 1", ())], last=False)
        stream.execute([], last=True)

    assert (2, 6) == (len(first.asked), len(second.asked))
    server.close()


@pytest.mark.parametrize("base", ["http://10.255.255.1:8080", "http://jobs.example", "ftp://127.0.0.1", "http://a:b"])
def test_a_redirect_without_tls_or_without_a_host_is_refused(libsql_server, libsql_url, base):
    with Front(libsql_server.port, change=leading_to(base)) as front:
        store = LibSQLStore(f"libsql+http://127.0.0.1:{front.port}?authToken=t")

        with pytest.raises(StoreUnusable, match=f"it sends us on to '?{base}"):
            store.open()
        assert b'{"type":"close"}' in front.asked[-1].body  # so that the write lock is free at once


def test_a_stream_over_tls_is_not_redirected_to_plain_http():
    server = Server(read("libsql://jobs.example"), seconds=15)

    with pytest.raises(Untrusted, match="without TLS"):
        server.elsewhere("http://jobs.example")
