"""Declaring jobs: what is refused, and with which message."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

from tests.worker.helpers import now
from treadle import Context, Limit, Registry, Treadle, TreadleError
from treadle.errors import BadHandler, BadOption, DuplicateType, UnknownType
from treadle.testing import drain


def test_the_type_is_the_functions_name_unless_another_is_given(td: Treadle) -> None:
    @td.job
    def podcast_import() -> None: ...

    @td.job(type="podcast.refresh")
    def refresh() -> None: ...

    assert (podcast_import.enqueue().type, refresh.enqueue().type) == ("podcast_import", "podcast.refresh")
    assert repr(refresh) == "<job podcast.refresh>"
    assert ("podcast_import" in td.registry, len(td.registry)) == (True, 2)


def test_a_type_is_declared_once(td: Treadle) -> None:
    def work() -> None: ...

    td.job(work)
    with pytest.raises(DuplicateType, match=r"registered already, by tests\.worker\.test_registration.*work_2"):
        td.job(work)


def test_a_limit_means_the_same_for_all_types_of_an_app(td: Treadle) -> None:
    def work() -> None: ...

    def other() -> None: ...

    of_tenants, of_subjects = Limit("prov", 1, per="tenant"), Limit("prov", 50, per="subject")
    both = r"limits=Limit\(name='prov', concurrency=50.*type 'work' declares Limit\(name='prov', concurrency=1,"
    td.job(limits=[of_tenants])(work)
    with pytest.raises(BadOption, match=both):
        td.job(limits=[of_subjects])(other)
    registry = Registry()
    registry.job(limits=[of_subjects])(other)
    with pytest.raises(BadOption, match=both):
        td.include(registry)
    assert (list(td.registry.types), registry.app) == (["work"], None)
    same = Registry()
    td.include(same)
    same.job(limits=[Limit("prov", 1, per="tenant")])(other)
    with pytest.raises(BadOption, match=both):
        same.job(limits=[of_subjects], type="third")(other)


def takes_many(*args: int) -> None: ...


def takes_anything(**kwargs: int) -> None: ...


def takes_by_position(a: int, /) -> None: ...


def yields() -> Iterator[int]:
    yield 1


async def yields_slowly() -> AsyncIterator[int]:
    yield 1


class NoFunction:
    pass


@pytest.mark.parametrize(
    ("handler", "problem"),
    [
        (takes_many, r"it takes \*args; use named parameters"),
        (takes_anything, r"it takes \*\*kwargs"),
        (takes_by_position, "'a' is positional-only"),
        (lambda: None, "it has no name; give it one"),
        (yields, "it is a generator; return the result"),
        (yields_slowly, "it is a generator"),
        (NoFunction, "it is not a function"),
        (17, "it is not a function"),
    ],
)
def test_a_function_that_a_json_object_cannot_call_is_refused(td: Treadle, handler: Any, problem: str) -> None:
    with pytest.raises(BadHandler, match=problem):
        td.job()(handler)
    assert len(td.registry) == 0


def test_a_lambda_with_a_type_is_a_job(td: Treadle) -> None:
    answer: Callable[[], int] = lambda: 42  # noqa: E731
    job = td.job(type="answer")(answer).enqueue()
    drain(td)
    assert now(td, job).result == 42


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"concurrency": 0}, "concurrency=0: use a whole number, at least 1"),
        ({"concurrency": 1.5}, "at least 1"),
        ({"max_attempts": 0}, "max_attempts=0"),
        ({"max_attempts": True}, "max_attempts=True"),
        ({"timeout": 0}, "seconds, more than 0"),
        ({"timeout": "5"}, "seconds, more than 0"),
        ({"priority": "high"}, "a whole number"),
        ({"queue": ""}, "cannot be empty"),
        ({"type": "x" * 201}, "at most 200 characters"),
        ({"type": "a\0b"}, "at most 200 characters"),
        ({"backoff": "soon"}, "pass exponential"),
        ({"dedupe": "one"}, "with one key for all jobs there is only one job"),
        ({"run": "fiber"}, "choose 'auto', 'thread' or 'process'"),
    ],
)
def test_options_that_cannot_work_are_refused_where_they_are_written(
    td: Treadle, options: dict[str, Any], text: str
) -> None:
    def work() -> None: ...

    with pytest.raises(BadOption, match=text):
        td.job(**options)(work)
    assert len(td.registry) == 0


def test_an_async_handler_cannot_run_in_a_thread(td: Treadle) -> None:
    async def work() -> None: ...

    with pytest.raises(BadOption, match="an async def runs on the event loop"):
        td.job(run="thread")(work)


def test_an_unknown_option_is_refused_with_a_suggestion(td: Treadle) -> None:
    def work() -> None: ...

    with pytest.raises(TypeError, match="did you mean 'concurrency'"):
        td.job(concurency=3)(work)  # type: ignore[call-overload]


def test_an_unknown_type_is_reported_with_a_suggestion(td: Treadle) -> None:
    @td.job
    def resize() -> None: ...

    with pytest.raises(UnknownType, match="did you mean 'resize'"):
        td.registry["rezise"]
    with pytest.raises(UnknownType, match="import the module that does"):
        td.registry["mail"]


def test_jobs_declared_elsewhere_are_included(td: Treadle) -> None:
    registry = Registry()

    @registry.job(max_attempts=2)
    def work(ctx: Context, n: int) -> list[int]:
        return [n, ctx.max_attempts]

    td.include(registry)
    job = work.enqueue(n=1)
    drain(td)
    assert now(td, job).result == [1, 2]


def test_a_registry_belongs_to_one_app(td: Treadle, tmp_path: Any) -> None:
    registry, other = Registry(), Treadle(f"sqlite:///{tmp_path}/other.db")
    td.include(registry)
    with pytest.raises(TreadleError, match=rf"belongs to <Treadle {re.escape(td.store.where)}> already"):
        other.include(registry)


def test_an_include_with_a_type_that_exists_changes_nothing(td: Treadle) -> None:
    registry = Registry()

    @registry.job
    def fresh() -> None: ...

    @registry.job(type="work")
    def theirs() -> None: ...

    @td.job(type="work")
    def ours() -> None: ...

    with pytest.raises(DuplicateType):
        td.include(registry)
    assert registry.app is None
    assert "fresh" not in td.registry


def test_jobs_declared_after_the_include_belong_to_the_app_too(td: Treadle) -> None:
    registry = Registry()
    td.include(registry)

    @registry.job
    def late() -> str:
        return "ran"

    job = late.enqueue()
    drain(td)
    assert now(td, job).result == "ran"


def test_including_a_registry_twice_is_not_an_error(td: Treadle) -> None:
    registry = Registry()

    @registry.job
    def work() -> None: ...

    td.include(registry)
    td.include(registry)
    assert len(td.registry) == 1


def test_a_registry_may_include_another(td: Treadle) -> None:
    inner, outer = Registry(), Registry()

    @inner.job
    def work() -> str:
        return "ran"

    outer.include(inner)
    td.include(outer)

    @inner.job
    def late() -> str:
        return "ran too"

    jobs = [work.enqueue(), late.enqueue()]
    drain(td)
    assert [now(td, job).result for job in jobs] == ["ran", "ran too"]
