from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.process.handlers import wl
from tests.process.harness import Place


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    """A database, journals and processes that are gone when the test is over."""
    before = wl.store
    place = Place(tmp_path)
    try:
        yield place
    finally:
        place.clean_up()
        wl.use(before)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """On a machine that does much else too, a storm takes minutes; what hangs is told by `eventually`."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.timeout(600))
