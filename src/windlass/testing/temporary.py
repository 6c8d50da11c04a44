"""Your own app on a database that is gone after the test."""

from __future__ import annotations

import tempfile
from collections.abc import Generator
from contextlib import contextmanager

from windlass.app import Windlass
from windlass.stores import open_store
from windlass.testing.clock import ManualClock


@contextmanager
def temporary(wl: Windlass, *, clock: ManualClock | None = None, url: str | None = None) -> Generator[ManualClock]:
    """Inside the block, `wl` keeps its jobs in a temporary SQLite file and takes the time from the clock it gives.

    `clock`: one of yours, to share it between apps. `url`: a database of yours, which is not removed.
    """
    clock = clock or ManualClock()
    before = wl.store
    with tempfile.TemporaryDirectory(prefix="windlass-", ignore_cleanup_errors=True) as folder:
        url = url or f"sqlite:///{folder}/windlass.db"
        # Nobody needs these jobs after a power cut, so no commit waits for the disk. (A server decides that by itself.)
        synchronous = "NORMAL" if url.startswith("sqlite:") else "FULL"
        store = open_store(url, synchronous=synchronous, clock=clock)
        wl.use(store)
        try:
            yield clock
        finally:
            wl.use(before)
            store.close()
