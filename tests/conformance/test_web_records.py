"""The records of the HTTP API: audit, tokens, operations and idempotent requests."""

from __future__ import annotations

import msgspec
import pytest

from tests.conformance.helpers import CANNOT_BE_STORED, DAY, HOUR, UNSTORABLE, at_once, everything, ids, new_job, put
from treadle.clock import SECOND
from treadle.errors import RequestDiffers
from treadle.filters import Filter
from treadle.ids import new_id
from treadle.job import Status
from treadle.stores.rows import AuditRow, BulkChunk, Operation, Token
from treadle.stores.shared import manage


def later(clock, days):
    """Advance the clock. Ids contain the time too, so rows become old only if the clock moves."""
    clock.now += days * DAY


# Audit


def test_changes_are_listed_newest_first_and_page_by_page(store, clock):
    for n in range(5):
        store.audit(AuditRow(who="ada", action="retry", what=f"status:failed {n}", count=n, tenant="acme"))
    first = store.audits(3)

    assert [4, 3, 2] == [row.count for row in first]
    assert [1, 0] == [row.count for row in store.audits(3, first[-1].id)]
    assert [] == store.audits(3, store.audits(5)[-1].id)
    newest = first[0]
    assert ("ada", "retry", "status:failed 4", "acme") == (newest.who, newest.action, newest.what, newest.tenant)
    assert clock() == newest.at


# Tokens


def token(name="ci", **fields):
    return Token(**{"hash": f"hash-of-{name}", "name": name, "scopes": ("read", "enqueue"), **fields})


def test_a_token_is_found_by_its_hash(store, clock):
    one = token(tenant="acme", expires_at=clock() + HOUR)
    assert store.add_token(one)

    assert msgspec.structs.replace(one, created_at=clock()) == store.token(one.hash)
    assert None is store.token("another")


def test_tokens_are_listed_by_name(store):
    for name in ("b", "a", "c"):
        store.add_token(token(name))

    assert ["a", "b", "c"] == [each.name for each in store.tokens()]
    assert None is store.tokens()[0].expires_at


def test_a_name_is_given_once(store):
    assert store.add_token(token())
    assert not store.add_token(token(hash="another"))
    assert not store.add_token(token("other", hash="hash-of-ci"))

    assert ["hash-of-ci"] == [each.hash for each in store.tokens()]


def test_a_deleted_token_is_gone(store):
    store.add_token(token())

    assert store.drop_token("ci")
    assert not store.drop_token("ci")
    assert None is store.token("hash-of-ci")


# Operations


def begun(store, **fields):
    operation = Operation(
        **{"id": new_id(), "who": "ada", "action": "retry", "filter": "status:failed", "total": 9, **fields}
    )
    store.start_operation(operation)
    return operation.id


def test_an_operation_records_at_its_start_which_jobs_are_too_new(store):
    """If its process dies before the first batch, the process that resumes it must not include newer jobs."""
    position = new_id()

    assert position == store.operation(begun(store, position=position)).position


PENDING = Filter(statuses=(Status.PENDING,))


def test_a_batch_is_recorded_together_with_its_changes(store, clock):
    made, start = [put(store) for _ in range(5)], clock()
    id = begun(store, action="cancel", position=new_id())
    clock.advance(1)

    store.change_next("cancel", PENDING, None, 3, id)

    under_way = store.operation(id)
    assert (9, 3, 0, made[2].id) == (under_way.total, under_way.done, under_way.skipped, under_way.position)
    assert (start, clock(), None) == (under_way.started_at, under_way.updated_at, under_way.ended_at)
    clock.advance(1)
    assert BulkChunk(2, 0, None) == store.change_next("cancel", PENDING, None, 3, id)
    ended = store.operation(id)
    assert (5, 0, None, clock(), None) == (ended.done, ended.skipped, ended.position, ended.ended_at, ended.error)
    put(store)
    assert BulkChunk(0, 0, None) == store.change_next("cancel", PENDING, None, 3, id)


def test_an_operation_continues_at_its_recorded_position_in_any_process(store, open_store):
    """Even if two processes carry it out, each job is changed once."""
    for _ in range(8):
        put(store)
    start = new_id()
    id = begun(store, action="cancel", position=start)

    other = open_store()
    for handle in (store, other, store, other):
        handle.change_next("run_now", PENDING, start, 2, id)

    assert (8, 0) == (store.operation(id).done, store.operation(id).skipped)


def test_a_batch_that_fails_is_not_recorded(store, monkeypatch):
    put(store)
    id = begun(store, action="cancel", position=new_id())

    def fails(tx, id):
        raise ZeroDivisionError

    monkeypatch.setitem(manage.ACTIONS, "cancel", fails)
    with pytest.raises(ZeroDivisionError):
        store.change_next("cancel", PENDING, None, 3, id)

    assert (0, None) == (store.operation(id).done, store.operation(id).ended_at)


def test_only_one_process_resumes_an_operation_that_stands_still(store, open_store, clock):
    seen = store.operation(begun(store, position=new_id()))
    clock.advance(60)

    assert [False, True] == sorted(handle.resume_operation(seen) for handle in (store, open_store()))

    assert clock() == store.operation(seen.id).updated_at


def test_an_operation_that_failed_has_ended(store, clock):
    id = begun(store, position=new_id())
    position = store.operation(id).position

    store.fail_operation(id, "the disk is full")

    ended = store.operation(id)
    assert ("the disk is full", clock(), position) == (ended.error, ended.ended_at, ended.position)
    assert not store.resume_operation(ended)
    assert BulkChunk(0, 0, None) == store.change_next("cancel", PENDING, None, 3, id)


def test_the_newest_operations_are_listed(store):
    made = [begun(store) for _ in range(3)]

    assert [made[2], made[1]] == ids(store.operations(2))
    assert None is store.operation(new_id())
    assert None is store.operation("no id at all")


# Requests


def once(store, jobs, key="k", hash="h", tenant=""):
    return store.insert_once(tenant, key, hash, jobs)


def test_a_repeated_request_gets_the_jobs_of_the_first(store):
    first, again = [new_job(), new_job()], [new_job(), new_job()]

    stored, new = once(store, first)
    found, newer = once(store, again)

    assert (ids(first), True) == (ids(stored), new)
    assert (stored, False) == (found, newer)
    assert set(ids(first)) == set(ids(everything(store)))


def test_a_different_request_with_the_same_key_is_refused(store):
    once(store, [new_job()])

    with pytest.raises(RequestDiffers, match="another request used the key 'k'"):
        once(store, [new_job()], hash="another")

    assert 1 == len(everything(store))


def test_two_tenants_can_use_the_same_idempotency_key(store):
    for tenant in ("", "acme"):
        _, new = once(store, [new_job(tenant=tenant)], tenant=tenant, hash=tenant)
        assert new
    assert 2 == len(everything(store))


def test_a_request_whose_dedupe_key_is_in_use_records_the_holder(store):
    holder = put(store, dedupe="d")

    stored, new = once(store, [new_job(dedupe="d")])
    found, _ = once(store, [new_job(dedupe="d")])

    assert ([holder.id], True) == (ids(stored), new)
    assert [holder.id] == ids(found)


def test_a_request_whose_jobs_are_stored_already_finds_them(store):
    job = new_job()
    store.insert([job])

    stored, new = once(store, [job, new_job()])

    assert (job.id, True, 2) == (stored[0].id, new, len(everything(store)))


def test_a_repeated_request_whose_jobs_are_gone_returns_none(store):
    [job], _ = once(store, [new_job()])
    store.delete(job.id)

    assert ([], False) == once(store, [new_job()])


def test_a_request_that_cannot_be_stored_does_not_use_up_its_key(store):
    with pytest.raises(CANNOT_BE_STORED):
        once(store, [new_job(priority=UNSTORABLE)])

    _, new = once(store, [new_job()])
    assert new


def test_a_request_that_is_sent_twice_at_once_is_carried_out_once(open_store):
    handles = [open_store() for _ in range(4)]

    answers = at_once(*(lambda store=store: once(store, [new_job(), new_job()]) for store in handles))

    assert [False, False, False, True] == sorted(new for _, new in answers)
    assert 1 == len({tuple(ids(jobs)) for jobs, _ in answers})
    assert 2 == len(everything(handles[0]))


# Retention


def test_old_entries_are_pruned_and_others_stay(store, clock):
    store.audit(AuditRow(who="ada", action="retry", what="x"))
    store.add_token(token())
    operation = begun(store)
    once(store, [new_job()])

    later(clock, 6)
    store.prune((), 0, 10)
    assert (1, operation, False) == (len(store.audits(9)), store.operation(operation).id, once(store, [new_job()])[1])

    later(clock, 2)
    store.prune((), 0, 10)
    assert once(store, [new_job()])[1]  # after a week

    later(clock, 25)
    store.prune((), 0, 10)
    assert (1, []) == (len(store.audits(9)), store.operations(9))  # after a month

    later(clock, 340)
    store.prune((), 0, 10)
    assert ([], 1) == (store.audits(9), len(store.tokens()))  # after a year, except tokens


def test_pruning_jobs_leaves_new_entries(store, clock):
    store.audit(AuditRow(who="ada", action="retry", what="x"))
    clock.now += SECOND
    store.prune((), 0, 10)

    assert 1 == len(store.audits(9))
