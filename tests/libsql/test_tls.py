"""TLS in front of a real server: which certificates are trusted, and the errors for others."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.conformance.helpers import put
from tests.servers.certificates import Authority
from tests.servers.front import Front
from tests.servers.libsql import LibSQLServer
from treadle import Treadle
from treadle.errors import StoreUnusable
from treadle.job import Status
from treadle.stores.libsql.store import LibSQLStore

TOKEN = "eyJhbGciOi.secret.signature"


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.fixture
def trusted(authority: Authority, monkeypatch: pytest.MonkeyPatch) -> Authority:
    """Trust the authority, as a user does."""
    monkeypatch.setenv("SSL_CERT_FILE", str(authority.file))
    return authority


@pytest.fixture
def front(libsql_server: LibSQLServer, libsql_url: str) -> Iterator[Callable[[ssl.SSLContext], Front]]:
    """Put TLS in front of the server."""
    with ExitStack() as stack:
        yield lambda context: stack.enter_context(Front(libsql_server.port, context=context))


@pytest.mark.parametrize("scheme", ["libsql", "libsql+https"])
def test_jobs_are_enqueued_and_run_over_tls_with_a_private_authority(front, trusted, scheme):
    secure = front(trusted.context())
    td = Treadle(f"{scheme}://localhost:{secure.port}?authToken={TOKEN}")

    @td.job
    async def double(n: int) -> int:
        return 2 * n

    jobs = td.enqueue_many([double.request(n=n) for n in range(20)])

    async def drain() -> None:
        async with td.worker() as worker:
            await worker.drained()

    asyncio.run(drain())
    td.close()

    assert [2 * n for n in range(20)] == [td.result(job.id) for job in jobs]
    assert {f"Bearer {TOKEN}"} == {asked.headers.get("Authorization") for asked in secure.asked}


def test_a_token_works_over_tls(make_server, keys, trusted):
    server = make_server("--auth-jwt-key-file", str(keys.file))
    with Front(server.port, context=trusted.context()) as secure:
        url = f"libsql://localhost:{secure.port}"

        assert Status.PENDING == put(LibSQLStore(f"{url}?authToken={keys.token()}")).status
        with pytest.raises(StoreUnusable, match=r"token.*\$TREADLE_LIBSQL_TOKEN"):
            LibSQLStore(url).open()


@pytest.mark.parametrize(
    ("host", "days", "problem", "way_out"),
    [
        ("localhost", -1, "expired", "renew it"),
        ("jobs.example", 1, "localhost", "write a name in the URL that the certificate has"),
    ],
)
def test_the_error_for_an_invalid_certificate_names_the_fix(front, trusted, host, days, problem, way_out):
    secure = front(trusted.context(host, days=days))

    message = refused(f"libsql://localhost:{secure.port}?authToken={TOKEN}")

    assert f"libsql://localhost:{secure.port}: its certificate is not to be trusted" in message
    assert problem in message
    assert message.endswith(way_out)
    assert [] == secure.asked


def test_the_error_for_an_unknown_authority_names_the_fix(front, authority, monkeypatch):
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    secure = front(authority.context())

    message = refused(f"libsql://localhost:{secure.port}?authToken={TOKEN}")

    assert "its certificate is not to be trusted (unable to get local issuer certificate)" in message
    assert message.endswith("put the CA's file in $SSL_CERT_FILE")
    assert [] == secure.asked


def test_a_server_without_tls_is_recognized(libsql_server):
    message = refused(f"libsql://127.0.0.1:{libsql_server.port}?authToken={TOKEN}")

    assert message.endswith("it does not speak TLS; write libsql+http:// for a server without")


def refused(url: str) -> str:
    """The error that a user gets."""
    store = LibSQLStore(url)
    with pytest.raises(StoreUnusable) as error:
        store.open()
    assert TOKEN not in str(error.value)
    return str(error.value)
