"""One look says which chores may have something to do."""

from __future__ import annotations

from tests.conformance.helpers import put, put_and_take
from treadle.pauses import NewPause, Target
from treadle.stores.rows import ChoresDue

NONE = ChoresDue(rescue=False, expire=False, put_back=False, open_limits=False)


def test_without_jobs_no_chore_is_due(store):
    assert store.chores_due() == NONE


def test_jobs_that_wait_or_have_ended_need_no_chore(store):
    put(store)

    assert store.chores_due() == NONE


def test_what_is_leased_may_have_to_be_rescued(store):
    put_and_take(store)

    assert store.chores_due() == NONE._replace(rescue=True)


def test_a_pause_may_have_to_end(store):
    store.pause(NewPause(target=Target(queue="mail"), by="ann"))

    assert store.chores_due() == NONE._replace(put_back=True)
