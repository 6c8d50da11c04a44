"""A token is sent over TLS to the server of the URL; without TLS only to this machine, or if the URL allows it."""

from __future__ import annotations

import pytest

from treadle import Treadle
from treadle.errors import BadURL
from treadle.stores.libsql import url

TOKEN = "eyJhbGciOi.secret.signature"


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "[::1]", "localhost", "jobs.localhost"])
def test_a_token_may_be_sent_without_tls_to_this_machine(host):
    assert TOKEN == url.read(f"libsql+http://{host}:8080?authToken={TOKEN}").token


@pytest.mark.parametrize("host", ["10.0.0.7", "sqld", "jobs.example", "[fd00::1]", "localhost.example", "0.0.0.0"])
@pytest.mark.parametrize("variable", [None, "TREADLE_LIBSQL_TOKEN", "TURSO_AUTH_TOKEN"])
def test_no_token_is_sent_to_another_machine_without_tls(host, variable, monkeypatch):
    url = f"libsql+http://{host}:8080"
    if variable:
        monkeypatch.setenv(variable, TOKEN)

    with pytest.raises(BadURL, match=r"libsql:// .*\?tokenInClear=1") as refused:
        Treadle(url if variable else f"{url}?authToken={TOKEN}")
    assert TOKEN not in str(refused.value)


def test_plain_http_is_allowed_if_the_url_says_so_or_without_a_token():
    assert TOKEN == url.read(f"libsql+http://sqld:8080?authToken={TOKEN}&tokenInClear=1").token
    assert None is url.read("libsql+http://sqld:8080").token
    with pytest.raises(BadURL):
        url.read(f"libsql+http://sqld:8080?authToken={TOKEN}&tokenInClear=0")
