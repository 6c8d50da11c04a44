"""Errors of SQLite, made with real files: what is raised, and that the store works when the cause is gone."""

from __future__ import annotations

import resource
import signal

import pytest

from tests.conformance.helpers import everything, put, put_and_take, settle_one, take
from treadle.errors import CommitUnknown, StoreUnusable
from treadle.job import Status
from treadle.outcome import COMPLETED

pytestmark = pytest.mark.only("sqlite")


@pytest.fixture
def file_limit():
    """Set how long a file may become. A write beyond that is an I/O error, as on a disk that fails."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    yield lambda size: resource.setrlimit(resource.RLIMIT_FSIZE, (size or before[0], before[1]))
    resource.setrlimit(resource.RLIMIT_FSIZE, before)
    signal.signal(signal.SIGXFSZ, ignored)


def test_a_full_disk_makes_the_store_unusable_until_there_is_room(store):
    claimed = put_and_take(store)
    writer = store.database._writer
    writer.execute("PRAGMA max_page_count = 1")  # SQLite takes the present size, and SQLITE_FULL follows

    with pytest.raises(StoreUnusable, match=r"is full.*make room on the disk"):
        put(store, payload='{"text": "' + "x" * 100_000 + '"}')

    writer.execute("PRAGMA max_page_count = 1000000")
    assert settle_one(store, claimed, COMPLETED)
    assert put(store, payload='{"text": "' + "x" * 100_000 + '"}')


def test_an_io_error_during_a_commit_is_of_unknown_result_and_passes(store, file_limit):
    """The commit may be in the log, where a crash would find it."""
    put(store)
    log = store.path.with_name(f"{store.path.name}-wal")
    file_limit(log.stat().st_size)
    with pytest.raises(CommitUnknown, match=r"disk I/O error.*check whether it happened"):
        put(store)
    file_limit(None)

    job = put(store)

    assert 2 == len(everything(store))
    assert job in everything(store)
    assert "ok" == store.check()


def test_a_writer_that_has_become_read_only_is_replaced_at_once(store):
    """A file that was opened while it could not be written stays read-only, even when it can be."""
    put(store)
    store.database._writer.execute("PRAGMA query_only = ON")

    assert put(store)


@pytest.mark.by_hand
def test_a_damaged_file_raises_an_error_of_treadle_whatever_is_done(store, by_hand):
    claimed = put_and_take(store)
    roots = by_hand("SELECT rootpage FROM sqlite_master WHERE type = 'table' AND name LIKE 'treadle\\_%' ESCAPE '\\'")
    meta = by_hand("SELECT rootpage FROM sqlite_master WHERE name = 'treadle_meta'")
    by_hand("PRAGMA wal_checkpoint(TRUNCATE)")
    store.close()
    with store.path.open("r+b") as file:
        for [page] in set(roots) - set(meta):  # so that it can be opened
            file.seek((page - 1) * 4096)
            file.write(b"\xff" * 4096)

    verbs = lambda: put(store), lambda: take(store), lambda: settle_one(store, claimed, COMPLETED), store.rescue
    for verb in (*verbs, lambda: everything(store)):
        with pytest.raises(StoreUnusable, match=r"malformed.*restore a backup"):
            verb()


def test_a_table_that_is_missing_for_a_moment_costs_nothing(store, by_hand):
    claimed = put_and_take(store)
    put(store)
    by_hand("ALTER TABLE treadle_leases RENAME TO elsewhere")
    for verb in (lambda: settle_one(store, claimed, COMPLETED), lambda: take(store), lambda: store.get(claimed.id)):
        with pytest.raises(StoreUnusable, match="no such table"):
            verb()
    by_hand("ALTER TABLE elsewhere RENAME TO treadle_leases")

    assert settle_one(store, claimed, COMPLETED)
    assert Status.COMPLETED == store.get(claimed.id).status
