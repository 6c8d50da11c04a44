"""The names, hashes and types of steps."""

from __future__ import annotations

from collections.abc import Awaitable
from dataclasses import dataclass
from datetime import date, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from treadle import Context, Fail, Treadle
from treadle.context import Run
from treadle.errors import BadOption, BadStep
from treadle.ids import new_id
from treadle.job import NewJob
from treadle.run_steps import RunSteps, StepCall, hash_of
from treadle.signature import returned
from treadle.steps import MOST_STEPS, Step
from treadle.stores.base import ClaimRequest


@dataclass
class Plan:
    pages: list[int]
    by: date


@pytest.fixture
def run(tmp_path: Path) -> Run:
    td = Treadle(f"sqlite:///{tmp_path}/jobs.db")
    td.store.insert([NewJob(id=new_id(), type="work")])
    [claimed] = td.store.claim("", ClaimRequest(limit=1, lease_for=60_000_000))
    return Run(claimed, td.store, saver=td._step_saver)


@pytest.fixture
def steps(run: Run) -> RunSteps:
    assert run.saver is not None
    return run.saver.steps_of(run)


def test_a_repeated_name_gets_a_number(steps: RunSteps) -> None:
    asked = ["a", "a", "b", "a#2", "a", "c#2", "c", "c"]
    names = [steps.call(name, int, (), {}).name for name in asked]
    assert names == ["a", "a#2", "b", "a#2#2", "a#3", "c#2", "c", "c#3"]


@pytest.mark.parametrize("name", ["", None, 1, "x" * 201, "a\0b"])
def test_a_bad_name_is_refused(run: Run, name: Any) -> None:
    with pytest.raises(BadOption):
        Context(run).step(name, int)


@pytest.mark.parametrize(
    ("args", "kwargs", "same"),
    [
        ((1, "x"), {}, ((1, "x"), {})),
        ((), {"a": 1, "b": 2}, ((), {"b": 2, "a": 1})),
        (({"a": 1, "b": {2, 3}},), {}, (({"b": {3, 2}, "a": 1},), {})),
        ((object(), 1), {}, ((object(), 1), {})),
        ((Plan([1], date(2026, 1, 1)),), {}, ((Plan([1], date(2026, 1, 1)),), {})),
    ],
)
def test_equal_arguments_have_one_hash(steps: RunSteps, args: Any, kwargs: Any, same: Any) -> None:
    first, second = steps.call("s", print, args, kwargs), steps.call("s", print, *same)
    assert first.arguments == second.arguments != ""
    assert steps.call("s", print, (*args, 1), kwargs).arguments != first.arguments


def test_arguments_without_a_json_form_have_no_hash() -> None:
    endless: list[Any] = []
    endless.append(endless)
    assert hash_of([]) == hash_of([(0, object())]) == hash_of([("a", endless)]) == ""


def plan() -> Plan: ...  # type: ignore[empty-body]
async def text() -> str: ...  # type: ignore[empty-body]
def later() -> Awaitable[int]: ...  # type: ignore[empty-body]
def unresolved() -> Nowhere: ...  # type: ignore[name-defined]  # noqa: F821


class Client:
    def get(self, url: str) -> bytes: ...  # type: ignore[empty-body]


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (plan, Plan),
        (partial(plan), Plan),
        (text, str),
        (later, int),
        (Client().get, bytes),
        (Plan, Plan),
        (unresolved, Any),
        (lambda: 1, Any),
        (len, Any),
    ],
)
def test_what_a_function_returns_is_its_annotation(function: Any, expected: Any) -> None:
    assert returned(function) == expected


@pytest.mark.parametrize("value", [Plan([1, 2], date(2026, 11, 1)), Plan([], date(1, 1, 1))])
def test_a_value_comes_back_as_it_was(run: Run, value: Plan) -> None:
    call = StepCall(run, "plan", plan, "")
    step, back = call.done(value)
    assert back == value
    assert step.value.startswith('{"pages":')


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ((1, 2), "annotate what the function returns"),
        ({1: 2}, "annotate what the function returns"),
        (datetime(2026, 1, 1), "annotate what the function returns"),
        (float("nan"), "JSON has no NaN"),
        (object(), "cannot be stored as JSON"),
        ("x" * (1 << 20), "the limit is 1,048,576"),
    ],
)
def test_a_value_that_would_change_fails_the_job(run: Run, value: Any, expected: str) -> None:
    with pytest.raises(Fail, match=expected) as raised:
        StepCall(run, "plan", lambda: value, "").done(value)
    assert str(raised.value).startswith("step 'plan' returned what cannot be stored")


def test_a_stored_value_that_no_longer_fits_is_an_error_that_names_the_step(run: Run) -> None:
    now = datetime(2026, 1, 1)
    stored = Step(name="p", kind="step", value={"pages": "x"}, arguments="", attempt=1, started_at=now, ended_at=now)
    with pytest.raises(BadStep, match=r"step 'p': its stored value no longer fits .* rename the step"):
        StepCall(run, "p", plan, "").value(stored)


def test_a_job_stores_so_many_steps(run: Run, steps: RunSteps) -> None:
    steps._count = MOST_STEPS - 1
    assert Context(run).step("last", int) == 0
    with pytest.raises(BadStep, match="10,000 steps"):
        Context(run).step("one more", int)
