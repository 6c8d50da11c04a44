"""How recommended commands name the program that the user calls."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from treadle.cli.base import Shared
from treadle.program import Program, as_called, program, use_program
from treadle.reasons import Reason, ReasonCode

MANAGE = Program("python manage.py treadle", "project:td", "python manage.py migrate", "GRANT CREATE")


@pytest.fixture
def in_django() -> Iterator[None]:
    before = program()
    use_program(MANAGE)
    yield
    use_program(before)


@pytest.mark.usefixtures("in_django")
@pytest.mark.parametrize(
    ("text", "called"),
    [
        ("start one: treadle worker app:td", "start one: python manage.py treadle worker"),
        (
            "raise it: treadle limits set a --concurrency N",
            "raise it: python manage.py treadle limits set a --concurrency N",
        ),
        ("run this type with `treadle worker`", "run this type with `treadle worker`"),
        ("run: treadle db upgrade", "run: python manage.py migrate"),
        ("treadle db upgrade --db sqlite:///a.db", "python manage.py treadle db upgrade --db sqlite:///a.db"),
        ("run: treadle db upgrade (or treadle db sql | psql)", "run: GRANT CREATE; then: python manage.py migrate"),
    ],
)
def test_a_text_names_the_program(text: str, called: str) -> None:
    assert as_called(text) == as_called(called) == called


@pytest.mark.usefixtures("in_django")
def test_a_hint_names_it_once_with_the_options_of_the_call() -> None:
    reason = Reason(ReasonCode.NO_WORKER, "none", "start one: treadle worker app:td")
    assert Shared(target="project:td").hint(reason.way_out) == "start one: python manage.py treadle worker"
    hint = Shared(db="sqlite:///b.db").hint(as_called("treadle jobs ls"))
    assert hint == "python manage.py treadle --db sqlite:///b.db jobs ls"


def test_treadle_itself_changes_no_text() -> None:
    text = "start one: treadle worker app:td, or run: treadle db upgrade"
    assert as_called(text) == text
