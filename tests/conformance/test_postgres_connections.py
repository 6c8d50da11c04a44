"""Connections that the server has closed, for example by a restart: the next call works."""

from __future__ import annotations

from contextlib import closing

import psycopg
import pytest

from tests.conformance.helpers import at_once, enlist, everything, ids, new_job, put, put_and_take, settle_one, take
from treadle.errors import CommitUnknown
from treadle.job import Status
from treadle.outcome import COMPLETED
from treadle.stores.postgres.store import PostgresStore

pytestmark = [pytest.mark.only("postgresql"), pytest.mark.own_connections]

END_OTHERS = (
    "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE datname = current_database() AND pid <> %s"
)


@pytest.fixture
def end_all(store, url):
    """End every other session of the database."""
    with psycopg.connect(url, autocommit=True) as connection:
        yield lambda: connection.execute(END_OTHERS, [connection.info.backend_pid])


def test_every_store_call_works_after_the_server_has_ended_all_sessions(store, end_all):
    worker = enlist(store)
    claimed = put_and_take(store, worker=worker)

    for verb in (
        lambda: settle_one(store, claimed, COMPLETED),
        lambda: put(store),
        lambda: take(store),
        lambda: store.beat(worker),
        lambda: store.counts(()).rows,
        lambda: store.rescue() == 0,
    ):
        end_all()
        assert verb()


def test_any_number_of_idle_connections_may_have_been_ended(store, end_all):
    """After the first broken connection, the pool checks the others."""
    at_once(*(lambda: put(store) for _ in range(8)), *(lambda: everything(store) for _ in range(8)))

    end_all()

    assert Status.PENDING == put(store).status
    assert 9 == len(everything(store))


@pytest.fixture
def cut_store(postgres_proxy):
    """A store whose connections the proxy can break."""
    with closing(PostgresStore(postgres_proxy.url())) as store:
        put(store)
        yield store


@pytest.mark.parametrize("before", [True, False], ids=["lost", "committed"])
def test_enqueues_that_share_a_commit_whose_reply_is_lost_are_stored_once(cut_store, postgres_proxy, before):
    groups = [[new_job()], [new_job(), new_job()]]
    postgres_proxy.cut_next_commit(before=before, within="INSERT INTO treadle.jobs")

    answers = cut_store.insert_groups(groups)

    assert [ids(group) for group in groups] == [ids(answer) for answer in answers]
    assert 4 == len(everything(cut_store))


@pytest.mark.parametrize("before", [True, False], ids=["lost", "committed"])
def test_a_claim_whose_reply_is_lost_is_unknown_and_its_leases_are_the_workers(cut_store, postgres_proxy, before):
    worker = enlist(cut_store)
    cut = postgres_proxy.cut_next_commit(before=before, within="INSERT INTO treadle.leases")

    with pytest.raises(CommitUnknown):
        take(cut_store, worker=worker)

    cut.wait()
    assert (0 if before else 1) == len(cut_store.beat(worker).leases)


@pytest.mark.parametrize("before", [True, False], ids=["lost", "committed"])
def test_a_settle_whose_reply_is_lost_is_unknown_and_can_be_repeated(cut_store, postgres_proxy, before):
    (claimed,) = take(cut_store)
    cut = postgres_proxy.cut_next_commit(before=before, within="DELETE FROM treadle.leases")

    with pytest.raises(CommitUnknown):
        settle_one(cut_store, claimed, COMPLETED)

    cut.wait()
    assert settle_one(cut_store, claimed, COMPLETED)
    assert Status.COMPLETED == cut_store.get(claimed.id).status


def test_enqueues_that_share_a_commit_of_unknown_result_all_report_that(cut_store, postgres_proxy):
    """If a caller got only "server gone", it would conclude that nothing was stored."""
    cut = postgres_proxy.cut_next_commit(within="INSERT INTO treadle.jobs")
    postgres_proxy.refuse()

    answers = cut_store.insert_groups([[new_job()], [new_job()]])

    assert [CommitUnknown, CommitUnknown] == [type(answer) for answer in answers]
    assert answers[0] is not answers[1]
    cut.wait()
    postgres_proxy.accept()
    assert 3 == len(everything(cut_store))
