"""Connections that the server has ended, as all of them are when it restarts: the next verb works."""

from __future__ import annotations

import psycopg
import pytest

from tests.conformance.helpers import at_once, enlist, everything, put, put_and_take, settle_one, take
from windlass.job import Status
from windlass.outcome import COMPLETED

pytestmark = pytest.mark.only("postgresql")

END_OTHERS = (
    "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE datname = current_database() AND pid <> %s"
)


@pytest.fixture
def end_all(store):
    """Ends every session of the database but its own."""
    with psycopg.connect(store.url, autocommit=True) as connection:
        yield lambda: connection.execute(END_OTHERS, [connection.info.backend_pid])


def test_every_verb_works_after_the_server_has_ended_all_sessions(store, end_all):
    worker = enlist(store)
    claimed = put_and_take(store, worker=worker)

    for verb in (
        lambda: settle_one(store, claimed, COMPLETED),
        lambda: put(store),
        lambda: take(store),
        lambda: store.beat(worker),
        lambda: store.counts(()),
        lambda: store.rescue() == 0,
    ):
        end_all()
        assert verb()


def test_any_number_of_idle_connections_may_have_been_ended(store, end_all):
    """The first that is tried tells of the others."""
    at_once(*(lambda: put(store) for _ in range(8)), *(lambda: everything(store) for _ in range(8)))

    end_all()

    assert Status.PENDING == put(store).status
    assert 9 == len(everything(store))
