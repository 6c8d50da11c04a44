"""Verbs of `Treadle` that take the id of a job say so if they get something else. The check is in front of all stores,
so that one database shows it."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from treadle import Treadle
from treadle.errors import JobNotFound

VERBS = ["get", "attempts", "logs", "lineage", "steps", "waits", "why", "retry", "cancel", "delete", "run_now", "clone"]
PASS_THE_ID = r"an id is a text: pass job\.id"


@pytest.fixture
def td(tmp_path: Path) -> Iterator[Treadle]:
    app = Treadle(f"sqlite:///{tmp_path}/jobs.db")
    yield app
    app.close()


@pytest.mark.parametrize("verb", [*VERBS, "reschedule"])
def test_a_job_in_place_of_its_id_is_an_error_that_names_the_way_out(td: Treadle, verb: str) -> None:
    job = td.enqueue("mail")
    changes = {"delay": 5} if verb == "reschedule" else {}

    for wrong in (job, uuid.UUID(job.id), None):
        with pytest.raises(JobNotFound, match=PASS_THE_ID):
            getattr(td, verb)(wrong, **changes)
        with pytest.raises(JobNotFound, match=PASS_THE_ID):
            asyncio.run(getattr(td, f"a{verb}")(wrong, **changes))
    assert td.get(job.id) == job


def test_the_result_is_taken_by_a_job_as_well_as_by_its_id(td: Treadle) -> None:
    @td.job
    def double(n: int) -> int:
        return 2 * n

    job = double.enqueue(21)
    td.tick()

    wrong: Any = uuid.UUID(job.id)
    assert td.result(job) == td.result(job.id) == asyncio.run(td.aresult(job)) == 42
    with pytest.raises(JobNotFound, match=PASS_THE_ID):
        td.result(wrong)


def test_a_text_that_is_no_id_finds_nothing(td: Treadle) -> None:
    assert td.get("7") is None
    assert td.attempts("7") == td.steps("7") == td.waits("7") == []
