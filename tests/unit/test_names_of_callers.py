"""Calls that take a name or a list of names say so if they get something else. The check is in front of all stores, so
that one database shows it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from treadle import Treadle
from treadle.errors import BadOption


@pytest.fixture
def td(tmp_path: Path) -> Iterator[Treadle]:
    app = Treadle(f"sqlite:///{tmp_path}/jobs.db")
    yield app
    app.close()


def test_a_text_in_place_of_a_list_of_names_is_an_error(td: Treadle) -> None:
    """It would be taken for its letters: queues that do not exist, of which nothing is ever claimed."""
    td.enqueue("mail", queue="fast")
    with pytest.raises(BadOption, match=r"queues='fast': a list of names, such as \['mail'\]"):
        td.worker(queues="fast")
    with pytest.raises(BadOption, match=r"queues='fast': a list of names"):
        td.claim(queues="fast")
    with pytest.raises(BadOption, match=r"types='mail': a list of names"):
        td.claim(types="mail")
    assert td.worker(queues=["fast"]).queues == ("fast",)
    [lease] = td.claim(types=["mail"], queues=("fast",))
    lease.release()


def test_a_function_in_a_list_of_types_is_an_error(td: Treadle) -> None:
    @td.job
    def mail(to: str) -> None: ...

    wrong: Any = [mail]
    with pytest.raises(BadOption, match=r"types=<job mail>: use a string"):
        td.claim(types=wrong)
