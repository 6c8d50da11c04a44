"""An app on a SQLite file of its own. When the test is over, its books must balance."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.conformance.helpers import check_books
from tests.worker import process_jobs
from windlass import Windlass
from windlass.stores import open_store
from windlass.testing import ManualClock


@pytest.fixture(autouse=True)
def _looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cancelled jobs and progress are looked at every half second; tests have less time."""
    monkeypatch.setattr("windlass.worker.worker.FLAGS", 0.02)


@pytest.fixture
def wl(windlass_url: str) -> Iterator[Windlass]:
    app = Windlass(windlass_url, synchronous="NORMAL")
    yield app
    check_books(app.store)
    app.close()


@pytest.fixture
def timed(windlass_url: str, windlass_clock: ManualClock) -> Iterator[Windlass]:
    """An app whose time is the test's."""
    app = Windlass(windlass_url, synchronous="NORMAL", clock=windlass_clock)
    yield app
    check_books(app.store)
    app.close()


@pytest.fixture
def in_children(windlass_url: str) -> Iterator[Windlass]:
    """The app of `process_jobs`, on this test's database."""
    app, before = process_jobs.wl, process_jobs.wl.store
    app.use(open_store(windlass_url, synchronous="NORMAL"))
    yield app
    check_books(app.store)
    app.close()
    app.use(before)
