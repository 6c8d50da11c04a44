"""Your own app on a database that is gone after the test, with a clock that you move."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Generator
from contextlib import contextmanager
from datetime import datetime
from pathlib import PurePath
from urllib.parse import urlsplit

from treadle import clock as time
from treadle.app import Treadle
from treadle.errors import BadOption
from treadle.filters import EVERYTHING
from treadle.settings import database_url
from treadle.stores import open_store
from treadle.stores.base import Store
from treadle.testing.temporary_store import TemporaryStore


class ManualClock:
    """A clock that starts at the real time and does not move until you move it: `Treadle(url, clock=ManualClock())`.
    It decides when jobs are due. A handler's `timeout` is still real time."""

    def __init__(self) -> None:
        self._now = time.now()

    def __call__(self) -> int:
        """Microseconds since 1970, as stores count."""
        return self._now

    def now(self) -> datetime:
        """The time, as in a job's `run_at` and `created_at`."""
        return time.to_datetime(self._now)

    def advance(self, seconds: time.Duration) -> datetime:
        """Let time pass at once. Returns the new time."""
        step = time.seconds(seconds)
        if step < 0:
            raise BadOption("advance", seconds, "time goes forward: 0 seconds or more")
        self._now += step
        return self.now()

    def __repr__(self) -> str:
        return f"<ManualClock {self.now().isoformat()}>"


@contextmanager
def temporary(td: Treadle, *, clock: ManualClock | None = None, url: str | None = None) -> Generator[ManualClock]:
    """Inside the block, `td` keeps its jobs in a temporary SQLite file, and its time is that of the clock it yields.

    `clock`: one of yours, to share it between apps. `url`: a database of yours, which is not removed. All jobs in it
    are deleted when the block begins, so its name, or that of its file, must contain `test`. A file without jobs may
    have any name.
    """
    clock = clock or ManualClock()
    before = td.store
    with tempfile.TemporaryDirectory(prefix="treadle-", ignore_cleanup_errors=True) as folder:
        store = _open(url or f"sqlite:///{folder}/treadle-test.db", clock)
        td._use(store)
        try:
            yield clock
        finally:
            td._use(before)
            store.close()


def _open(url: str, clock: ManualClock) -> Store:
    # Jobs of tests need not survive a power cut, so no commit waits for the disk.
    url = database_url(url)
    is_file = url.startswith("sqlite:")
    store = TemporaryStore(url, clock=clock, synchronous="NORMAL") if is_file else open_store(url, clock=clock)
    empty: Callable[[], None] | None = getattr(store, "empty", None)
    if empty is None:
        raise BadOption("url", store.where, "its jobs would be deleted, and no name says that they may be: use SQLite")
    may_have_jobs = not is_file or store.jobs(EVERYTHING, 1).jobs
    if may_have_jobs and "test" not in PurePath(urlsplit(store.where).path).name:
        raise BadOption("url", store.where, "its jobs would be deleted: name a database with `test` in its name")
    empty()
    return store
