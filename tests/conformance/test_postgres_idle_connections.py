"""Connections that are idle serve other purposes, so that a worker with nothing to do has few of them."""

from __future__ import annotations

import pytest

from treadle.stores.postgres import connection

pytestmark = [pytest.mark.only("postgresql"), pytest.mark.own_connections]
PID = "SELECT pg_backend_pid()"


def session(store, pool):
    return store.database.read(pool, lambda tx: tx.value(PID))


@pytest.mark.parametrize("pools", connection.ALIKE)
def test_pools_whose_sessions_are_alike_share_what_is_idle(store, pools):
    assert len({session(store, pool) for pool in pools}) == 1


@pytest.mark.direct
def test_what_a_user_may_have_changed_serves_no_other_purpose(store):
    apart = session(store, "apart")

    assert apart not in {session(store, pool) for pools in connection.ALIKE for pool in pools}


def test_what_was_not_used_for_a_while_is_closed_but_for_one(store, monkeypatch):
    with store.database.borrow("read"), store.database.borrow("other"):
        pass
    assert len(store.database._pools["read"].idle) == 2
    monkeypatch.setattr(connection, "KEPT_SECONDS", 0.0)

    session(store, "read")

    assert len(store.database._pools["read"].idle) == 1
