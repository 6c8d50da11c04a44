"""Errors of a PostgreSQL server: what each verb raises, and which connections are used afterwards."""

from __future__ import annotations

from contextlib import closing
from urllib.parse import urlsplit

import psycopg
import pytest

from tests.conformance.helpers import (
    check_consistency,
    enlist,
    everything,
    new_job,
    put,
    put_and_take,
    settle_one,
    take,
)
from treadle import Treadle
from treadle.errors import CommitUnknown, StoreBusy, StoreRefused, StoreUnusable
from treadle.job import Status
from treadle.outcome import COMPLETED
from treadle.stores.postgres import sql
from treadle.stores.postgres.store import PostgresStore

pytestmark = [pytest.mark.only("postgresql"), pytest.mark.own_connections]

PLANT = """
CREATE FUNCTION planted() RETURNS trigger LANGUAGE plpgsql AS
    $$ BEGIN RAISE EXCEPTION 'planted here' USING ERRCODE = '{code}'; END $$;
CREATE CONSTRAINT TRIGGER planted AFTER INSERT ON {table} DEFERRABLE INITIALLY {when}
    FOR EACH ROW EXECUTE FUNCTION planted()
"""
AT_STATEMENT, AT_COMMIT = "IMMEDIATE", "DEFERRED"
END_OTHERS = (
    "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE datname = current_database() AND pid <> %s"
)
CODES = (
    ("25006", StoreUnusable, "planted here.*wait until it accepts writes again"),
    ("26000", StoreUnusable, "planted here.*session mode"),
    ("42883", StoreUnusable, "planted here.*treadle db upgrade"),
    ("53100", StoreUnusable, "planted here.*make room on the server's disk"),
    ("53200", StoreUnusable, "planted here.*see its log"),
    ("57P01", StoreUnusable, "planted here.*is the server up"),
    ("40001", StoreBusy, "otherwise repeat it later"),
    ("40P01", StoreBusy, "otherwise repeat it later"),
    ("55P03", StoreBusy, "otherwise repeat it later"),
    ("57014", StoreBusy, "otherwise repeat it later"),
    ("22003", StoreRefused, "planted here.*correct the value"),
    ("23514", StoreRefused, "planted here.*a trigger, a constraint"),
    ("P0001", StoreRefused, "planted here.*a trigger, a constraint"),
)


@pytest.fixture
def fresh(new_url):
    """A store on a database of its own, which may be damaged."""
    with closing(PostgresStore(new_url)) as store:
        store.open()
        yield store


@pytest.fixture
def admin(fresh):
    with psycopg.connect(fresh.url, autocommit=True) as connection:
        connection.execute("SET default_transaction_read_only = off")
        yield connection


@pytest.fixture
def plant(admin):
    """Have an INSERT into a table fail with this code, when it is executed or when it is committed."""

    def plant_it(code: str, when: str, table: str = "treadle.jobs") -> None:
        admin.execute("DROP FUNCTION IF EXISTS planted CASCADE")
        admin.execute(PLANT.format(code=code, when=when, table=table))

    yield plant_it
    admin.execute("DROP FUNCTION IF EXISTS planted CASCADE")


@pytest.mark.parametrize("when", [AT_STATEMENT, AT_COMMIT])
def test_an_enqueue_raises_an_error_of_treadle_and_stores_nothing(fresh, admin, plant, when):
    """An answer to a COMMIT says that it was rolled back, so that the result is not unknown."""
    for code, kind, text in CODES:
        plant(code, when)
        with pytest.raises(kind, match=text) as raised:
            put(fresh)
        assert kind is type(raised.value), code

    admin.execute("DROP FUNCTION planted CASCADE")
    assert [put(fresh)] == everything(fresh)


@pytest.mark.parametrize("when", [AT_STATEMENT, AT_COMMIT])
def test_a_claim_and_a_settle_raise_an_error_of_treadle_and_change_nothing(fresh, admin, plant, when):
    """Each is one statement that commits itself. An answer says that it was rolled back, even after its rows."""
    claimed = put_and_take(fresh)
    waiting = put(fresh)
    for code, kind, text in CODES:
        plant(code, when, "treadle.leases")
        with pytest.raises(kind, match=text):
            take(fresh)
        plant(code, when, "treadle.finished")
        with pytest.raises(kind, match=text):
            settle_one(fresh, claimed, COMPLETED)

    admin.execute("DROP FUNCTION planted CASCADE")
    assert settle_one(fresh, claimed, COMPLETED)
    assert [waiting.id] == [c.id for c in take(fresh)]


def test_an_answer_that_does_not_say_whether_a_commit_happened_is_unknown(fresh, plant):
    claimed = put_and_take(fresh)
    for code in ("08006", "40003", "58030", "XX000"):
        plant(code, AT_COMMIT)
        with pytest.raises(CommitUnknown, match=r"planted here.*check whether it happened"):
            put(fresh)
        plant(code, AT_COMMIT, "treadle.finished")
        with pytest.raises(CommitUnknown, match=r"planted here.*check whether it happened"):
            settle_one(fresh, claimed, COMPLETED)


def test_a_settle_and_a_heartbeat_wait_for_a_lock_no_longer_than_the_sessions_limit(fresh, monkeypatch):
    assert "'10s'" in sql.SET_UP_SESSION
    monkeypatch.setattr(sql, "SET_UP_SESSION", sql.SET_UP_SESSION.replace("'10s'", "'300ms'"))
    worker = enlist(fresh)
    claimed = put_and_take(fresh, worker=worker)
    with psycopg.connect(fresh.url) as users:
        users.execute("SELECT 1 FROM treadle.leases FOR UPDATE")
        users.execute("SELECT 1 FROM treadle.workers FOR UPDATE")
        for verb in (lambda: settle_one(fresh, claimed, COMPLETED), lambda: fresh.beat(worker)):
            with pytest.raises(StoreBusy):
                verb()

    assert settle_one(fresh, claimed, COMPLETED)
    assert {} == fresh.beat(worker).leases


def test_an_enqueue_that_shares_a_commit_raises_an_error_of_treadle(fresh, plant):
    plant("25006", AT_COMMIT)
    with closing(Treadle(fresh.url)) as td, pytest.raises(StoreUnusable, match="wait until it accepts writes"):
        td.enqueue("noop")

    assert [StoreUnusable] * 2 == [type(answer) for answer in fresh.insert_groups([[new_job()], [new_job()]])]


# A server that is read-only for a moment


def make_read_only(admin, url, value="on"):
    """For new sessions: one that began before keeps the old value, whatever the database says later."""
    database = urlsplit(url).path[1:]
    admin.execute(f'ALTER DATABASE "{database}" SET default_transaction_read_only = {value}')


def test_every_verb_raises_while_the_server_is_read_only_and_works_afterwards(fresh, admin):
    """The sessions that began meanwhile stay read-only, so that they must not be used again."""
    worker = enlist(fresh)
    claimed = put_and_take(fresh, worker=worker)
    verbs = (
        lambda: put(fresh),
        lambda: take(fresh, worker=worker),
        lambda: settle_one(fresh, claimed, COMPLETED),
        lambda: fresh.beat(worker),
        lambda: fresh.rescue() == 0,
        lambda: fresh.declare_dead(worker, "it ended") == 1,
    )
    make_read_only(admin, fresh.url)
    admin.execute(END_OTHERS, [admin.info.backend_pid])
    for verb in verbs:
        with pytest.raises(StoreUnusable, match=r"read-only transaction.*target_session_attrs=read-write"):
            verb()
    assert [claimed.id] == [job.id for job in everything(fresh)]  # it can be read

    make_read_only(admin, fresh.url, "off")

    for verb in verbs:
        assert verb()
    assert Status.COMPLETED == fresh.get(claimed.id).status
    check_consistency(fresh)


def test_a_connection_that_has_become_read_only_is_replaced_at_once(fresh, admin):
    """As after a failover, if the URL has several hosts. No caller notices."""
    make_read_only(admin, fresh.url)
    admin.execute(END_OTHERS, [admin.info.backend_pid])
    assert [] == everything(fresh)
    with pytest.raises(StoreUnusable):
        put(fresh)
    fresh.database.write("other", lambda tx: tx.value("SELECT 1"))  # a session that is idle, and read-only

    make_read_only(admin, fresh.url, "off")

    assert fresh.rescue() == 0
    assert put(fresh)


def test_a_users_block_begins_on_a_connection_that_works(fresh, admin):
    """The sessions that were kept from earlier blocks have ended with the server."""
    for _ in range(2):
        claimed = put_and_take(fresh)
        with fresh.transaction(claimed, lambda: COMPLETED) as connection:
            assert (1,) == connection.execute("SELECT 1").fetchone()
        assert Status.COMPLETED == fresh.get(claimed.id).status
        admin.execute(END_OTHERS, [admin.info.backend_pid])


def test_a_users_block_that_cannot_be_ended_raises_an_error_of_treadle(fresh, admin, plant):
    claimed = put_and_take(fresh)
    for when in (AT_STATEMENT, AT_COMMIT):
        plant("25006", when, "treadle.finished")
        with pytest.raises(StoreUnusable, match="planted here"), fresh.transaction(claimed, lambda: COMPLETED):
            pass

    admin.execute("DROP FUNCTION planted CASCADE")
    assert settle_one(fresh, claimed, COMPLETED)
