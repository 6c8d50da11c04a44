"""Commands that only look, a secret that none may print, and jobs in every status, by hand."""

from __future__ import annotations

from typing import Any

import pytest
from click.testing import CliRunner

from windlass import Fail, Job, Windlass, clock
from windlass.stores.base import WorkerRow

LOOKING = [
    ["stats"],
    ["workers"],
    ["queues", "ls"],
    ["jobs", "ls"],
    ["jobs", "ls", "status:failed"],
    ["jobs", "show", "x"],
    ["jobs", "clone", "x"],
    ["jobs", "retry", "x"],
    ["jobs", "retry", "status:failed", "--yes"],
    ["jobs", "run-now", "x"],
    ["jobs", "cancel", "x"],
    ["jobs", "delete", "x", "--yes"],
    ["db", "status"],
    ["db", "prune"],
    ["doctor"],
]
looking = pytest.mark.parametrize("words", LOOKING, ids=" ".join)


def unseen(secret: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever a command prints, it is not that."""
    invoke = CliRunner.invoke

    def checked(*args: Any, **settings: Any) -> Any:
        result = invoke(*args, **settings)
        assert secret not in result.output + result.stderr + str(result.exception)
        return result

    monkeypatch.setattr(CliRunner, "invoke", checked)


def completed(wl: Windlass, type: str = "mail", result: Any = None, **options: Any) -> Job:
    return _ended(wl, type, lambda lease: lease.complete(result), **options)


def failed(wl: Windlass, type: str = "mail", error: str = "boom", **options: Any) -> Job:
    return _ended(wl, type, lambda lease: lease.fail(Fail(error)), **options)


def processing(wl: Windlass, type: str = "mail") -> Job:
    job = wl.enqueue(type)
    wl.claim(types=[type])
    return now(wl, job)


def now(wl: Windlass, job: Job) -> Job:
    """The job as it is now."""
    found = wl.get(job.id)
    assert found is not None
    return found


def enlist(wl: Windlass, name: str = "host-1", *types: str, seconds_ago: float = 0, **row: Any) -> WorkerRow:
    """A worker that was last seen a while ago."""
    earlier = Windlass(f"sqlite:///{wl.store.where}", clock=lambda: clock.now() - clock.seconds(seconds_ago))
    worker = WorkerRow(id=f"id-of-{name}", name=name, concurrency=10, types=types, **{"version": "0.1.0", **row})
    earlier.store.register(worker)
    earlier.close()
    return worker


def _ended(wl: Windlass, type: str, settle: Any, **options: Any) -> Job:
    job = wl.enqueue(type, **options)
    [lease] = wl.claim(types=[type])
    settle(lease)
    return now(wl, job)
