"""Commands that need a database, a secret that none may print, and jobs in every status."""

from __future__ import annotations

from typing import Any

import pytest
from click.testing import CliRunner

from treadle import Fail, Job, Treadle, clock
from treadle.stores.base import WorkerRow

NEED_A_DATABASE = [
    ["stats"],
    ["workers"],
    ["queues", "ls"],
    ["limits", "ls"],
    ["limits", "set", "x", "--concurrency", "1"],
    ["limits", "unset", "x"],
    ["jobs", "ls"],
    ["jobs", "ls", "status:failed"],
    ["jobs", "show", "x"],
    ["jobs", "logs", "x"],
    ["jobs", "tree", "x"],
    ["jobs", "clone", "x"],
    ["jobs", "retry", "x"],
    ["jobs", "retry", "status:failed", "--yes"],
    ["jobs", "run-now", "x"],
    ["jobs", "reschedule", "x", "--priority", "1"],
    ["jobs", "cancel", "x"],
    ["jobs", "delete", "x", "--yes"],
    ["schedules", "ls"],
    ["schedules", "show", "x"],
    ["schedules", "pause", "x"],
    ["schedules", "resume", "x"],
    ["schedules", "run", "x"],
    ["schedules", "backfill", "x", "1h", "0"],
    ["schedules", "delete", "x", "--yes"],
    ["db", "status"],
    ["db", "prune"],
    ["doctor"],
]
needs_database = pytest.mark.parametrize("words", NEED_A_DATABASE, ids=" ".join)


def unseen(secret: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail if a command prints the secret."""
    invoke = CliRunner.invoke

    def checked(*args: Any, **settings: Any) -> Any:
        result = invoke(*args, **settings)
        assert secret not in result.output + result.stderr + str(result.exception)
        return result

    monkeypatch.setattr(CliRunner, "invoke", checked)


def completed(td: Treadle, type: str = "mail", result: Any = None, **options: Any) -> Job:
    return _ended(td, type, lambda lease: lease.complete(result), **options)


def failed(td: Treadle, type: str = "mail", error: str = "boom", **options: Any) -> Job:
    return _ended(td, type, lambda lease: lease.fail(Fail(error)), **options)


def processing(td: Treadle, type: str = "mail") -> Job:
    job = td.enqueue(type)
    td.claim(types=[type])
    return now(td, job)


def now(td: Treadle, job: Job) -> Job:
    """The job as it is now."""
    found = td.get(job.id)
    assert found is not None
    return found


def enlist(td: Treadle, name: str = "host-1", *types: str, seconds_ago: float = 0, **row: Any) -> WorkerRow:
    """A worker that was last seen a while ago."""
    earlier = Treadle(f"sqlite:///{td.store.where}", clock=lambda: clock.now() - clock.seconds(seconds_ago))
    worker = WorkerRow(id=f"{name}-of_the_tests", name=name, concurrency=10, types=types, **{"version": "0.1.0", **row})
    earlier.store.register(worker)
    earlier.close()
    return worker


def _ended(td: Treadle, type: str, settle: Any, **options: Any) -> Job:
    job = td.enqueue(type, **options)
    [lease] = td.claim(types=[type])
    settle(lease)
    return now(td, job)
