"""What a worker logs after `treadle copy --cutover` has closed its database."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest

from tests.eventually import eventually
from tests.worker.helpers import working
from treadle import Treadle
from treadle.errors import StoreBusy
from treadle.stores import open_store
from treadle.stores.copying import Tables
from treadle.worker import chores, parts, worker

PLACE = "sqlite:////srv/new.db"


@pytest.fixture
def source(td: Treadle) -> Iterator[Tables]:
    store: Any = open_store(td.store.url)
    store.opens_moved = True
    tables = Tables(cast(Any, store))
    yield tables
    tables.reopen()
    store.close()


@pytest.fixture
def refusals(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the parts of a worker would have logged."""
    found: list[str] = []
    warn = parts.warn
    monkeypatch.setattr(parts, "_logged_at", {})  # tests share a server

    def noted(text: str, error: Exception) -> None:
        warn(text, error)
        found.append(text)

    for module in (chores, worker):
        monkeypatch.setattr(module, "parts", type("parts", (), {"warn": staticmethod(noted)}))
    return found


def is_done(close: Callable[[], None]) -> bool:
    """Whether a source could be closed: that waits only briefly for the transactions of others."""
    try:
        close()
    except StoreBusy:
        return False
    return True


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if PLACE in record.getMessage()]


@pytest.mark.parametrize("is_quiet", [True, False])
def test_a_worker_logs_once_where_its_jobs_are(
    td: Treadle, source: Tables, refusals: list[str], caplog: pytest.LogCaptureFixture, is_quiet: bool
) -> None:
    @td.job
    def work() -> None: ...

    with caplog.at_level(logging.WARNING, "treadle"), working(td, beat=0.05) as background:
        if is_quiet:
            td.quiet(background.worker.id)
            eventually(lambda: is_done(lambda: source.close(PLACE, td.store.now())))
        else:
            eventually(lambda: is_done(lambda: source.close_claims(PLACE)))
            work.enqueue()
        eventually(lambda: len(refusals) >= 3)
    assert ["this worker runs nothing any more"] == [line.partition(":")[0] for line in said(caplog)]


def test_it_is_logged_again_after_a_minute(
    td: Treadle,
    source: Tables,
    refusals: list[str],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(parts, "LOG_EVERY", 0.0)
    with caplog.at_level(logging.WARNING, "treadle"), working(td, beat=0.05):
        eventually(lambda: is_done(lambda: source.close(PLACE, td.store.now())))
        eventually(lambda: len(said(caplog)) >= 2)
