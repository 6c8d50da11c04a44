"""A batch counts its members exactly, and closes once whenever all of them have ended."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import psycopg
import pytest

from tests.conformance.helpers import (
    CANCELLED,
    COMPLETED,
    DAY,
    EVERY_OUTCOME,
    FAILED,
    HOUR,
    FakeClock,
    at_once,
    enlist,
    finish,
    ids,
    new_job,
    select,
    settle_one,
    take,
)
from treadle.batch import NewBatch, member
from treadle.errors import BatchExists, KeyHeld
from treadle.filters import Filter
from treadle.job import ClaimedJob, Job, Status
from treadle.outcome import Outcome, OutcomeKind

FIRST = (1 << 62, "", "")
"""Where the first page begins."""


def make(store: Any, n: int = 2, name: str = "b", then: str = "then", tenant: str = "", **options: Any) -> NewBatch:
    """Store a batch of `n` members."""
    jobs = tuple(member(new_job("load", tenant=tenant, **options), name, tenant) for _ in range(n))
    closings = [new_job(type, tenant=tenant) for type in (then, "alert")]
    new = NewBatch(name=name, tenant=tenant, jobs=jobs, then=closings[0], on_failure=closings[1])
    store.insert_batch(new)
    return new


def counts(store: Any, name: str = "b") -> tuple[int, int, int, int]:
    batch = store.batch("", name)
    return batch.added, batch.completed, batch.failed, batch.cancelled


def settle_match(store: Any) -> None:
    while store.match():
        pass


def closed(store: Any) -> list[str]:
    """What the closings of batches have enqueued, by type."""
    settle_match(store)
    return sorted(job.type for job in store.jobs(Filter(types=("then", "alert")), 100, None))


def end(store: Any, *outcomes: Outcome) -> list[ClaimedJob]:
    """Claim as many members as there are outcomes, and settle each by its own."""
    claimed = take(store, len(outcomes), types={"load": None})
    assert not store.settle(list(zip(claimed, outcomes, strict=True))).lost
    return claimed


# Storing


def test_members_are_stored_with_their_batch(store: Any) -> None:
    new = make(store, 3)
    batch = store.batch("", "b")
    assert (batch.added, batch.ended, batch.is_open, batch.closings) == (3, 0, True, 0)
    assert (batch.then, batch.on_failure, batch.last_job) == ("then", "alert", None)
    assert sorted(ids(store.jobs(Filter(batches=("b",)), 10, None))) == sorted(ids(new.jobs))
    assert {job.batch for job in store.jobs(Filter(), 10, None)} == {"b"}
    assert str(batch) == "0 of 3"


def test_a_name_that_is_taken_is_refused_and_nothing_is_stored(store: Any) -> None:
    make(store, 1)
    with pytest.raises(BatchExists, match="another name"):
        make(store, 2)
    assert counts(store) == (1, 0, 0, 0)
    assert len(store.jobs(Filter(), 10, None)) == 1


def test_each_tenant_has_its_own_names(store: Any) -> None:
    make(store, 1)
    make(store, 2, tenant="acme")
    assert store.batch("acme", "b").added == 2
    assert store.batch("", "b").added == 1
    assert store.batch("other", "b") is None
    assert [batch.tenant for batch in store.batches("acme", FIRST, 10)] == ["acme"]
    assert {batch.tenant for batch in store.batches(None, FIRST, 10)} == {"", "acme"}


def test_a_member_that_cannot_be_stored_leaves_no_batch(store: Any) -> None:
    store.insert([new_job(dedupe="k")])
    with pytest.raises(KeyHeld):
        make(store, 1, dedupe="k", dedupe_rule='{"mode":"reject"}')
    assert store.batch("", "b") is None


def test_a_job_that_holds_the_key_of_a_member_is_no_member(store: Any) -> None:
    store.insert([new_job(dedupe="k")])
    make(store, 1, dedupe="k")
    assert counts(store) == (0, 0, 0, 0)
    assert closed(store) == ["then"]


def test_batches_are_listed_newest_first_in_pages(store: Any, clock: FakeClock) -> None:
    for n in range(5):
        make(store, n, name=f"b{n}")
        clock.advance(n % 2)  # some at the same time
    found = [batch.name for batch in store.batches(None, FIRST, 10)]
    assert len(found) == 5
    paged: list[str] = []
    at = FIRST
    while page := store.batches(None, at, 2):
        paged += [batch.name for batch in page]
        last = page[-1]
        at = (int(last.created_at.timestamp() * 1_000_000), last.tenant, last.name)
    assert paged == found


# Counting


def test_an_empty_batch_closes_at_once(store: Any) -> None:
    make(store, 0)
    assert store.batch("", "b").progress == 1.0
    assert closed(store) == ["then"]
    assert not store.batch("", "b").is_open


def test_all_members_complete(store: Any) -> None:
    make(store, 3)
    end(store, COMPLETED, COMPLETED)
    assert closed(store) == []
    assert store.batch("", "b").is_open
    end(store, COMPLETED)
    assert closed(store) == ["then"]
    batch = store.batch("", "b")
    assert (counts(store), batch.closings, batch.is_open) == ((3, 3, 0, 0), 1, False)
    assert store.get(batch.last_job).type == "then"


@pytest.mark.parametrize("other", [FAILED, CANCELLED])
def test_a_member_that_has_not_completed(store: Any, other: Outcome) -> None:
    make(store, 2)
    end(store, COMPLETED, other)
    assert closed(store) == ["alert"]


def test_only_final_outcomes_count(store: Any) -> None:
    make(store, len(EVERY_OUTCOME))
    end(store, *EVERY_OUTCOME)
    assert counts(store) == (6, 1, 1, 1)
    assert str(store.batch("", "b")) == "3 of 6; 1 failed; 1 cancelled"


def ways_to_end() -> dict[str, Callable[[Any, Job], object]]:
    return {
        "cancel": lambda store, job: store.cancel(job.id),
        "complete": lambda store, job: store.complete([job.id]),
        "delete": lambda store, job: store.delete(job.id),
        "bulk": lambda store, job: store.change_next("cancel", Filter(batches=("b",)), None, 10),
    }


@pytest.mark.parametrize(
    ("way", "expected", "enqueued"),
    [
        ("cancel", (1, 0, 0, 1), "alert"),
        ("complete", (1, 1, 0, 0), "then"),
        ("delete", (0, 0, 0, 0), "then"),
        ("bulk", (1, 0, 0, 1), "alert"),
    ],
)
def test_a_member_that_ends_by_hand(store: Any, way: str, expected: Sequence[int], enqueued: str) -> None:
    (job,) = make(store, 1).jobs
    ways_to_end()[way](store, store.get(job.id))
    assert counts(store) == expected
    assert closed(store) == [enqueued]


def test_a_member_that_expires(store: Any, clock: FakeClock) -> None:
    make(store, 2, start_within=HOUR)
    clock.advance(3601)
    assert [c.type for c in take(store)] == ["alert"]
    assert counts(store) == (2, 0, 0, 2)
    assert closed(store) == ["alert"]


def test_a_member_that_is_replaced(store: Any) -> None:
    make(store, 1, dedupe="k", dedupe_rule='{"mode":"replace"}')
    store.insert([new_job("load", dedupe="k", dedupe_rule='{"mode":"replace"}')])
    assert counts(store) == (1, 0, 0, 1)
    assert closed(store) == ["alert"]


def test_a_blocked_member_that_is_cancelled_with_its_parent(store: Any) -> None:
    parent = finish(store, FAILED)
    make(store, 1, after=(parent.id,), if_failed="cancel")
    assert closed(store) == ["alert"]
    assert counts(store) == (1, 0, 0, 1)


def test_a_member_whose_worker_is_lost(store: Any) -> None:
    make(store, 1, max_attempts=1)
    take(store, worker=enlist(store), types={"load": None})
    store.declare_dead("w1", "its process is gone")
    assert closed(store) == ["alert"]
    assert counts(store) == (1, 0, 1, 0)


def test_a_failed_member_that_is_completed_by_hand(store: Any) -> None:
    make(store, 1)
    (claimed,) = end(store, FAILED)
    assert store.complete([claimed.id]) == 1
    assert counts(store) == (1, 1, 0, 0)
    assert closed(store) == ["then"]


def test_a_settle_that_is_repeated_counts_once(store: Any) -> None:
    make(store, 2)
    claimed, _ = take(store, types={"load": None})
    for _ in range(2):
        assert settle_one(store, claimed, COMPLETED)
    assert counts(store) == (2, 1, 0, 0)


def test_what_is_pruned_still_counts(store: Any, clock: FakeClock) -> None:
    make(store, 2)
    end(store, COMPLETED)
    clock.advance(8 * 86_400)
    assert store.prune([Status.COMPLETED], 7 * DAY, 100) == 1
    assert counts(store) == (2, 1, 0, 0)
    end(store, COMPLETED)
    assert closed(store) == ["then"]


# Adding from inside


def test_a_member_that_another_adds_keeps_the_batch_open(store: Any) -> None:
    make(store, 1)
    (claimed,) = take(store, types={"load": None})
    added = member(new_job("load"), "b", "", claimed.id)
    assert settle_one(store, claimed, Outcome(OutcomeKind.COMPLETED, follow_ups=(added,)))
    assert closed(store) == []
    assert counts(store) == (2, 1, 0, 0)
    assert store.get(added.id).origin == claimed.id
    end(store, COMPLETED)
    assert closed(store) == ["then"]


def test_a_batch_that_a_handler_makes_is_stored_with_its_completion(store: Any) -> None:
    claimed = take_one(store)
    new = NewBatch(name="b", then=new_job("then"))
    jobs = (member(new_job("load"), "b", ""),)
    assert settle_one(store, claimed, Outcome(OutcomeKind.COMPLETED, follow_ups=jobs, batches=(new,)))
    assert counts(store) == (1, 0, 0, 0)
    end(store, COMPLETED)
    assert closed(store) == ["then"]


def test_a_handler_whose_batch_exists_by_now_adds_to_it(store: Any) -> None:
    """It cannot be told: it has returned."""
    claimed = take_one(store)
    make(store, 0)
    assert closed(store) == ["then"]
    jobs = (member(new_job("load"), "b", ""),)
    made = Outcome(OutcomeKind.COMPLETED, follow_ups=jobs, batches=(NewBatch(name="b"),))
    assert settle_one(store, claimed, made)
    assert counts(store) == (1, 0, 0, 0)


def take_one(store: Any) -> ClaimedJob:
    store.insert([new_job("first")])
    (claimed,) = take(store, types={"first": None})
    return claimed


# Closing


def test_a_retried_member_opens_its_batch_and_it_closes_again(store: Any) -> None:
    make(store, 2)
    _, failed = end(store, COMPLETED, FAILED)
    assert closed(store) == ["alert"]
    store.retry(failed.id)
    batch = store.batch("", "b")
    assert (batch.is_open, batch.closings, counts(store)) == (True, 1, (2, 1, 0, 0))
    assert closed(store) == ["alert"]
    end(store, COMPLETED)
    assert closed(store) == ["alert", "then"]
    batch = store.batch("", "b")
    assert (batch.is_open, batch.closings, counts(store)) == (False, 2, (2, 2, 0, 0))
    assert store.get(batch.last_job).type == "then"


def test_a_member_that_is_retried_before_the_batch_is_closed(store: Any) -> None:
    make(store, 1)
    (claimed,) = end(store, FAILED)
    store.retry(claimed.id)
    assert closed(store) == []
    end(store, COMPLETED)
    assert closed(store) == ["then"]
    assert store.batch("", "b").closings == 1


def test_members_that_are_retried_in_bulk(store: Any) -> None:
    for name in ("b", "c"):
        make(store, 2, name=name)
    end(store, *[FAILED] * 4)
    assert closed(store) == ["alert", "alert"]
    assert store.change_next("retry", Filter(statuses=("failed",)), None, 10).done == 4
    assert [store.batch("", name).is_open for name in ("b", "c")] == [True, True]
    end(store, *[COMPLETED] * 4)
    assert closed(store) == ["alert", "alert", "then", "then"]


def test_a_batch_without_jobs_to_enqueue_closes_too(store: Any) -> None:
    store.insert_batch(NewBatch(name="b", jobs=(member(new_job("load"), "b", ""),)))
    end(store, FAILED)
    settle_match(store)
    batch = store.batch("", "b")
    assert (batch.is_open, batch.closings, batch.last_job) == (False, 1, None)


def test_what_a_closing_enqueues_has_its_options(store: Any, clock: FakeClock) -> None:
    then = new_job("then", queue="reports", priority=7, delay=HOUR, payload='{"n":7}', subject="s")
    store.insert_batch(NewBatch(name="b", then=then))
    clock.advance(60)
    assert closed(store) == ["then"]
    (job,) = store.jobs(Filter(types=("then",)), 1, None)
    assert (job.queue, job.priority, job.payload, job.subject) == ("reports", 7, {"n": 7}, "s")
    assert (job.run_at - job.created_at).total_seconds() == 3600
    assert (job.id != then.id, job.batch) == (True, None)


def test_what_a_closing_enqueues_respects_its_dedupe_key(store: Any) -> None:
    holder = store.insert([new_job("then", dedupe="k")])[0]
    store.insert_batch(NewBatch(name="b", then=new_job("then", dedupe="k")))
    assert closed(store) == ["then"]
    assert store.batch("", "b").last_job == holder.id


@pytest.mark.only("postgresql")
def test_a_key_that_a_user_has_locked_does_not_stop_claims(store: Any, clock: FakeClock) -> None:
    store.insert_batch(NewBatch(name="b", then=new_job("then", dedupe="k")))
    other = store.insert([new_job("other")])[0]
    row = "INSERT INTO treadle.dedupe (tenant, key, id) VALUES ('', 'k', gen_random_uuid())"
    with psycopg.connect(store.url) as theirs:
        theirs.execute(row)
        assert ids(take(store)) == [other.id]
        assert store.batch("", "b").is_open
        theirs.rollback()
    assert take(store) == []
    clock.advance(1)
    assert [c.type for c in take(store)] == ["then"]


def test_a_claim_closes_a_batch_and_takes_what_that_enqueues(store: Any) -> None:
    make(store, 1)
    end(store, COMPLETED)
    assert [c.type for c in take(store)] == ["then"]


def test_many_counts_are_added_up_in_parts(store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("treadle.stores.shared.closing.MOST_COUNTS", 4)
    jobs = make(store, 20).jobs
    for job in jobs:
        store.cancel(job.id)
    assert closed(store) == ["alert"]
    assert counts(store) == (20, 0, 0, 20)
    assert len(select(store, "SELECT 1 FROM treadle.batch_counts")) == 1


# Races


def test_who_has_settled_the_last_member_is_gone_before_the_batch_is_closed(store: Any, open_store: Any) -> None:
    other = open_store()
    make(other, 1)
    end(other, COMPLETED)
    other.close()
    assert [c.type for c in take(store)] == ["then"]
    assert store.batch("", "b").closings == 1


def test_two_handles_settle_the_last_two_members_at_once(store: Any, open_store: Any) -> None:
    other = open_store()
    for n in range(10):
        make(store, 2, name=f"b{n}")
        first, second = take(store, 2, types={"load": None})
        answers = at_once(
            lambda one=first: settle_one(store, one, COMPLETED),
            lambda one=second: settle_one(other, one, COMPLETED),
        )
        assert answers == [True, True]
        at_once(store.match, other.match)
        settle_match(store)
        assert store.batch("", f"b{n}").closings == 1
    assert closed(store) == ["then"] * 10


def test_a_retry_and_the_closing_at_once(store: Any, open_store: Any) -> None:
    """Whichever is first: when the retried member has ended, the batch closes once more."""
    other = open_store()
    for n in range(10):
        make(store, 1, name=f"b{n}", then=f"then{n}")
        (claimed,) = end(store, FAILED)
        at_once(store.match, lambda id=claimed.id: other.retry(id))
        end(store, COMPLETED)
        settle_match(store)
        batch = store.batch("", f"b{n}")
        assert (batch.added, batch.completed, batch.failed, batch.is_open) == (1, 1, 0, False)
        assert len(store.jobs(Filter(types=(f"then{n}",)), 10, None)) == 1


@pytest.mark.only("postgresql")
def test_a_settle_waits_for_no_lock_of_the_batch(store: Any) -> None:
    make(store, 2)
    with psycopg.connect(store.url) as theirs:
        theirs.execute("SELECT 1 FROM treadle.batches FOR UPDATE")
        end(store, COMPLETED)
        assert counts(store) == (2, 1, 0, 0)
        end(store, COMPLETED)
        assert store.match() == 0
        assert take(store) == []
    assert closed(store) == ["then"]


@pytest.mark.only("postgresql")
def test_a_member_that_ends_in_a_transaction_that_stays_open(store: Any, open_store: Any) -> None:
    make(store, 2)
    first, second = take(store, 2, types={"load": None})
    with store.transaction(first, lambda: COMPLETED):
        assert settle_one(open_store(), second, COMPLETED)
        assert closed(store) == []
    assert closed(store) == ["then"]


# Prune


def test_a_closed_batch_is_pruned_when_its_members_are_gone(store: Any, clock: FakeClock) -> None:
    make(store, 2)
    end(store, COMPLETED, COMPLETED)
    make(store, 1, name="failed")
    end(store, FAILED)
    make(store, 1, name="open")
    settle_match(store)
    for name, days in (("young", 5), ("now", 5)):
        clock.advance(days * 86_400)
        make(store, 0, name=name)
        settle_match(store)
        assert store.batch("", name) is not None
    clock.advance(3 * 86_400)
    for _ in range(3):
        store.prune([Status.COMPLETED], 7 * DAY, 100)
    assert {batch.name for batch in store.batches(None, FIRST, 10)} == {"failed", "open", "now"}
    rows = select(store, "SELECT DISTINCT batch FROM treadle.batch_counts")
    assert {row[0] for row in rows} == {"failed", "open"}


def test_a_member_without_its_batch_ends_as_any_job(store: Any) -> None:
    """Its batch was deleted by hand."""
    store.insert([member(new_job("load"), "gone", "")])
    end(store, COMPLETED)
    settle_match(store)
    assert select(store, "SELECT 1 FROM treadle.batch_counts") == []
    assert store.batch("", "gone") is None
