"""A process that forks: the child opens its own connections, and those of the parent keep working."""

from __future__ import annotations

import os

from tests.conformance.forking import fork_and, wait
from tests.conformance.helpers import everything, is_intact, put, settle_one, take
from treadle.job import Status
from treadle.outcome import COMPLETED


def test_a_forked_child_has_its_own_connections_and_both_can_write(store):
    put(store)
    before = store.database
    ready, go = os.pipe()

    def work():
        os.read(ready, 1)
        for _ in range(20):
            put(store)
        (claimed,) = take(store, 1)
        assert settle_one(store, claimed, COMPLETED)
        assert os.getpid() == store.database.pid != before.pid

    child = fork_and(work)
    os.write(go, b".")
    for _ in range(20):
        put(store)

    assert 0 == wait(child)
    assert before is store.database
    assert 41 == len(everything(store))
    assert is_intact(store)


def test_children_of_children_can_write_too(store):
    store.open()

    def work():
        put(store)
        assert 0 == wait(fork_and(lambda: put(store)))
        put(store)

    assert 0 == wait(fork_and(work))
    assert 3 == len(everything(store))


def test_a_job_enqueued_by_a_child_survives_when_its_parent_closes(store, open_store):
    """SQLite deletes its log when the last process closes the file, so it must know that the child has it open."""
    put(store)
    opened, go_on = os.pipe(), os.pipe()

    def work():
        put(store)
        os.write(opened[1], b".")
        os.read(go_on[0], 1)
        put(store)

    child = fork_and(work)
    os.read(opened[0], 1)
    store.close()
    os.write(go_on[1], b".")

    assert 0 == wait(child)
    assert 3 == len(everything(store))
    assert is_intact(store)


def test_the_parent_sees_changes_that_a_forked_child_makes(store):
    before = store.changes()

    wait(fork_and(lambda: put(store)))

    assert before != store.changes()


def test_closing_in_a_child_leaves_the_parents_connections_alone(store):
    put(store)

    assert 0 == wait(fork_and(store.close))
    assert Status.PENDING == put(store).status


def test_processes_that_open_a_new_database_at_once_all_succeed(open_store):
    store = open_store()
    start, go = os.pipe()

    def work():
        os.close(go)
        os.read(start, 1)
        put(store)

    children = [fork_and(work) for _ in range(8)]
    os.close(start)
    os.close(go)

    assert [0] * 8 == [wait(child) for child in children]
    assert 8 == len(everything(store))
