"""Dedupe modes as the library takes them: on a type, for one enqueue, by name, in bulk, and in a handler."""

from __future__ import annotations

import pytest

from treadle import Dedupe, KeyHeld, Treadle
from treadle.errors import BadOption
from treadle.job import Status
from treadle.reasons import ReasonCode
from treadle.testing import drain


@pytest.fixture
def td(open_store):
    store = open_store()
    app = Treadle(store.url)
    app._use(store)
    return app


@pytest.fixture
def index(td):
    @td.job
    def index(doc: str, text: str = "") -> None: ...

    return index


def pending(td):
    return sorted(job.id for job in td.jobs("status:pending"))


def test_an_enqueue_replaces_the_job_that_waits(td, index):
    first = index.using(dedupe=Dedupe("a", mode="replace")).enqueue(doc="a", text="old")
    second = index.using(dedupe=Dedupe("a", mode="replace")).enqueue(doc="a", text="new")

    assert ("replace", {"doc": "a", "text": "new"}) == (second.dedupe_mode, second.payload)
    assert f"replaced by {second.id}" == td.get(first.id).error
    assert f"replaced by {second.id}" in str(td.why(first.id))


def test_a_type_has_a_mode_and_one_enqueue_another(td):
    @td.job(dedupe=Dedupe(lambda doc: doc, mode="replace"))
    def index(doc: str) -> None: ...

    first, second, other = index.enqueue(doc="a"), index.enqueue(doc="a"), index.enqueue(doc="b")
    with pytest.raises(KeyHeld) as held:
        index.using(dedupe=Dedupe("a", mode="reject")).enqueue(doc="a")
    free = index.using(dedupe=None).enqueue(doc="a")

    assert Status.CANCELLED is td.get(first.id).status
    assert second.id == held.value.holder
    assert sorted([second.id, other.id, free.id]) == pending(td)
    assert (None, "replace") == (free.dedupe_mode, other.dedupe_mode)


def test_a_type_can_have_one_key_for_all_jobs_if_its_mode_says_what_that_means(td):
    @td.job(dedupe=Dedupe("sitemap", mode="throttle", period=3600))
    def sitemap() -> None: ...

    with pytest.raises(BadOption, match="with one key for all jobs there is only one job"):
        td.job(type="other", dedupe=Dedupe("sitemap"))(lambda: None)
    assert sitemap.enqueue() == sitemap.enqueue()


def test_a_producer_without_the_handler_has_all_modes(td):
    first = td.enqueue("index", {"n": 1}, dedupe=Dedupe(True, mode="replace"))
    second = td.enqueue("index", {"n": 1}, dedupe=Dedupe(True, mode="replace"))
    third = td.enqueue("index", {"n": 2}, dedupe=Dedupe(True, mode="replace"))

    assert Status.CANCELLED is td.get(first.id).status
    assert sorted([second.id, third.id]) == pending(td)


def test_the_last_request_of_a_bulk_wins(td, index):
    latest = index.using(dedupe=Dedupe("a", mode="replace"))
    jobs = td.enqueue_many([latest.request(doc="a", text=str(n)) for n in range(3)])

    assert ["cancelled", "cancelled", "pending"] == [job.status for job in jobs]
    assert [jobs[2].id] == pending(td)


def test_a_debounce_decides_when_its_job_is_due(td, index):
    quiet = index.using(dedupe=Dedupe("a", mode="debounce", wait=5, at_most=60))
    job = quiet.enqueue(doc="a")

    assert 5 == (job.run_at - job.created_at).total_seconds()
    assert "it is not due yet: debounced until" in str(td.why(job.id))
    with pytest.raises(BadOption, match="delay=1: a debounce decides when the job is due"):
        quiet.using(delay=1).enqueue(doc="a")
    assert [job.id] == pending(td)


def test_a_clone_follows_the_mode_of_its_type(td):
    @td.job(dedupe=Dedupe(True, mode="replace"))
    def index(doc: str) -> None: ...

    first = index.enqueue(doc="a")
    second = td.clone(first.id)

    assert f"replaced by {second.id}" == td.get(first.id).error


def test_a_follow_up_replaces_when_its_handler_completes(td, index):
    @td.job
    def save(doc: str) -> None:
        index.using(dedupe=Dedupe("a", mode="replace")).enqueue(doc=doc)

    first = index.using(delay=3600, dedupe="a").enqueue(doc="a")
    save.enqueue(doc="b")
    drain(td)

    [replaced] = td.jobs("status:cancelled")
    [ran] = td.jobs("type:index status:completed")
    assert (first.id, f"replaced by {ran.id}", "b") == (replaced.id, replaced.error, ran.payload["doc"])


def test_a_follow_up_cannot_be_rejected(td, index):
    """It is stored after the handler has returned. The handler learns that at once."""

    @td.job(max_attempts=1)
    def save() -> None:
        index.using(dedupe=Dedupe("a", mode="reject")).enqueue(doc="a")

    job = save.enqueue()
    drain(td, raising=False)

    assert "mode='reject': a follow-up is stored when its handler completes" in (td.get(job.id).error or "")
    assert 1 == len(td.jobs())


def test_why_names_the_job_that_a_successor_waits_for(td, index):
    latest = index.using(dedupe=Dedupe("a", mode="replace"))
    first = latest.enqueue(doc="a")
    [lease] = td.claim(1)
    second = latest.enqueue(doc="a")

    reason = td.why(second.id).reasons[0]

    assert second.waits_for_key
    assert (ReasonCode.KEY_HELD, {"holder": first.id}) == (reason.code, reason.data)
    assert f"it waits until job {first.id} has ended" in reason.text
    lease.complete()
    assert ReasonCode.KEY_HELD not in {reason.code for reason in td.why(second.id).reasons}
    assert not td.get(second.id).waits_for_key


def test_a_worker_runs_the_newest_version_last(td):
    seen = []

    @td.job
    def index(text: str) -> None:
        seen.append(text)
        if text == "first":
            for newer in ("second", "third"):
                again = index.using(dedupe=Dedupe("a", mode="replace"), detached=True)
                again.enqueue(text=newer)

    index.using(dedupe=Dedupe("a", mode="replace")).enqueue(text="first")
    drain(td)

    assert ["first", "third"] == seen
    assert {"completed": 2, "cancelled": 1} == {row["status"]: row["count"] for row in td.counts()}
