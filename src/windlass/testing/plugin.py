"""Fixtures for pytest, which finds them by itself where windlass is installed.

In a `conftest.py`, so that no test of an app can touch its real database:

    @pytest.fixture(autouse=True)
    def jobs(windlass_temporary):
        windlass_temporary(wl)

For an app on PostgreSQL, give the URL of a database for tests, from which all jobs are deleted before each:

    @pytest.fixture
    def windlass_url():
        return "postgresql://localhost/shop_test"
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from windlass import Windlass
    from windlass.testing.clock import ManualClock


@pytest.fixture
def windlass_url(tmp_path: Path) -> str:
    """The URL of a SQLite file that is this test's own: `Windlass(windlass_url)`. Override it for another database."""
    return f"sqlite:///{tmp_path}/windlass.db"


@pytest.fixture
def windlass_clock() -> ManualClock:
    """A clock that stands still until `.advance(seconds)`."""
    from windlass.testing.clock import ManualClock

    return ManualClock()


@pytest.fixture
def windlass_temporary(windlass_url: str, windlass_clock: ManualClock) -> Iterator[Callable[[Windlass], None]]:
    """Call it with your app: for this test, the app's jobs are in `windlass_url`, and its time is `windlass_clock`."""
    from windlass.testing.temporary import temporary

    with ExitStack() as stack:

        def use(wl: Windlass) -> None:
            stack.enter_context(temporary(wl, clock=windlass_clock, url=windlass_url))

        yield use
