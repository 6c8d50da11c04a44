"""Calls and what becomes of them, as the tests ask for it."""

from __future__ import annotations

from contextlib import closing
from typing import Any

from examples.call_pipeline import service, sound, storage
from examples.call_pipeline.calls import upload
from examples.call_pipeline.database import td
from tests import stores
from treadle import Job
from treadle.testing import ManualClock

SAID = ["hello", "problem", "refund", "great", "thanks", "thanks", "goodbye"]
STAGES = ("extract_audio", "transcribe_start", "transcribe_poll", "analyze")
EXPECTED_BACKOFF = [min(600, 30 * 2**attempts) for attempts in range(7)]
"""`Math.min(600, 30 * Math.pow(2, job.attempts))`, of 0, 1, 2 … attempts before."""


class Service:
    """The real stand-in, over real HTTP. Operations take as long as a test wants."""

    def __init__(self) -> None:
        service.operations.clear()

    def finish(self) -> None:
        for id, (_, words) in service.operations.items():
            service.operations[id] = (0, words)


def queue_rows(url: str, call: str = "c1") -> list[dict[str, Any]]:
    """What `processing_jobs` says of a call, by the application's own names, oldest first."""
    with closing(stores.connect(url)) as connection:
        found = connection.execute(f"SELECT * FROM processing_jobs WHERE call_id = '{call}' ORDER BY id")
        names = [column[0] for column in found.description]
        return [dict(zip(names, row, strict=True)) for row in found.fetchall()]


def artifacts(url: str, call: str = "c1") -> dict[str, str]:
    rows = stores.rows(url, f"SELECT kind, path FROM artifacts WHERE call_id = '{call}'")
    assert len(rows) == len(dict(rows))
    return dict(rows)


def in_storage(call: str = "c1", org: str = "acme") -> set[str]:
    folder = storage.path(org, call, "")
    return {path.name for path in folder.iterdir()} if folder.exists() else set()


def upload_call(call: str = "c1", org: str = "acme", words: list[str] = SAID) -> Job:
    return upload(org, call, f"call {call}", sound.record(words))


def job_of(stage: str, call: str = "c1") -> Job:
    [job] = td.jobs(type=stage, subject=call, tenant="acme")
    return job


def seconds_until_due(job: Job, clock: ManualClock) -> float:
    return round((job.run_at - clock.now()).total_seconds(), 3)


def fail_with(error: Exception) -> None:
    raise error
