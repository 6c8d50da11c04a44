"""Your own app on a database that is gone after the test."""

from __future__ import annotations

import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from urllib.parse import urlsplit

from treadle.app import Treadle
from treadle.errors import BadOption
from treadle.stores import open_store
from treadle.stores.base import Store
from treadle.testing.clock import ManualClock


@contextmanager
def temporary(td: Treadle, *, clock: ManualClock | None = None, url: str | None = None) -> Generator[ManualClock]:
    """Inside the block, `td` keeps its jobs in a temporary SQLite file and takes the time from the clock it gives.

    `clock`: one of yours, to share it between apps. `url`: a database of yours, which is not removed. If that is on
    PostgreSQL, all jobs in it are deleted when the block begins: it has to have `test` in its name.
    """
    clock = clock or ManualClock()
    before = td.store
    with tempfile.TemporaryDirectory(prefix="treadle-", ignore_cleanup_errors=True) as folder:
        store = _open(url or f"sqlite:///{folder}/treadle.db", clock)
        td._use(store)
        try:
            yield clock
        finally:
            td._use(before)
            store.close()


def _open(url: str, clock: ManualClock) -> Store:
    if url.startswith("sqlite:"):
        # Nobody needs these jobs after a power cut, so no commit waits for the disk.
        return open_store(url, synchronous="NORMAL", clock=clock)
    store = open_store(url, clock=clock)
    if not store.where.startswith("postgres"):
        raise BadOption("url", store.where, "its jobs would be deleted, and no name says that they may be: use SQLite")
    if "test" not in urlsplit(store.where).path:
        raise BadOption("url", store.where, "its jobs would be deleted: name a database with `test` in its name")
    if (empty := getattr(store, "empty", None)) is not None:
        empty()
    return store
