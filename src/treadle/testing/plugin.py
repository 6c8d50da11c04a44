"""Fixtures for pytest, which finds them wherever treadle is installed.

In a `conftest.py`, so that no test of an app can touch its real database:

    @pytest.fixture(autouse=True)
    def jobs(treadle_temporary):
        treadle_temporary(td)

For an app that shares transactions with its jobs, return the URL of its own database for tests. All jobs in it are
deleted before each test, so its name must contain `test`:

    @pytest.fixture
    def treadle_url():
        return "postgresql://localhost/shop_test"
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from treadle import Treadle
    from treadle.testing.temporary import ManualClock


@pytest.fixture
def treadle_url(tmp_path: Path) -> str:
    """The URL of a SQLite file that is this test's own: `Treadle(treadle_url)`. Override it for another database."""
    return f"sqlite:///{tmp_path}/treadle-test.db"


@pytest.fixture
def treadle_clock() -> ManualClock:
    """A clock that does not move until `.advance(seconds)`."""
    from treadle.testing.temporary import ManualClock

    return ManualClock()


@pytest.fixture
def treadle_temporary(treadle_url: str, treadle_clock: ManualClock) -> Iterator[Callable[[Treadle], None]]:
    """Call it with your app: for this test, the app's jobs are in `treadle_url`, and its time is `treadle_clock`."""
    from treadle.testing.temporary import temporary

    with ExitStack() as stack:

        def use(td: Treadle) -> None:
            stack.enter_context(temporary(td, clock=treadle_clock, url=treadle_url))

        yield use
