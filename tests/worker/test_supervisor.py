"""What a supervisor survives. Its processes are tested in `tests/process`."""

from __future__ import annotations

import time

import pytest

from tests import stores
from tests.conformance.helpers import enlist, take
from treadle import Status, Treadle
from treadle.worker import supervisor
from treadle.worker.inflight import CellOwner
from treadle.worker.supervisor import DeadWorker, ProcessSlot

LATER = "its jobs will be returned later"
PROTECT_IN_SQLITE = "CREATE TRIGGER protect BEFORE DELETE ON treadle_workers BEGIN SELECT RAISE(ABORT, 'planted'); END"
PROTECT_IN_POSTGRES = """
CREATE FUNCTION treadle.protect() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'planted'; END $$;
CREATE TRIGGER protect BEFORE DELETE ON treadle.workers FOR EACH ROW EXECUTE FUNCTION treadle.protect()
"""
"""Someone's own trigger, for which the death of a worker cannot be written."""


def test_the_jobs_of_a_dead_worker_are_returned_as_soon_as_the_store_accepts_it(
    td: Treadle, treadle_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    job = td.enqueue("work")
    worker = enlist(td.store)
    [claimed] = take(td.store, worker=worker)
    dead = DeadWorker(CellOwner(worker, td.store.url), "was killed by SIGKILL", frozenset([claimed.number]), True)
    on_postgres = stores.is_postgres(treadle_url)
    stores.rows(treadle_url, PROTECT_IN_POSTGRES if on_postgres else PROTECT_IN_SQLITE)

    assert not dead.declare_dead()
    assert LATER in caplog.text
    stores.rows(treadle_url, "DROP FUNCTION treadle.protect CASCADE" if on_postgres else "DROP TRIGGER protect")
    assert dead.declare_dead()

    assert "was killed by SIGKILL; 1 job returned" in caplog.text
    assert td.jobs().jobs[0].status is Status.PENDING
    assert [attempt.error for attempt in td.attempts(job.id)] == ["its worker was killed by SIGKILL"]


def test_any_other_error_also_means_that_the_jobs_are_returned_later(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A supervisor that ended would leave its workers alone."""
    dead = DeadWorker(CellOwner("w", "nowhere://"), "was killed by SIGKILL", frozenset(), True)
    assert not dead.declare_dead()

    def broken(url: str) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(supervisor, "open_store", broken)
    assert not dead.declare_dead()
    assert caplog.text.count(LATER) == 2
    assert "ZeroDivisionError()" in caplog.text


def test_a_worker_that_cannot_be_started_is_tried_again_later(caplog: pytest.LogCaptureFixture) -> None:
    slot = ProcessSlot(["/nowhere/python"], 1)
    slot.start(has_predecessor=True)
    assert slot.process is None
    assert slot.start_at is not None
    assert slot.start_at > time.monotonic()
    assert "cannot be started now" in caplog.text
    slot.inflight.close()
