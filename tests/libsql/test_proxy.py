"""A libSQL server that only a proxy reaches, as in many companies."""

from __future__ import annotations

import asyncio
import base64

import pytest

from tests.conformance.helpers import put
from tests.servers.certificates import Authority
from tests.servers.forward_proxy import ForwardProxy
from tests.servers.front import Front
from treadle import Treadle
from treadle.errors import BadOption, StoreUnusable
from treadle.job import Status
from treadle.stores.libsql.server import proxy_for
from treadle.stores.libsql.store import LibSQLStore

HOST = "jobs.example"
"""A name that only the proxy can resolve."""


@pytest.fixture(autouse=True)
def _no_proxy_from_outside(monkeypatch):
    for name in ("http_proxy", "https_proxy", "no_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


@pytest.fixture
def secure(libsql_server, libsql_url, tmp_path, monkeypatch):
    """The server with TLS, under its name."""
    authority = Authority(tmp_path)
    monkeypatch.setenv("SSL_CERT_FILE", str(authority.file))
    with Front(libsql_server.port, context=authority.context(HOST)) as front:
        yield front


def credentials(text: str) -> str:
    return f"Basic {base64.b64encode(text.encode()).decode()}"


def test_jobs_are_enqueued_and_run_through_a_tunnel(secure, monkeypatch):
    with ForwardProxy({HOST: secure.port}) as proxy:
        monkeypatch.setenv("HTTPS_PROXY", proxy.url)
        td = Treadle(f"libsql://{HOST}?authToken=secret-token")

        @td.job
        async def double(n: int) -> int:
            return 2 * n

        jobs = td.enqueue_many([double.request(n=n) for n in range(5)])

        async def drain() -> None:
            async with td.worker() as worker:
                await worker.drained()

        asyncio.run(drain())
        assert [td.result(job.id) for job in jobs] == [0, 2, 4, 6, 8]
        td.close()
    assert {(asked.method, asked.target) for asked in proxy.asked} == {("CONNECT", f"{HOST}:443")}
    assert len(proxy.asked) < len(secure.asked)  # tunnels are kept
    assert {asked.headers.get("Authorization") for asked in secure.asked} == {"Bearer secret-token"}


def test_a_server_without_tls_is_reached_through_http_proxy(libsql_server, libsql_url, monkeypatch):
    with ForwardProxy({HOST: libsql_server.port}) as proxy:
        monkeypatch.setenv("HTTP_PROXY", proxy.url)
        monkeypatch.setenv("HTTPS_PROXY", "http://192.0.2.1:1")  # is for the others
        store = LibSQLStore(f"libsql+http://{HOST}:8080")
        assert put(store).status is Status.PENDING
        store.close()
    assert {(a.method, a.target) for a in proxy.asked} == {("POST", f"http://{HOST}:8080/v2/pipeline")}


@pytest.mark.parametrize("scheme", ["libsql", "libsql+http"])
def test_the_proxy_gets_the_name_and_password_of_its_url(libsql_server, secure, monkeypatch, scheme):
    port = secure.port if scheme == "libsql" else libsql_server.port
    with ForwardProxy({HOST: port}, credentials=credentials("ada:p@ss")) as proxy:
        for variable in ("HTTP_PROXY", "HTTPS_PROXY"):
            monkeypatch.setenv(variable, f"ada:p%40ss@127.0.0.1:{proxy.port}")
        store = LibSQLStore(f"{scheme}://{HOST}")
        assert put(store).status is Status.PENDING
        store.close()
    assert not any("Proxy-Authorization" in asked.headers for asked in secure.asked)  # it is not the server's business


def test_a_proxy_that_refuses_is_named_without_its_password(secure, monkeypatch):
    with ForwardProxy({}, credentials=credentials("ada:secret")) as proxy:
        monkeypatch.setenv("HTTPS_PROXY", f"http://ada:secret@127.0.0.1:{proxy.port}")
        with pytest.raises(StoreUnusable, match=rf"403.*through the proxy 127.0.0.1:{proxy.port}") as raised:
            LibSQLStore(f"libsql://{HOST}").open()
        assert "secret" not in str(raised.value)
        monkeypatch.setenv("HTTPS_PROXY", proxy.url)
        with pytest.raises(StoreUnusable, match="407"):
            LibSQLStore(f"libsql://{HOST}").open()


@pytest.mark.parametrize(
    ("host", "no_proxy", "wanted"),
    [
        (HOST, "", True),
        (HOST, HOST, False),
        (HOST, "example", False),
        (HOST, ".example", False),
        (HOST, f"{HOST}:443", False),
        (HOST, f"{HOST}:8443", True),
        (HOST, "other.example, *", True),
        (HOST, "*", False),
        ("localhost", "", False),
        ("127.0.0.1", "", False),
        ("::1", "", False),
    ],
)
def test_no_proxy_and_this_machine_are_reached_directly(monkeypatch, host, no_proxy, wanted):
    monkeypatch.setenv("https_proxy", "http://proxy.example:3128")
    monkeypatch.setenv("NO_PROXY", no_proxy)
    assert (proxy_for(host, 443, tls=True) is not None) == wanted
    assert proxy_for(host, 80, tls=False) is None


@pytest.mark.parametrize("url", ["socks5://proxy:1080", "https://proxy:443", "http://", "http://proxy:port"])
def test_a_proxy_that_cannot_be_used_is_refused(monkeypatch, url):
    monkeypatch.setenv("HTTPS_PROXY", url.replace("://", "://ada:secret@") if url != "http://" else url)
    with pytest.raises(BadOption, match=r"HTTPS_PROXY.*\$NO_PROXY") as raised:
        LibSQLStore(f"libsql://{HOST}").open()
    assert "secret" not in str(raised.value)
