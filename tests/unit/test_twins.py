"""Async twins made by one helper."""

from __future__ import annotations

import asyncio
import inspect
import threading
from pathlib import Path

from treadle import Job, Treadle


class Mine(Treadle):
    """Records the thread in which `get` was called."""

    looked_in: threading.Thread | None = None

    def get(self, id: str) -> Job | None:
        self.looked_in = threading.current_thread()
        return super().get(id)


def test_a_twin_runs_the_method_of_the_subclass_in_another_thread(tmp_path: Path) -> None:
    td = Mine(f"sqlite:///{tmp_path}/jobs.db")
    job = td.enqueue("hello")

    assert asyncio.run(td.aget(job.id)) == job
    assert td.looked_in is not None
    assert td.looked_in is not threading.current_thread()


def test_a_twin_looks_like_a_method_that_was_written_by_hand(tmp_path: Path) -> None:
    td = Treadle(f"sqlite:///{tmp_path}/jobs.db")

    assert inspect.iscoroutinefunction(td.ajobs)
    assert inspect.signature(td.ajobs) == inspect.signature(td.jobs)
    assert (td.ajobs.__name__, td.ajobs.__qualname__) == ("ajobs", "Management.ajobs")
